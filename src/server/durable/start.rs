//! The start: locks the folder, loads its files or a snapshot, and begins a new increment. The load is in slices between the
//! turns of the event loop: clients are served meanwhile, and get `LOADING` errors.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::Driver;
use crate::driver::file::{Beginning, FileLog};
use crate::driver::pace::Pace;
use crate::driver::replay::Purpose;
use crate::driver::round::Driving;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::engine::observe::turns::Task;
use crate::persist::append::clock::Moment;
use crate::persist::append::files::Files as LogFiles;
use crate::persist::append::log_writer::{Progress, Syncs};
use crate::persist::append::manifest::Manifest;
use crate::persist::disk::DiskError;
use crate::persist::resume::Last;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::load::slices::Load;
use crate::server::durable::load::{Files, LoadedFiles, read_manifest};
use crate::server::durable::snapshot::{NewSnapshot, remove_temporary};
use crate::server::durable::switch;
use crate::server::durable::switch::{Begun, Opened};

pub(super) fn unwritable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("Can't open or create append-only dir {}: {error}", path.display())
}

/// What a server starts from: files, if there are any, and the folder of the append-only file behind them, if it is on.
type ToStartFrom<F, L> = (Option<Files<<F as LogFolder>::Source>>, Option<Box<Opened<F, L>>>);

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

/// Files that are loaded.
pub struct Loading<F: LogFolder, L> {
    load: Load<F::Source>,
    /// The folder of the append-only file, if they are its files.
    opened: Option<Box<Opened<F, L>>>,
    /// When it began, and when the next slice begins, because of `key-load-delay`: readings of [`Present::ns`](crate::driver::Present).
    began_ns: u64,
    resumes_ns: u64,
}

/// An adapter that starts from files. `Disk` is a folder on its disk; `Lock` keeps one locked.
pub trait Starts: Adapter<Folder = Box<Opened<Self::Disk, Self::Lock>>, Files = Begun<Self::Disk, Self::Lock>> {
    /// A folder on its disk.
    type Disk: LogFolder;
    /// Keeps a folder locked.
    type Lock;

    /// Opens and locks the folder of the append-only file. When the last thread that needs it has ended, the log is switched on if it
    /// is to be.
    ///
    /// # Errors
    /// In words: it cannot be opened, or another process has locked it.
    fn lock_folder(&mut self) -> Result<(Self::Disk, Self::Lock), String>;

    /// The folder of snapshots, and the number of this process.
    fn folder_of_snapshots(&self) -> (Self::Disk, u32);

    /// Moves a file of an earlier version into the folder of the log, if there is one that is wanted. Returns the manifest then.
    ///
    /// # Errors
    /// In words.
    fn upgrade(&mut self, _: &mut Self::Disk, _: Option<&Manifest>) -> Result<Option<Manifest>, String> {
        Ok(None)
    }

    /// What is loaded, if anything is.
    fn loading(&mut self) -> &mut Option<Box<Loading<Self::Disk, Self::Lock>>>;

    /// All is loaded, or there was nothing to load.
    fn loaded(&mut self) {}

    /// Opens the folder of the append-only file, for one that is switched on.
    ///
    /// # Errors
    /// In words.
    fn open_anew(&mut self) -> Result<Self::Folder, String> {
        let (mut folder, lock) = self.lock_folder()?;
        let name = self.driver().engine.config().appendfilename.clone().into_bytes();
        switch::remove_temporary(&mut folder, &name);
        Opened::anew(folder, lock, name).map(Box::new)
    }

    /// Writes a snapshot before this returns.
    ///
    /// # Errors
    /// In words.
    fn save_at_once(&mut self) -> Result<(), String> {
        let (moment, (folder, process)) = (self.moment(), self.folder_of_snapshots());
        let engine = &self.driver().engine;
        // No other snapshot has this number.
        let snapshot = NewSnapshot::new(folder, engine.config(), (process, 0))?;
        snapshot.write(engine, moment, || true).map(drop)
    }

    /// Begins to load what the configuration names: the folder of the append-only file, or the snapshot. Until that is loaded,
    /// [`Starts::load_some`] must be called between the turns of others. Must be called before any client is served.
    ///
    /// # Errors
    /// Why the server must not start, in words for its operator.
    fn begin_to_load(&mut self) -> Result<(), String> {
        let (mut snapshots, _) = self.folder_of_snapshots();
        let (files, opened) = match self.driver().engine.config().appendonly {
            true => self.open_log()?,
            false => match self.driver().engine.config().dbfilename.as_bytes() {
                b"" => (None, None),
                name => (Files::of_snapshot(&mut snapshots, name)?, None),
            },
        };
        remove_temporary(&mut snapshots);
        let Some(files) = files else {
            return self.go_on_behind(opened, LoadedFiles { manifest: Manifest::default(), last: Last::Missing, bytes: 0 });
        };
        // In this order: time that passes between the two makes a lease end later, not earlier.
        let boot = Self::read_boot(self.boot());
        let moment = Moment { boot, now: self.now() };
        let load = Load::begin(self.driver(), moment, files);
        let began_ns = self.present().ns;
        *self.loading() = Some(Box::new(Loading { load, opened, began_ns, resumes_ns: began_ns }));
        self.meet_demands();
        Ok(())
    }

