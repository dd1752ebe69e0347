//! Durability: the files of the append-only log and of snapshots, and the threads that write them.
//!
//! ```text
//!   Shell ─ requests ─▶ Driver: engine, log, gate ─ submit: a batch ─▶ LogThread ─▶ disk
//!                          ▲                                             │
//!                          └──────────────── settled ◀───────────────────┘
//! ```
//!
//! At a start, [`start`] opens the folder or a snapshot, [`load`] reads it, and [`crate::driver::replay`] applies it to a second
//! engine, in slices between the turns of the event loop ([`load::slices`]); then a new increment begins. [`load::upgrade`] takes
//! over a file of Redis 6. Which output waits, and when a batch is handed on, the driver decides ([`crate::driver::log`]).
//! [`log_thread`] has batches written ([`crate::persist::append::log_writer`]). [`rewrite`] makes a new base from the files,
//! [`snapshot`] an RDB file and [`switch`] a first base from a copy of the keyspace ([`copy`]), on [`threads`] of their own.
//! [`reload`] loads the files into the running server. All but `threads`, `log_thread`, `reload` and `upgrade` works on any disk:
//! the simulation of `torture` runs it, too.
//! `check` reads files without a server.
//!
//! The directives are Redis's: `appendonly`, `appendfsync`, `dir`, `appenddirname`, `appendfilename`, `aof-load-truncated`,
//! `auto-aof-rewrite-percentage`, `auto-aof-rewrite-min-size`. `guide/durability.md` is the operator's page.

pub mod boottime;
#[cfg(feature = "cli")]
pub mod check;
pub mod copy;
pub mod folder;
pub mod load;
pub mod lock;
pub mod log_thread;
pub mod reload;
pub mod rewrite;
pub mod snapshot;
pub mod start;
pub mod switch;
pub mod threads;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::JoinHandle;

use crate::driver::copy::received::Message;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::{Writer, Writers};
use crate::persist::append::log_writer::{LogWriter, Order};
#[cfg(feature = "quorum")]
use crate::server::durable::folder::Hang;
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::lock::FolderLock;
use crate::server::durable::log_thread::Process;
use crate::server::durable::start::Loading;
use crate::server::durable::switch::{Begun, Opened};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// What is done beside requests, about the log, copies, loads and nodes, besides what the driver knows.
#[derive(Default)]
pub struct BackgroundWork {
    /// Who writes the append-only file, if there is one.
    pub(in crate::server) writers: Writers<Box<LogThread>, Box<Opened>>,
    /// To the thread that receives a copy of the keyspace, if there is one.
    pub(in crate::server) copying: Option<Sender<Message>>,
    /// The load at the start, as long as it lasts.
    pub(in crate::server) loading: Option<Box<Loading<Folder, FolderLock>>>,
    /// Who is told when all is loaded.
    pub(in crate::server) tells: Option<SyncSender<()>>,
    /// Lets the disk of this node hang, for tests.
    #[cfg(feature = "quorum")]
    pub(in crate::server) hang: Option<Arc<Hang>>,
}

/// Who writes the append-only file: its thread, and where the file is.
pub struct LogThread {
    orders: Sender<Order>,
    /// What its thread will take, until it begins.
    coming: Option<Receiver<Order>>,
    thread: Option<JoinHandle<()>>,
    /// The folder of its files.
    path: PathBuf,
    /// Keeps the folder locked, together with the threads that write in it.
    lock: Option<Arc<FolderLock>>,
}

impl LogThread {
    /// The log of this folder, before its thread begins. What is ordered of it waits until then.
    pub(in crate::server) fn new(path: &Path) -> LogThread {
        let (orders, coming) = channel();
        LogThread { orders, coming: Some(coming), thread: None, path: path.to_owned(), lock: None }
    }

    /// Starts its thread, which keeps the folder locked.
    ///
    /// # Errors
    /// In words: there can be no thread.
    pub(in crate::server) fn spawn(&mut self, begun: Begun, control: Control<Shell>) -> Result<(), String> {
        let Begun { files, lock, syncs, progress } = begun;
        let orders = self.coming.take().ok_or("it has begun already")?;
        let report = move |report| _ = control.send(Box::new(move |shell: &mut Shell| shell.take_report(report)));
        // It notes the bytes of the files before anybody asks for them.
        let writer = LogWriter::new(files, syncs, progress, Process { path: self.path.clone(), report });
        let lock = Arc::new(lock);
        self.lock = Some(Arc::clone(&lock));
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            let _lock = lock;
            log_thread::run(writer, &orders);
        });
        self.thread = Some(thread.map_err(|error| format!("Can't start the thread of the log: {}", words(&error)))?);
        Ok(())
    }
}

impl Writer for Box<LogThread> {
    type Lock = Arc<FolderLock>;

    fn lock(&self) -> Option<Arc<FolderLock>> {
        self.lock.clone()
    }

    fn join(&mut self) {
        // It has reported why, if it has failed.
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }

    fn order(&mut self, order: Order) {
        // The thread ends only after a failure that it reported.
        let _ = self.orders.send(order);
    }
}
