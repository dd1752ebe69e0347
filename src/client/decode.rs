//! Incremental decoder: turns received bytes into replies.
//!
//! The `redis-protocol` crate decodes values without parts. This module assembles arrays, maps and sets itself, because in that
//! crate a map loses its order, a set cannot hold a map, hostile nesting overflows the stack, and every packet makes it read a
//! long array again from the start.

use bytes::{Bytes, BytesMut};
use redis_protocol::resp3::decode::complete::decode_range;
use redis_protocol::resp3::types::RangeFrame;

use crate::client::error::{Error, ReplyError, Result};
use crate::client::value::Value;

/// Maximum nesting of arrays.
const DEPTH_MAX: usize = 64;
/// Maximum length of a line in bytes: a status, an error, a number or a length.
const LINE_MAX: usize = 1 << 20;
/// Strings up to this many bytes are copied, so that a small one does not keep a whole read buffer alive.
const COPIED: usize = 1024;

/// Reads replies from a buffer, each byte once.
pub struct Decoder {
    /// Incomplete aggregates, the outermost first.
    open: Vec<Open>,
    /// Bytes consumed by the current reply.
    spent: usize,
    reply_bytes_max: usize,
}

struct Open {
    kind: u8,
    want: usize,
    items: Vec<Value>,
}

fn broken(what: impl Into<String>) -> Error {
    Error::Protocol(what.into())
}

impl Decoder {
    /// Creates a decoder that accepts replies of at most `reply_bytes_max` bytes.
    pub fn new(reply_bytes_max: usize) -> Decoder {
        Decoder { open: Vec::new(), spent: 0, reply_bytes_max }
    }

    /// Decodes the next reply from a buffer, consuming as much of it as has arrived.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Value>> {
        loop {
            let Some(&kind) = buffer.first() else { return Ok(None) };
            let mut value = match kind {
                b'*' | b'~' | b'>' | b'%' | b'|' => match self.begin(kind, buffer)? {
                    Begun::NotYet => return Ok(None),
                    Begun::Opened => continue,
                    Begun::Whole(value) => value,
                },
                _ => match self.leaf(kind, buffer)? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            loop {
                let Some(open) = self.open.last_mut() else {
                    self.spent = 0;
                    return Ok(Some(value));
                };
                open.items.push(value);
                if open.items.len() < open.want {
                    break;
                }
                let Some(done) = self.open.pop() else { break };
                match done.finish() {
                    Some(whole) => value = whole,
                    // An attribute belongs to the value that follows it.
                    None => break,
                }
            }
        }
    }

    /// Counts bytes of the current reply.
    fn spend(&mut self, bytes: usize) -> Result {
        self.spent = self.spent.saturating_add(bytes);
        match self.spent > self.reply_bytes_max {
            true => Err(broken(format!("a reply of more than {} bytes", self.reply_bytes_max))),
            false => Ok(()),
        }
    }

    fn begin(&mut self, kind: u8, buffer: &mut BytesMut) -> Result<Begun> {
        let Some(end) = line_end(buffer)? else { return Ok(Begun::NotYet) };
        let count = number(&buffer[1..end])?;
        let _ = buffer.split_to(end + 2);
        self.spend(end + 2)?;
        if count == -1 && kind == b'*' {
            return Ok(Begun::Whole(Value::Null));
        }
        let count = usize::try_from(count).map_err(|_| broken("a negative length"))?;
        let want = if kind == b'%' || kind == b'|' { count.saturating_mul(2) } else { count };
        // Each element takes at least three bytes.
        if want.saturating_mul(3) > self.reply_bytes_max - self.spent {
            return Err(broken(format!("a reply of more than {} bytes", self.reply_bytes_max)));
        }
        let open = Open { kind, want, items: Vec::with_capacity(want.min(1024)) };
        if want == 0 {
            return Ok(open.finish().map_or(Begun::Opened, Begun::Whole));
        }
        if self.open.len() == DEPTH_MAX {
            return Err(broken(format!("a reply of more than {DEPTH_MAX} levels")));
        }
        self.open.push(open);
        Ok(Begun::Opened)
    }

