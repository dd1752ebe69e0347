//! The manifest: which files the append-only file consists of.
//!
//! ```text
//!   file appendonly.aof.2.base.rdb seq 2 type b      the state at some time
//!   file appendonly.aof.1.incr.aof seq 1 type h      history: not needed any more, to be deleted
//!   file appendonly.aof.3.incr.aof seq 3 type i      what was changed since then, in the order of these files
//! ```
//!
//! What is accepted follows Redis to the byte, and so do the texts of errors.

use std::fmt;

use crate::resp::request::split_words;

/// Maximum number of bytes of a line, its end included.
const LINE_MAX: usize = 1024;

/// Ends of the names of bases.
const BASE_ENDS: &[&[u8]] = &[b".base.rdb", b".base.aof"];

/// Ends of the names of increments.
const INCREMENT_ENDS: &[&[u8]] = &[b".incr.aof"];

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The state at some time: an RDB, or requests.
    Base,
    /// Requests that change it.
    Increment,
    /// Not needed any more.
    History,
}

impl Kind {
    fn letter(self) -> char {
        match self {
            Kind::Base => 'b',
            Kind::Increment => 'i',
            Kind::History => 'h',
        }
    }
}

/// A file of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name, without a folder.
    pub name: Vec<u8>,
    /// Its number among those of its kind, never 0.
    pub seq: i64,
}

/// The files, in the order in which they are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The base, if there is one.
    pub base: Option<File>,
    /// Files that are not needed any more.
    pub history: Vec<File>,
    /// The increments, with growing numbers. Writing goes on in the last one.
    pub increments: Vec<File>,
}

/// What is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The number of the line, from 1 on, and the line without blanks around it, if the error is in one that was read.
    pub line: Option<(usize, Vec<u8>)>,
    /// Redis's text.
    pub message: &'static str,
}

impl Error {
    const EMPTY: &'static str = "Found an empty AOF manifest";
    const LONG_LINE: &'static str = "The AOF manifest file contains too long line";
    const FORMAT: &'static str = "Invalid AOF manifest file format";
    const PATH: &'static str = "File can't be a path, just a filename";
    const TWO_BASES: &'static str = "Found duplicate base file information";
    const ORDER: &'static str = "Found a non-monotonic sequence number";
    const KIND: &'static str = "Unknown AOF file type";
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, line)) = &self.line {
            write!(f, "Reading the manifest file, at line {number}\n>>> '{}'\n", String::from_utf8_lossy(line))?;
        }
        f.write_str(self.message)
    }
}

impl std::error::Error for Error {}

