//! How this program makes files: nothing else in it creates one, and a test keeps it so.
//!
//! A folder may be one that others write to, as `/tmp` is, and a name may be guessed. So a new file never takes the place of what
//! lies there (`O_EXCL`), no link at its name is followed (`O_NOFOLLOW`), and nobody but its owner may read it, unless it replaces a
//! file that others could read.
//!
//! ```text
//!   text ─▶ replace ─▶ Temporary: created, locked ─▶ written, synced ─▶ renamed to its target
//!                          │ the name is taken: removed if a process of ours left it and died, else the next name is tried
//!   a log's folder ─▶ create_anew         a person's own words on the command line ─▶ append, output
//! ```

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Permissions of a file that replaces none: its owner may read and write it.
const PRIVATE: u32 = 0o600;
/// Maximum number of names that are tried, and of attempts to get one.
const TRIES: u32 = 100;

fn nofollow(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32)
}

/// Creates a file under a name that nothing has, for reading and appending.
///
/// # Errors
/// The system's: `AlreadyExists` also for a link that leads nowhere.
pub fn create_private(path: &Path) -> io::Result<File> {
    nofollow(OpenOptions::new().read(true).append(true).create_new(true).mode(PRIVATE)).open(path)
}

/// Copies a file to a name that nothing has.
///
/// # Errors
/// The system's.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create_private(to)?).map(drop)
}

/// Creates an empty file in a folder of our own, for reading and appending. What has the name is removed first; if that is a link,
/// what it leads to stays.
///
/// # Errors
/// The system's.
pub fn create_anew(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        match create_private(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => {
                std::fs::remove_file(path).or_else(gone)?
            }
            created => return created,
        }
        tries += 1;
    }
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// A file that is written under a name of its own and then renamed. Dropping it removes it. It is locked for as long as it is open:
/// by this other processes see that it is no remnant.
#[derive(Debug)]
pub struct Temporary {
    file: File,
    path: PathBuf,
    is_renamed: bool,
}

