//! The start: locks the folder, loads its files or a snapshot, and begins a new increment. The load is in slices between the turns of
//! the event loop: clients are served meanwhile, and get `LOADING` errors.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, channel};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};

use crate::engine::config::Config;
use crate::engine::persistence::Figures;
use crate::persist::append::clock::Moment;
use crate::persist::append::log::AppendLog;
use crate::persist::append::manifest::Manifest;
use crate::persist::resume::Last;
use crate::server::durable::files::{Files as LogFiles, Head};
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::gate::CommitGate;
use crate::server::durable::load::{Files, LoadedFiles, Purpose, folder_of, read_manifest, snapshot_of};
use crate::server::durable::loading::{Loading, Then};
use crate::server::durable::log_thread::{LogThread, Progress, Report, Syncs};
use crate::server::durable::replay::Replay;
use crate::server::durable::{Durable, Rewriting, boot, upgrade};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Number of increments after a start beyond which a new base joins them: each start adds one or two.
const INCREMENTS_MAX: usize = 8;
/// The file that is locked while a server uses the folder.
const LOCK_FILE: &str = "portcullis.lock";

/// A folder that this process has locked.
struct Opened {
    folder: Folder,
    lock: File,
    path: PathBuf,
    name: Vec<u8>,
}

/// Begins to load what the configuration names: the folder of the append-only file, or the snapshot. Until that is loaded,
/// [`Shell::load_some`] must be called between the turns of others. `loaded` is told when the engine has all keys. Must be called
/// before any client is served.
///
/// # Errors
/// Why the server must not start, in words for its operator.
pub(crate) fn start(shell: &mut Shell, control: &Control, loaded: SyncSender<()>) -> Result<(), String> {
    let (files, opened) = match shell.engine.config.appendonly {
        true => open_log(&shell.engine.config)?,
        false => (open_snapshot(&shell.engine.config)?, None),
    };
    let source = if opened.is_some() { "append only file" } else { "disk" };
    let control = control.clone();
    let then: Then<Shell> = Box::new(move |shell, files| {
        opened.map_or(Ok(()), |opened| begin_log(shell, &control, opened, files))?;
        // Nobody waits if the server was told to end meanwhile.
        let _ = loaded.send(());
        Ok(())
    });
    let Some(files) = files else {
        return then(shell, LoadedFiles { manifest: Manifest::default(), last: Last::Missing, bytes: 0 });
    };
    // In this order: time that passes between the two makes a lease end later, not earlier.
    let boot = boot::clock();
    let moment = Moment { boot, now: shell.clock.now() };
    let replay = Replay::new(shell.engine.begin_loading(moment.now, files.progress().1), moment);
    let began = Instant::now();
    shell.loading = Some(Box::new(Loading { replay, files, then, source, began, resumes: began }));
    Ok(())
}

/// The snapshot of a configuration, if there is one.
fn open_snapshot(config: &Config) -> Result<Option<Files>, String> {
    snapshot_of(config).map_or(Ok(None), Files::of_snapshot)
}

/// Locks the folder of a configuration, and opens its files, if it has any.
fn open_log(config: &Config) -> Result<(Option<Files>, Option<Opened>), String> {
    let path = folder_of(config);
    let name = config.appendfilename.clone().into_bytes();
    let mut folder = Folder::open(&path).map_err(|error| unwritable(&path, &error))?;
    let lock = lock(&path)?;
    let mut manifest = read_manifest(&path, &name)?;
    let old = Path::new(&config.dir).join(&config.appendfilename);
    if upgrade::is_wanted(&old, &path.join(&config.appendfilename), manifest.as_ref(), &name) {
        manifest = Some(upgrade::upgrade(&mut folder, &old, &path, &config.appendfilename)?);
    }
    let files = match manifest {
        Some(manifest) if manifest.base.is_some() || !manifest.increments.is_empty() => {
            let purpose = Purpose::Start { truncates: config.aof_load_truncated };
            Some(Files::of_manifest(&path, manifest, purpose)?)
        }
        _ => {
            if let Some(snapshot) = snapshot_of(config).filter(|path| path.is_file()) {
                // As Redis, which does not say so.
                tracing::warn!(
                    "{} is not loaded, because appendonly is yes and {} has no append-only file: the server starts empty. To keep \
                     that data, start with appendonly no first",
                    snapshot.display(),
                    path.display()
                );
            }
            None
        }
    };
    Ok((files, Some(Opened { folder, lock, path, name })))
}

fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("Can't open or create append-only dir {}: {error}", path.display())
}

/// Begins to log, after the files of the folder were loaded.
fn begin_log(shell: &mut Shell, control: &Control, opened: Opened, loaded: LoadedFiles) -> Result<(), String> {
    let Opened { folder, lock, path, name } = opened;
    let syncs = Syncs::of(shell.engine.config.appendfsync);
    let seed = shell.engine.random();
    let log = AppendLog::new(shell.clock.now(), boot::clock(), seed);
    let salt = shell.engine.random_salt();
    let head = Head { salt, line: log.begin_file(salt) };
    let files = LogFiles::begin(folder, &name, loaded.manifest, loaded.last, loaded.bytes, &head);
    let files = files.map_err(|error| unwritable(&path, &error))?;
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
    shell.engine.persistence.figures =
        Some(Box::new(move || Figures { held: held.get(), ..figures_of(&figures, rewriting.get(), base.get()) }));
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
        control: control.clone(),
    }));
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
        rewrite_failed: rewriting.failed,
        rewrite_s: rewriting.took_s,
        rewrites: rewriting.made,
        held: 0,
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
