//! Receives a [copy](crate::driver::copy) of the running server by another engine, on a thread of its own.
//!
//! ```text
//!   event loop ─ Driver::copy_some, each round: some keys ─▶ parts ─▶ thread "copying": another engine ─▶ what is to be made of it
//!        ▲                                                              │
//!        └──────── an order, when it has caught up ◀────────────────────┘
//! ```
//!
//! The executor's share of it is to visit the keys, some tens of microseconds at a time. The other engine needs the memory of the
//! data once more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::{Copied, Message, Receiver, Taken};
use crate::driver::file::Beginning;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::driver::switch::Target;
use crate::engine::config::Config;
use crate::persist::natives::clock::Moment;
use crate::server::durable::folder::{Folder, LogFolder};
use crate::server::durable::snapshot::NewSnapshot;
use crate::server::durable::{Begun, Opened};
use crate::server::shell::Shell;

/// Stack of a thread with an engine, in bytes: values are nested as deep as for the executor.
pub const ENGINE_STACK: usize = 64 << 20;
/// How much nicer than the executor the threads are that make files beside it. With 5, clients of a machine of two processors
/// noticed a new base twice as much; with 19, or without a share of their own (`SCHED_IDLE`), a busy machine hardly ever makes
/// one.
const NICER: i32 = 10;

/// Makes something on the calling thread. A panic is an error, so that what is made is not in progress for ever: only this thread has
/// seen what it worked on.
///
/// # Errors
/// Those of `make`, and a panic.
pub fn caught<T>(make: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err(PANICKED.to_owned()))
}

/// Makes the calling thread yield to others.
pub fn be_nice() {
    // It is as good as any other where the system does not allow it.
    let _ = rustix::process::nice(NICER);
}

/// Why there is nothing of what a thread was to make that has panicked.
pub const PANICKED: &str = "its thread has panicked";

/// What a copy is made into, on a disk of the system or on a simulated one. `L` keeps the folder locked.
pub enum Making<F, L> {
    /// The snapshot of this number.
    Snapshot(u64, NewSnapshot<F>),
    /// The first base of a file, in this folder. With `true`, the base has a checksum.
    File(Box<Opened<F, L>>, Beginning, bool),
}

/// What was made of a copy, or why there is nothing.
pub enum Made<F: LogFolder, L> {
    /// The snapshot of this number, of this length in bytes.
    Snapshot(u64, Result<u64, String>),
    /// What the writer of the file begins with.
    File(Result<Begun<F, L>, String>),
}

/// Makes of a copy what it is for.
pub struct Maker<F, L> {
    making: Making<F, L>,
    progress: Arc<CopyProgress>,
}

impl<F: LogFolder, L> Maker<F, L> {
    /// For this target: a server with this configuration writes snapshots into the folder that `folder` opens, in this process.
    ///
    /// # Errors
    /// In words: a snapshot has no name.
    pub fn new(
        target: Target<Box<Opened<F, L>>>,
        progress: Arc<CopyProgress>,
        config: &Config,
        (folder, process): (F, u32),
    ) -> Result<Maker<F, L>, String> {
        let making = match target {
            Target::Snapshot(number) => Making::Snapshot(number, NewSnapshot::new(folder, config, (process, number))?),
            Target::File(opened, beginning) => Making::File(opened, beginning, config.rdbchecksum),
        };
        Ok(Maker { making, progress })
    }

    /// Makes it of what was received. Returns `None` if the copy was given up: nobody listens to what becomes of it.
    pub fn make(self, copied: Copied) -> Option<Made<F, L>> {
        let Maker { making, progress } = self;
        let goes_on = || !progress.is_abandoned();
        goes_on().then(|| match making {
            Making::Snapshot(number, snapshot) => {
                Made::Snapshot(number, caught(|| copied.and_then(|(engine, moment)| snapshot.write(&engine, moment, goes_on))))
            }
            Making::File(opened, beginning, checksum) => {
                Made::File(caught(|| copied.and_then(|copied| opened.begin(copied, beginning, checksum))))
            }
        })
    }
}

/// Takes what was made of a copy.
pub fn copy_made<F: LogFolder, L, A: Adapter<Files = Begun<F, L>>>(adapter: &mut A, made: Made<F, L>) {
    match made {
        Made::Snapshot(number, made) => adapter.snapshot_made(number, made),
        Made::File(made) => adapter.file_made(made),
    }
}

/// Receives a copy. Returns `None` if it was given up. `wake` is called when the driver is to go on copying.
fn receive(mut receiver: Box<Receiver>, messages: &mpsc::Receiver<Message>, wake: &dyn Fn()) -> Option<Copied> {
    loop {
        // Without a sender, the executor is gone, or has given up.
        match receiver.receive(messages.recv().ok()?) {
            Taken::More(of, wakes) => {
                receiver = of;
                if wakes {
                    wake();
                }
            }
            Taken::Whole(copied) => return Some(copied),
            Taken::GivenUp => return None,
        }
    }
}

impl Shell {
    /// Begins to receive a copy, on a thread of its own, which then makes of it what it is for.
    #[cold]
    pub(in crate::server) fn spawn_copy(
        &mut self,
        target: Target<Box<Opened>>,
        moment: Moment,
        progress: Arc<CopyProgress>,
    ) -> Result<(), String> {
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let config = self.driver.engine.config().clone();
        let maker = Maker::new(target, Arc::clone(&progress), &config, self.folder_of_snapshots())?;
        let (messages, received) = mpsc::channel::<Message>();
        let thread = std::thread::Builder::new().name("copying".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            // An order that does nothing wakes the event loop, which goes on copying.
            let wake = || _ = control.send(Box::new(|_| ()));
            let receives = || Ok(receive(Receiver::new(config, moment, progress), &received, &wake));
            let copied = caught(receives).unwrap_or_else(|reason| Some(Err(reason)));
            if let Some(made) = copied.and_then(|copied| maker.make(copied)) {
                control.send(Box::new(|shell| copy_made(shell, made)));
            }
        });
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.background.copying = Some(messages);
        Ok(())
    }

    /// The folder of snapshots, and the number of this process.
    pub(super) fn folder_of_snapshots(&self) -> (Folder, u32) {
        (Folder::at(Path::new(&self.driver.engine.config().dir)), std::process::id())
    }

    /// Writes a snapshot before this returns.
    ///
    /// # Errors
    /// In words.
    pub(in crate::server) fn write_snapshot_file(&mut self) -> Result<(), String> {
        let (moment, (folder, process)) = (self.moment(), self.folder_of_snapshots());
        // No other snapshot has this number.
        let snapshot = NewSnapshot::new(folder, self.driver.engine.config(), (process, 0))?;
        snapshot.write(&self.driver.engine, moment, || true).map(drop)
    }
}
