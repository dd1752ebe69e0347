//! Native records: locks and what belongs to them, as bytes. Both files have the same records: the append-only file as requests of
//! our own, the RDB file as fields of the kind AUX, which Redis skips.
//!
//! ```text
//!   name                  payload
//!   PORTCULLIS.LOCK       moment · name · limit · end of the delay · { owner · token · holds · mode · permits · times · delay · bound · user }
//!   PORTCULLIS.LATCH      name · count · deadline
//!   PORTCULLIS.GUARD      name · token · deadline
//!   PORTCULLIS.REQUESTS   moment · name · owner · when they are forgotten · { id · answer }
//!   PORTCULLIS.SESSION    moment · number · id · user · grace · end
//!   PORTCULLIS.TOKEN      the next fencing token is at least this one
//! ```
//!
//! A payload begins with its version, 1 byte. Numbers are LEB128; signed numbers are zigzag-encoded. A moment is when the record
//! was written: Unix milliseconds, the id of the boot (16 bytes), and milliseconds since the boot. Leases and other times of locks
//! are distances from that moment: see [`clock`]. Deadlines of latches and guards are Unix milliseconds, as those of plain keys.
//!
//! A record has no connection: after a restart, another one may have its number. A grant that ends with its connection is read as
//! one whose connection is gone.
//!
//! Readers accept only what operations can have left: bounds on tokens, numbers of sessions and ids hold, and locks are those of
//! [`Lock::from_parts`].

pub mod clock;
mod payload;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::fmt;

use crate::lock::Lock;
use crate::lock::grant::TOKEN_END;
use crate::lock::requests::Remembered;
use crate::lock::sessions::Session;
use crate::persist::natives::clock::Moment;
pub use crate::persist::natives::payload::{Fields, Payload, count, lock, requests, session, token};

/// The names of records.
pub mod name {
    #![allow(missing_docs)]
    pub const LOCK: &[u8] = b"PORTCULLIS.LOCK";
    pub const LATCH: &[u8] = b"PORTCULLIS.LATCH";
    pub const GUARD: &[u8] = b"PORTCULLIS.GUARD";
    pub const REQUESTS: &[u8] = b"PORTCULLIS.REQUESTS";
    pub const SESSION: &[u8] = b"PORTCULLIS.SESSION";
    pub const TOKEN: &[u8] = b"PORTCULLIS.TOKEN";
    /// The owner's requests for a lock were forgotten: the lock's name and the owner, without a payload.
    pub const FORGET: &[u8] = b"PORTCULLIS.FORGET";
    /// A named session has ended: its id and its number in decimal, without a payload.
    pub const END_SESSION: &[u8] = b"PORTCULLIS.ENDSESSION";
}

/// The beginning of the names of all native records.
pub const PREFIX: &[u8] = b"PORTCULLIS.";

/// A native record as it is read. `name` is that of the key. Times are monotonic milliseconds of the reader; one that has
/// passed may be any earlier one.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Debug)]
pub enum Native<'a> {
    /// The key is this lock now. Its grants have no connections.
    Lock { name: &'a [u8], lock: Lock },
    /// The key is a latch now. `left`: what is left to count down.
    Latch { name: &'a [u8], left: u64, deadline: Option<u64> },
    /// The key is a guard now. `seen`: the largest token that it has seen.
    Guard { name: &'a [u8], seen: u64, deadline: Option<u64> },
    /// The remembered requests of an owner for a lock.
    Requests { name: &'a [u8], owner: &'a [u8], remembered: Remembered },
    /// The remembered requests of an owner for a lock were forgotten.
    Forget { name: &'a [u8], owner: &'a [u8] },
    /// A named session was created or changed. It has no client, its grants are not counted, and if it was attached, it has
    /// no end.
    Session { number: u64, session: Session },
    /// A named session has ended.
    EndSession { id: &'a [u8], number: u64 },
    /// No token below this one is given any more.
    Token(u64),
}

/// Why a native record is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its name is unknown.
    Unknown,
    /// Its payload has a version that a newer program wrote.
    Newer(u8),
    /// It is not what any program wrote.
    Malformed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unknown => f.write_str("a record of an unknown kind, probably from a newer version of Portcullis"),
            Refusal::Newer(version) => {
                write!(f, "a record in version {version} of its format, from a newer version of Portcullis")
            }
            Refusal::Malformed => f.write_str("a malformed record of a lock"),
        }
    }
}

/// Whether this is the name of a native record.
pub fn is_native(name: &[u8]) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// Reads a native record: its name, and its payload or arguments. Its times become those of the reader.
pub fn read<'a>(args: &[&'a [u8]], reader: &Moment) -> Result<Native<'a>, Refusal> {
    let (name, args) = args.split_first().ok_or(Refusal::Malformed)?;
    let payload = |args: &[&'a [u8]]| if let [payload] = *args { Fields::open(payload) } else { Err(Refusal::Malformed) };
    let native = match &name.to_ascii_uppercase()[..] {
        name::LOCK => payload(args)?.lock(reader).map(|(name, lock)| Native::Lock { name, lock }),
        name::LATCH => payload(args)?.count(reader).map(|(name, left, deadline)| Native::Latch { name, left, deadline }),
        name::GUARD => payload(args)?.count(reader).map(|(name, seen, deadline)| Native::Guard { name, seen, deadline }),
        name::REQUESTS => {
            let read = payload(args)?.requests(reader);
            read.map(|(name, owner, remembered)| Native::Requests { name, owner, remembered })
        }
        name::SESSION => payload(args)?.session(reader).map(|(number, session)| Native::Session { number, session }),
        name::TOKEN => payload(args)?.token().map(Native::Token),
        name::FORGET => match *args {
            [name, owner] => Some(Native::Forget { name, owner }),
            _ => None,
        },
        name::END_SESSION => match *args {
            [id, number] => decimal(number).filter(|&number| number < TOKEN_END).map(|number| Native::EndSession { id, number }),
            _ => None,
        },
        _ => return Err(Refusal::Unknown),
    };
    native.ok_or(Refusal::Malformed)
}
