//! Rate limits in scripts: a token bucket by the server's clock or by the caller's, a window in a hash, and a window in a
//! counter.
//!
//! Sliding windows are usually sorted sets of request times. Here the window is a hash of request ids with their times.

use redis::{Connection, Script};

use crate::{Arena, CLIENTS};

/// KEYS: the bucket. ARGV: capacity, tokens per second, tokens wanted, and optionally the caller's Unix time in milliseconds.
/// Returns whether the tokens were granted, and the milliseconds until the next attempt.
const BUCKET: &str = "
    local capacity, rate, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local now = tonumber(ARGV[4])
    if not now then
        local time = redis.call('TIME')
        now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
    local tokens, at = tonumber(state[1]) or capacity, tonumber(state[2]) or now
    tokens = math.min(capacity, tokens + math.max(0, now - at) * rate / 1000)
    local granted = tokens >= wanted
    if granted then tokens = tokens - wanted end
    redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', math.max(now, at))
    redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000))
    if granted then return {1, 0} end
    return {0, math.ceil((wanted - tokens) / rate * 1000)}";

/// KEYS: the log. ARGV: limit, window in milliseconds, id of the request. Returns whether the request may pass.
const WINDOW: &str = "
    local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local log = redis.call('HGETALL', KEYS[1])
    for i = 1, #log, 2 do
        if tonumber(log[i + 1]) <= now - window then redis.call('HDEL', KEYS[1], log[i]) end
    end
    if redis.call('HLEN', KEYS[1]) >= limit then return 0 end
    redis.call('HSET', KEYS[1], ARGV[3], now)
    redis.call('PEXPIRE', KEYS[1], window)
    return 1";

/// KEYS: the counter. ARGV: limit, window in milliseconds. Returns whether the request may pass.
const COUNTER: &str = "
    local n = redis.call('INCR', KEYS[1])
    if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return n <= tonumber(ARGV[1])";

fn bucket(connection: &mut Connection, key: &str, capacity: i64, rate: i64, wanted: i64, now: Option<i64>) -> (bool, u64) {
    let script = Script::new(BUCKET);
    let mut call = script.key(key);
    call.arg(capacity).arg(rate).arg(wanted);
    if let Some(now) = now {
        call.arg(now);
    }
    call.invoke(connection).unwrap()
}

/// Number of granted requests, if each of eight clients sends `each`.
fn granted(arena: &Arena, each: usize, request: impl Fn(usize, &mut Connection) -> bool + Sync) -> usize {
    let counts = arena.together(|client, connection| (0..each).filter(|n| request(client * each + n, connection)).count());
    counts.into_iter().sum()
}

#[test]
fn a_token_bucket_grants_its_burst_and_then_its_rate() {
    Arena::each_frozen("bucket", |arena| {
        let key = arena.key("api:orders");
        let take = |_: usize, connection: &mut Connection| bucket(connection, &key, 20, 5, 1, None).0;
        assert_eq!(granted(arena, 10, take), 20, "the burst");
        for _ in 0..10 {
            arena.advance_ms(1000);
            assert_eq!(granted(arena, 10, take), 5, "the rate");
        }
        assert_eq!(bucket(&mut arena.connect(), &key, 20, 5, 1, None), (false, 200), "when to try again");
        arena.advance_ms(199);
        assert!(!take(0, &mut arena.connect()));
        arena.advance_ms(1);
        assert!(take(0, &mut arena.connect()));
        arena.advance_ms(3_600_000);
        assert!(!arena.own().exists(&key), "a full bucket needs no key");
        assert_eq!(granted(arena, 10, take), 20, "it never holds more than its burst");
    });
}

#[test]
fn a_token_bucket_by_the_callers_clock_grants_the_same() {
    Arena::each("callers clock", |arena| {
        let key = arena.key("api");
        let start = 1_700_000_000_000;
        let at = |ms: i64| move |connection: &mut Connection, key: &str| bucket(connection, key, 100, 1, 1, Some(start + ms)).0;
        assert_eq!(granted(arena, 20, |_, connection| at(0)(connection, &key)), 100);
        assert_eq!(granted(arena, 5, |_, connection| at(4_000)(connection, &key)), 4);
        // A caller whose clock is behind neither removes nor refills tokens.
        assert_eq!(granted(arena, 5, |_, connection| at(-300_000)(connection, &key)), 0);
        // A caller whose clock is ahead fills the bucket for all callers: the flaw of this variant.
        assert_eq!(granted(arena, 20, |_, connection| at(300_000)(connection, &key)), 100);
    });
}

#[test]
fn limits_of_api_group_application_and_address_hold_side_by_side() {
    Arena::each_frozen("levels", |arena| {
        let levels =
            [("api", 40), ("group", 30), ("application", 20), ("address", 12)].map(|(name, limit)| (arena.key(name), limit));
        let passes = |_: usize, connection: &mut Connection| {
            levels.iter().all(|(key, limit)| bucket(connection, key, *limit, 1, 1, None).0)
        };
        assert_eq!(granted(arena, 10, passes), 12, "the narrowest one decides");
    });
}

#[test]
fn a_sliding_window_never_lets_more_than_its_limit_into_any_window() {
    Arena::each_frozen("window", |arena| {
        let key = arena.key("api");
        let mut passed: Vec<u64> = Vec::new();
        let mut now = 0;
        for step in 0..40 {
            let count = granted(arena, 3, |n, connection| {
                Script::new(WINDOW).key(&key).arg(10).arg(60_000).arg(format!("{step}-{n}")).invoke(connection).unwrap()
            });
            passed.extend(std::iter::repeat_n(now, count));
            let in_window = passed.iter().filter(|at| **at + 60_000 > now).count();
            assert_eq!(in_window, 10, "at {now} ms: all that may pass do, and no more");
            arena.advance_ms(7_000);
            now += 7_000;
        }
    });
}

#[test]
fn a_window_in_a_counter_begins_anew_when_its_key_ends() {
    Arena::each_frozen("counter", |arena| {
        let key = arena.key("address:10.0.0.1");
        let pass = |_: usize, connection: &mut Connection| {
            Script::new(COUNTER).key(&key).arg(25).arg(1_000).invoke::<Option<bool>>(connection).unwrap() == Some(true)
        };
        for _ in 0..5 {
            assert_eq!(granted(arena, 6, pass), 25);
            arena.advance_ms(999);
            assert_eq!(granted(arena, 1, pass), 0);
            arena.advance_ms(1);
        }
    });
}

#[test]
fn counting_loses_no_request() {
    Arena::each("counting", |arena| {
        let key = arena.key("requests");
        let each = 100;
        granted(arena, each, |_, connection| redis::cmd("INCR").arg(&key).query::<i64>(connection).is_ok());
        let total: usize = redis::cmd("GET").arg(&key).query(&mut arena.connect()).unwrap();
        assert_eq!(total, each * CLIENTS);
    });
}
