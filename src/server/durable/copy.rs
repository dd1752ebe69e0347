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
use std::sync::Arc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::{Copied, Message, Receiver, Taken};
use crate::driver::file::Beginning;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::Target;
use crate::engine::config::Config;
use crate::persist::natives::clock::Moment;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::snapshot::NewSnapshot;
use crate::server::durable::switch::{Begun, Opened};

/// Makes something on the calling thread. A panic is an error, so that what is made is not in progress for ever: only this thread has
/// seen what it worked on.
///
/// # Errors
/// Those of `make`, and a panic.
pub fn caught<T>(make: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err(PANICKED.to_owned()))
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

/// A copy that is to be received, for this target.
pub struct NewCopy<F, L> {
    making: Making<F, L>,
    config: Config,
    moment: Moment,
    progress: Arc<CopyProgress>,
}

/// Receives a copy, and makes of it what it is for.
pub struct CopyReceiver<F, L> {
    receiver: Box<Receiver>,
    making: Making<F, L>,
    progress: Arc<CopyProgress>,
}

/// What came of a message to a receiver.
pub enum Received<F, L> {
    /// There is more to receive.
    More(Box<CopyReceiver<F, L>>),
    /// The copy was received, or there is none.
    Whole(ToMake<F, L>),
    /// It was given up.
    GivenUp,
}

/// A copy that was received, and what is to be made of it.
pub struct ToMake<F, L> {
    making: Making<F, L>,
    progress: Arc<CopyProgress>,
    copied: Copied,
}

impl<F: LogFolder, L> NewCopy<F, L> {
    /// A copy that begins at this moment. A server with this configuration writes snapshots into this folder, in this process.
    ///
    /// # Errors
    /// In words: a snapshot has no name.
    pub fn new(
        target: Target<Box<Opened<F, L>>>,
        (config, moment, progress): (Config, Moment, Arc<CopyProgress>),
        (folder, process): (F, u32),
    ) -> Result<NewCopy<F, L>, String> {
        let making = match target {
            Target::Snapshot(number) => Making::Snapshot(number, NewSnapshot::new(folder, &config, (process, number))?),
            Target::File(opened, beginning) => Making::File(opened, beginning, config.rdbchecksum),
        };
        Ok(NewCopy { making, config, moment, progress })
    }

    /// Begins to receive it, on the thread that does.
    pub fn begin(self) -> CopyReceiver<F, L> {
        let NewCopy { making, config, moment, progress } = self;
        CopyReceiver { receiver: Receiver::new(config, moment, Arc::clone(&progress)), making, progress }
    }
}

impl<F: LogFolder, L> CopyReceiver<F, L> {
    /// Receives a message. `wake` is called when the driver is to go on copying.
    pub fn receive(self, message: Message, wake: impl FnOnce()) -> Received<F, L> {
        let CopyReceiver { receiver, making, progress } = self;
        let taken = caught(|| Ok(receiver.receive(message)));
        match taken.unwrap_or_else(|reason| Taken::Whole(Err(reason))) {
            Taken::More(receiver, wakes) => {
                if wakes {
                    wake();
                }
                Received::More(Box::new(CopyReceiver { receiver, making, progress }))
            }
            Taken::Whole(copied) => Received::Whole(ToMake { making, progress, copied }),
            Taken::GivenUp => Received::GivenUp,
        }
    }
}

impl<F: LogFolder, L> ToMake<F, L> {
    /// Number of keys of the copy that have not expired.
    #[cfg(feature = "torture")]
    pub fn keys(&self) -> Option<usize> {
        self.copied.as_ref().ok().map(|(engine, moment)| engine.keyspace().images(Some(moment.now)).len())
    }

    /// Makes it, and tells what came of that. Nobody listens to what becomes of a copy that was given up.
    pub fn make(self, tell: impl FnOnce(Made<F, L>)) {
        let ToMake { making, progress, copied } = self;
        let goes_on = || !progress.is_abandoned();
        if !goes_on() {
            return;
        }
        tell(match making {
            Making::Snapshot(number, snapshot) => {
                let made = caught(|| copied.and_then(|(engine, moment)| snapshot.write(&engine, moment, goes_on)));
                Made::Snapshot(number, made)
            }
            Making::File(opened, beginning, checksum) => {
                Made::File(caught(|| copied.and_then(|copied| opened.begin(copied, beginning, checksum))))
            }
        });
    }
}

/// Takes what was made of a copy.
pub fn copy_made<F: LogFolder, L, A: Adapter<Files = Begun<F, L>>>(adapter: &mut A, made: Made<F, L>) {
    match made {
        Made::Snapshot(number, made) => adapter.snapshot_made(number, made),
        Made::File(made) => adapter.file_made(made),
    }
}
