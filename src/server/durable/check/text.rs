//! What a check says, for a person who has to act on it.

use std::fmt::Write;
use std::fs::File;
use std::path::Path;

use crate::persist::append::damage::{Damage, Reason};
use crate::persist::append::manifest::{Error, Manifest};
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file::fault::{Fault, Reason as RdbReason};
use crate::persist::rdb_file::read::Checksum;
use crate::server::durable::check::inspect::{Checked, Verdict};
use crate::server::durable::check::tail::{LISTED_MAX, Rest, rest_of};
use crate::server::durable::check::target::CUT;
use crate::server::durable::folder::words;

const BACKUP: &str = "next: copy the folder before you do anything else, then restore this file from a backup.";

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A manifest names it, and others behind it.
    Named,
    /// It is the last one of a manifest.
    Last,
    /// It was given by itself, or is beside no manifest.
    Alone,
    /// It is beside a manifest that does not name it.
    Unnamed,
}

/// A number of things.
pub fn count(number: u64, thing: &str) -> String {
    match (number, thing.strip_suffix("ch")) {
        (1, _) => format!("1 {thing}"),
        (_, Some(_)) => format!("{number} {thing}es"),
        (_, None) => match thing.strip_suffix("ary") {
            Some(stem) => format!("{number} {stem}aries"),
            None => format!("{number} {thing}s"),
        },
    }
}

/// What a manifest says. `user` is the process that uses the folder.
pub fn manifest(path: &Path, manifest: &Manifest, user: Option<&str>) -> String {
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let base = manifest.base.as_ref().map_or("no base".to_owned(), |base| format!("base {}", name(&base.name)));
    let increments = match manifest.increments.last() {
        None => "no increment".to_owned(),
        Some(last) => format!("{}, the last is {}", count(manifest.increments.len() as u64, "increment"), name(&last.name)),
    };
    let mut text = format!("{}: whole\n    {base}; {increments}", path.display());
    if let Some(user) = user {
        let _ = write!(
            text,
            "\n    the server with process id {user} uses this folder: the end of the last file may be a batch that it writes, and a \
             file that is missing may have been replaced meanwhile"
        );
    }
    text
}

/// What is wrong with a manifest.
pub fn bad_manifest(path: &Path, error: &Error) -> String {
    let error = error.to_string().replace('\n', "\n    ");
    format!(
        "{}: damaged\n    {error}\n    No file of it is loaded, and a start fails.\n    next: copy the folder, then restore the manifest \
         from a backup. It has a line 'file NAME seq N type b' for the base,\n    and one 'file NAME seq N type i' for each increment, in \
         order.",
        path.display()
    )
}

/// How many keys a start finds in all files, or why it fails although each is whole.
pub fn together(finished: Result<usize, String>) -> String {
    match finished {
        Ok(keys) => format!("together: a start finds {}, locks included", count(keys as u64, "key")),
        Err(error) => format!("together: damaged. {error}, so a start fails.\n{BACKUP}"),
    }
}

/// A file that a manifest names as history.
pub fn history(path: &Path) -> String {
    let what = if path.exists() { "history, not loaded; the next start deletes it" } else { "history, already deleted" };
    format!("{}: {what}", path.display())
}

/// A file that is neither.
pub fn unknown(path: &Path) -> String {
    let is_cut = path.file_name().is_some_and(|name| name.to_string_lossy().contains(CUT));
    let what = if is_cut { "what --fix has cut off; not loaded" } else { "not a file of the append-only file; not read" };
    format!("{}: {what}", path.display())
}

/// What was found in a file.
pub fn of(checked: &Checked, role: Role, user: Option<&str>, moment: &Moment) -> String {
    let mut text = format!("{}: {}", checked.path.display(), headline(checked, role, user));
    let mut line = |what: &str| _ = write!(text, "\n    {}", what.replace('\n', "\n    "));
    if !matches!(checked.verdict, Verdict::Missing | Verdict::Unreadable(_)) {
        contents(checked, &mut line);
    }
    if role == Role::Unnamed {
        line("no manifest names it: a start does not read it");
    }
    match &checked.verdict {
        Verdict::Whole | Verdict::Closed | Verdict::Unreadable(_) => {}
        Verdict::Missing => {
            line("The manifest names it, and it is not there. A start fails.");
            line(BACKUP);
        }
        Verdict::Torn(damage) | Verdict::Damaged(damage) if role == Role::Unnamed => line(&damage.to_string()),
        Verdict::Torn(damage) | Verdict::Damaged(damage) => {
            line(&damage.to_string());
            match rest(checked, damage.whole, damage.offset, moment) {
                Err(error) => line(&format!("What follows cannot be read: {error}")),
                Ok(rest) => {
                    unit(checked, &rest, &mut line);
                    if matches!(checked.verdict, Verdict::Torn(_)) {
                        line(&format!("Cutting it at offset {} would lose {}.", damage.whole, amount(&rest)));
                        torn(checked, damage, role, user, &mut line);
                    } else {
                        damaged(checked, damage, &rest, role, &mut line);
                    }
                }
            }
        }
        Verdict::Refused(offset, error) => {
            line(error);
            if let Ok(rest) = rest(checked, *offset, *offset, moment) {
                unit(checked, &rest, &mut line);
                line(&format!("From there on the file has {}.", amount(&rest)));
            }
            line("The file is not damaged: this program does not have the command, which may be a module's. A start fails.");
            line("next: start the server that wrote it, remove what needs the command, and send BGREWRITEAOF.");
        }
        Verdict::Rdb(fault) => rdb(fault, checked.verdict.is_foreign(), &mut line),
    }
    text
}