    /// Locks the folder of the append-only file, and opens its files, if it has any.
    ///
    /// # Errors
    /// In words.
    fn open_log(&mut self) -> Result<ToStartFrom<Self::Disk, Self::Lock>, String> {
        let (mut folder, lock) = self.lock_folder()?;
        let name = self.driver().engine.config().appendfilename.clone().into_bytes();
        switch::remove_temporary(&mut folder, &name);
        let mut manifest = read_manifest(&mut folder, &name)?;
        if let Some(upgraded) = self.upgrade(&mut folder, manifest.as_ref())? {
            manifest = Some(upgraded);
        }
        let truncates = self.driver().engine.config().aof_load_truncated;
        let has_files = |manifest: &Manifest| manifest.base.is_some() || !manifest.increments.is_empty();
        let files = manifest.filter(has_files);
        let files = files.map(|manifest| Files::of_manifest(&mut folder, manifest, Purpose::Start { truncates })).transpose()?;
        if files.is_none() {
            self.warn_of_snapshot(folder.path());
        }
        Ok((files, Some(Box::new(Opened::to_load(folder, lock, name)))))
    }

    /// Warns of a snapshot that is not loaded, because the append-only file in this folder is on and empty. Redis does not say so.
    fn warn_of_snapshot(&mut self, path: &Path) {
        let name = self.driver().engine.config().dbfilename.clone();
        let (mut snapshots, _) = self.folder_of_snapshots();
        if !name.is_empty() && snapshots.source(name.as_bytes()).is_ok() {
            tracing::warn!(
                "{} is not loaded, because appendonly is yes and {} has no append-only file: the server starts empty. To keep \
                 that data, start with appendonly no first",
                snapshots.path().join(name).display(),
                path.display()
            );
        }
    }

    /// How long the next slice of a load is to be waited for; `None` if nothing is loaded. Without a delay, it begins at once.
    fn next_load(&mut self) -> Option<Duration> {
        let resumes_ns = self.loading().as_ref()?.resumes_ns;
        let is_delayed = self.driver().engine.config().key_load_delay != 0;
        Some(Duration::from_nanos(if is_delayed { resumes_ns.saturating_sub(self.present().ns) } else { 0 }))
    }

    /// Loads a slice, if one is due, and serves what was loaded after the last one.
    ///
    /// # Errors
    /// Why the server must not start, in words for its operator.
    #[cold]
    fn load_some(&mut self) -> Result<(), String> {
        if !self.next_load().is_some_and(|wait| wait.is_zero()) {
            return Ok(());
        }
        self.as_turn_of(Task::Load, Self::load_slice)
    }

    /// Loads a slice.
    ///
    /// # Errors
    /// As [`Starts::load_some`].
    fn load_slice(&mut self) -> Result<(), String> {
        let Some(mut loading) = self.loading().take() else { return Ok(()) };
        let mut pace = Pace::slice(self.monotonic_ns());
        let is_whole = loading.load.load_some(self.driver(), &mut pace)?;
        let ns = self.present().ns;
        if !is_whole {
            loading.resumes_ns = ns + pace.owed().as_nanos() as u64;
            *self.loading() = Some(loading);
            return Ok(());
        }
        let Loading { load, opened, began_ns, .. } = *loading;
        let now = self.now();
        let (files, keys) = load.end(self.driver(), now)?;
        let source = if opened.is_some() { "append only file" } else { "disk" };
        let took = Duration::from_nanos(ns.saturating_sub(began_ns));
        tracing::info!("DB loaded from {source}: {keys} keys, {:.3} seconds", took.as_secs_f64());
        self.go_on_behind(opened, files)?;
        self.drive(|driver, at| driver.log_as_configured(at));
        self.after_closure();
        Ok(())
    }

    /// Goes on behind the files that were loaded: if they are those of an append-only file, in a new increment.
    ///
    /// # Errors
    /// The disk's, or that the writer cannot be started, in words.
    fn go_on_behind(&mut self, opened: Option<Box<Opened<Self::Disk, Self::Lock>>>, loaded: LoadedFiles) -> Result<(), String> {
        if let Some(opened) = opened {
            let writer = self.new_writer(&opened);
            let Opened { folder, lock, name, .. } = *opened;
            let (moment, path) = (self.moment(), folder.path().to_owned());
            let begins = begin_increment(self.driver(), moment, folder, &name, loaded);
            let (log, files, syncs, progress) = begins.map_err(|error| unwritable(&path, &error))?;
            let increments = files.manifest().increments.len();
            self.writers().begin(writer);
            self.writers().install();
            self.begin_to_write(Begun { files, lock, syncs, progress })?;
            self.drive(|driver, at| driver.resume_file(at, log, increments));
        }
        self.loaded();
        Ok(())
    }
}
