//! Cuts a torn end off the last file of a manifest, or off an append-only file that no manifest names.
//!
//! ```text
//!   lock ─▶ check all ─▶ say what is lost ─▶ ask ─▶ copy of the end, synced ─▶ folder synced ─▶ cut, synced ─▶ check again
//! ```

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::files;
use crate::persist::append::damage::Damage;
use crate::server::durable::check::inspect::{Checked, Verdict};
use crate::server::durable::check::tail::rest_of;
use crate::server::durable::check::target::{self, CUT, Target};
use crate::server::durable::check::text::{Role, amount, count, durable, listed};
use crate::server::durable::check::{Check, Fix, beside};
use crate::server::durable::folder::words;
use crate::server::durable::lock::lock;

/// Maximum number of copies of ends of one file that were cut off at one offset.
const COPIES_MAX: u32 = 1000;

/// Checks what is at a path, and cuts what may be cut.
///
/// # Errors
/// In words: nothing was cut, or it is said what was.
pub fn run(check: &mut Check<'_>, path: &Path, fix: Fix) -> Result<(), String> {
    match target::find(path)? {
        Target::Manifest(manifest) => of_manifest(check, &manifest, fix),
        Target::Folder { manifests, files } => match (&manifests[..], &files[..]) {
            ([manifest], _) => of_manifest(check, manifest, fix),
            ([], [file]) => of_file(check, file, fix),
            (manifests, files) => {
                let names: Vec<String> = manifests.iter().chain(files).map(|path| path.display().to_string()).collect();
                Err(format!("--fix takes one file or one manifest at a time, one of {}", names.join(", ")))
            }
        },
        Target::File(file) => match manifest_of(&file)? {
            Some(manifest) => of_manifest(check, &manifest, fix),
            None => of_file(check, &file, fix),
        },
    }
}

/// The manifest that names a file.
fn manifest_of(file: &Path) -> Result<Option<PathBuf>, String> {
    let Some(name) = file.file_name() else { return Ok(None) };
    let Ok(Target::Folder { manifests, .. }) = target::find(&target::folder_of(file)) else { return Ok(None) };
    for manifest in manifests.into_iter().filter(|manifest| target::folder_of(manifest) == target::folder_of(file)) {
        let text = std::fs::read(&manifest).map_err(|error| format!("Can't read {}: {}", manifest.display(), words(&error)))?;
        // One that is damaged may name the file.
        let names = crate::persist::append::manifest::Manifest::parse(&text).map_or(true, |manifest| {
            manifest
                .base
                .iter()
                .chain(&manifest.increments)
                .any(|of| *String::from_utf8_lossy(&of.name) == *name.to_string_lossy())
        });
        if names {
            return Ok(Some(manifest));
        }
    }
    Ok(None)
}

fn of_manifest(check: &mut Check<'_>, manifest: &Path, fix: Fix) -> Result<(), String> {
    let folder = target::folder_of(manifest);
    let _lock = lock(&folder)?;
    let Some(chain) = check.chain(manifest)? else {
        check.say("--fix does nothing: it does not change a manifest");
        return Ok(());
    };
    let Some((last, before)) = chain.files.split_last() else {
        check.say("--fix does nothing: the manifest names no file");
        return Ok(());
    };
    if let Some(other) = before.iter().find(|file| !file.verdict.is_whole()) {
        check.say(&format!("--fix does nothing: {} is not whole, and files follow it", other.path.display()));
        return Ok(());
    }
    let is_increment = !chain.manifest.increments.is_empty();
    if cut(check, last, is_increment, fix)? {
        check.damaged = false;
        check.chain(manifest)?;
        verdict(check);
    }
    Ok(())
}

fn of_file(check: &mut Check<'_>, path: &Path, fix: Fix) -> Result<(), String> {
    let checked = check.alone(path);
    check.report(&checked, Role::Alone, None);
    if cut(check, &checked, true, fix)? {
        check.damaged = false;
        let checked = check.alone(path);
        check.report(&checked, Role::Alone, None);
        verdict(check);
    }
    Ok(())
}

fn verdict(check: &mut Check<'_>) {
    let text = if check.damaged { "verdict: still not whole, see above" } else { "verdict: whole" };
    check.say(text);
}