impl Manifest {
    /// Reads a manifest.
    pub fn parse(text: &[u8]) -> Result<Manifest, Error> {
        let mut manifest = Manifest::default();
        let mut rest = text;
        let mut number = 0;
        fail_if!(text.is_empty(), Error { line: None, message: Error::EMPTY });
        while !rest.is_empty() {
            number += 1;
            // A longer line is read in pieces.
            let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1).min(LINE_MAX);
            let (piece, behind) = rest.split_at(end);
            rest = behind;
            if piece[0] == b'#' {
                continue;
            }
            fail_if!(!piece.ends_with(b"\n") || piece.contains(&0), Error { line: None, message: Error::LONG_LINE });
            let line = trim(piece);
            manifest.add(line).map_err(|message| Error { line: Some((number, line.to_vec())), message })?;
        }
        Ok(manifest)
    }

    fn add(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let words = split_words(line).map_err(|_| Error::FORMAT)?;
        // More words than these are for later versions.
        fail_if!(words.len() < 6 || words.len() % 2 != 0, Error::FORMAT);
        let (mut name, mut seq, mut kind) = (None, 0, 0);
        for pair in words.chunks_exact(2) {
            let value = &pair[1];
            if pair[0].eq_ignore_ascii_case(b"file") {
                fail_if!(value.iter().any(|byte| matches!(byte, b'/' | b'\\')), Error::PATH);
                name = Some(value.clone());
            } else if pair[0].eq_ignore_ascii_case(b"seq") {
                seq = leading_number(value);
            } else if pair[0].eq_ignore_ascii_case(b"type") {
                kind = value.first().copied().unwrap_or(0);
            }
        }
        let Some(name) = name.filter(|_| seq != 0 && kind != 0) else { return Err(Error::FORMAT) };
        let file = File { name, seq };
        match kind {
            b'b' if self.base.is_some() => return Err(Error::TWO_BASES),
            b'b' => self.base = Some(file),
            b'h' => self.history.push(file),
            b'i' if seq <= self.increments.last().map_or(0, |last| last.seq) => return Err(Error::ORDER),
            b'i' => self.increments.push(file),
            _ => return Err(Error::KIND),
        }
        Ok(())
    }

    /// The text of the manifest.
    pub fn write(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let base = self.base.iter().map(|file| (file, Kind::Base));
        let history = self.history.iter().map(|file| (file, Kind::History));
        let increments = self.increments.iter().map(|file| (file, Kind::Increment));
        for (file, kind) in base.chain(history).chain(increments) {
            text.extend_from_slice(b"file ");
            put_name(&mut text, &file.name);
            text.extend_from_slice(format!(" seq {} type {}\n", file.seq, kind.letter()).as_bytes());
        }
        text
    }

    /// Lets a new base take the place of all files, which are history from now on.
    pub fn begin_anew(&mut self, name: &[u8]) {
        let next = self.next_base(name, true);
        self.history.extend(self.base.replace(next));
        // Their numbers are not given again while the manifest names them.
        self.history.append(&mut self.increments);
    }

    /// The next base. `name` is `appendfilename`. Its number is above those of all bases, also in history.
    pub fn next_base(&self, name: &[u8], rdb: bool) -> File {
        let seq = self.seq_max(self.base.as_ref(), INCREMENT_ENDS).saturating_add(1);
        File { name: [name, format!(".{seq}.base.{}", if rdb { "rdb" } else { "aof" }).as_bytes()].concat(), seq }
    }

    /// The next increment. `name` is `appendfilename`. Its number is above those of all increments, also in history.
    pub fn next_increment(&self, name: &[u8]) -> File {
        let seq = self.seq_max(self.increments.last(), BASE_ENDS).saturating_add(1);
        File { name: [name, format!(".{seq}.incr.aof").as_bytes()].concat(), seq }
    }

    /// The largest number of a kind: that of its last file, or of a file in history, unless its name is one of the
    /// other kind. History does not say of which kind a file was.
    fn seq_max(&self, last: Option<&File>, other: &[&[u8]]) -> i64 {
        let of_kind = self.history.iter().filter(|file| !other.iter().any(|end| file.name.ends_with(end)));
        of_kind.chain(last).map(|file| file.seq).max().unwrap_or(0).max(0)
    }
}

/// Without blanks at both ends.
fn trim(line: &[u8]) -> &[u8] {
    let blank = |byte: &u8| b" \t\r\n".contains(byte);
    let start = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &line[start..end]
}

