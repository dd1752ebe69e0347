//! Makes the slow log's entry of a request: hides its secrets, and truncates what is long.

use crate::base::time::Now;
use crate::engine::command::Command;
use crate::engine::observe::redact;
use crate::engine::observe::slowlog::{ARGUMENTS_MAX, Entry};
use crate::engine::session::Session;

/// Maximum number of bytes kept of an argument.
const BYTES_MAX: usize = 128;

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
            at_ms: now.mono_ms(),
            unix_s: now.unix_ms().div_euclid(1000),
            us: 0,
            args: shown,
            addr: session.addr.to_string(),
            name: session.brief_name().to_vec(),
        }
    }
}
