//! Configuration files with arbitrary bytes. A file is read or refused, with bounded memory. The configuration that was read is
//! written back, as by CONFIG REWRITE, in a form that reads as the same configuration.
//!
//! An input is a file. Included files follow behind a line `-- N`, with the file's name N. Other files do not exist.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::path::Path;

use crate::allocation;
use portcullis::engine::config::{Config, Directive, Section};
use portcullis::server::file::{Extra, load_with, rewritten};

/// Maximum size of an input in bytes.
const INPUT_MAX: usize = 8 << 10;
/// Maximum number of files that one input reads. A file that includes two files, each of which includes two more, causes many
/// reads.
const READS_MAX: usize = 64;
/// Memory bounds in bytes: per byte of the file, and beyond that for the parser of lines and tables of rules.
const EACH: usize = 512;
const ROOM: usize = 1 << 20;

/// Runs one input.
pub fn run(data: &[u8]) {
    let data = &data[..data.len().min(INPUT_MAX)];
    let files = Files::of(data);
    let room = (ROOM + EACH * data.len()) * 2;
    let Some((config, extra)) = allocation::bounded(room, || files.load("main")) else { return };
    // Written over the old file, and over a file that did not exist.
    for old in [files.text("main"), b""] {
        // `include` lines are kept as they are and are not compared here.
        let old = without_includes(old);
        let users = plain_users(&extra);
        let lines: Vec<Vec<u8>> = users.iter().map(|words| [&[b"user".to_vec()], &words[..]].concat().join(&b' ')).collect();
        let text = rewritten(&old, &config, &lines);
        let Some((again, more)) = Files::of(&text).load("main") else {
            panic!("what was written is refused:\n{}", text.escape_ascii())
        };
        same(&config, &again);
        assert_eq!(more.users, users, "users come back");
        assert_eq!(rewritten(&text, &again, &lines), text, "written again, it is the same");
    }
    // CONFIG SET accepts what CONFIG GET shows.
    let mut shown = Config::default();
    for directive in Directive::all().iter().filter(|directive| directive.section != Section::File) {
        let value = directive.get(&config);
        if let Err(reason) = directive.set_from_value(&mut shown, &value) {
            panic!("{} is refused as it is shown: {}: {reason}", directive.name, value.escape_ascii());
        }
    }
    for directive in Directive::all().iter().filter(|directive| directive.section != Section::File) {
        unchanged(directive, &config, &shown);
    }
}

/// Panics if two configurations differ.
fn same(one: &Config, other: &Config) {
    Directive::all().iter().for_each(|directive| unchanged(directive, one, other));
}

/// Panics if a directive differs.
fn unchanged(directive: &Directive, one: &Config, other: &Config) {
    let (one, other) = (directive.get(one), directive.get(other));
    assert!(one == other, "{}: {} came back as {}", directive.name, one.escape_ascii(), other.escape_ascii());
}

/// Files by their names.
struct Files<'a>(HashMap<&'a [u8], &'a [u8]>);

impl<'a> Files<'a> {
    fn of(data: &'a [u8]) -> Files<'a> {
        let mut files = HashMap::new();
        let (mut name, mut start, mut at) = (&b"main"[..], 0, 0);
        for line in data.split_inclusive(|&byte| byte == b'\n') {
            if let Some(next) = line.strip_prefix(b"-- ") {
                files.entry(name).or_insert(&data[start..at]);
                (name, start) = (next.trim_ascii(), at + line.len());
            }
            at += line.len();
        }
        files.entry(name).or_insert(&data[start..]);
        Files(files)
    }

    fn text(&self, name: &str) -> &'a [u8] {
        self.0.get(name.as_bytes()).copied().unwrap_or_default()
    }

    fn load(&self, name: &str) -> Option<(Config, Extra)> {
        let mut config = Config::default();
        let mut reads = 0;
        let extra = load_with(Path::new(name), &mut config, &mut |path| {
            reads += 1;
            let text = self.0.get(path.as_os_str().as_encoded_bytes()).filter(|_| reads <= READS_MAX);
            text.map(|text| text.to_vec()).ok_or_else(|| Error::from(ErrorKind::NotFound))
        });
        match extra {
            Ok(extra) => Some((config, extra)),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                None
            }
        }
    }
}

fn without_includes(text: &[u8]) -> Vec<u8> {
    let includes = |line: &&[u8]| {
        let word = line.trim_ascii().iter().filter(|byte| !matches!(byte, b'"' | b'\'')).copied().collect::<Vec<u8>>();
        // Escapes can spell `include` in many ways, so lines with a backslash are left out too.
        word.contains(&b'\\') || word.get(..7).is_some_and(|word| word.eq_ignore_ascii_case(b"include"))
    };
    text.split_inclusive(|&byte| byte == b'\n').filter(|line| !includes(line)).flatten().copied().collect()
}

/// The users whose names and rules are in the form that the engine writes: without blanks, quotes and escapes.
fn plain_users(extra: &Extra) -> Vec<Vec<Vec<u8>>> {
    let plain = |word: &Vec<u8>| {
        word.iter().all(|&byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\')) && !word.is_empty()
    };
    extra.users.iter().filter(|words| words.iter().all(plain)).cloned().collect()
}
