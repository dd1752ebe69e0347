//! The scripts of Redisson's reentrant lock, as it sends them.

/// Takes the lock: four calls where the owner holds it already, three where nobody does. Gives nil, or what is left of the lease.
pub const ACQUIRE: &str = "\
if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
return redis.call('pttl', KEYS[1]);";
/// SHA-1 of [`ACQUIRE`].
pub const ACQUIRE_SHA: &str = "149c5a8bf18676fd99e9e6e24923bd64d9b62f94";
/// Gives it back: three calls where the owner goes on holding it, four with a message to those who wait where not.
pub const RELEASE: &str = "\
if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;";
/// SHA-1 of [`RELEASE`].
pub const RELEASE_SHA: &str = "3420c671e4f6921b37d8c938ec1cbcb8e283bb70";
