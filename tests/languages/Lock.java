// A native lock over Jedis: `java -cp 'jedis.jar:…' Lock.java HOST:PORT`.
import java.util.UUID;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;

class Lock {
    static final long LEASE_MS = 30_000;

    /**
     * Waits in the lock's queue. Returns the fencing token; null if the wait, of at least a millisecond, is over. The wait has a
     * connection of its own, whose read time-out is longer than the wait. When it breaks, the same request is sent again: the server
     * grants it once.
     */
    static Long acquire(String host, int port, String name, String owner, long waitMs) throws InterruptedException {
        String request = UUID.randomUUID().toString();
        long end = System.nanoTime() / 1_000_000 + waitMs;
        for (long left; (left = end - System.nanoTime() / 1_000_000) > 0; Thread.sleep(50)) {
            try (Jedis own = new Jedis(host, port, 2000, (int) left + 5000)) {
                return (Long) own.sendCommand(() -> "LOCK.ACQUIRE".getBytes(),
                        name, owner, "" + LEASE_MS, "WAIT", "" + left, "REQUEST", request);
            } catch (JedisConnectionException broken) {
                // The next attempt has the same request id.
            }
        }
        return null;
    }

    /** Restarts the lease, at each third of it. The exception of NOTHELD says that the lock is lost. */
    static void renew(Jedis jedis, String name, String owner, long token) {
        jedis.sendCommand(() -> "LOCK.RENEW".getBytes(), name, owner, "" + LEASE_MS, "TOKEN", "" + token);
    }

    /** Ends the grant with this token, and no later one. */
    static void release(Jedis jedis, String name, String owner, long token) {
        jedis.sendCommand(() -> "LOCK.RELEASE".getBytes(),
                name, owner, "TOKEN", "" + token, "REQUEST", UUID.randomUUID().toString());
    }

    public static void main(String[] args) throws Exception {
        String[] address = args[0].split(":");
        int port = Integer.parseInt(address[1]);
        String owner = UUID.randomUUID().toString();
        Long token = acquire(address[0], port, "order:42", owner, 10_000);
        if (token == null) System.exit(1);
        System.out.println("token " + token);
        try (Jedis jedis = new Jedis(address[0], port)) {
            renew(jedis, "order:42", owner, token);
            System.out.println("renewed");
            release(jedis, "order:42", owner, token);
            System.out.println("released");
        }
    }
}
