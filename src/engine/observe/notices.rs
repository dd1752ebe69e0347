//! What the log tells an operator: one line for each thing that somebody has changed, or that went wrong for somebody, with fields
//! that programs read. They have the level `notice`.
//!
//! A client that fails a thousand times a second must not fill the disk: of each kind, [`LINES_PER_SECOND`] lines are written within
//! a second, and the next line says how many were left out.

use std::fmt;

use crate::base::time::Now;

/// Maximum number of lines of one kind within a second.
pub const LINES_PER_SECOND: u32 = 10;
/// A command or a turn is told of if it took at least this long, in nanoseconds, whatever `slowlog-log-slower-than` says.
pub const SLOW_NS: u64 = 10_000_000;
/// Maximum length in bytes of a value in a line; the rest is cut off.
const SHOWN_MAX: usize = 256;

/// Number of kinds.
const KINDS: usize = 12;

/// What happened. `owner` and `token` are those of a grant, and `of` the number of a connection. `wait_ms` is milliseconds;
/// `us` and `cpu_us` are microseconds.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A client gave a wrong password or an unknown name. The next login from there waits for so long.
    LoginFailed { user: &'a [u8], wait_ms: u64 },
    /// A request over HTTP from another machine, with this address, had a wrong password or an unknown name. The next login
    /// from there waits for so long.
    HttpLoginFailed { addr: &'a str, wait_ms: u64 },
    /// A connection from this address was refused. `why`: the error that it was told.
    ClientRefused { addr: &'a str, why: &'a str },
    /// A command was refused for want of memory. The limit is in bytes.
    OutOfMemory { command: &'a str, maxmemory: u64 },
    /// A command or script, or several that were timed together, took longer than `slowlog-log-slower-than` and [`SLOW_NS`].
    /// `addr` and `name`: those of its client; the address is empty if it is unknown.
    Slow { command: &'a [u8], addr: &'a str, name: &'a [u8], us: u64 },
    /// Work that no client asked for kept all others waiting for `us`, and ran on a processor for `cpu_us` of it.
    LongTurn { task: &'static str, us: u64, cpu_us: u64 },
    /// `CONFIG SET` has changed directives: their names and values, without secrets.
    Configured { directives: &'a str },
    /// A client has ended another one's grant, and gave this as its reason.
    Broken { db: u32, lock: &'a [u8], owner: &'a [u8], token: u64, reason: &'a [u8] },
    /// A wait was refused because it would have closed a cycle: who waits for whom, in words.
    Deadlock { cycle: &'a [u8] },
    /// A connection or session has ended with so many grants, one of which was of this lock and owner.
    SessionEnded { of: u64, locks: usize, lock: &'a [u8], owner: &'a [u8] },
    /// A lease has ended while others waited. `of`: the connection that had acquired it. `waiters`: their number.
    LeaseEnded { db: u32, lock: &'a [u8], owner: &'a [u8], token: u64, of: u64, waiters: u32 },
    /// Databases were emptied, this one or all of them. `keys`: the number of keys that were in them.
    Flushed { db: Option<u32>, keys: u64 },
}

impl Notice<'_> {
    fn kind(&self) -> usize {
        match self {
            Notice::LoginFailed { .. } => 0,
            Notice::ClientRefused { .. } => 1,
            Notice::OutOfMemory { .. } => 2,
            Notice::Slow { .. } => 3,
            Notice::LongTurn { .. } => 4,
            Notice::Configured { .. } => 5,
            Notice::Flushed { .. } => 6,
            Notice::Broken { .. } => 7,
            Notice::Deadlock { .. } => 8,
            Notice::SessionEnded { .. } => 9,
            Notice::LeaseEnded { .. } => 10,
            Notice::HttpLoginFailed { .. } => 11,
        }
    }
}

/// Lines of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    second: u64,
    written: u32,
    left_out: u64,
}

impl Rate {
    /// Number of lines that were left out before this one; `None` if this one is left out as well.
    fn admit(&mut self, second: u64) -> Option<u64> {
        if self.second != second {
            (self.second, self.written) = (second, 0);
        }
        if self.written == LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// How many lines of each kind were written.
#[derive(Clone, Debug, Default)]
pub struct Notices([Rate; KINDS]);

/// A value of a client's in a line: not too long. The log itself escapes what could be read as more than a value.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0[..self.0.len().min(SHOWN_MAX)].utf8_chunks() {
            f.write_str(chunk.valid())?;
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        if self.0.len() > SHOWN_MAX { f.write_str("…") } else { Ok(()) }
    }
}

impl Notices {
    /// Number of lines of this kind that were left out before this one; `None` if this one is left out as well.
    pub(super) fn admit(&mut self, now: Now, notice: &Notice<'_>) -> Option<u64> {
        self.0[notice.kind()].admit(now.mono_ms() / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_and_how_many_were_left_out() {
        let mut rate = Rate::default();
        let of = |rate: &mut Rate, second, count| (0..count).filter_map(|_| rate.admit(second)).collect::<Vec<_>>();
        assert_eq!(of(&mut rate, 7, 25), [0; 10]);
        assert_eq!(of(&mut rate, 8, 2), [15, 0]);
        assert_eq!(of(&mut rate, 9, 1), [0]);
    }

    #[test]
    fn what_clients_send_is_text_and_cut() {
        assert_eq!(Shown(b"a\n 'b' \xff").to_string(), "a\n 'b' \\xff");
        assert_eq!(Shown("größe".as_bytes()).to_string(), "größe");
        let long = Shown(&[b'x'; 1000]).to_string();
        assert_eq!(long.chars().count(), SHOWN_MAX + 1);
    }
}
