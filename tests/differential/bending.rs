//! Bends calls out of shape, and keeps calls away from differences that no rule covers.

use crate::common::random::Random;
use crate::generate::{Call, Generator, upper};
use crate::values::JUNK;

impl Generator<'_> {
    /// Replaces scores that Redis versions parse differently.
    pub fn keep_scores_alike(&self, call: &mut Call) {
        let scored = ["Z", "GEO"].iter().any(|start| upper(&call[0]).starts_with(start));
        if !self.catalogue.strtod && scored {
            call.iter_mut().filter(|arg| only_strtod_reads(arg)).for_each(|arg| *arg = b"7".to_vec());
        }
    }
}

/// Whether a score, perhaps with a `(` in front, is parsed differently by `strtod` and by later functions.
fn only_strtod_reads(arg: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(arg.strip_prefix(b"(").unwrap_or(arg)) else { return false };
    let unsigned = text.trim_start().trim_start_matches(['+', '-']).to_ascii_lowercase();
    let value: f64 = unsigned.trim_end().parse().unwrap_or(1.0);
    let named = unsigned.starts_with('i');
    let zero = unsigned.bytes().take_while(|b| *b != b'e').all(|b| b == b'0' || b == b'.');
    unsigned.starts_with("0x") || text.starts_with(' ') || (value.is_infinite() && !named) || (value == 0.0 && !zero)
}

/// Makes a call wrong, or at least strange.
pub fn bend(call: &mut Call, random: &mut Random) {
    let any = |call: &Call, random: &mut Random| 1 + random.below(call.len().max(2) as u64 - 1) as usize;
    let at = any(call, random);
    if call.len() < 2 {
        call.push(random.pick(JUNK).to_vec());
        return;
    }
    match random.below(7) {
        0 => drop(call.remove(at)),
        1 => call.insert(at, call[at].clone()),
        2 => call.insert(at + random.below(2) as usize, random.pick(JUNK).to_vec()),
        3 => call[at] = random.pick(JUNK).to_vec(),
        4 => match call[at].last_mut() {
            Some(byte) => *byte = byte.wrapping_add(1),
            None => call[at] = b"x".to_vec(),
        },
        5 => {
            let other = any(call, random);
            call.swap(at, other);
        }
        _ => call.truncate(at),
    }
}

/// Ensures that no deadline falls into the test's run time, because the key would expire on one server earlier than on the other.
/// A time that is neither in the past nor far in the future is moved to the far future.
pub fn keep_deadlines_apart(call: &mut Call, past: bool) {
    // Every position is checked, because a call may contain another call.
    const AFTER_KEY: [&str; 10] =
        ["EXPIRE", "PEXPIRE", "SETEX", "PSETEX", "HEXPIRE", "HPEXPIRE", "EXPIREAT", "PEXPIREAT", "HEXPIREAT", "HPEXPIREAT"];
    const BEFORE: [&str; 4] = ["EX", "PX", "EXAT", "PXAT"];
    for at in 1..call.len() {
        let word = |back: usize| at.checked_sub(back).map(|i| upper(&call[i])).unwrap_or_default();
        let timed = BEFORE.contains(&word(1).as_str()) || AFTER_KEY.contains(&word(2).as_str());
        let Some(n) = std::str::from_utf8(&call[at]).ok().and_then(|t| t.parse::<i64>().ok()) else { continue };
        let absolute = word(1).ends_with("XAT") || word(2).ends_with("AT");
        let moved = match absolute {
            _ if !timed => continue,
            false if (1..200_000).contains(&n) => n + 300_000_000,
            true if !past && (1..3_000_000_000).contains(&n) => n + 5_000_000_000_000,
            true if (1_500_000_000..3_000_000_000).contains(&n) => n + 5_000_000_000_000,
            _ => continue,
        };
        call[at] = moved.to_string().into_bytes();
    }
}
