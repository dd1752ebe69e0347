//! A [live copy](crate::persist::live_copy) of a running server, received by another engine on a thread of its own.
//!
//! ```text
//!   event loop ─ copy_some, each round: some keys ─▶ parts ─▶ thread "copying": another engine ─▶ what is to be done with it
//!        ▲                                                       │
//!        └──────── an order, when it has caught up ◀─────────────┘
//! ```
//!
//! The executor's share of it is to visit the keys, some tens of microseconds at a time. The other engine needs the memory of the
//! data once more.

pub mod received;
mod walk;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use crate::driver::file::FileLog;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::live_copy::{LiveCopy, Part};
use crate::persist::natives::clock::Moment;
use crate::server::durable::LogFile;
use crate::server::durable::copy::received::Received;

/// Bytes on the way to the thread beyond which no more keys are copied, until it has caught up.
pub const BACKLOG_MAX: u64 = 8 << 20;
/// Stack of a thread with an engine, in bytes: values are nested as deep as for the executor.
pub const ENGINE_STACK: usize = 64 << 20;
/// How much nicer than the executor the threads are that make files beside it. With 5, clients of a machine of two processors noticed
/// a new base twice as much; with 19, or without a share of their own (`SCHED_IDLE`), a busy machine hardly ever makes one.
const NICER: i32 = 10;

/// What is on the way to the thread.
enum Message {
    /// A part, and when it was written.
    Part(Part, Moment),
    /// The copy is whole.
    End(Moment),
}

/// What the thread shares with the executor.
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes on the way, and how many of them are changes.
    backlog: AtomicU64,
    changes: AtomicU64,
    /// Whether the executor waits for the thread to catch up.
    waits: AtomicBool,
    /// Whether the copy was given up.
    pub abandoned: AtomicBool,
}

/// What is done with a copy, on its thread: the engine, and the moment whose keys it has; or why there is none.
pub type Then = Box<dyn FnOnce(Result<(Engine, Moment), String>, &Shared) + Send>;

/// What a copy is for, which decides what happens in the turn that ends it: it has the keys of that moment.
pub enum Purpose {
    /// A snapshot: the count of changes is noted.
    Snapshot,
    /// A first base: this log records from then on, and this is its file.
    Log(Box<FileLog>, Box<LogFile>),
}

/// A copy in progress.
pub struct Copying {
    copy: LiveCopy,
    messages: Sender<Message>,
    shared: Arc<Shared>,
    purpose: Purpose,
}

impl Copying {
    /// Whether it is for a snapshot.
    pub fn is_for_snapshot(&self) -> bool {
        matches!(self.purpose, Purpose::Snapshot)
    }

    fn send(&self, part: Part, moment: Moment) {
        let len = part.bytes().len() as u64;
        self.shared.backlog.fetch_add(len, Ordering::Relaxed);
        if matches!(part, Part::Changes(_)) {
            self.shared.changes.fetch_add(len, Ordering::Relaxed);
        }
        // The thread ends early only after an error, which it reports.
        let _ = self.messages.send(Message::Part(part, moment));
    }
}

/// Makes the calling thread yield to others.
pub fn be_nice() {
    // It is as good as any other where the system does not allow it.
    let _ = rustix::process::nice(NICER);
}

/// Receives a copy. Returns `None` if it was abandoned.
fn receive(
    config: Config,
    begun: Moment,
    messages: &Receiver<Message>,
    shared: &Shared,
    wake: &dyn Fn(),
) -> Option<Result<(Engine, Moment), String>> {
    let mut engine = Engine::new(config, 0, begun.now, crate::commands::table());
    let mut received = Received::new(&mut engine, begun);
    loop {
        // The executor is gone, or has given up.
        let message = messages.recv().ok()?;
        if shared.abandoned.load(Ordering::Relaxed) {
            return None;
        }
        match message {
            Message::Part(part, moment) => {
                if let Err(reason) = received.apply(&part, moment) {
                    return Some(Err(reason));
                }
                let len = part.bytes().len() as u64;
                if matches!(part, Part::Changes(_)) {
                    shared.changes.fetch_sub(len, Ordering::Relaxed);
                }
                let left = shared.backlog.fetch_sub(len, Ordering::Relaxed) - len;
                if left < BACKLOG_MAX / 2 && shared.waits.swap(false, Ordering::Relaxed) {
                    // It wakes the event loop, which goes on copying.
                    wake();
                }
            }
            Message::End(moment) => return Some(received.finish().map(|_| (engine, moment))),
        }
    }
}
