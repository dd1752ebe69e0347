//! Incremental decoder: turns received bytes into replies.
//!
//! The `redis-protocol` crate decodes scalars. This module assembles arrays, maps and sets itself, because in that crate a map
//! loses its order, a set cannot hold a map, hostile nesting overflows the stack, and each packet makes it read a long array
//! again from the start.

use bytes::{Bytes, BytesMut};
use redis_protocol::resp3::decode::complete::decode_range;
use redis_protocol::resp3::types::RangeFrame;

use crate::client::error::{Error, ReplyError, Result};
use crate::client::value::{Value, pair_up};

/// Maximum nesting of arrays.
const DEPTH_MAX: usize = 64;
/// Maximum length of a line in bytes: a status, an error, a number or a length.
const LINE_MAX: usize = 1 << 20;
/// Strings up to this many bytes are copied. A reference to a part of the read buffer would keep the whole buffer alive.
const COPY_MAX: usize = 1024;

/// Decodes replies from a buffer. It looks at the elements of an aggregate only once, in however many pieces they arrive.
pub struct Decoder {
    /// Incomplete aggregates, the outermost first.
    open: Vec<Aggregate>,
    /// Number of bytes of the current reply that are decoded.
    decoded_bytes: usize,
    reply_bytes_max: usize,
}

/// An array, map, set, push or attribute.
struct Aggregate {
    /// The type byte.
    kind: u8,
    /// Number of elements; keys and values of a map count separately.
    len: usize,
    items: Vec<Value>,
}

fn violation(what: impl Into<String>) -> Error {
    Error::Protocol(what.into())
}

impl Decoder {
    /// Creates a decoder that accepts replies of at most `reply_bytes_max` bytes.
    pub fn new(reply_bytes_max: usize) -> Decoder {
        Decoder { open: Vec::new(), decoded_bytes: 0, reply_bytes_max }
    }

    /// Decodes the next reply from a buffer, and removes the decoded part from the buffer. Returns `None` if the reply is
    /// incomplete.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Value>> {
        loop {
            let Some(&kind) = buffer.first() else { return Ok(None) };
            let value = match kind {
                b'*' | b'~' | b'>' | b'%' | b'|' => match self.begin_aggregate(kind, buffer)? {
                    Begun::Incomplete => return Ok(None),
                    Begun::Opened => continue,
                    Begun::Empty(value) => value,
                },
                _ => match self.scalar(kind, buffer)? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            if let Some(reply) = self.add(value) {
                self.decoded_bytes = 0;
                return Ok(Some(reply));
            }
        }
    }

    /// Adds a value to the innermost open aggregate, and closes the aggregates that it completes. Returns the reply when it is
    /// complete.
    fn add(&mut self, mut value: Value) -> Option<Value> {
        while let Some(innermost) = self.open.last_mut() {
            innermost.items.push(value);
            if innermost.items.len() < innermost.len {
                return None;
            }
            // An attribute belongs to the value that follows it.
            value = self.open.pop()?.finish()?;
        }
        Some(value)
    }

    /// Removes decoded bytes from the buffer and counts them.
    fn consume(&mut self, buffer: &mut BytesMut, bytes: usize) -> Result<BytesMut> {
        self.decoded_bytes = self.decoded_bytes.saturating_add(bytes);
        if self.decoded_bytes > self.reply_bytes_max { Err(self.too_long()) } else { Ok(buffer.split_to(bytes)) }
    }

    /// Checks the announced size of a part that has not arrived.
    fn check_announced(&self, bytes: usize) -> Result {
        if bytes > self.reply_bytes_max - self.decoded_bytes { Err(self.too_long()) } else { Ok(()) }
    }

    fn too_long(&self) -> Error {
        violation(format!("the reply exceeds {} bytes", self.reply_bytes_max))
    }

