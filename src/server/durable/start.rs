//! The start from a folder: locks it, loads its files, and begins a new increment.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use rustix::fs::{FlockOperation, flock};

use crate::engine::persistence::{Figures, Position};
use crate::persist::append::clock::Moment;
use crate::persist::append::log::AppendLog;
use crate::server::durable::delay::Delay;
use crate::server::durable::files::{Files, Head};
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::gate::CommitGate;
use crate::server::durable::load::{folder_of, load};
use crate::server::durable::log_thread::{LogThread, Progress, Report, Syncs};
use crate::server::durable::{Durable, Rewriting, boot};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Number of increments after a start beyond which a new base joins them: each start adds one or two.
const INCREMENTS_MAX: usize = 8;
/// The file that is locked while a server uses the folder.
const LOCK_FILE: &str = "portcullis.lock";

/// Loads the folder of the configuration, and begins to log. Must be called before any client is served.
///
/// # Errors
/// Why the server must not start, in words for its operator.
pub(crate) fn start(shell: &mut Shell, control: &Control) -> Result<(), String> {
    let config = &shell.engine.config;
    let path = folder_of(config);
    let name = config.appendfilename.clone().into_bytes();
    let syncs = Syncs::of(config.appendfsync);
    let unwritable = |error: &dyn std::fmt::Display| format!("Can't open or create append-only dir {}: {error}", path.display());
    let folder = Folder::open(&path).map_err(|error| unwritable(&error))?;
    let lock = lock(&path)?;
    // In this order: time that passes between the two makes a lease end later, not earlier.
    let boot = boot::clock();
    let moment = Moment { boot, now: shell.clock.now() };
    let loaded = load(&mut shell.engine, moment, &path, &name)?;
    let seed = shell.engine.random();
    let log = AppendLog::new(shell.clock.now(), boot::clock(), seed);
    let salt = shell.engine.random_salt();
    let head = Head { salt, line: log.begin_file(salt) };
    let files = Files::begin(folder, &name, loaded.manifest, loaded.last, loaded.bytes, &head);
    let files = files.map_err(|error| unwritable(&error))?;
    let (orders, received) = channel();
    let progress = Arc::new(Progress::default());
    progress.bytes.store(files.bytes(), Ordering::Relaxed);
    progress.durable_bytes.store(files.bytes(), Ordering::Relaxed);
    progress.total_bytes.store(files.total(), Ordering::Relaxed);
    let base_size = Rc::new(Cell::new(files.total()));
    let joins = files.manifest().increments.len() > INCREMENTS_MAX;
    let rewrite = Rc::new(Cell::new(Rewriting::default()));
    let reporting = control.clone();
    let report = move |report: Report| {
        reporting.send(Box::new(move |shell: &mut Shell| {
            shell.take_report(report);
            shell.after_order();
        }));
    };
    let thread = LogThread::new(files, path.clone(), syncs, received, Arc::clone(&progress), report);
    let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
        let _lock = lock;
        thread.run();
    });
    let thread = thread.map_err(|error| format!("Can't start the thread of the log: {}", words(&error)))?;
    shell.engine.keyspace.changes.log = Some(Box::new(log.clone()));
    let gate = CommitGate::default();
    let (figures, rewriting, base, held) = (Arc::clone(&progress), Rc::clone(&rewrite), Rc::clone(&base_size), gate.held());
    let (recording, delays) = (log.clone(), Rc::new(Cell::new(0)));
    let delayed_syncs = Rc::clone(&delays);
    shell.engine.persistence.figures = Some(Box::new(move || {
        let durable = figures.durable_position.load(Ordering::Relaxed);
        Figures {
            position: Position { recorded: recording.position(), durable },
            delayed_syncs: delays.get(),
            held: held.get(),
            ..figures_of(&figures, rewriting.get(), base.get())
        }
    }));
    shell.durable = Some(Box::new(Durable {
        log,
        gate,
        progress,
        orders,
        thread: Some(thread),
        syncs,
        seed,
        seen: 0,
        stuck: None,
        turns_over: false,
        submit_ms: None,
        slow: false,
        rewrite,
        base_size,
        delay: Delay::default(),
        delayed_syncs,
        control: control.clone(),
    }));
    shell.log_as_configured();
    if joins {
        shell.rewrite_log();
    }
    Ok(())
}

fn figures_of(progress: &Progress, rewriting: Rewriting, base_size: u64) -> Figures {
    let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
    Figures {
        size: get(&progress.total_bytes),
        base_size,
        queued: get(&progress.queued_bytes),
        syncing: progress.syncing.load(Ordering::Relaxed),
        batches: [get(&progress.written), get(&progress.durable)],
        syncs: [
            get(&progress.syncs),
            progress.sync_percentile_us(0.5),
            progress.sync_percentile_us(0.99),
            get(&progress.sync_max_us),
        ],
        rewriting_since_ms: rewriting.began_ms,
        rewrite_failures: rewriting.failures,
        rewrite_s: rewriting.took_s,
        rewrites: rewriting.made,
        ..Figures::default()
    }
}

/// Locks the folder for this process, until the file is closed.
fn lock(path: &Path) -> Result<File, String> {
    let path = path.join(LOCK_FILE);
    let describe = |error: std::io::Error| format!("Can't lock {}: {}", path.display(), words(&error));
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(describe)?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(describe(error.into()));
        }
        let mut owner = String::new();
        let _ = file.read_to_string(&mut owner);
        return Err(format!("{} is locked by the server with process id {}", path.display(), owner.trim()));
    }
    let text = format!("{}\n", std::process::id());
    let written = file.set_len(0).and_then(|()| std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0));
    written.map_err(describe)?;
    Ok(file)
}
