<?php
// A native lock over phpredis: `php lock.php HOST:PORT`.
const LEASE_MS = 30_000;

// A name that nobody else has, for an owner or a request.
function unique(): string
{
    return bin2hex(random_bytes(16));
}

function connect(string $address, float $readTimeoutS = 5.0): Redis
{
    [$host, $port] = explode(':', $address);
    $redis = new Redis();
    $redis->connect($host, (int) $port, 2.0, null, 0, $readTimeoutS);
    $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
    return $redis;
}

// phpredis returns false for an error reply, and keeps its text.
function command(Redis $redis, string ...$words)
{
    $redis->clearLastError();
    $reply = $redis->rawCommand(...$words);
    if ($redis->getLastError() !== null) {
        throw new DomainException($redis->getLastError());
    }
    return $reply;
}

// Waits in the lock's queue. Returns the fencing token; null if the wait, of at least a millisecond, is over. The wait has a connection
// of its own, whose read time-out is longer than the wait. When it breaks, the same request is sent again: the server grants it once.
function acquire(string $address, string $name, string $owner, int $waitMs): ?int
{
    $request = unique();
    $end = hrtime(true) + $waitMs * 1_000_000;
    while (($leftMs = intdiv($end - hrtime(true), 1_000_000)) > 0) {
        try {
            $redis = connect($address, $leftMs / 1000 + 5);
            $token = command($redis, 'LOCK.ACQUIRE', $name, $owner, (string) LEASE_MS, 'WAIT', (string) $leftMs, 'REQUEST', $request);
            $redis->close();
            return is_int($token) ? $token : null;
        } catch (RedisException) {
            usleep(50_000);
        }
    }
    return null;
}

// Restarts the lease, at each third of it. The exception of NOTHELD says that the lock is lost.
function renew(Redis $redis, string $name, string $owner, int $token): void
{
    command($redis, 'LOCK.RENEW', $name, $owner, (string) LEASE_MS, 'TOKEN', (string) $token);
}

// Ends the grant with this token, and no later one.
function release(Redis $redis, string $name, string $owner, int $token): void
{
    command($redis, 'LOCK.RELEASE', $name, $owner, 'TOKEN', (string) $token, 'REQUEST', unique());
}

$owner = unique();
$token = acquire($argv[1], 'order:42', $owner, 10_000) ?? exit(1);
echo "token $token\n";
$redis = connect($argv[1]);
renew($redis, 'order:42', $owner, $token);
echo "renewed\n";
release($redis, 'order:42', $owner, $token);
echo "released\n";