    fn leaf(&mut self, kind: u8, buffer: &mut BytesMut) -> Result<Option<Value>> {
        let Some(end) = line_end(buffer)? else { return Ok(None) };
        if end == 0 {
            return Err(broken("an empty line where a reply should begin"));
        }
        if let Some(value) = plain(kind, &buffer[1..end]) {
            let _ = buffer.split_to(end + 2);
            self.spend(end + 2)?;
            return Ok(Some(value));
        }
        if matches!(kind, b'$' | b'=' | b'!') {
            let len = number(&buffer[1..end])?;
            if len == -1 && kind == b'$' {
                // RESP2's nil; the crate would parse it as a streamed string.
                let _ = buffer.split_to(end + 2);
                self.spend(end + 2)?;
                return Ok(Some(Value::Null));
            }
            let len = usize::try_from(len).map_err(|_| broken("a negative length"))?;
            if len > self.reply_bytes_max - self.spent {
                return Err(broken(format!("a reply of more than {} bytes", self.reply_bytes_max)));
            }
            let whole = end + 2 + len + 2;
            if buffer.len() < whole {
                // Reserved in steps of at most 1 MiB: the announced length need not be true.
                buffer.reserve((whole - buffer.len()).min(1 << 20));
                return Ok(None);
            }
            if buffer[whole - 2..whole] != *b"\r\n" {
                return Err(broken("a string without its end"));
            }
            if kind == b'$' && len <= COPIED {
                self.spend(whole)?;
                let data = Bytes::copy_from_slice(&buffer[end + 2..whole - 2]);
                let _ = buffer.split_to(whole);
                return Ok(Some(Value::Bytes(data)));
            }
        }
        let (frame, used) = match decode_range(buffer) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return Ok(None),
            Err(error) => return Err(broken(error.to_string())),
        };
        self.spend(used)?;
        let bytes = buffer.split_to(used);
        let part = |(from, to): (usize, usize)| match to - from {
            ..=COPIED => Bytes::copy_from_slice(&bytes[from..to]),
            _ => bytes.clone().freeze().slice(from..to),
        };
        Ok(Some(match frame {
            RangeFrame::BlobString { data, .. } => Value::Bytes(part(data)),
            RangeFrame::SimpleString { data, .. } => Value::Status(part(data)),
            RangeFrame::VerbatimString { data, .. } => Value::Verbatim(part(data)),
            RangeFrame::BigNumber { data, .. } => Value::BigNumber(part(data)),
            RangeFrame::BlobError { data: (from, to), .. } | RangeFrame::SimpleError { data: (from, to), .. } => {
                Value::Error(ReplyError::new(&bytes[from..to]))
            }
            RangeFrame::Boolean { data, .. } => Value::Boolean(data),
            RangeFrame::Number { data, .. } => Value::Integer(data),
            RangeFrame::Double { data, .. } => Value::Double(data),
            RangeFrame::Null => Value::Null,
            _ => return Err(broken(format!("a reply that begins with {:?}", char::from(kind)))),
        }))
    }
}

/// Result of the first line of an aggregate.
enum Begun {
    /// The line is incomplete.
    NotYet,
    /// The elements follow.
    Opened,
    /// The aggregate has no elements.
    Whole(Value),
}

impl Open {
    /// Returns the complete aggregate; `None` for attributes, which the client ignores.
    fn finish(self) -> Option<Value> {
        match self.kind {
            b'*' => Some(Value::Array(self.items)),
            b'~' => Some(Value::Set(self.items)),
            b'>' => Some(Value::Push(self.items)),
            b'%' => {
                let mut pairs = Vec::with_capacity(self.items.len() / 2);
                let mut items = self.items.into_iter();
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    pairs.push((key, value));
                }
                Some(Value::Map(pairs))
            }
            _ => None,
        }
    }
}

/// Fast path for the most frequent replies, from the line after the type byte: a number, null, `OK`. Everything else is left to
/// the crate.
fn plain(kind: u8, line: &[u8]) -> Option<Value> {
    match (kind, line) {
        (b':', _) => {
            let (negative, digits) = match line {
                [b'-', digits @ ..] => (true, digits),
                digits => (false, digits),
            };
            // At most 18 digits cannot overflow.
            if !(1..=18).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let number = digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
            Some(Value::Integer(if negative { -number } else { number }))
        }
        (b'_', b"") => Some(Value::Null),
        (b'+', b"OK") => Some(Value::Status(Bytes::from_static(b"OK"))),
        _ => None,
    }
}

/// Offset of the end of the first line.
fn line_end(buffer: &[u8]) -> Result<Option<usize>> {
    let within = &buffer[..buffer.len().min(LINE_MAX)];
    match memchr::memchr_iter(b'\r', within).find(|end| within.get(end + 1) == Some(&b'\n')) {
        Some(end) => Ok(Some(end)),
        None if buffer.len() >= LINE_MAX => Err(broken("a line without end")),
        None => Ok(None),
    }
}