fn headline(checked: &Checked, role: Role, user: Option<&str>) -> String {
    let bytes = checked.bytes;
    match &checked.verdict {
        Verdict::Whole => "whole".to_owned(),
        Verdict::Closed => "whole, closed by a clean stop".to_owned(),
        Verdict::Torn(damage) if user.is_some() && role == Role::Last => {
            format!("whole up to offset {} of {bytes}; the rest may be being written", damage.whole)
        }
        Verdict::Torn(damage) => format!("torn at offset {} of {bytes}", damage.whole),
        Verdict::Missing => "missing".to_owned(),
        Verdict::Unreadable(error) => format!("cannot be read: {error}"),
        Verdict::Damaged(Damage { offset, .. }) | Verdict::Rdb(Fault { offset, .. }) | Verdict::Refused(offset, _) => {
            let what = if checked.verdict.is_foreign() { "not readable by this program" } else { "damaged" };
            format!("{what} at offset {offset} of {bytes}")
        }
    }
}

/// What the file has.
fn contents(checked: &Checked, line: &mut impl FnMut(&str)) {
    if let Some(rdb) = &checked.rdb {
        let server = rdb.server.as_deref().unwrap_or("unknown");
        let writer = if checked.natives.is_empty() { "" } else { "Portcullis, " };
        let checksum = match rdb.checksum {
            Some(Checksum::Right) => "checksum right",
            Some(Checksum::None | Checksum::Unchecked) => "without a checksum",
            None => "end not reached",
        };
        line(&format!("RDB version {} of {writer}redis-ver {server}; {}, {checksum}", rdb.version, count(rdb.bytes, "byte")));
        let mut text = format!("{}, {} of them with deadlines", count(rdb.tally.loaded, "key"), rdb.expires);
        if rdb.libraries > 0 {
            let _ = write!(text, "; {}", count(rdb.libraries, "library of functions").replace("librarys", "libraries"));
        }
        if rdb.tally.empty > 0 {
            let _ = write!(text, "; {} left out", count(rdb.tally.empty, "empty key"));
        }
        line(&text);
    }
    if let Some(requests) = &checked.requests
        && (checked.rdb.is_none() || requests.units > 0)
    {
        let size = count(checked.bytes, "byte");
        let facts = requests.facts;
        if let Verdict::Damaged(Damage { reason: Reason::NewerFormat | Reason::BadFirstLine, .. }) = checked.verdict {
            line(&format!("append-only file of Portcullis; {size}"));
            return;
        }
        match facts.salt {
            Some(_) => line(&format!("append-only file of Portcullis, format 1; {size}")),
            None if checked.bytes == 0 => line("empty"),
            None => line(&format!("append-only file of a redis-server; {size}")),
        }
        let batches = if facts.salt.is_some() { count(facts.batches, "batch") + ", " } else { String::new() };
        line(&format!("{batches}{}, {}", count(requests.units, "unit"), count(requests.requests, "request")));
        if let Some(seconds) = requests.timestamp {
            line(&format!("the last time in it is {seconds} (Unix seconds)"));
        }
    }
    if !checked.natives.is_empty() {
        let records: Vec<String> = checked.natives.iter().map(|(name, number)| format!("{number} {name}")).collect();
        line(&format!("native records: {}", records.join(", ")));
    }
    let refusals = &checked.refusals;
    if refusals.requests > 0 {
        line(&format!("{} in it are refused, and a start leaves them out, as Redis does:", count(refusals.requests, "request")));
        refusals.named.iter().for_each(|named| line(&format!("  {named}")));
    }
    refusals
        .libraries
        .iter()
        .for_each(|error| line(&format!("a library of functions is refused, and a start leaves it out: {error}")));
}

fn rest(checked: &Checked, from: u64, damage: u64, moment: &Moment) -> Result<Rest, String> {
    let salt = checked.requests.and_then(|requests| requests.facts.salt);
    let rest = File::open(&checked.path).and_then(|file| rest_of(&file, from, salt, damage, moment));
    rest.map_err(|error| words(&error))
}

