//! The scripts of Redisson's reentrant lock, as it sends them.

/// Acquires the lock with four calls if the owner holds it already, with three if it is free. Returns nil, or the rest of the
/// lease in milliseconds.
pub const ACQUIRE: &str = "\
if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
return redis.call('pttl', KEYS[1]);";
/// SHA-1 of [`ACQUIRE`].
pub const ACQUIRE_SHA: &str = "149c5a8bf18676fd99e9e6e24923bd64d9b62f94";
/// Releases the lock: with three calls if the owner still holds it afterwards, otherwise with four calls and a message to the
/// waiters.
pub const RELEASE: &str = "\
if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;";
/// SHA-1 of [`RELEASE`].
pub const RELEASE_SHA: &str = "3420c671e4f6921b37d8c938ec1cbcb8e283bb70";
