//! The thread of the log: runs its writer, so that the executor never waits for the disk.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use crate::persist::append::log_writer::{LogWriter, Order, Report, Step, Surroundings};
use crate::persist::disk::Result;
use crate::server::clock::monotonic_ns;
use crate::server::durable::folder::Folder;

/// What the writer uses of this process.
pub struct Process<T> {
    /// The folder of the files.
    pub path: PathBuf,
    /// Takes reports.
    pub report: T,
}

impl<T: Fn(Report)> Surroundings<Folder> for Process<T> {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    fn open(&self) -> Result<Folder> {
        Folder::open(&self.path)
    }

    fn report(&self, report: Report) {
        (self.report)(report);
    }
}

/// Runs a writer until it is closed, or until the log fails. Its last report says which.
pub fn run<T: Fn(Report)>(mut writer: LogWriter<Folder, Process<T>>, orders: &Receiver<Order>) {
    let mut step = writer.go_on(Step::Wait(None), []);
    loop {
        let first = match step {
            Step::Sync => Err(RecvTimeoutError::Timeout),
            Step::Wait(Some(wait)) => orders.recv_timeout(wait),
            Step::Wait(None) => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Step::End => return,
        };
        let gone = matches!(first, Err(RecvTimeoutError::Disconnected));
        // If the executor is gone without a word, what it sent is still written.
        step = writer.go_on(step, first.into_iter().chain(orders.try_iter()).chain(gone.then_some(Order::Close)));
    }
}
