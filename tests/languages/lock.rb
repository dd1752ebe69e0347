# A native lock over redis-rb: `ruby lock.rb HOST:PORT`.
require 'redis'
require 'securerandom'

LEASE_MS = 30_000

def now_ms = Process.clock_gettime(Process::CLOCK_MONOTONIC, :millisecond)

def connect(address, read_timeout: 5)
  # No retries of the client's own: they would not know how much of the wait is left.
  Redis.new(url: "redis://#{address}", timeout: 2, read_timeout: read_timeout, reconnect_attempts: 0)
end

# Waits in the lock's queue. Returns the fencing token; nil if the wait, of at least a millisecond, is over. The wait has a connection of
# its own, whose read time-out is longer than the wait. When it breaks, the same request is sent again: the server grants it once.
def acquire(address, name, owner, wait_ms)
  request = SecureRandom.uuid
  ends = now_ms + wait_ms
  while (left = ends - now_ms).positive?
    begin
      redis = connect(address, read_timeout: left / 1000.0 + 5)
      return redis.call('LOCK.ACQUIRE', name, owner, LEASE_MS, 'WAIT', left, 'REQUEST', request)
    rescue Redis::BaseConnectionError
      sleep 0.05
    ensure
      redis&.close
    end
  end
end

# Restarts the lease, at each third of it. The error NOTHELD says that the lock is lost.
def renew(redis, name, owner, token)
  redis.call('LOCK.RENEW', name, owner, LEASE_MS, 'TOKEN', token)
end

# Ends the grant with this token, and no later one.
def release(redis, name, owner, token)
  redis.call('LOCK.RELEASE', name, owner, 'TOKEN', token, 'REQUEST', SecureRandom.uuid)
end

owner = SecureRandom.uuid
token = acquire(ARGV[0], 'order:42', owner, 10_000) or abort 'not granted in time'
puts "token #{token}"
redis = connect(ARGV[0])
renew(redis, 'order:42', owner, token)
puts 'renewed'
release(redis, 'order:42', owner, token)
puts 'released'