impl Temporary {
    /// Creates a file that will replace `target`, whose permissions it has. It gets this path, or if that is taken the path with a number
    /// behind it.
    ///
    /// # Errors
    /// The system's. `AlreadyExists` if a hundred names are taken.
    pub fn create(path: &Path, target: &Path) -> io::Result<Temporary> {
        for number in 0..TRIES {
            let path = numbered(path, number);
            if let Some(file) = create_and_lock(&path)? {
                let temporary = Temporary { file, path, is_renamed: false };
                if let Some(permissions) = permissions_of(target) {
                    temporary.file.set_permissions(permissions)?;
                }
                return Ok(temporary);
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// The open file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// The open file and its path, of which the caller takes care from now on.
    pub fn into_parts(mut self) -> io::Result<(File, PathBuf)> {
        self.is_renamed = true;
        Ok((self.file.try_clone()?, std::mem::take(&mut self.path)))
    }

    /// Gives it its name, atomically. This is durable when the folder has been synced.
    ///
    /// # Errors
    /// The system's. The file is removed then.
    pub fn rename(mut self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.into()
}

/// The permissions of a file that is to be replaced.
fn permissions_of(target: &Path) -> Option<Permissions> {
    let found = std::fs::metadata(target).ok().filter(|found| found.is_file())?;
    Some(Permissions::from_mode(found.mode() & 0o777))
}

/// Creates and locks a file; `None` if its name is taken, and by no remnant of ours.
fn create_and_lock(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..TRIES {
        match create_private(path) {
            // Another process may have taken it for a remnant before it was locked. Some file systems have no locks.
            Ok(file) if lock(&file) && is_at(&file, path) => return Ok(Some(file)),
            Ok(_) => {}
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            Err(_) if remove_remnant(path) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Locks a file. Returns false if another process has locked it.
fn lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// Whether a path leads to an open file, and through no link.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |(open, named): (std::fs::Metadata, std::fs::Metadata)| (open.dev(), open.ino()) == (named.dev(), named.ino());
    file.metadata().and_then(|open| Ok((open, std::fs::symlink_metadata(path)?))).is_ok_and(same)
}

/// Removes a temporary file that a process of this user has left behind, and returns whether it did: a file that is no regular one,
/// or somebody else's, or still being written, stays.
pub fn remove_remnant(path: &Path) -> bool {
    // Without waiting: the open of a pipe would.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path) else { return false };
    let is_ours = |found: std::fs::Metadata| found.is_file() && found.uid() == geteuid().as_raw();
    file.metadata().is_ok_and(is_ours) && lock(&file) && is_at(&file, path) && std::fs::remove_file(path).is_ok()
}

/// Removes the remnants in a folder of temporary files with such names, each with or without a number behind it, and tells of each.
pub fn remove_remnants(folder: &Path, is_ours: impl Fn(&str) -> bool, removed: impl Fn(&Path)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let numbered = name.rsplit_once('.').filter(|(_, number)| number.parse::<u32>().is_ok());
        if (is_ours(name) || numbered.is_some_and(|(name, _)| is_ours(name))) && remove_remnant(&path) {
            removed(&path);
        }
    }
}

/// Replaces a file's whole content: readers see the old one or the new one.
///
/// # Errors
/// The system's. The file is as it was then.
pub fn replace(target: &Path, text: &[u8]) -> io::Result<()> {
    written(target, text)?.rename(target)
}

/// As [`replace`]. The new content survives a crash of the machine afterwards.
///
/// # Errors
/// The system's. The file is as it was then, unless only the last step failed, the sync of its folder.
pub fn replace_durably(target: &Path, text: &[u8]) -> io::Result<()> {
    let mut temporary = written(target, text)?;
    temporary.file().sync_all()?;
    temporary.rename(target)?;
    sync_folder_of(target)
}

fn written(target: &Path, text: &[u8]) -> io::Result<Temporary> {
    let mut path = target.as_os_str().to_owned();
    path.push(".writing");
    let mut temporary = Temporary::create(Path::new(&path), target)?;
    temporary.file().write_all(text)?;
    Ok(temporary)
}

/// Makes it durable which files the folder of a file has.
///
/// # Errors
/// The system's.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Opens a file that stays and is locked by whoever uses its folder, and creates it if it is missing.
///
/// # Errors
/// The system's: a link is none.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    nofollow(OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(PRIVATE)).open(path)
}

/// Opens a file that exists, for reading and appending.
///
/// # Errors
/// The system's.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).open(path)
}

/// Opens a file that exists, for reading and for writing anywhere.
///
/// # Errors
/// The system's.
pub fn open_to_change(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Opens a log or another file that a person has named, for appending. Links are followed and devices are right: this is what was asked
/// for.
///
/// # Errors
/// The system's.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Writes a file that a person has named for results, as [`append`] opens it.
///
/// # Errors
/// The system's.
pub fn output(path: &Path, text: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write_all(text)
}

/// Creates a folder that nobody else may enter, in the system's folder for temporary ones. Returns its path, which begins with this
/// name.
///
/// # Errors
/// The system's. `AlreadyExists` if a hundred names are taken.
pub fn temporary_folder(name: &str) -> io::Result<PathBuf> {
    for number in 0..TRIES {
        let path = numbered(&std::env::temp_dir().join(name), number);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|()| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn scratch(name: &str) -> PathBuf {
        temporary_folder(&format!("portcullis-files-{}-{name}", std::process::id())).unwrap()
    }

    #[test]
    fn a_file_is_private_unless_it_replaces_one_that_is_not() {
        let folder = scratch("modes");
        assert_eq!(mode(&folder), 0o700);
        let target = folder.join("users.acl");
        replace_durably(&target, b"one").unwrap();
        assert_eq!((mode(&target), std::fs::read(&target).unwrap()), (0o600, b"one".to_vec()));
        for permissions in [0o640, 0o666, 0o400] {
            std::fs::set_permissions(&target, Permissions::from_mode(permissions)).unwrap();
            replace(&target, b"two").unwrap();
            assert_eq!((mode(&target), std::fs::read(&target).unwrap()), (permissions, b"two".to_vec()));
        }
        for created in
            [create_private(&folder.join("new")), create_anew(&folder.join("anew")), open_lock_file(&folder.join("lock"))]
        {
            assert_eq!(created.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(names(&folder), ["anew", "lock", "new", "users.acl"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_a_stranger_has_put_at_the_name_is_neither_followed_nor_overwritten_nor_in_the_way() {
        let folder = scratch("links");
        let (victim, target) = (folder.join("victim"), folder.join("ready"));
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.join("ready.writing")).unwrap();
        std::fs::create_dir(folder.join("ready.writing.1")).unwrap();
        symlink(folder.join("nowhere"), folder.join("ready.writing.2")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, folder.join("ready.writing.3"), FileType::Fifo, mode, 0).unwrap();
        replace(&target, b"127.0.0.1:1\n").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"127.0.0.1:1\n");
        for opened in [create_private(&folder.join("ready.writing")), open_lock_file(&folder.join("ready.writing"))] {
            opened.unwrap_err();
        }
        create_anew(&folder.join("ready.writing")).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(
            names(&folder),
            ["ready", "ready.writing", "ready.writing.1", "ready.writing.2", "ready.writing.3", "victim"],
            "nothing was written through the link to nowhere"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_remnant_is_removed_and_a_file_that_is_being_written_is_not() {
        let folder = scratch("remnants");
        let (path, target) = (folder.join("temp-1-1.rdb"), folder.join("dump.rdb"));
        std::fs::write(&path, "a half").unwrap();
        let first = Temporary::create(&path, &target).unwrap();
        let mut second = Temporary::create(&path, &target).unwrap();
        assert_eq!(names(&folder), ["temp-1-1.rdb", "temp-1-1.rdb.1"]);
        assert_eq!(first.file.metadata().unwrap().len(), 0, "the remnant is gone");
        assert!(!remove_remnant(&path), "it is being written");
        for (name, removed) in
            [("temp-1-1.rdb.7", true), ("temp-1-1.rdb.x", false), ("other.rdb", false), ("temp-1-1.rdb.", false)]
        {
            std::fs::write(folder.join(name), "").unwrap();
            remove_remnants(&folder, |name| name == "temp-1-1.rdb", |_| {});
            assert_eq!(std::fs::remove_file(folder.join(name)).is_err(), removed, "{name}");
        }
        second.file().write_all(b"whole").unwrap();
        second.rename(&target).unwrap();
        drop(first);
        assert_eq!((names(&folder), std::fs::read(&target).unwrap()), (vec!["dump.rdb".to_owned()], b"whole".to_vec()));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_of_an_earlier_run_keeps_nobody_from_a_new_one() {
        let folder = scratch("anew");
        let path = folder.join("appendonly.aof.1.incr.aof");
        std::fs::write(&path, "old").unwrap();
        std::fs::hard_link(&path, folder.join("copy")).unwrap();
        create_anew(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read(folder.join("copy")).unwrap(), b"old", "a copy that is a link to the same file stays");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
