//! The expiry options that many commands share: `EX`, `PX`, `EXAT`, `PXAT`, `KEEPTTL`, `PERSIST`.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::time::Now;

/// How an expiry argument is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Milliseconds a unit.
    pub ms: i64,
    /// A unix time rather than a time from now.
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

    /// The unit that an option names, in any case.
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

    /// The deadline that a number in this unit means, in monotonic milliseconds; `None` when it has passed already.
    ///
    /// Errors as Redis does, naming `command`, where the number leaves the range of i64 milliseconds of unix time.
    #[inline(always)]
    pub fn deadline(self, now: Now, number: i64, command: &str) -> Result<Option<u64>> {
        let ms = number.checked_mul(self.ms).ok_or_else(|| Error::invalid_expire(command))?;
        if self.absolute {
            return Ok(now.deadline_at(ms));
        }
        if ms.checked_add(now.unix_ms()).is_none() {
            return Err(Error::invalid_expire(command));
        }
        Ok(if ms > 0 { Some(now.deadline_in(ms as u64)) } else { None })
    }

    /// As [`Unit::deadline`] for an argument that must be a positive number. A time that has passed is given as a deadline that
    /// is reached at once, so that the key comes into being and ends like any other.
    #[inline(always)]
    pub fn positive_deadline(self, now: Now, argument: &[u8], command: &str) -> Result<u64> {
        let number = parse_i64(argument).ok_or(Error::NOT_INTEGER)?;
        if number <= 0 {
            return Err(Error::invalid_expire(command));
        }
        Ok(self.deadline(now, number, command)?.unwrap_or_else(|| now.mono_ms().max(1)))
    }
}
