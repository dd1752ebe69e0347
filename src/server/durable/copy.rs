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
use std::sync::mpsc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::{Copied, Message, Receiver, Taken};
use crate::driver::switch::Target;
use crate::persist::natives::clock::Moment;
use crate::server::durable::Opened;
use crate::server::shell::Shell;

/// Stack of a thread with an engine, in bytes: values are nested as deep as for the executor.
pub const ENGINE_STACK: usize = 64 << 20;
/// How much nicer than the executor the threads are that make files beside it. With 5, clients of a machine of two processors
/// noticed a new base twice as much; with 19, or without a share of their own (`SCHED_IDLE`), a busy machine hardly ever makes
/// one.
const NICER: i32 = 10;

/// What is made of a copy, on its thread.
pub type Then = Box<dyn FnOnce(Copied, &CopyProgress) + Send>;

/// Makes something on the calling thread. A panic is an error, so that what is made is not in progress for ever: only this thread has
/// seen what it worked on.
///
/// # Errors
/// Those of `make`, and a panic.
pub fn caught<T>(make: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err("its thread has panicked".to_owned()))
}

/// Makes the calling thread yield to others.
pub fn be_nice() {
    // It is as good as any other where the system does not allow it.
    let _ = rustix::process::nice(NICER);
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
        let then = match target {
            Target::Snapshot(number) => self.snapshot_of_copy(number)?,
            Target::File(opened, beginning) => self.base_of_copy(*opened, beginning)?,
        };
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let config = self.driver.engine.config().clone();
        let (messages, received) = mpsc::channel::<Message>();
        let thread = std::thread::Builder::new().name("copying".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            // An order that does nothing wakes the event loop, which goes on copying.
            let wake = || _ = control.send(Box::new(|_| ()));
            let receives = || Ok(receive(Receiver::new(config, moment, Arc::clone(&progress)), &received, &wake));
            let made = caught(receives).unwrap_or_else(|reason| Some(Err(reason)));
            // Nobody listens to what becomes of a copy that was given up.
            if let Some(made) = made.filter(|_| !progress.is_abandoned()) {
                then(made, &progress);
            }
        });
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.background.copying = Some(messages);
        Ok(())
    }
}
