//! Times, numbers and names in sentences for people.

/// A second in milliseconds.
pub const SECOND_MS: u64 = 1000;
/// Durations below this are shown with a tenth of a second.
pub const SECONDS_EXACT_MS: u64 = 10 * SECOND_MS;
/// A minute in milliseconds.
pub const MINUTE_MS: u64 = 60 * SECOND_MS;
/// An hour in milliseconds.
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
/// A day in milliseconds.
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// Maximum number of bytes that are shown and remembered of a client's name, and of the reason that it gives.
pub const BRIEF_MAX: usize = 128;

/// The first [`BRIEF_MAX`] bytes of a text. A character of UTF-8 is not cut in two.
pub fn brief(text: &[u8]) -> &[u8] {
    if text.len() <= BRIEF_MAX {
        return text;
    }
    let goes_on = |at: usize| text[at] & 0xc0 == 0x80;
    // A character has at most four bytes. Other texts are cut at the bound.
    let end = (BRIEF_MAX - 3..=BRIEF_MAX).rev().find(|&at| !goes_on(at)).unwrap_or(BRIEF_MAX);
    &text[..end]
}

/// A duration of milliseconds in a sentence: `250 ms`, `3.2 s`, `45 s`, `3 min`, `2 h 5 min`, `3 d 4 h`.
pub fn long(ms: u64) -> String {
    let two = |count: u64, unit: &str, rest: u64, rest_unit: &str| match rest {
        0 => format!("{count} {unit}"),
        rest => format!("{count} {unit} {rest} {rest_unit}"),
    };
    match ms {
        0..SECOND_MS => format!("{ms} ms"),
        SECOND_MS..SECONDS_EXACT_MS => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        SECONDS_EXACT_MS..MINUTE_MS => format!("{} s", ms / SECOND_MS),
        MINUTE_MS..HOUR_MS => format!("{} min", ms / MINUTE_MS),
        HOUR_MS..DAY_MS => two(ms / HOUR_MS, "h", ms % HOUR_MS / MINUTE_MS, "min"),
        _ => two(ms / DAY_MS, "d", ms % DAY_MS / HOUR_MS, "h"),
    }
}

/// A number with its noun: `1 client`, `24 clients`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A word as `redis-cli` and configuration files read it: in double quotes unless it is plain.
pub fn quoted(word: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !word.is_empty() && word.iter().all(|&byte| plain(byte)) {
        return word.iter().copied().map(char::from).collect();
    }
    in_quotes(word, b"")
}

/// A word in double quotes. These bytes are written as numbers, and all that are no printable ASCII.
fn in_quotes(word: &[u8], numbers: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in word {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' if !numbers.contains(&byte) => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('"');
    text
}

/// A name in a sentence, and in a command that is pasted into `redis-cli` or behind it into a shell: in double quotes unless it is
/// plain. A shell finds nothing to carry out in it.
pub fn pasteable(name: &[u8]) -> String {
    let plain = |c: char| c.is_alphanumeric() || ":_-./@%+=,".contains(c);
    if let Ok(text) = std::str::from_utf8(name)
        && !text.is_empty()
        && text.chars().all(plain)
    {
        return text.to_owned();
    }
    in_quotes(name, b"$`!")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_units_that_fit() {
        let shown = [0, 999, 1_050, 45_000, 180_000, 7_500_000, 274_000_000].map(long);
        assert_eq!(shown, ["0 ms", "999 ms", "1.0 s", "45 s", "3 min", "2 h 5 min", "3 d 4 h"]);
        assert_eq!((counted(1, "client"), counted(24, "client")), ("1 client".to_owned(), "24 clients".to_owned()));
    }

    #[test]
    fn a_brief_text_ends_with_a_whole_character() {
        let long = |start: &str| [start.as_bytes(), "\u{1f512}".repeat(100).as_bytes()].concat();
        assert_eq!([&b""[..], &[b'x'; 128], &[b'x'; 129], &[0xbf; 200]].map(|text| brief(text).len()), [0, 128, 128, 128]);
        assert_eq!(["", "1", "12", "123"].map(|start| brief(&long(start)).len()), [128, 125, 126, 127]);
    }

    #[test]
    fn a_pasted_name_has_nothing_that_a_shell_carries_out() {
        assert_eq!([&b"order:42"[..], "t\u{fc}r".as_bytes()].map(pasteable), ["order:42", "t\u{fc}r"]);
        assert_eq!(pasteable(b"j$(touch x)`id`;#!"), "\"j\\x24(touch x)\\x60id\\x60;#\\x21\"");
        assert_eq!([&b""[..], b"a b", b"a\"\\\xff"].map(pasteable), ["\"\"", "\"a b\"", "\"a\\\"\\\\\\xff\""]);
        for name in [&b"a;b"[..], b"a|b", b"a&b", b"a>b", b"a*b", b"~", b"a'b", b"a#b"] {
            assert!(pasteable(name).starts_with('"'), "{name:?}");
        }
    }

    #[test]
    fn words_are_quoted_where_they_must_be() {
        let quote = |word: &[u8]| quoted(word);
        assert_eq!((quote(b"a:1"), quote(b""), quote(b"a b")), ("a:1".into(), "\"\"".into(), "\"a b\"".into()));
        assert_eq!(quote(b"\"\\\n\xff"), "\"\\\"\\\\\\x0a\\xff\"");
    }
}