/// Which unit is damaged.
fn unit(checked: &Checked, rest: &Rest, line: &mut impl FnMut(&str)) {
    if let Some(found) = &rest.damaged {
        let number = checked.requests.map_or(0, |requests| requests.units) + found.unit;
        let is_batch = match &checked.verdict {
            Verdict::Torn(damage) | Verdict::Damaged(damage) => !matches!(damage.reason, Reason::Refused(_)),
            _ => false,
        };
        let ours = checked.requests.is_some_and(|requests| requests.facts.salt.is_some());
        let which = if is_batch && ours { "The batch begins with" } else { "It is in" };
        line(&format!("{which} unit {number}, the request at offset {}: {}", found.offset, found.what));
    }
}

fn torn(checked: &Checked, damage: &Damage, role: Role, user: Option<&str>, line: &mut impl FnMut(&str)) {
    if user.is_some() && role == Role::Last {
        line("next: nothing. Check again when the server has stopped.");
        return;
    }
    if role == Role::Named {
        line("Files follow it, so this is not the end that a crash leaves. A start fails, and --fix does not cut it.");
        line(BACKUP);
        return;
    }
    let synced = checked.requests.map_or(0, |requests| requests.facts.synced);
    if checked.requests.is_some_and(|requests| requests.facts.salt.is_some()) {
        if synced > 0 {
            line(&format!("Bytes up to offset {synced} were on the disk, by what the file says; nothing says so of the end."));
        }
        if damage.reason == Reason::Short {
            line("A crash leaves this, and then nothing that was acknowledged under appendfsync always is in it.");
        } else {
            line(
                "A power loss leaves this. If there was none, the disk or the memory is at fault, and what was acknowledged may be in it.",
            );
        }
    }
    line("A start with aof-load-truncated yes leaves the end out; one with no fails.");
    line("next: start the server, or cut the end off first with --fix.");
}

fn damaged(checked: &Checked, damage: &Damage, rest: &Rest, role: Role, line: &mut impl FnMut(&str)) {
    if checked.verdict.is_foreign() {
        line("The file is not damaged there: a later version of Portcullis wrote it. A start fails.");
        line("next: start that version.");
        return;
    }
    line(&format!("Cutting it at offset {} would lose {}.", damage.whole, amount(rest)));
    durable(rest, line);
    line("A start fails, whatever aof-load-truncated is.");
    if damage.reason == Reason::Continued {
        line("A redis-server has cut the torn end of this file in its own way, and gone on writing behind it.");
    }
    line(BACKUP);
    if role != Role::Named {
        line("Without one, --fix --cut-damage cuts it there, and loses what is said above.");
    }
}

/// What is known of the bytes behind damage.
pub fn durable(rest: &Rest, line: &mut impl FnMut(&str)) {
    if rest.durable > 0 {
        line(&format!(
            "This is not the end that a crash leaves: bytes up to offset {} were on the disk, by what the file says, among them {} of \
             these units.",
            rest.durable, rest.durable_units
        ));
    }
    if rest.whole_batches > 0 {
        line(
            &format!("{} behind it are whole.", count(rest.whole_batches, "batch"))
                .replace("1 batch behind it are", "1 batch behind it is"),
        );
    }
}

fn rdb(fault: &Fault, is_foreign: bool, line: &mut impl FnMut(&str)) {
    line(&fault.explanation());
    match &fault.reason {
        RdbReason::ModuleValue(_) | RdbReason::ModulePreGa | RdbReason::ModuleAux(_) => {
            line("The file is not damaged: it has data of a module, which this program cannot read. A start fails.");
            line("next: start the Redis that has the module, delete this data there, and save again.");
        }
        RdbReason::Databases(_) => {
            line("The file is not damaged: it has more databases. A start fails.");
            line("next: give --databases here, and to the server.");
        }
        _ if is_foreign => {
            line("The file is not damaged there: another version wrote it. A start fails.");
            line("next: start that version.");
        }
        _ => {
            line("An RDB cannot be cut: a start fails, and --fix does nothing.");
            line(BACKUP);
        }
    }
}

/// How much there is.
pub fn amount(rest: &Rest) -> String {
    format!("{}: {}, {}", count(rest.bytes, "byte"), count(rest.units, "unit"), count(rest.requests, "request"))
}

/// The first requests.
pub fn listed(rest: &Rest) -> String {
    let mut text = String::new();
    for found in &rest.listed {
        let _ = writeln!(text, "    offset {}: {}", found.offset, found.what);
    }
    if rest.requests > LISTED_MAX as u64 {
        let _ = writeln!(text, "    and {} more", rest.requests - LISTED_MAX as u64);
    }
    text
}
