//! Durability: the files of the append-only log and of snapshots, and the threads that write them.
//!
//! ```text
//!   Shell ─ requests ─▶ Driver: engine, log, gate ─ submit: a batch ─▶ LogThread ─▶ disk
//!                          ▲                                             │
//!                          └──────────────── settled ◀───────────────────┘
//! ```
//!
//! At the start, [`load`] reads the folder or a snapshot, and [`crate::driver::replay`] applies it to a second engine, in slices
//! between the turns of the event loop ([`load::slices`]); then [`start`] begins a new increment. [`load::upgrade`] takes over a
//! file of Redis 6. Which output waits, and when a batch is handed on, the driver decides ([`crate::driver::log`]); [`log`] asks
//! it at the end of each turn of the event loop. [`log_thread`] has them written ([`crate::persist::append::log_writer`]).
//! [`rewrite`] makes a new base from the files, [`snapshot`] an RDB file and [`switch`] a first base from a copy of the keyspace
//! ([`copy`]). [`reload`] loads the files into the running server.
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
pub mod log;
pub mod log_thread;
pub mod reload;
pub mod rewrite;
pub mod snapshot;
pub mod start;
pub mod switch;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crate::driver::copy::received::Message;
use crate::driver::file::Beginning;
use crate::driver::switch::{TakesOrders, Writers};
use crate::persist::append::files::Files;
use crate::persist::append::log_writer::{LogWriter, Order, Progress, Report, Syncs};
use crate::persist::append::manifest::Manifest;
#[cfg(feature = "quorum")]
use crate::server::durable::folder::Hang;
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::load::slices::Loading;
use crate::server::durable::lock::FolderLock;
use crate::server::durable::log_thread::Process;
use crate::server::shell::Shell;

/// What is done beside requests, about the log, copies, loads and nodes, besides what the driver knows.
pub struct BackgroundWork {
    /// Who writes the append-only file, if there is one.
    pub(in crate::server) writers: Writers<Box<LogThread>>,
    /// To the thread that receives a copy of the keyspace, if there is one.
    copying: Option<Sender<Message>>,
    /// The append-only file that is being switched on, until its copy begins.
    coming: Option<Box<Coming>>,
    /// Exists for as long as a thread of this server keeps the folder of an append-only file locked.
    folder_held: Weak<()>,
    /// Whether the append-only file is switched on when that thread has ended.
    awaits_folder: bool,
    /// The load at the start, as long as it lasts.
    pub(in crate::server) loading: Option<Box<Loading<Shell>>>,
    /// Lets the disk of this node hang, for tests.
    #[cfg(feature = "quorum")]
    pub(in crate::server) hang: Option<Arc<Hang>>,
}

impl Default for BackgroundWork {
    fn default() -> BackgroundWork {
        BackgroundWork {
            writers: Writers::default(),
            copying: None,
            coming: None,
            folder_held: Weak::new(),
            awaits_folder: false,
            loading: None,
            #[cfg(feature = "quorum")]
            hang: None,
        }
    }
}

/// Who writes the append-only file: its thread, and where the file is.
pub struct LogThread {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    /// The folder of its files.
    path: PathBuf,
    /// Set when the base in progress is given up. Its thread reads it.
    rewrite_abandoned: Arc<AtomicBool>,
    /// Keeps the folder locked, together with the threads that write in it.
    lock: Option<Arc<FolderLock>>,
}

impl LogThread {
    /// The log of this folder, before its thread begins. What is ordered of it waits until then.
    fn new(orders: Sender<Order>, path: PathBuf) -> LogThread {
        LogThread { orders, thread: None, path, rewrite_abandoned: Arc::default(), lock: None }
    }

    /// Starts its thread, which keeps the folder locked. `report` is called on that thread.
    ///
    /// # Errors
    /// In words: there can be no thread.
    fn spawn(
        &mut self,
        Begun { files, orders, lock, syncs, progress }: Begun,
        report: impl Fn(Report) + Send + 'static,
    ) -> Result<(), String> {
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

    /// Waits until its thread has ended.
    pub(super) fn join(&mut self) {
        // It has reported why, if it has failed.
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

impl TakesOrders for Box<LogThread> {
    fn order(&mut self, order: Order) {
        if matches!(order, Order::Close) {
            // The base in progress is given up: its thread leaves the folder as it is.
            self.rewrite_abandoned.store(true, Ordering::Relaxed);
        }
        // The thread ends only after a failure that it reported.
        let _ = self.orders.send(order);
    }
}

/// What a thread of the log begins with.
struct Begun {
    files: Files<Folder>,
    orders: Receiver<Order>,
    lock: FolderLock,
    syncs: Syncs,
    progress: Arc<Progress>,
}

/// A folder that this process has locked.
struct Opened {
    folder: Folder,
    lock: FolderLock,
    path: PathBuf,
    /// `appendfilename`.
    name: Vec<u8>,
}

/// A file that is switched on, until its copy is whole.
pub struct Coming {
    opened: Opened,
    /// What is in the folder, all of it in history.
    manifest: Manifest,
    beginning: Beginning,
}
