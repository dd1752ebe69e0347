//! The expiry options of many commands: `EX`, `PX`, `EXAT`, `PXAT`, `KEEPTTL`, `PERSIST`.

use crate::base::error::{Error, Result};
use crate::base::time::Now;
use crate::engine::command::options::integer;

/// The unit of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Milliseconds per unit.
    pub ms: i64,
    /// Whether the argument is a unix time instead of a time from now.
    pub absolute: bool,
}

impl Unit {
    /// `EX`
    pub const EX: Unit = Unit { ms: 1000, absolute: false };
    /// `PX`
    pub const PX: Unit = Unit { ms: 1, absolute: false };
    /// `EXAT`
    pub const EXAT: Unit = Unit { ms: 1000, absolute: true };
    /// `PXAT`
    pub const PXAT: Unit = Unit { ms: 1, absolute: true };

    /// The unit of an option, case-insensitive.
    #[inline]
    pub fn of_option(option: &[u8]) -> Option<Unit> {
        let [first, b'x' | b'X', rest @ ..] = option else { return None };
        let absolute = !rest.is_empty();
        if absolute && !rest.eq_ignore_ascii_case(b"AT") {
            return None;
        }
        match first {
            b'e' | b'E' => Some(Unit { absolute, ..Unit::EX }),
            b'p' | b'P' => Some(Unit { absolute, ..Unit::PX }),
            _ => None,
        }
    }

    /// The deadline for a number in this unit, in monotonic milliseconds; `None` if it has passed.
    ///
    /// Fails with Redis's error, which names `command`, if the unix time in milliseconds is outside of the range of an i64.
    #[inline(always)]
    pub fn deadline(self, now: Now, number: i64, command: &str) -> Result<Option<u64>> {
        let ms = number.checked_mul(self.ms).ok_or_else(|| Error::invalid_expire(command))?;
        if self.absolute {
            return Ok(now.deadline_at(ms));
        }
        // The sum is asked for only where it could be too large.
        fail_if!(ms > i64::MAX / 2 && ms.checked_add(now.unix_ms()).is_none(), Error::invalid_expire(command));
        Ok(if ms > 0 { Some(now.deadline_in(ms as u64)) } else { None })
    }

    /// As [`Unit::deadline`] for an argument that must be a positive number. A time that has passed is returned as a deadline
    /// that is due immediately, so that the key is created and expires like any other.
    #[inline(always)]
    pub fn positive_deadline(self, now: Now, argument: &[u8], command: &str) -> Result<u64> {
        let number = integer(argument)?;
        fail_if!(number <= 0, Error::invalid_expire(command));
        Ok(self.deadline(now, number, command)?.unwrap_or_else(|| now.mono_ms().max(1)))
    }
}
