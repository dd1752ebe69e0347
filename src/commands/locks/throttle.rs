//! `CL.THROTTLE`: the generic cell rate algorithm, by the convention of redis-cell.
//!
//! The state is the theoretical arrival time: when the next request would be exactly on time. The key's deadline holds it,
//! rounded up to whole milliseconds, and the key's value holds the microseconds added by rounding. So the key expires as soon as
//! it carries no information, and a step of the system clock changes nothing.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::options::{integer, optional};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Natives, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("cl.throttle", throttle, "key max-burst count period [quantity]",
    "Counts a request against a rate limit and returns whether it is allowed.";
    group: Group::Lock, since: "Portcullis 0.1.0", flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST), keys: Keys::ONE,
    access: Access::ReadWrite, natives: Natives::Checked, ..Command::DEFAULT)]);

const THROTTLE: Event = Event::new(Classes::STRING, "cl.throttle");
/// Maximum time that a limit looks ahead, in microseconds: some 35 years.
const US_MAX: i128 = 1 << 50;

fn positive(text: &[u8], min: i64) -> Result<i64> {
    let number = integer(text)?;
    fail_if!(number < min, Error::new(format!("ERR value is out of range, must be at least {min}")));
    Ok(number)
}

/// The decision about a request, with the values of its reply.
struct Verdict {
    limited: bool,
    limit: i64,
    remaining: i64,
    retry_us: Option<i128>,
    reset_us: i128,
}

/// Decides about a request at `now_us`. Returns the verdict and the new theoretical arrival time.
fn decide(now_us: i128, on_time_us: i128, interval_us: i128, burst: i64, quantity: i64) -> (Verdict, i128) {
    let tolerance = interval_us * (i128::from(burst) + 1);
    let increment = interval_us * i128::from(quantity);
    let next = on_time_us.max(now_us) + increment;
    let early = next - tolerance - now_us;
    let limited = early > 0;
    let kept = if limited { on_time_us.max(now_us) } else { next };
    let ahead = kept - now_us;
    let remaining = ((tolerance - ahead) / interval_us).max(0);
    let verdict = Verdict {
        limited,
        limit: burst.saturating_add(1),
        remaining: i64::try_from(remaining).unwrap_or(i64::MAX),
        // A quantity above the limit never passes, however long the client waits.
        retry_us: (limited && increment <= tolerance).then_some(early),
        reset_us: ahead,
    };
    (verdict, kept)
}

fn throttle(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (burst, count, period) = (positive(args[2], 0)?, positive(args[3], 1)?, positive(args[4], 1)?);
    let quantity = optional(&args[5..])?.map_or(Ok(1), |quantity| positive(quantity, 0))?;
    // Rounded up, so that no more requests pass than the limit allows.
    let interval_us = (i128::from(period) * 1_000_000 + i128::from(count) - 1) / i128::from(count);
    if interval_us.saturating_mul(i128::from(burst) + 1) > US_MAX || interval_us.saturating_mul(i128::from(quantity)) > US_MAX {
        return Err(Error::new("ERR rate limit is out of range"));
    }
    let now_us = i128::from(cx.now.mono_us());
    let mut db = cx.db();
    let kept = match db.peek(args[1]) {
        None => now_us,
        Some(entry) => {
            let early = entry.bytes().ok_or(Error::WRONG_TYPE)?;
            let early = parse_i64(early).filter(|us| (0..1000).contains(us)).ok_or(Error::NOT_INTEGER)?;
            let deadline = entry.deadline().ok_or(Error::NOT_INTEGER)?;
            i128::from(deadline) * 1000 - i128::from(early)
        }
    };
    let (verdict, kept_after) = decide(now_us, kept, interval_us, burst, quantity);
    if !verdict.limited && kept_after > now_us && kept_after != kept {
        let deadline = (kept_after + 999) / 1000;
        let early = (deadline * 1000 - kept_after).to_string();
        db.put_string(args[1], early.as_bytes(), Ttl::At(deadline as u64), THROTTLE)?;
    }
    let seconds = |us: i128| i64::try_from((us + 999_999) / 1_000_000).unwrap_or(i64::MAX);
    cx.reply.array(5);
    cx.reply.integer(i64::from(verdict.limited));
    cx.reply.integer(verdict.limit);
    cx.reply.integer(verdict.remaining);
    cx.reply.integer(verdict.retry_us.map_or(-1, seconds));
    cx.reply.integer(seconds(verdict.reset_us));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn a_burst_is_let_through_and_then_one_an_interval() {
        let mut h = Harness::new();
        // A burst of fifteen more, thirty a minute.
        for left in (0..16).rev() {
            let reset = (16 - left) * 2;
            assert_eq!(h.run("CL.THROTTLE user 15 30 60 1"), format!("*5 :0 :16 :{left} :-1 :{reset}"));
        }
        assert_eq!(h.run("CL.THROTTLE user 15 30 60 1"), "*5 :1 :16 :0 :2 :32");
        h.pass(1_999);
        assert_eq!(h.run("CL.THROTTLE user 15 30 60"), "*5 :1 :16 :0 :1 :31");
        h.pass(1);
        assert_eq!(h.run("CL.THROTTLE user 15 30 60"), "*5 :0 :16 :0 :-1 :32");
        h.pass(32_000);
        assert_eq!(h.run("EXISTS user"), ":0");
        assert_eq!(h.run("CL.THROTTLE user 15 30 60 16"), "*5 :0 :16 :0 :-1 :32");
    }

    #[test]
    fn a_quantity_counts_as_so_many_and_none_only_asks() {
        let mut h = Harness::new();
        assert_eq!(h.run("CL.THROTTLE k 4 1 1 0"), "*5 :0 :5 :5 :-1 :0");
        assert_eq!(h.run("EXISTS k"), ":0");
        assert_eq!(h.run("CL.THROTTLE k 4 1 1 3"), "*5 :0 :5 :2 :-1 :3");
        assert_eq!(h.run("CL.THROTTLE k 4 1 1 3"), "*5 :1 :5 :2 :1 :3");
        assert_eq!(h.run("CL.THROTTLE k 4 1 1 6"), "*5 :1 :5 :2 :-1 :3");
        assert_eq!(h.run("CL.THROTTLE k 4 1 1 0"), "*5 :0 :5 :2 :-1 :3");
    }

    #[test]
    fn limits_finer_than_a_millisecond_are_kept() {
        let mut h = Harness::new();
        let mut let_through = 0;
        for _ in 0..100 {
            h.now.advance_us(100);
            while h.run("CL.THROTTLE k 0 5000 1").starts_with("*5 :0") {
                let_through += 1;
            }
        }
        assert_eq!(let_through, 50, "five thousand a second for a hundredth of one");
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        let mut h = Harness::new();
        h.script(&[
            ("CL.THROTTLE k 1 1", "-ERR wrong number of arguments for 'cl.throttle' command, usage: CL.THROTTLE key max-burst count period [quantity]"),
            ("CL.THROTTLE k 1 0 1", "-ERR value is out of range, must be at least 1"),
            ("CL.THROTTLE k x 1 1", "-ERR value is not an integer or out of range"),
            ("CL.THROTTLE k 1 1 1 1 1", "-ERR syntax error"),
            ("CL.THROTTLE k 9223372036854775807 1 9223372036854775807", "-ERR rate limit is out of range"),
            ("LPUSH l 1", ":1"),
            ("CL.THROTTLE l 1 1 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("SET s x", "+OK"),
            ("CL.THROTTLE s 1 1 1", "-ERR value is not an integer or out of range"),
        ]);
    }
}
