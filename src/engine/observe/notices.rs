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

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// A client gave a wrong password or an unknown name.
    LoginFailed {
        /// The name.
        user: &'a [u8],
        /// For how long the next login from there waits, in milliseconds.
        wait_ms: u64,
    },
    /// A request over HTTP from another machine had a wrong password or an unknown name.
    HttpLoginFailed {
        /// The client's address.
        addr: &'a str,
        /// For how long the next login from there waits, in milliseconds.
        wait_ms: u64,
    },
    /// A connection was refused.
    ClientRefused {
        /// Where it came from.
        addr: &'a str,
        /// The error that it was told.
        why: &'a str,
    },
    /// A command was refused for want of memory.
    OutOfMemory {
        /// The command.
        command: &'a str,
        /// The limit in bytes.
        maxmemory: u64,
    },
    /// A command or script took longer than `slowlog-log-slower-than` and [`SLOW_NS`].
    Slow {
        /// The command, or several that were timed together.
        command: &'a [u8],
        /// The address of its client; empty if it is unknown.
        addr: &'a str,
        /// The name of its client.
        name: &'a [u8],
        /// How long it took, in microseconds.
        us: u64,
    },
    /// Work that no client asked for kept all others waiting.
    LongTurn {
        /// What the work was.
        task: &'static str,
        /// How long it took, in microseconds.
        us: u64,
        /// How much of that it ran on a processor, in microseconds.
        cpu_us: u64,
    },
    /// `CONFIG SET` has changed directives.
    Configured {
        /// Names and values. Secrets are left out.
        directives: &'a str,
    },
    /// A client has ended another one's grant.
    Broken {
        /// The database.
        db: u32,
        /// The lock.
        lock: &'a [u8],
        /// The owner whose grant it was.
        owner: &'a [u8],
        /// The token of the grant.
        token: u64,
        /// What the client gave as its reason.
        reason: &'a [u8],
    },
    /// A wait was refused because it would have closed a cycle.
    Deadlock {
        /// Who waits for whom, in words.
        cycle: &'a [u8],
    },
    /// A connection or session has ended with locks.
    SessionEnded {
        /// The connection.
        of: u64,
        /// The number of its grants that ended now.
        locks: usize,
        /// One of them.
        lock: &'a [u8],
        /// The owner of that one.
        owner: &'a [u8],
    },
    /// A lease has ended while others waited.
    LeaseEnded {
        /// The database.
        db: u32,
        /// The lock.
        lock: &'a [u8],
        /// The owner.
        owner: &'a [u8],
        /// The token of the grant.
        token: u64,
        /// The connection that had acquired it.
        of: u64,
        /// Number of waiters.
        waiters: u32,
    },
    /// Databases were emptied.
    Flushed {
        /// The database, or all of them.
        db: Option<u32>,
        /// Number of keys that were in them.
        keys: u64,
    },
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
