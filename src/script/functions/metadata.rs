//! The first line of a library: `#!lua name=locks`.

use crate::base::error::Error;
use crate::resp::request;

/// The name in the first line, and the rest of the source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Metadata<'a> {
    /// The library's name.
    pub name: Vec<u8>,
    /// The source from the line feed of the first line on, so that lines keep their numbers.
    pub body: &'a [u8],
}

/// Whether a library or a function may have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// The error for an invalid name.
pub(super) const NAME_RULE: &str =
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// Reads the first line of a source.
pub(super) fn read(source: &[u8]) -> Result<Metadata<'_>, Error> {
    const INVALID: Error = Error::INVALID_LIBRARY_METADATA;
    fail_if!(!source.starts_with(b"#!"), Error::new("ERR Missing library metadata"));
    // Redis reads the line as a C string: a NUL ends it.
    let end = memchr::memchr2(b'\n', 0, source).filter(|&end| source[end] == b'\n').ok_or(INVALID)?;
    let (line, body) = source.split_at(end);
    let mut words = request::split_words(line).map_err(|_| INVALID)?.into_iter();
    let engine = words.next().ok_or(INVALID)?;
    let mut name = None;
    for word in words {
        match word.split_at_checked(b"name=".len()) {
            Some((key, value)) if key.eq_ignore_ascii_case(b"name=") => {
                if name.replace(value.to_vec()).is_some() {
                    return Err(Error::new("ERR Invalid metadata value, name argument was given multiple times"));
                }
            }
            _ => return Err(Error::quoting("ERR Invalid metadata value given: ", &word, "")),
        }
    }
    let name = name.ok_or(Error::new("ERR Library name was not given"))?;
    fail_if!(!is_name(&name), Error::new(format!("ERR {NAME_RULE}")));
    let engine = engine.get(2..).unwrap_or_default();
    fail_if!(!engine.eq_ignore_ascii_case(b"lua"), Error::quoting("ERR Engine '", engine, "' not found"));
    Ok(Metadata { name, body })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_a_name_and_the_body_follows() {
        for source in ["#!lua name=x\nreturn 1", "#!LUA   NAME=x\nreturn 1", "#!lua \"name=x\" \nreturn 1"] {
            let Metadata { name, body } = read(source.as_bytes()).unwrap();
            assert_eq!((name.as_slice(), body), (&b"x"[..], &b"\nreturn 1"[..]), "{source}");
        }
    }

    #[test]
    fn other_lines_are_refused() {
        for (source, text) in [
            ("", "ERR Missing library metadata"),
            ("return 1", "ERR Missing library metadata"),
            ("#!lua name=x", "ERR Invalid library metadata"),
            ("#!lua\0 name=x\n", "ERR Invalid library metadata"),
            ("#!lua 'name=x\n", "ERR Invalid library metadata"),
            ("#!lua\n", "ERR Library name was not given"),
            (
                "#!lua name=\n",
                "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character long",
            ),
            ("#!lua name=x name=y\n", "ERR Invalid metadata value, name argument was given multiple times"),
            ("#!lua name=x flags=y\n", "ERR Invalid metadata value given: flags=y"),
            ("#!js name=x\n", "ERR Engine 'js' not found"),
        ] {
            assert_eq!(read(source.as_bytes()), Err(Error::new(text)), "{source:?}");
        }
    }
}
