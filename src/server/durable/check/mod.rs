//! Checks files without a server: an RDB, an append-only file, a manifest, or a folder. Every value is decoded and every request
//! is executed, by the code of a start, in an engine that is thrown away.
//!
//! ```text
//!   cli ─▶ target: which files ─▶ inspect: reads one as a start does ─▶ Checked ─▶ text: what it is, what to do
//!                                                                         └─▶ fix: cuts a torn end
//!                                     tail: what is behind the damage ────┴──────────┘
//! ```
//!
//! Memory: what a start takes.

pub mod cli;
mod fix;
mod inspect;
mod tail;
mod target;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::commands;
use crate::driver::replay::{Purpose, Replay};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::Moment;
use crate::server::clock::Clock;
use crate::server::durable::boottime;
use crate::server::durable::check::inspect::{Checked, Verdict, inspect};
use crate::server::durable::check::target::{MANIFEST_END, Target};
use crate::server::durable::check::text::Role;
use crate::server::durable::folder::words;
use crate::server::durable::lock::{LOCK_FILE, user_of};

/// What `--fix` may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fix {
    /// It does not ask.
    pub yes: bool,
    /// It also cuts from damage on, with all that follows, whatever was durable.
    pub cut_damage: bool,
}

/// A check in progress.
struct Check<'a> {
    /// Number of databases.
    databases: u32,
    moment: Moment,
    out: &'a mut dyn Write,
    /// Whether a file that a start would read is not whole.
    damaged: bool,
}

/// The files of a manifest, in the order in which they are loaded.
struct Chain {
    manifest: Manifest,
    files: Vec<Checked>,
}

/// Checks what is at a path, and writes what it finds. Returns whether all of it is whole.
///
/// # Errors
/// Why nothing can be checked, or why `--fix` does nothing, in words.
pub fn check(path: &Path, databases: u32, fix: Option<Fix>, out: &mut dyn Write) -> Result<bool, String> {
    // In this order, as at a start.
    let boot = boottime::now();
    let moment = Moment { boot, now: Clock::new().now() };
    let mut check = Check { databases, moment, out, damaged: false };
    match fix {
        None => check.run(path)?,
        Some(fix) => fix::run(&mut check, path, fix)?,
    }
    Ok(!check.damaged)
}

impl Check<'_> {
    /// Writes lines. A reader that has gone is no error.
    fn say(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
        let _ = self.out.flush();
    }

    fn run(&mut self, path: &Path) -> Result<(), String> {
        match target::find(path)? {
            Target::File(path) => {
                let checked = self.alone(&path);
                self.report(&checked, Role::Alone, None);
                if let Verdict::Unreadable(error) = checked.verdict {
                    return Err(format!("Can't read {}: {error}", path.display()));
                }
            }
            Target::Manifest(path) => self.manifest(&path)?,
            Target::Folder { manifests, files } => {
                for path in manifests {
                    self.manifest(&path)?;
                    self.others(&path)?;
                }
                for path in files {
                    let checked = self.alone(&path);
                    self.report(&checked, Role::Alone, None);
                }
            }
        }
        let verdict = if self.damaged { "verdict: not whole, see above" } else { "verdict: whole" };
        self.say(verdict);
        Ok(())
    }

    fn engine(&self) -> Engine {
        let config = Config { databases: self.databases, maxmemory: 0, ..Config::default() };
        Engine::new(config, 0, self.moment.now, commands::table())
    }

    /// Reads a file without those before it.
    fn alone(&self, path: &Path) -> Checked {
        let mut engine = self.engine();
        inspect(path, &mut Replay::new(&mut engine, self.moment))
    }

    fn report(&mut self, checked: &Checked, role: Role, user: Option<&str>) {
        self.say(&text::of(checked, role, user, &self.moment));
        // A server that runs may be in the middle of a batch.
        let is_written = user.is_some() && role == Role::Last && matches!(checked.verdict, Verdict::Torn(_));
        self.damaged |= role != Role::Unnamed && !checked.verdict.is_whole() && !is_written;
    }

    /// Checks a manifest and the files that it names.
    fn manifest(&mut self, path: &Path) -> Result<(), String> {
        self.chain(path).map(|_| ())
    }

    /// As [`Check::manifest`]. Returns what it found; nothing if the manifest is damaged.
    fn chain(&mut self, path: &Path) -> Result<Option<Chain>, String> {
        let text = std::fs::read(path).map_err(|error| format!("Can't read {}: {}", path.display(), words(&error)))?;
        let manifest = match Manifest::parse(&text) {
            Ok(manifest) => manifest,
            Err(error) => {
                self.damaged = true;
                self.say(&text::bad_manifest(path, &error));
                return Ok(None);
            }
        };
        let folder = target::folder_of(path);
        let user = user_of(&folder).filter(|user| *user != std::process::id().to_string());
        self.say(&text::manifest(path, &manifest, user.as_deref()));
        let mut engine = self.engine();
        let mut replay = Replay::new(&mut engine, self.moment);
        let (mut files, mut is_applied) = (Vec::new(), true);
        let named: Vec<_> = manifest.base.iter().chain(&manifest.increments).collect();
        for (number, file) in named.iter().enumerate() {
            let path = folder.join(String::from_utf8_lossy(&file.name).as_ref());
            let is_last = number + 1 == named.len();
            // Behind a file that is not whole, the next is read by itself.
            let checked = if is_applied { inspect(&path, &mut replay) } else { self.alone(&path) };
            is_applied &= checked.verdict.is_whole() || (is_last && matches!(checked.verdict, Verdict::Torn(_)));
            self.report(&checked, if is_last { Role::Last } else { Role::Named }, user.as_deref());
            files.push(checked);
        }
        if is_applied {
            let finished = replay.finish(self.moment.now, Purpose::Start { truncates: true }).map(|(_, keys)| keys);
            self.damaged |= finished.is_err();
            self.say(&text::together(finished));
        }
        for file in &manifest.history {
            let path = folder.join(String::from_utf8_lossy(&file.name).as_ref());
            self.say(&text::history(&path));
        }
        Ok(Some(Chain { manifest, files }))
    }

    /// Checks the files beside a manifest that it does not name. They do not count, as no start reads them.
    fn others(&mut self, manifest: &Path) -> Result<(), String> {
        let text = std::fs::read(manifest).unwrap_or_default();
        let Ok(parsed) = Manifest::parse(&text) else { return Ok(()) };
        let named: Vec<_> = parsed.base.iter().chain(&parsed.increments).chain(&parsed.history).collect();
        let folder = target::folder_of(manifest);
        let is_named =
            |name: &str| named.iter().any(|file| *String::from_utf8_lossy(&file.name) == *name) || name.ends_with(MANIFEST_END);
        for path in target::files_in(&folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name == LOCK_FILE || is_named(&name) {
                continue;
            }
            if target::is_log_or_rdb(&name) {
                let checked = self.alone(&path);
                self.report(&checked, Role::Unnamed, None);
            } else {
                self.say(&text::unknown(&path));
            }
        }
        Ok(())
    }
}

/// The path of a file beside another.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}