    /// Reads the first line of an aggregate.
    fn begin_aggregate(&mut self, kind: u8, buffer: &mut BytesMut) -> Result<Begun> {
        let Some(end) = line_end(buffer)? else { return Ok(Begun::Incomplete) };
        let count = length(&buffer[1..end])?;
        self.consume(buffer, end + 2)?;
        if count == -1 && kind == b'*' {
            return Ok(Begun::Empty(Value::Null));
        }
        let count = usize::try_from(count).map_err(|_| violation("a length is negative"))?;
        let len = if kind == b'%' || kind == b'|' { count.saturating_mul(2) } else { count };
        // Each element takes at least three bytes.
        self.check_announced(len.saturating_mul(3))?;
        let aggregate = Aggregate { kind, len, items: Vec::with_capacity(len.min(1024)) };
        if len == 0 {
            return Ok(aggregate.finish().map_or(Begun::Opened, Begun::Empty));
        }
        fail_if!(self.open.len() == DEPTH_MAX, violation(format!("the reply is nested more than {DEPTH_MAX} levels deep")));
        self.open.push(aggregate);
        Ok(Begun::Opened)
    }

    /// Decodes a value without elements.
    fn scalar(&mut self, kind: u8, buffer: &mut BytesMut) -> Result<Option<Value>> {
        let Some(end) = line_end(buffer)? else { return Ok(None) };
        fail_if!(end == 0, violation("an empty line instead of a reply"));
        if let Some(value) = frequent(kind, &buffer[1..end]) {
            self.consume(buffer, end + 2)?;
            return Ok(Some(value));
        }
        if matches!(kind, b'$' | b'=' | b'!') {
            let len = length(&buffer[1..end])?;
            if len == -1 && kind == b'$' {
                // RESP2's nil. The crate would parse it as a streamed string.
                self.consume(buffer, end + 2)?;
                return Ok(Some(Value::Null));
            }
            let len = usize::try_from(len).map_err(|_| violation("a length is negative"))?;
            self.check_announced(len)?;
            let whole = end + 2 + len + 2;
            if buffer.len() < whole {
                // Reserves at most 1 MiB at a time, because the announced length may be false.
                buffer.reserve((whole - buffer.len()).min(1 << 20));
                return Ok(None);
            }
            fail_if!(buffer[whole - 2..whole] != *b"\r\n", violation("a string does not end with CRLF"));
            if kind == b'$' && len <= COPY_MAX {
                let bytes = self.consume(buffer, whole)?;
                return Ok(Some(Value::Bytes(Bytes::copy_from_slice(&bytes[end + 2..whole - 2]))));
            }
        }
        self.scalar_by_crate(kind, buffer)
    }

    /// Decodes a value without elements with the `redis-protocol` crate.
    fn scalar_by_crate(&mut self, kind: u8, buffer: &mut BytesMut) -> Result<Option<Value>> {
        let (frame, used) = match decode_range(buffer) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return Ok(None),
            Err(error) => return Err(violation(error.to_string())),
        };
        let bytes = self.consume(buffer, used)?;
        let part = |(from, to): (usize, usize)| match to - from {
            ..=COPY_MAX => Bytes::copy_from_slice(&bytes[from..to]),
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
            _ => return Err(violation(format!("unknown reply type {:?}", char::from(kind)))),
        }))
    }
}

/// Result of the first line of an aggregate.
enum Begun {
    /// The line is incomplete.
    Incomplete,
    /// Elements follow, or the value that an empty attribute belongs to.
    Opened,
    /// The aggregate has no elements.
    Empty(Value),
}

impl Aggregate {
    /// Returns the complete aggregate; `None` for attributes, which the client ignores.
    fn finish(self) -> Option<Value> {
        match self.kind {
            b'*' => Some(Value::Array(self.items)),
            b'~' => Some(Value::Set(self.items)),
            b'>' => Some(Value::Push(self.items)),
            b'%' => Some(Value::Map(pair_up(self.items))),
            _ => None,
        }
    }
}

/// Fast path for the most frequent replies: a number, null, `OK`. `line` follows the type byte. Returns `None` for all other
/// replies.
fn frequent(kind: u8, line: &[u8]) -> Option<Value> {
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
        None if buffer.len() >= LINE_MAX => Err(violation(format!("a line exceeds {LINE_MAX} bytes"))),
        None => Ok(None),
    }
}

/// Parses a length.
fn length(digits: &[u8]) -> Result<i64> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(|| violation("a length is not a number"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Decodes the bytes in pieces of every size. All sizes must yield the same values.
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
    fn every_type_is_decoded() {
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
        assert!(decoder.decode(&mut buffer).is_err(), "the limit holds for the whole reply");
    }
}
