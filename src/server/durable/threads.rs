//! The threads of a server that work beside it, and the folders that it works in.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::file::BaseOrder;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::Target;
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::Moment;
use crate::server::durable::copy::{NewCopy, Received, copy_made};
use crate::server::durable::folder::{Folder, LogFolder};
use crate::server::durable::load::{folder_of, upgrade};
use crate::server::durable::lock::{FolderLock, lock};
use crate::server::durable::rewrite::BaseMaker;
use crate::server::durable::start::{Loading, Starts, unwritable};
use crate::server::durable::switch::Opened;
use crate::server::shell::Shell;

/// Stack of a thread with an engine, in bytes: values are nested as deep as for the executor.
pub const ENGINE_STACK: usize = 64 << 20;
/// How much nicer than the executor the threads are that make files beside it. With 5, clients of a machine of two processors
/// noticed a new base twice as much; with 19, or without a share of their own (`SCHED_IDLE`), a busy machine hardly ever makes
/// one.
const NICER: i32 = 10;

/// Makes the calling thread yield to others.
pub fn be_nice() {
    // It is as good as any other where the system does not allow it.
    let _ = rustix::process::nice(NICER);
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
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let config = self.driver.engine.config().clone();
        let into = self.folder_of_snapshots();
        let copy = NewCopy::new(target, (config, moment, progress), into)?;
        let (messages, received) = mpsc::channel::<Message>();
        let thread = std::thread::Builder::new().name("copying".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let mut receiver = Box::new(copy.begin());
            // Without a sender, the executor is gone, or has given up.
            for message in received {
                // An order that does nothing wakes the event loop, which goes on copying.
                match receiver.receive(message, || _ = control.send(Box::new(|_| ()))) {
                    Received::More(more) => receiver = more,
                    Received::Whole(to_make) => {
                        return to_make.make(|made| _ = control.send(Box::new(|shell| copy_made(shell, made))));
                    }
                    Received::GivenUp => return,
                }
            }
        });
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.background.copying = Some(messages);
        Ok(())
    }

    /// Makes a base of these files but the last, on a thread of its own.
    ///
    /// # Errors
    /// In words: there can be no thread.
    pub(in crate::server) fn spawn_rewrite(&mut self, order: BaseOrder) -> Result<(), String> {
        let control = self.control.clone().ok_or("the server has no event loop")?;
        let path = self.background.writers.current().map(|file| file.path.clone()).unwrap_or_default();
        let maker = BaseMaker::new(self, order)?;
        let thread = std::thread::Builder::new().name("rewrite".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            let tell = |number, made| _ = control.send(Box::new(move |shell: &mut Shell| shell.base_made(number, made)));
            maker.make(|| Folder::open(&path), tell);
        });
        spawned.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
    }
}

impl Starts for Shell {
    type Disk = Folder;
    type Lock = FolderLock;

    fn lock_folder(&mut self) -> Result<(Folder, FolderLock), String> {
        let path = folder_of(self.driver.engine.config());
        let control = self.control.clone().ok_or("the server has no event loop")?;
        let folder = Folder::open(&path).map_err(|error| unwritable(&path, &error))?;
        let freed: Box<dyn Fn() + Send + Sync> = Box::new(move || _ = control.send(Box::new(Shell::folder_freed)));
        Ok((folder, self.background.writers.folder_locked(lock(&path)?, freed)))
    }

    fn folder_of_snapshots(&self) -> (Folder, u32) {
        (Folder::at(Path::new(&self.driver.engine.config().dir)), std::process::id())
    }

    fn upgrade(&mut self, folder: &mut Folder, manifest: Option<&Manifest>) -> Result<Option<Manifest>, String> {
        let config = self.driver.engine.config();
        let (name, old) = (&config.appendfilename, Path::new(&config.dir).join(&config.appendfilename));
        let path = folder.path().to_owned();
        let is_wanted = upgrade::is_wanted(&old, &path.join(name), manifest, name.as_bytes());
        is_wanted.then(|| upgrade::upgrade(folder, &old, &path, name)).transpose()
    }

    fn loading(&mut self) -> &mut Option<Box<Loading<Folder, FolderLock>>> {
        &mut self.background.loading
    }

    fn loaded(&mut self) {
        // Nobody waits if the server was told to end meanwhile.
        self.background.tells.take().into_iter().for_each(|tells| _ = tells.send(()));
    }
}