/// Cuts the end of a file, if it may. Returns whether it has.
fn cut(check: &mut Check<'_>, checked: &Checked, is_log: bool, fix: Fix) -> Result<bool, String> {
    let refuse = |check: &mut Check<'_>, why: &str| {
        check.say(&format!("--fix does nothing: {why}"));
        Ok(false)
    };
    let damage = match &checked.verdict {
        Verdict::Whole | Verdict::Closed => return refuse(check, "all is whole"),
        Verdict::Missing => return refuse(check, "the file is missing"),
        Verdict::Unreadable(error) => return Err(format!("Can't read {}: {error}", checked.path.display())),
        verdict if verdict.is_foreign() => return refuse(check, "the file is not damaged"),
        Verdict::Rdb(_) | Verdict::Refused(..) => return refuse(check, "an RDB cannot be cut"),
        Verdict::Torn(damage) | Verdict::Damaged(damage) => *damage,
    };
    // A base of requests has no end that a crash could have torn, but a single file with a preamble has.
    if !is_log && checked.rdb.is_none() && checked.requests.is_none() {
        return refuse(check, "the file is no append-only file");
    }
    let is_torn = matches!(checked.verdict, Verdict::Torn(_));
    let mut file = files::open_to_change(&checked.path).map_err(|error| describe(&checked.path, &error))?;
    let salt = checked.requests.and_then(|requests| requests.facts.salt);
    let rest =
        rest_of(&file, damage.whole, salt, damage.offset, &check.moment).map_err(|error| describe(&checked.path, &error))?;
    if !is_torn && !fix.cut_damage {
        let why = format!(
            "this is damage in the middle. From offset {} on there are {}, of which {} were on the disk by what the file says. Whole \
             batches behind it: {}.\n    --cut-damage cuts there all the same, and loses all of it.",
            damage.whole,
            count(rest.units, "unit"),
            rest.durable_units,
            rest.whole_batches,
        );
        return refuse(check, &why);
    }
    check.say(&format!("{} is to be cut at offset {}. This is lost: {}", checked.path.display(), damage.whole, amount(&rest)));
    let list = listed(&rest);
    if !list.is_empty() {
        check.say(list.trim_end_matches('\n'));
    }
    durable(&rest, &mut |line| check.say(line));
    if !fix.yes && !confirmed(check)? {
        return refuse(check, "that was not yes");
    }
    let copy = copy_end(&mut file, checked, &damage)?;
    check.say(&format!("a copy of these bytes is {}", copy.display()));
    let unknown = |error: io::Error| {
        format!(
            "{}: {}; whether the cut is on the disk is unknown. A copy of the end is there.",
            checked.path.display(),
            words(&error)
        )
    };
    file.set_len(damage.whole).and_then(|()| file.sync_all()).map_err(unknown)?;
    sync_folder(&checked.path).map_err(unknown)?;
    check.say(&format!("{} is cut at offset {}", checked.path.display(), damage.whole));
    Ok(true)
}

/// Asks for a yes.
fn confirmed(check: &mut Check<'_>) -> Result<bool, String> {
    fail_if!(!io::stdin().is_terminal(), "--fix asks before it cuts, and standard input is no terminal: give --yes".to_owned());
    check.say("Cut it? Type yes:");
    let mut line = String::new();
    io::stdin().lock().take(16).read_line(&mut line).map_err(|error| words(&error))?;
    Ok(line.trim().eq_ignore_ascii_case("yes"))
}

/// Copies the end beside the file, durably. Returns the path of the copy.
fn copy_end(file: &mut File, checked: &Checked, damage: &Damage) -> Result<PathBuf, String> {
    let changed = || format!("{} has changed since it was read: something writes to it", checked.path.display());
    let len = file.metadata().map_err(|error| describe(&checked.path, &error))?.len();
    fail_if!(len != checked.bytes, changed());
    let (path, mut copy) = create_copy(&checked.path, damage.whole)?;
    let end = file.seek(SeekFrom::Start(damage.whole)).and_then(|_| io::copy(file, &mut copy));
    let copied = end.map_err(|error| describe(&path, &error))?;
    fail_if!(copied != len - damage.whole, changed());
    copy.sync_all().and_then(|()| sync_folder(&path)).map_err(|error| describe(&path, &error))?;
    Ok(path)
}

fn create_copy(path: &Path, offset: u64) -> Result<(PathBuf, File), String> {
    for number in 0..COPIES_MAX {
        let end = if number == 0 { format!("{CUT}{offset}") } else { format!("{CUT}{offset}.{number}") };
        let copy = beside(path, &end);
        match files::create_private(&copy) {
            Ok(file) => return Ok((copy, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(describe(&copy, &error)),
        }
    }
    Err(format!("{}: there are too many copies already", beside(path, CUT).display()))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(target::folder_of(path)).and_then(|folder| folder.sync_all())
}

fn describe(path: &Path, error: &io::Error) -> String {
    format!("{}: {}", path.display(), words(error))
}
