//! A stand-in for redis-cli: splits a line into words, makes the request, and shows the reply as on a terminal.

use crate::common::wire::Frame;

/// Splits a line into words as a shell does: spaces separate them, quotes keep them together.
pub fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => word.get_or_insert_default().push(chars.next().ok_or("a backslash ends the line")?),
            ('$' | '`', None | Some('"')) => return Err("the test does not expand variables: write the value".to_owned()),
            (' ', None) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(quote) => Err(format!("{quote} is not closed")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// Whether redis-cli shows the reply to a request without quotes.
pub fn is_raw(args: &[String]) -> bool {
    let name: Vec<String> = args.iter().take(2).map(|word| word.to_lowercase()).collect();
    let texts =
        ["client list", "client info", "cluster info", "cluster nodes", "latency doctor", "latency graph", "memory doctor"];
    name[0] == "info" || name[0] == "lolwut" || texts.contains(&name.join(" ").as_str())
}

/// A reply as redis-cli shows it: on a terminal, or raw as in a pipe.
pub fn shown(frame: &Frame, raw: bool) -> Vec<String> {
    match (frame, raw) {
        (Frame::Verbatim(bytes), true) => lines(&String::from_utf8_lossy(bytes.get(4..).unwrap_or_default())),
        (
            Frame::Simple(bytes) | Frame::Error(bytes) | Frame::Integer(bytes) | Frame::Double(bytes) | Frame::Bulk(bytes),
            true,
        ) => lines(String::from_utf8_lossy(bytes).trim_end()),
        (Frame::NilBulk | Frame::NilArray | Frame::Null, true) => vec![String::new()],
        (Frame::Aggregate(_, elements), true) => elements.iter().flat_map(|element| shown(element, true)).collect(),
        (frame, _) => lines(&formatted(frame, "")),
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn formatted(frame: &Frame, prefix: &str) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match frame {
        Frame::Simple(status) => text(status),
        Frame::Error(error) => format!("(error) {}", text(error)),
        Frame::Integer(digits) => format!("(integer) {}", text(digits)),
        Frame::Double(digits) => format!("(double) {}", text(digits)),
        Frame::BigNumber(digits) => text(digits),
        Frame::Boolean(value) => format!("({value})"),
        Frame::Bulk(bytes) => quoted(bytes),
        Frame::Verbatim(bytes) => text(bytes.get(4..).unwrap_or_default()),
        Frame::NilBulk | Frame::NilArray | Frame::Null => "(nil)".to_owned(),
        Frame::Aggregate(kind, elements) => aggregate(*kind, elements, prefix),
    }
}

fn aggregate(kind: u8, elements: &[Frame], prefix: &str) -> String {
    let (separator, name) = match kind {
        b'%' => ('#', "hash"),
        b'~' => ('~', "set"),
        b'>' => (')', "push"),
        _ => (')', "array"),
    };
    if elements.is_empty() {
        return format!("(empty {name})");
    }
    let step = if kind == b'%' { 2 } else { 1 };
    let width = (elements.len() / step).to_string().len();
    let inner = format!("{prefix}{}", " ".repeat(width + 2));
    let line = |(at, entry): (usize, &[Frame])| {
        let begin = if at == 0 { "" } else { prefix };
        let value = match entry {
            [key, value @ Frame::Aggregate(_, inside)] if !inside.is_empty() => {
                format!("{} =>\n{inner}{}", formatted(key, &inner), formatted(value, &inner))
            }
            [key, value] => format!("{} => {}", formatted(key, &inner), formatted(value, &inner)),
            [element, ..] => formatted(element, &inner),
            [] => String::new(),
        };
        format!("{begin}{:>width$}{separator} {value}", at + 1)
    };
    elements.chunks(step).enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            b'\n' => out += "\\n",
            b'\r' => out += "\\r",
            b'\t' => out += "\\t",
            0x07 => out += "\\a",
            0x08 => out += "\\b",
            b' '..=b'~' => out.push(byte as char),
            byte => out += &format!("\\x{byte:02x}"),
        }
    }
    out.push('"');
    out
}
