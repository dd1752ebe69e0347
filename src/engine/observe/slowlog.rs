//! `SLOWLOG`: the last slow requests, without their secrets.

use std::collections::VecDeque;

use crate::base::time::Now;
use crate::engine::command::Command;
use crate::engine::observe::redact;
use crate::engine::session::Session;

/// Maximum number of arguments kept; if there are more, the last one kept says how many.
const ARGUMENTS_MAX: usize = 32;
/// Maximum number of bytes kept of an argument.
const BYTES_MAX: usize = 128;

/// One slow request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its id, which is never reused.
    pub id: u64,
    /// Unix time, in seconds.
    pub unix_s: i64,
    /// Its duration, in microseconds.
    pub us: u64,
    /// Its arguments, truncated.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub addr: String,
    /// The client's name.
    pub name: Vec<u8>,
}

impl Entry {
    /// The entry of a request, still without its id and duration.
    pub fn of(now: Now, session: &Session, command: &'static Command, args: &[&[u8]]) -> Self {
        let args = redact::shown(command, args);
        let kept = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
        let cut = |arg: &&[u8]| {
            let mut text = arg[..arg.len().min(BYTES_MAX)].to_vec();
            if arg.len() > BYTES_MAX {
                text.extend_from_slice(format!("... ({} more bytes)", arg.len() - BYTES_MAX).as_bytes());
            }
            text
        };
        let mut shown: Vec<Vec<u8>> = args.iter().take(kept).map(cut).collect();
        if kept < args.len() {
            shown.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
        }
        Entry {
            id: 0,
            unix_s: now.unix_ms().div_euclid(1000),
            us: 0,
            args: shown,
            addr: session.addr.to_string(),
            name: session.name.as_deref().unwrap_or_default().to_vec(),
        }
    }
}

impl Entry {
    /// The entry of several commands that were timed together and were slow in total. It lists their names, because it is unknown
    /// which one was slow.
    pub fn of_group(now: Now, mut names: Vec<Vec<u8>>) -> Self {
        let count = names.len();
        names.dedup();
        names.truncate(ARGUMENTS_MAX - 1);
        names.push(format!("... ({count} commands, timed together)").into_bytes());
        Entry { id: 0, unix_s: now.unix_ms().div_euclid(1000), us: 0, args: names, addr: String::new(), name: Vec::new() }
    }
}

/// The log.
#[derive(Debug, Default)]
pub struct SlowLog {
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl SlowLog {
    /// Adds an entry; the oldest ones beyond `max` are removed.
    pub fn push(&mut self, mut entry: Entry, us: u64, max: u64) {
        (entry.id, entry.us) = (self.next_id, us);
        self.next_id += 1;
        self.entries.push_front(entry);
        self.entries.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    }

    /// The entries, the newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Removes all entries.
    pub fn reset(&mut self) {
        self.entries = VecDeque::new();
    }
}