/// Parses a length.
fn number(digits: &[u8]) -> Result<i64> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(|| broken("a length that is no number"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Decodes the bytes in pieces of every size, which must all yield the same values.
    fn decode(bytes: &[u8]) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for step in 1..=bytes.len() {
            let mut decoder = Decoder::new(1 << 20);
            let mut buffer = BytesMut::new();
            let mut values = Vec::new();
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(value) = decoder.decode(&mut buffer)? {
                    values.push(value);
                }
            }
            assert!(buffer.is_empty() && decoder.open.is_empty(), "nothing is left over");
            all.push(values);
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        Ok(all.pop().unwrap())
    }

    #[test]
    fn every_type_is_read() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let cases: &[(&str, Value)] = &[
            ("+OK\r\n", Value::Status(bytes("OK"))),
            ("-ERR no\r\n", Value::Error(ReplyError::new(b"ERR no"))),
            ("!6\r\nERR no\r\n", Value::Error(ReplyError::new(b"ERR no"))),
            (":-7\r\n", Value::Integer(-7)),
            (":-0\r\n", Value::Integer(0)),
            (":999999999999999999\r\n", Value::Integer(999_999_999_999_999_999)),
            (":9223372036854775807\r\n", Value::Integer(i64::MAX)),
            (":-9223372036854775808\r\n", Value::Integer(i64::MIN)),
            ("+a\rb\r\n", Value::Status(bytes("a\rb"))),
            ("$2\r\na\n\r\n", Value::Bytes(bytes("a\n"))),
            ("$0\r\n\r\n", Value::Bytes(bytes(""))),
            ("$-1\r\n", Value::Null),
            ("*-1\r\n", Value::Null),
            ("_\r\n", Value::Null),
            (",1.5\r\n", Value::Double(1.5)),
            (",-inf\r\n", Value::Double(f64::NEG_INFINITY)),
            ("#t\r\n", Value::Boolean(true)),
            ("(123456789012345678901234567890\r\n", Value::BigNumber(bytes("123456789012345678901234567890"))),
            ("=5\r\ntxt:x\r\n", Value::Verbatim(bytes("x"))),
            ("*0\r\n", Value::Array(vec![])),
            ("*2\r\n:1\r\n*1\r\n$-1\r\n", Value::Array(vec![Value::Integer(1), Value::Array(vec![Value::Null])])),
            ("~1\r\n%1\r\n+b\r\n:1\r\n", Value::Set(vec![Value::Map(vec![(Value::Status(bytes("b")), Value::Integer(1))])])),
            (">1\r\n+x\r\n", Value::Push(vec![Value::Status(bytes("x"))])),
            ("|1\r\n+ttl\r\n:3\r\n:1\r\n", Value::Integer(1)),
            ("|0\r\n:1\r\n", Value::Integer(1)),
            ("*2\r\n|1\r\n+ttl\r\n*1\r\n:3\r\n:1\r\n:2\r\n", Value::Array(vec![Value::Integer(1), Value::Integer(2)])),
        ];
        for (text, value) in cases {
            assert_eq!(decode(text.as_bytes()).unwrap(), std::slice::from_ref(value), "{text:?}");
        }
        let together: String = cases.iter().map(|(text, _)| *text).collect();
        assert_eq!(decode(together.as_bytes()).unwrap(), cases.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>());
        let map = "%2\r\n+z\r\n:1\r\n+a\r\n:2\r\n";
        let Value::Map(pairs) = &decode(map.as_bytes()).unwrap()[0] else { panic!("no map") };
        assert_eq!(pairs[0].0.as_str(), Some("z"), "maps keep their order");
    }

    #[test]
    fn hostile_replies_are_refused() {
        let deep = "*1\r\n".repeat(200_000);
        for text in [
            deep.as_str(),
            "$99999999999999999999\r\n",
            "$9999999999\r\n",
            "*9999999999\r\n",
            "%4611686018427387904\r\n",
            "*-2\r\n",
            "$x\r\n",
            "@1\r\n",
            "$1\r\nabc\r\n",
            ":1x\r\n",
            ":\r\n",
            ":-\r\n",
            ":9223372036854775808\r\n",
            "\r\n",
            "\r\n+OK\r\n",
        ] {
            let mut buffer = BytesMut::from(text.as_bytes());
            let refused = Decoder::new(1 << 20).decode(&mut buffer);
            assert!(matches!(refused, Err(Error::Protocol(_))), "{:?}: {refused:?}", &text[..text.len().min(40)]);
        }
        let mut buffer = BytesMut::from(vec![b'+'; LINE_MAX + 1].as_slice());
        assert!(Decoder::new(1 << 30).decode(&mut buffer).is_err());
        let many = format!("*100\r\n{}", "$100000\r\n".to_owned() + &"x".repeat(100_000) + "\r\n").repeat(1);
        let mut decoder = Decoder::new(250_000);
        let mut buffer = BytesMut::from(many.as_bytes());
        assert_eq!(decoder.decode(&mut buffer).unwrap(), None);
        buffer.extend_from_slice(&many.as_bytes()[6..]);
        assert_eq!(decoder.decode(&mut buffer).unwrap(), None);
        buffer.extend_from_slice(&many.as_bytes()[6..]);
        assert!(decoder.decode(&mut buffer).is_err(), "the bound is on the whole reply");
    }
}
