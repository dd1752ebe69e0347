//! The arguments of an inline request: words, quoted words, escapes.

use super::{ProtocolError, Span};

/// What C's `isspace` holds for white space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// What ends an argument outside of quotes; vertical tabs and form feeds do not, though they are skipped between arguments.
fn ends_argument(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The arguments of a line without quotes.
pub(super) fn split_plain(line: &[u8], spans: &mut Vec<Span>) {
    let mut at = 0;
    while at < line.len() {
        if is_space(line[at]) {
            at += 1;
            continue;
        }
        let len = line[at..].iter().position(|&byte| ends_argument(byte)).unwrap_or(line.len() - at);
        spans.push(Span { start: at, len });
        at += len;
    }
}

/// The arguments of a line with quotes, as positions in `text`, to which they are appended.
pub(super) fn split_quoted(line: &[u8], spans: &mut Vec<Span>, text: &mut Vec<u8>) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        while let [byte, tail @ ..] = rest
            && is_space(*byte)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        loop {
            match rest {
                [] => break,
                [b'"', tail @ ..] => {
                    rest = unquote_double(tail, text)?;
                    break;
                }
                [b'\'', tail @ ..] => {
                    rest = unquote_single(tail, text)?;
                    break;
                }
                [byte, tail @ ..] => {
                    rest = tail;
                    if ends_argument(*byte) {
                        break;
                    }
                    text.push(*byte);
                }
            }
        }
        spans.push(Span { start, len: text.len() - start });
    }
}

/// Behind an opening `"`: appends what it encloses and gives back what follows.
fn unquote_double<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                tail
            }
            [b'"', tail @ ..] => return closed(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

/// Behind an opening `'`, where only `\'` is an escape.
fn unquote_single<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\\', b'\'', tail @ ..] => {
                text.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return closed(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

/// A closing quote ends its argument: white space follows it, or nothing.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(byte) if !is_space(*byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn hex(digit: u8) -> u8 {
    if let b'0'..=b'9' = digit { digit - b'0' } else { (digit | 0x20) - b'a' + 10 }
}
