//! What a driver runs on: the clocks, and what the driver cannot do by itself.

use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::file::BaseOrder;
use crate::driver::round::writers::{Target, Writer, Writers};
use crate::driver::{Driver, Present};
use crate::engine::Action;
use crate::engine::observe::turns::Task;
use crate::persist::natives::clock::{BootClock, Moment};

/// What a driver runs on. It carries out what it is asked for, says what came of that by [`Driving`](super::Driving) and
/// [`Storing`](super::storing::Storing), and decides nothing.
pub trait Adapter: Sized {
    /// By which the boot clock is read, also while the driver is in use.
    type Boot: Copy;
    /// The folder of an append-only file, opened and locked.
    type Folder;
    /// What has an append-only file written.
    type Writer: Writer;
    /// The files that a writer begins with.
    type Files;

    /// The driver.
    fn driver(&mut self) -> &mut Driver;

    /// The engine's time, and the stopwatch in nanoseconds: a monotonic clock, or the engine's time while that stands still.
    fn now_and_stopwatch(&mut self) -> (Now, u64);

    /// Reads the stopwatch again; `None` if requests are timed by the engine's time.
    fn stopwatch(&self) -> Option<fn() -> u64> {
        None
    }

    /// Whether the engine's time stands still.
    fn is_frozen(&self) -> bool {
        false
    }

    /// A monotonic clock in nanoseconds, which goes on while the driver works, even if the engine's time stands still.
    fn monotonic_ns(&self) -> fn() -> u64;

    /// What [`Adapter::read_boot`] needs.
    fn boot(&self) -> Self::Boot;

    /// Reads the boot clock.
    fn read_boot(boot: Self::Boot) -> BootClock;

    /// Has [`Driver::timer_fired`] called at this time, in monotonic milliseconds, whatever was asked for before. Returns false if
    /// that fails.
    fn set_timer(&mut self, at_ms: u64) -> bool;

    /// Carries out an action that the driver cannot carry out.
    fn perform(&mut self, action: Action);

    /// The server is to end after this round.
    fn end(&mut self);

    /// The server cannot go on, for this reason.
    fn fail(&mut self, reason: String);

    /// A batch of a session, or something else that has used the engine, has ended. Returns when there is work for the adapter
    /// itself, in monotonic milliseconds; `u64::MAX` if there is none.
    fn after_batch(&mut self, now: Now, id: Option<SessionId>) -> u64;

    /// Requests begin to execute at this reading of the stopwatch.
    fn execution_begins(&mut self, _ns: u64) {}

    /// Time has passed in the engine.
    fn engine_advanced(&mut self) {}

    /// Gives some memory back. Returns whether there is more.
    fn give_back(&mut self, _now: Now) -> bool {
        false
    }

    /// Runs something whose time counts as a turn of this task.
    fn as_turn_of<T>(&mut self, _task: Task, act: impl FnOnce(&mut Self) -> T) -> T {
        act(self)
    }

    /// Who has append-only files written.
    fn writers(&mut self) -> &mut Writers<Self::Writer, Self::Folder>;

    /// Opens and locks the folder of the append-only file.
    ///
    /// # Errors
    /// In words.
    fn open_folder(&mut self) -> Result<Self::Folder, String>;

    /// The writer of the files of a folder, before it begins. What is ordered of it waits until then.
    fn new_writer(&mut self, folder: &Self::Folder) -> Self::Writer;

    /// Begins to receive a copy whose keys are of this moment. What is made of it is told by
    /// [`snapshot_made`](super::storing::Storing::snapshot_made) or [`file_made`](super::storing::Storing::file_made), unless it
    /// was given up.
    ///
    /// # Errors
    /// In words.
    fn begin_copy(&mut self, target: Target<Self::Folder>, moment: Moment, progress: Arc<CopyProgress>) -> Result<(), String>;

    /// Passes a message to the receiver of the copy.
    fn send_to_copy(&mut self, message: Message);

    /// The copy was given up.
    fn forget_copy(&mut self);

    /// Has a writer begin to write these files.
    ///
    /// # Errors
    /// In words.
    fn start_writer(&mut self, writer: &mut Self::Writer, files: Self::Files) -> Result<(), String>;

    /// Makes a base. It is told by
    /// [`base_made`](super::storing::Storing::base_made).
    ///
    /// # Errors
    /// In words.
    fn make_base(&mut self, order: BaseOrder) -> Result<(), String>;

    /// Writes a snapshot before this returns.
    ///
    /// # Errors
    /// In words.
    fn write_snapshot(&mut self) -> Result<(), String>;

    /// The engine's time.
    #[inline]
    fn now(&mut self) -> Now {
        self.now_and_stopwatch().0
    }

    /// The present, as the driver needs it.
    fn present(&mut self) -> Present {
        let (now, ns) = self.now_and_stopwatch();
        let frozen = self.is_frozen();
        Present { now, ns: if frozen { self.monotonic_ns()() } else { ns }, frozen }
    }

    /// The present by both clocks. Time that passes between the two makes a lease that is written with it end later, not earlier.
    fn moment(&mut self) -> Moment {
        let now = self.now();
        Moment { boot: Self::read_boot(self.boot()), now }
    }
}
