//! The start: locks the folder, loads its files or a snapshot, and begins a new increment. The load is in slices between the
//! turns of the event loop: clients are served meanwhile, and get `LOADING` errors.

use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, channel};
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::file::{Beginning, FileLog};
use crate::driver::replay::Purpose;
use crate::driver::round::Driving;
use crate::driver::round::adapter::Adapter;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::files::Files as LogFiles;
use crate::persist::append::log_writer::{Progress, Syncs};
use crate::persist::append::manifest::Manifest;
use crate::persist::disk::DiskError;
use crate::persist::resume::Last;
use crate::server::durable::folder::Folder;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::load::slices::{Load, Loading, Then};
use crate::server::durable::load::upgrade;
use crate::server::durable::load::{Files, LoadedFiles, folder_of, read_manifest, snapshot_of};
use crate::server::durable::snapshot::remove_temporary;
use crate::server::durable::{Begun, LogThread, Opened, boottime};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Begins to load what the configuration names: the folder of the append-only file, or the snapshot. Until that is loaded,
/// [`Shell::load_some`] must be called between the turns of others. `loaded` is told when the engine has all keys. Must be called
/// before any client is served.
///
/// # Errors
/// Why the server must not start, in words for its operator.
pub(crate) fn start(shell: &mut Shell, control: &Control<Shell>, loaded: SyncSender<()>) -> Result<(), String> {
    let (files, opened) = match shell.driver.engine.config().appendonly {
        true => open_log(shell, control)?,
        false => (open_snapshot(shell.driver.engine.config())?, None),
    };
    remove_temporary(Path::new(&shell.driver.engine.config().dir));
    let source = if opened.is_some() { "append only file" } else { "disk" };
    let then: Then<Shell> = Box::new(move |shell, files| {
        opened.map_or(Ok(()), |opened| begin_log(shell, opened, files))?;
        // Nobody waits if the server was told to end meanwhile.
        let _ = loaded.send(());
        Ok(())
    });
    let Some(files) = files else {
        return then(shell, LoadedFiles { manifest: Manifest::default(), last: Last::Missing, bytes: 0 });
    };
    // In this order: time that passes between the two makes a lease end later, not earlier.
    let boot = boottime::now();
    let moment = Moment { boot, now: shell.clock.now() };
    let load = Load::begin(&mut shell.driver, moment, files);
    let began = Instant::now();
    shell.background.loading = Some(Box::new(Loading { load, then, source, began, resumes: began }));
    shell.meet_demands();
    Ok(())
}

/// The snapshot of a configuration, if there is one.
fn open_snapshot(config: &Config) -> Result<Option<Files>, String> {
    snapshot_of(config).map_or(Ok(None), Files::of_snapshot)
}

/// Locks the folder of a configuration, and opens its files, if it has any.
fn open_log(shell: &mut Shell, control: &Control<Shell>) -> Result<(Option<Files>, Option<Opened>), String> {
    let path = folder_of(shell.driver.engine.config());
    let mut folder = Folder::open(&path).map_err(|error| unwritable(&path, &error))?;
    let lock = shell.lock_folder(&path, control)?;
    let config = shell.driver.engine.config();
    let name = config.appendfilename.clone().into_bytes();
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
    Ok((files, Some(Opened { folder, lock, path, name, manifest: Manifest::default() })))
}

fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("Can't open or create append-only dir {}: {error}", path.display())
}

/// What a writer begins with.
type Begins<F> = (Box<FileLog>, LogFiles<F>, Syncs, Arc<Progress>);

/// Begins the next increment behind the files that were loaded.
///
/// # Errors
/// The disk's.
pub fn begin_increment<F: LogFolder>(
    driver: &mut Driver,
    moment: Moment,
    folder: F,
    name: &[u8],
    LoadedFiles { manifest, last, bytes }: LoadedFiles,
) -> Result<Begins<F>, DiskError> {
    let (log, Beginning { head, progress, syncs }) = driver.new_file(moment.now, moment.boot);
    let files = LogFiles::begin(folder, name, manifest, last, bytes, &head)?;
    Ok((log, files, syncs, progress))
}

/// Has the log go on behind the files that were loaded, in a new increment that this writer writes.
///
/// # Errors
/// The disk's, or that the writer cannot be started, in words.
pub fn resume<A: Adapter, F: LogFolder>(
    adapter: &mut A,
    folder: F,
    name: &[u8],
    loaded: LoadedFiles,
    writer: A::Writer,
    begun: impl FnOnce(LogFiles<F>, Syncs, Arc<Progress>) -> A::Files,
) -> Result<(), String> {
    let (moment, path) = (adapter.moment(), folder.path().to_owned());
    let begins = begin_increment(adapter.driver(), moment, folder, name, loaded).map_err(|error| unwritable(&path, &error))?;
    let (log, files, syncs, progress) = begins;
    let increments = files.manifest().increments.len();
    adapter.writers().begin(writer);
    adapter.writers().install();
    adapter.start_writer(begun(files, syncs, progress))?;
    adapter.drive(|driver, at| driver.resume_file(at, log, increments));
    Ok(())
}

/// Hands over what was loaded, goes on behind it as `then` says, which is told the number of keys, and serves.
///
/// # Errors
/// In words: the files contradict themselves, or those of `then`.
pub fn serve_loaded<A: Adapter, R: Read + Seek>(
    adapter: &mut A,
    load: Load<R>,
    then: impl FnOnce(&mut A, LoadedFiles, usize) -> Result<(), String>,
) -> Result<(), String> {
    let now = adapter.now();
    let (files, keys) = load.end(adapter.driver(), now)?;
    then(adapter, files, keys)?;
    adapter.drive(|driver, at| driver.log_as_configured(at));
    adapter.after_closure();
    Ok(())
}

/// Begins to log, after the files of the folder were loaded.
fn begin_log(shell: &mut Shell, opened: Opened, loaded: LoadedFiles) -> Result<(), String> {
    let Opened { folder, lock, path, name, .. } = opened;
    let (orders, received) = channel();
    let writer = Box::new(LogThread::new(orders, path));
    let begun = |files, syncs, progress| Begun { files, orders: received, lock, syncs, progress };
    resume(shell, folder, &name, loaded, writer, begun)
}

impl Shell {
    /// How long the next slice of a load is to be waited for; `None` if nothing is loaded.
    pub(in crate::server) fn next_load(&self) -> Option<Duration> {
        self.background.loading.as_ref().map(|loading| loading.wait(self.driver.engine.config().key_load_delay))
    }

    /// Loads a slice, if one is due, and serves what was loaded after the last one.
    ///
    /// # Errors
    /// Why the server must not start, in words for its operator.
    #[cold]
    pub(in crate::server) fn load_some(&mut self) -> Result<(), String> {
        let delay = self.driver.engine.config().key_load_delay;
        let Some(mut loading) = self.background.loading.take() else { return Ok(()) };
        if !loading.wait(delay).is_zero() || !loading.load_some(&mut self.driver)? {
            self.background.loading = Some(loading);
            return Ok(());
        }
        let Loading { load, then, source, began, .. } = *loading;
        serve_loaded(self, load, |shell, files, keys| {
            tracing::info!("DB loaded from {source}: {keys} keys, {:.3} seconds", began.elapsed().as_secs_f64());
            then(shell, files)
        })
    }
}
