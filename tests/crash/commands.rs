//! Requests of a history: what clients of locks send, on few names, so that they meet.

use crate::random::Random;

/// A request's arguments.
pub type Request = Vec<Vec<u8>>;

/// The reentrant lock of Redisson.
const ENTER: &str = "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then \
    redis.call('hincrby', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) \
    return tonumber(redis.call('hget', KEYS[1], ARGV[1])) end return -1";
/// Several keys in one step.
const MOVE: &str = "local v = redis.call('incr', KEYS[1]) redis.call('set', KEYS[2], v) redis.call('rpush', KEYS[3], v) return v";

/// Number of connections.
pub const CONNECTIONS: u64 = 4;

fn words(text: &str) -> Request {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// The next requests of one connection, which belong together; mostly one. `number` tells them from all others.
pub fn draw(random: &mut Random, connection: u64, number: u64) -> Vec<Request> {
    let name = random.below(4);
    let owner = format!("o{connection}");
    let other = random.below(CONNECTIONS);
    let lease = *random.pick(&[1, 40, 300, 2_000, 30_000]);
    let wait = *random.pick(&[1, 50, 1_000]);
    let long = "x".repeat(random.below(900) as usize);
    let one = |text: String| vec![words(&text)];
    match random.below(40) {
        0 => one(format!("SET k{name} {number}{long}")),
        1 => one(format!("SET p{name} {owner} NX PX {lease}")),
        2 => one(format!("INCRBY n{name} {number}")),
        3 => one(format!("HSET h{name} f{other} {number}")),
        4 => one(format!("HINCRBY h{name} f{other} 1")),
        5 => one(format!("RPUSH l{name} {number} {number}")),
        6 => one(format!("LPOP l{name}")),
        7 => one(format!("ZADD z{name} {number} m{other}")),
        8 => one(format!("SADD s{name} m{number}")),
        9 => one(format!("XADD x{name} MAXLEN 5 * f {number}")),
        10 => one(format!("DEL k{name} h{other} l{other} p{name}")),
        11 => one(format!("PEXPIRE h{name} {lease}")),
        12 => one(format!("SREM s{name} m{other}")),
        13 => vec![vec![b"EVAL".to_vec(), ENTER.into(), b"1".to_vec(), format!("r{name}").into(), owner.into(), b"500".to_vec()]],
        14 => {
            let keys = [format!("n{name}"), format!("k{name}"), format!("l{name}")].map(String::into_bytes);
            vec![[vec![b"EVAL".to_vec(), MOVE.into(), b"3".to_vec()], keys.to_vec()].concat()]
        }
        15 | 16 => vec![
            words("MULTI"),
            words(&format!("SET k{name} {number}")),
            words(&format!("INCR n{other}")),
            words(&format!("LOCK.ACQUIRE m{name} {owner} {lease}")),
            words("EXEC"),
        ],
        17 => vec![words("SELECT 1"), words(&format!("SET k{name} {number}")), words("SELECT 0")],
        18 => match random.below(12) {
            0 => one("FLUSHDB".to_owned()),
            1 => one("SWAPDB 0 1".to_owned()),
            2 => vec![vec![
                b"FUNCTION".to_vec(),
                b"LOAD".to_vec(),
                b"REPLACE".to_vec(),
                format!("#!lua name=lib{other}\nredis.register_function('f{other}', function() return {number} end)").into(),
            ]],
            _ => one(format!("RENAMENX k{name} k{other}")),
        },
        19..22 => one(format!("LOCK.ACQUIRE a{name} {owner} {lease} REQUEST q{number}")),
        22 => one(format!("LOCK.ACQUIRE a{name} {owner} {lease} REQUEST q{}", number.saturating_sub(1))),
        23 => one(format!("LOCK.ACQUIRE a{name} {owner} {lease} WAIT {wait} REQUEST q{number}")),
        24 => one(format!("LOCK.ACQUIRE a{name} {owner} {lease} SHARED")),
        25..28 => one(format!("LOCK.RELEASE a{name} {owner} REQUEST q{number}")),
        28 => one(format!("LOCK.RENEW a{name} {owner} {lease}")),
        29 => one(format!("LOCK.ACQUIRE b{name} {owner} {lease} SESSION DELAY 50")),
        30 => one(format!("LOCK.SESSION id{connection} GRACE 700")),
        31 => one(format!("LOCK.ACQUIRE b{name} {owner} {lease} SESSION WAIT {wait}")),
        32 => one(format!("LOCK.RELEASE b{name} {owner} ALL")),
        33 | 34 => one(format!("SEM.ACQUIRE t{name} {owner} {lease} LIMIT 3 PERMITS {}", 1 + other % 3)),
        35 => one(format!("SEM.RELEASE t{name} {owner}")),
        36 => one(format!("LATCH.SET u{name} 3 PX {lease}")),
        37 => one(format!("LATCH.DOWN u{name}")),
        38 => one(format!("LOCK.GUARD g{name} {number}")),
        _ => one(format!("LOCK.ACQUIREALL 2 a{name} c{name} {owner} {lease}")),
    }
}
