//! The start from a folder: locks it, loads its files, and begins a new increment.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use rustix::fs::{FlockOperation, flock};

use crate::persist::append::clock::Moment;
use crate::persist::append::log::AppendLog;
use crate::server::durable::files::{Files, Head};
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::load::{folder_of, load};
use crate::server::durable::log::reporter;
use crate::server::durable::log_thread::{Progress, Syncs};
use crate::server::durable::{Durable, Phase, Rewriting, boot};
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
pub(crate) fn start(shell: &mut Shell, control: &Control<Shell>) -> Result<(), String> {
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
    let mut durable = Durable::new(log, progress, orders, syncs, seed, (rewrite, base_size));
    durable.spawn(files, received, lock, path, reporter(control.clone()))?;
    durable.phase = Phase::Running;
    shell.engine.persistence.figures = Some(durable.figures());
    shell.durable = Some(Box::new(durable));
    shell.record_changes();
    if joins {
        shell.rewrite_log();
    }
    Ok(())
}

/// Locks the folder for this process, until the file is closed.
pub(super) fn lock(path: &Path) -> Result<File, String> {
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
