//! The disk of a simulated machine: a [`SimulatedDisk`] that the server's parts share.

use std::cell::RefCell;
use std::io::{self, Cursor};
use std::path::Path;
use std::rc::Rc;

use crate::driver::flaw::Flaw;
use crate::persist::append::batch::{FIRST_LINE, HEADER, Header, salt_of, seal};
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::disk::{Disk, Result, forward, read_whole};
use crate::persist::natives::name;
use crate::server::durable::folder::LogFolder;
use crate::torture::sim::machine::FILE_MAX;

/// A fault that is planted in a durable server, so that tests show that they find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None: the server is as it should be.
    #[default]
    Nothing,
    /// The folder is never synced.
    NoSyncOfFolder,
    /// The reader does not look at checksums of batches.
    NoChecksum,
    /// A new base does not have the next token.
    NoTokenRecord,
    /// A fault of the driver.
    OfDriver(Flaw),
}

impl Planted {
    /// All faults, by their names on the command line.
    pub const NAMED: [(&str, Planted); 8] = [
        ("unsynced-folder", Planted::NoSyncOfFolder),
        ("unchecked-log", Planted::NoChecksum),
        ("no-token-record", Planted::NoTokenRecord),
        ("early-reply", Planted::OfDriver(Flaw::AcknowledgeEarly)),
        ("settles-ahead", Planted::OfDriver(Flaw::SettlesAhead)),
        ("unbounded", Planted::OfDriver(Flaw::Unbounded)),
        ("switch-loses-changes", Planted::OfDriver(Flaw::SwitchLosesChanges)),
        ("base-lacks-increment", Planted::OfDriver(Flaw::BaseLacksIncrement)),
    ];

    /// The fault of a name.
    pub fn from_name(name: &str) -> Option<Planted> {
        Planted::NAMED.iter().find(|(of, _)| *of == name).map(|(_, planted)| *planted)
    }
}

/// The disk, which several files use at a time.
#[derive(Clone)]
pub struct SharedDisk {
    state: Rc<RefCell<State>>,
    /// The fault that is planted in the server.
    pub planted: Planted,
}

struct State {
    disk: SimulatedDisk,
    /// The disk as a crash in each operation leaves it, since the last call of [`SharedDisk::take_crashes`].
    crashes: Option<Vec<SimulatedDisk>>,
}

impl SharedDisk {
    /// A disk. With `keeps_crashes` it keeps a copy of itself for each operation in which the machine might crash.
    pub fn new(disk: SimulatedDisk, planted: Planted, keeps_crashes: bool) -> SharedDisk {
        let crashes = keeps_crashes.then(Vec::new);
        SharedDisk { state: Rc::new(RefCell::new(State { disk, crashes })), planted }
    }

    /// Acts on the disk itself.
    pub fn act<T>(&self, act: impl FnOnce(&mut SimulatedDisk) -> T) -> T {
        act(&mut self.state.borrow_mut().disk)
    }

    /// For each operation since the last call: the disk after a crash in that operation, before the machine starts again.
    #[cfg(any(test, feature = "internals"))]
    pub fn take_crashes(&self) -> Vec<SimulatedDisk> {
        self.state.borrow_mut().crashes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Carries out an operation that changes the disk, and before that, if crashes are kept, on a copy that crashes in it.
    fn change<T>(&self, mut operate: impl FnMut(&mut SimulatedDisk) -> Result<T>) -> Result<T> {
        let state = &mut *self.state.borrow_mut();
        if let Some(crashes) = &mut state.crashes {
            let mut crashed = state.disk.clone();
            crashed.crash_at(crashed.operations());
            // It fails: the machine is gone.
            let _ = operate(&mut crashed);
            crashes.push(crashed);
        }
        operate(&mut state.disk)
    }
}

impl Disk for SharedDisk {
    type File = usize;

    forward! {
        act open(name: &[u8]) -> Result<Option<(usize, u64)>>;
        change create(name: &[u8]) -> Result<usize>;
        act read_at(file: &mut usize, offset: u64, into: &mut [u8]) -> Result<usize>;
        change truncate(file: &mut usize, len: u64) -> Result;
        change sync(file: &mut usize) -> Result;
        change rename(from: &[u8], to: &[u8]) -> Result;
        change remove(name: &[u8]) -> Result;
        change write_at(file: &mut usize, offset: u64, bytes: &[u8]) -> Result<usize>;
        act names() -> Result<Vec<Vec<u8>>>;
    }

    fn sync_folder(&mut self) -> Result {
        if self.planted == Planted::NoSyncOfFolder {
            return Ok(());
        }
        self.change(SimulatedDisk::sync_folder)
    }

    fn append(&mut self, file: &mut usize, bytes: &[u8]) -> Result<usize> {
        let mut bytes = bytes.to_vec();
        if self.planted == Planted::NoTokenRecord && bytes.starts_with(b"REDIS") {
            lose_token(&mut bytes);
        }
        self.change(|disk| disk.append(file, &bytes))
    }
}

impl LogFolder for SharedDisk {
    type Source = Cursor<Vec<u8>>;

    fn source(&mut self, name: &[u8]) -> io::Result<(u64, Cursor<Vec<u8>>)> {
        let read = read_whole(self, name, FILE_MAX).map_err(|error| io::Error::other(error.to_string()))?;
        let mut bytes = read.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if self.planted == Planted::NoChecksum {
            seal_again(&mut bytes);
        }
        Ok((bytes.len() as u64, Cursor::new(bytes)))
    }

    fn create_temporary(&mut self, name: &[u8], _: &[u8]) -> Result<(Vec<u8>, usize)> {
        Ok((name.to_vec(), self.create(name)?))
    }

    fn remove_remnants(&mut self, is_ours: impl Fn(&str) -> bool) {
        for name in self.names().unwrap_or_default() {
            if std::str::from_utf8(&name).is_ok_and(&is_ours) {
                // Nothing reads it.
                let _ = self.remove(&name);
            }
        }
    }

    fn path(&self) -> &Path {
        Path::new("")
    }
}

/// Renames the record of the next token, so that it is not read, and takes the checksum away.
fn lose_token(chunk: &mut [u8]) {
    if let Some(at) = memchr::memmem::find(chunk, name::TOKEN) {
        chunk[at..at + name::TOKEN.len()].fill(b'x');
    }
    if let Some(checksum) = chunk.len().checked_sub(8) {
        chunk[checksum..].fill(0);
    }
}

/// Gives each batch of an increment the checksum of what it is now.
fn seal_again(bytes: &mut [u8]) {
    let Some(salt) = bytes.get(..FIRST_LINE).and_then(|line| salt_of(line).ok()) else { return };
    let mut at = FIRST_LINE;
    while let Some(header) = bytes.get(at..).and_then(|rest| Header::parse(salt, rest)) {
        let end = at + HEADER + header.bytes as usize;
        let Some(batch) = bytes.get_mut(at..end) else { return };
        seal(batch, salt, header.synced);
        at = end;
    }
}