/// The number at the beginning of a text, as C's `atoll` reads it; 0 without one.
fn leading_number(text: &[u8]) -> i64 {
    let blanks = text.iter().take_while(|byte| byte.is_ascii_whitespace() || **byte == 0x0b).count();
    let text = &text[blanks..];
    let signed = matches!(text.first(), Some(b'-' | b'+'));
    let digits = text[usize::from(signed)..].iter().take_while(|digit| digit.is_ascii_digit());
    let number = digits.fold(0i64, |sum, digit| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    if text.first() == Some(&b'-') { -number } else { number }
}

/// Writes a name, in quotes where it would not be read as one word.
fn put_name(text: &mut Vec<u8>, name: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'\'');
    if name.iter().all(plain) {
        text.extend_from_slice(name);
        return;
    }
    text.push(b'"');
    for &byte in name {
        match byte {
            b'\\' | b'"' => text.extend_from_slice(&[b'\\', byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            0x07 => text.extend_from_slice(b"\\a"),
            0x08 => text.extend_from_slice(b"\\b"),
            b' '..=b'~' => text.push(byte),
            _ => text.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    text.push(b'"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(name: &str, seq: i64) -> File {
        File { name: name.into(), seq }
    }

    #[test]
    fn files_are_read_and_written_in_their_order() {
        let text = b"# made by hand\nfile a.1.base.rdb seq 1 type b\r\n seq 4 FILE \"a b\\x01\" Type incr  new thing\n\
            file a.1.incr.aof seq 1 type h\nfile a.6.incr.aof seq 6 type i\n";
        let manifest = Manifest::parse(text).unwrap();
        let wanted = Manifest {
            base: Some(file("a.1.base.rdb", 1)),
            history: vec![file("a.1.incr.aof", 1)],
            increments: vec![file("a b\u{1}", 4), file("a.6.incr.aof", 6)],
        };
        assert_eq!(manifest, wanted);
        assert_eq!(
            String::from_utf8(manifest.write()).unwrap(),
            "file a.1.base.rdb seq 1 type b\nfile a.1.incr.aof seq 1 type h\nfile \"a b\\x01\" seq 4 type i\n\
             file a.6.incr.aof seq 6 type i\n"
        );
        assert_eq!(manifest.next_base(b"x.aof", true), file("x.aof.2.base.rdb", 2));
        assert_eq!(manifest.next_increment(b"x.aof"), file("x.aof.7.incr.aof", 7));
        assert_eq!(Manifest::default().next_base(b"x", false), file("x.1.base.aof", 1));
    }

    #[test]
    fn no_name_of_history_is_given_again() {
        let mut manifest = Manifest::default();
        for (name, seq) in [("x.7.base.rdb", 7), ("x.9.incr.aof", 9), ("a.base.rdb.8.incr.aof", 8)] {
            manifest.history.push(file(name, seq));
        }
        assert_eq!(manifest.next_base(b"x", true), file("x.8.base.rdb", 8));
        assert_eq!(manifest.next_increment(b"x"), file("x.10.incr.aof", 10));
        manifest.increments.push(file("x.11.incr.aof", 11));
        manifest.base = Some(file("x.2.base.rdb", 2));
        assert_eq!(manifest.next_base(b"x", true).seq, 8);
        assert_eq!(manifest.next_increment(b"x").seq, 12);
        // A name of another form may be of either kind.
        manifest.history.push(file("other", 20));
        assert_eq!((manifest.next_base(b"x", true).seq, manifest.next_increment(b"x").seq), (21, 21));
    }

    /// The texts are those of redis-server 7.0.15 for the same manifests.
    #[test]
    fn errors_are_those_of_redis() {
        let long = format!("file {} seq 1 type b\n", "x".repeat(LINE_MAX));
        for (text, message, at) in [
            ("", Error::EMPTY, None),
            ("\n", Error::FORMAT, Some(1)),
            ("x\n", Error::FORMAT, Some(1)),
            ("file a seq 1 type b", Error::LONG_LINE, None),
            (&*long, Error::LONG_LINE, None),
            ("file a seq 1 type b\nfile c seq 2 type b\n", Error::TWO_BASES, Some(2)),
            ("file a/b seq 1 type b\n", Error::PATH, Some(1)),
            ("file a seq 0 type b\n", Error::FORMAT, Some(1)),
            ("file a seq x type b\n", Error::FORMAT, Some(1)),
            ("file a seq 1 type \"\"\n", Error::FORMAT, Some(1)),
            ("file \"a seq 1 type b\n", Error::FORMAT, Some(1)),
            ("file a seq 1 type i\nfile b seq 1 type i\n", Error::ORDER, Some(2)),
            ("file a seq 1 type z\n", Error::KIND, Some(1)),
            ("# c\nfile a seq 1 type\n", Error::FORMAT, Some(2)),
            ("file a seq 1 type b other\n", Error::FORMAT, Some(1)),
        ] {
            let error = Manifest::parse(text.as_bytes()).unwrap_err();
            assert_eq!((error.message, error.line.map(|line| line.0)), (message, at), "{text:?}");
        }
        assert_eq!(Manifest::parse(b"# nothing\n"), Ok(Manifest::default()));
        let error = Manifest::parse(b"file a seq 1 type z\n").unwrap_err();
        assert_eq!(error.to_string(), "Reading the manifest file, at line 1\n>>> 'file a seq 1 type z'\nUnknown AOF file type");
    }

    proptest! {
        #[test]
        fn any_names_are_read_as_they_were_written(
            names in prop::collection::vec(prop::collection::vec(any::<u8>().prop_filter("no path", |b| !b"/\\".contains(b)), 1..40), 1..5),
        ) {
            let files = names.into_iter().zip(1..).map(|(name, seq)| File { name, seq });
            let manifest = Manifest { increments: files.collect(), ..Manifest::default() };
            prop_assert_eq!(Manifest::parse(&manifest.write()), Ok(manifest));
        }

        #[test]
        fn no_text_does_harm(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::parse(&text);
        }
    }
}
