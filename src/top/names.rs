//! Names as they are shown: whatever a client chose as a name does not reach the terminal as a control sequence.

use std::fmt;

/// Bytes that a client or a server chose: the name of a lock, an owner, a reason. They are escaped when they are displayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether another one is a part of it.
    pub fn contains(&self, part: &Name) -> bool {
        part.is_empty() || self.0.windows(part.0.len()).any(|bytes| bytes == part.0)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name(text.as_bytes().to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&escaped(&self.0))
    }
}

/// Text for a terminal: control characters, characters that are invisible or turn the direction of writing, backslashes, and
/// bytes that are not UTF-8 become `\xNN`.
pub fn escaped(bytes: &[u8]) -> String {
    escape(bytes, is_unsafe)
}

/// Text for JSON: bytes that are not UTF-8, and backslashes, become `\xNN`. [`unescaped`] reverses it.
pub fn for_json(bytes: &[u8]) -> String {
    escape(bytes, |c| c == '\\')
}

fn escape(bytes: &[u8], is_unsafe: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    let put = |text: &mut String, bytes: &[u8]| bytes.iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_unsafe(c) {
                put(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        put(&mut text, chunk.invalid());
    }
    text
}

fn is_unsafe(c: char) -> bool {
    c == '\\'
        || c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The bytes of a text with `\xNN` escapes. Other backslashes stand for themselves, as in patterns.
pub fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        match (rest.starts_with(b"\\x"), digit(2), digit(3)) {
            (true, Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &rest[4..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_move_the_cursor_is_escaped() {
        assert_eq!(escaped(b"order:42"), "order:42");
        assert_eq!(escaped(b"\x1b[2J\r\n\x07"), "\\x1b[2J\\x0d\\x0a\\x07");
        assert_eq!(escaped("\u{9b}31m\u{202e}".as_bytes()), "\\xc2\\x9b31m\\xe2\\x80\\xae");
        assert_eq!(escaped(b"a\xff\x80b"), "a\\xff\\x80b");
        assert_eq!(escaped("größe 鍵 ♥".as_bytes()), "größe 鍵 ♥");
        assert_eq!(format!("{:<6}|", Name::from("a\n")), "a\\x0a |");
    }

    #[test]
    fn escapes_are_read_as_they_are_written() {
        for bytes in [&b"order:42"[..], b"\x1b[2J", b"a\\x41", b"\\", b"\xff\xfe", "鍵\u{feff}".as_bytes()] {
            assert_eq!(unescaped(&escaped(bytes)), bytes);
            assert_eq!(unescaped(&for_json(bytes)), bytes);
        }
        assert_eq!(unescaped("a\\*b\\x4"), b"a\\*b\\x4");
        assert_eq!(for_json(b"a\nb"), "a\nb");
    }
}
