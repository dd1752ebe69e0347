//! The client's decoder with arbitrary bytes. It does not panic and its memory is bounded. The result does not depend on how the
//! stream is cut. An encoded value decodes to itself. Where redis-protocol decodes a reply too, both give the same value.
//!
//! The first byte of an input says how the rest is cut into pieces.

use crate::allocation;
use bytes::{Bytes, BytesMut};
use portcullis::client::{Decoder, Value};
use redis_protocol::resp3::decode::complete::decode_bytes;
use redis_protocol::resp3::types::BytesFrame;

/// Maximum size of a reply in bytes: small, so that inputs reach it.
const REPLY_MAX: usize = 1 << 16;
/// Memory bound in bytes beyond a multiple of the input: 64 open aggregates with room for 1,024 values each, and a part of an
/// announced string.
const ROOM: usize = 64 * 1024 * size_of::<Value>() + (4 << 20);
/// Memory bound in bytes for one byte of input: the smallest reply is three bytes, and a value in a list that grows.
const EACH: usize = 2 * size_of::<Value>() + 64;
/// redis-protocol allocates announced aggregates without a bound, so it does not get longer ones.
const ANNOUNCED_MAX: usize = 10_000;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&control, stream)) = data.split_first() else { return };
    let room = ROOM + EACH * stream.len();
    let whole = allocation::bounded(room, || decode(stream, stream.len()));
    let piece = 1 + control as usize % 61;
    let cut = allocation::bounded(room, || decode(stream, piece));
    assert_eq!(cut, whole, "cut into pieces of {piece}");
    for (value, _) in &whole.replies {
        let again = decode(value, value.len());
        assert!(!again.failed && again.replies.len() == 1, "what was read is one reply: {}", value.escape_ascii());
        assert_eq!(&again.replies[0].0, value, "written out and read again");
    }
    compare(stream, &whole);
}

/// The result of decoding a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The replies in the form of [`write`], each with its end in the stream.
    replies: Vec<(Vec<u8>, usize)>,
    /// Whether decoding ended with an error.
    failed: bool,
}

fn decode(stream: &[u8], piece: usize) -> Outcome {
    let mut decoder = Decoder::new(REPLY_MAX);
    let mut buffer = BytesMut::new();
    let (mut replies, mut fed) = (Vec::new(), 0);
    for part in stream.chunks(piece.max(1)) {
        buffer.extend_from_slice(part);
        fed += part.len();
        loop {
            let before = buffer.len();
            match decoder.decode(&mut buffer) {
                Ok(Some(value)) => {
                    assert!(buffer.len() < before, "a reply without bytes");
                    let mut text = Vec::new();
                    write(&mut text, &value);
                    replies.push((text, fed - buffer.len()));
                }
                Ok(None) => break,
                Err(_) => return Outcome { replies, failed: true },
            }
        }
    }
    Outcome { replies, failed: false }
}

/// Encodes a value as a RESP3 server does.
fn write(out: &mut Vec<u8>, value: &Value) {
    let line = |out: &mut Vec<u8>, kind: u8, text: &[u8]| {
        out.push(kind);
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    let blob = |out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]| {
        line(out, kind, parts.iter().map(|part| part.len()).sum::<usize>().to_string().as_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(b"\r\n");
    };
    let aggregate = |out: &mut Vec<u8>, kind: u8, items: &[Value]| {
        line(out, kind, items.len().to_string().as_bytes());
        items.iter().for_each(|item| write(out, item));
    };
    match value {
        Value::Null => line(out, b'_', b""),
        Value::Integer(number) => line(out, b':', number.to_string().as_bytes()),
        Value::Double(number) => line(out, b',', number.to_string().as_bytes()),
        Value::Boolean(yes) => line(out, b'#', if *yes { b"t" } else { b"f" }),
        Value::BigNumber(digits) => line(out, b'(', digits),
        Value::Bytes(bytes) => blob(out, b'$', &[bytes]),
        Value::Status(text) => line(out, b'+', text),
        Value::Verbatim(text) => blob(out, b'=', &[b"txt:", text]),
        Value::Error(error) => blob(out, b'!', &[error.text().as_bytes()]),
        Value::Array(items) => aggregate(out, b'*', items),
        Value::Set(items) => aggregate(out, b'~', items),
        Value::Push(items) => aggregate(out, b'>', items),
        Value::Map(pairs) => {
            line(out, b'%', pairs.len().to_string().as_bytes());
            pairs.iter().for_each(|(key, value)| [key, value].iter().for_each(|item| write(out, item)));
        }
        other => panic!("a kind of value that this does not know: {other:?}"),
    }
}

/// Decodes each reply with redis-protocol too. It accepts less (nil and the null array of RESP2, attributes of a last element,
/// maps as members) and keeps maps and sets without order. So only replies that both accept are compared, and of unordered ones
/// the size.
fn compare(stream: &[u8], outcome: &Outcome) {
    let mut start = 0;
    for (text, end) in &outcome.replies {
        let reply = Bytes::copy_from_slice(&stream[start..*end]);
        start = *end;
        if let Ok(Some((frame, used))) = decode_bytes(&reply) {
            assert_eq!(used, reply.len(), "redis-protocol finds another end of {}", reply.escape_ascii());
            same(&frame, &mut &text[..]);
        }
    }
    let rest = &stream[start..];
    if !outcome.failed && !rest.is_empty() && !announces_much(rest) {
        let more = decode_bytes(&Bytes::copy_from_slice(rest));
        // redis-protocol takes an aggregate or a string of length -1 for the beginning of a streamed one.
        assert!(
            !matches!(more, Ok(Some(_))),
            "redis-protocol finds a reply where the decoder wants more: {}",
            rest.escape_ascii()
        );
    }
}

/// Whether a line announces an aggregate of very many elements.
fn announces_much(stream: &[u8]) -> bool {
    stream.split(|&byte| byte == b'\n').any(|line| {
        let digits: Vec<u8> = line.iter().copied().filter(u8::is_ascii_digit).collect();
        digits.len() > 18 || std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0) > ANNOUNCED_MAX
    })
}

/// Panics if a frame differs from the value at the beginning of `text`, which it removes.
fn same(frame: &BytesFrame, text: &mut &[u8]) {
    let mut expected = Vec::new();
    let items = |kind: u8, items: &[BytesFrame], text: &mut &[u8]| {
        let head = [&[kind], items.len().to_string().as_bytes(), b"\r\n"].concat();
        *text = text.strip_prefix(&head[..]).unwrap_or_else(|| panic!("{} elements in {}", items.len(), text.escape_ascii()));
        items.iter().for_each(|item| same(item, text));
    };
    let error = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        [b"!", text.len().to_string().as_bytes(), b"\r\n", text.as_bytes(), b"\r\n"].concat()
    };
    match frame {
        BytesFrame::Null => write(&mut expected, &Value::Null),
        BytesFrame::Number { data, .. } => write(&mut expected, &Value::Integer(*data)),
        BytesFrame::Double { data, .. } => write(&mut expected, &Value::Double(*data)),
        BytesFrame::Boolean { data, .. } => write(&mut expected, &Value::Boolean(*data)),
        BytesFrame::BigNumber { data, .. } => write(&mut expected, &Value::BigNumber(data.clone())),
        BytesFrame::BlobString { data, .. } => write(&mut expected, &Value::Bytes(data.clone())),
        BytesFrame::SimpleString { data, .. } => write(&mut expected, &Value::Status(data.clone())),
        BytesFrame::VerbatimString { data, .. } => write(&mut expected, &Value::Verbatim(data.clone())),
        BytesFrame::BlobError { data, .. } => expected = error(data),
        BytesFrame::SimpleError { data, .. } => expected = error(data.as_bytes()),
        BytesFrame::Array { data, .. } => return items(b'*', data, text),
        BytesFrame::Push { data, .. } => return items(b'>', data, text),
        BytesFrame::Set { data, .. } => {
            assert!(text.starts_with(b"~"), "a set in {}", text.escape_ascii());
            assert!(data.len() <= elements(text), "more members than were read");
            return skip(text);
        }
        BytesFrame::Map { data, .. } => {
            assert!(text.starts_with(b"%"), "a map in {}", text.escape_ascii());
            assert!(data.len() <= elements(text), "more fields than were read");
            return skip(text);
        }
        other => panic!("the decoder takes no {other:?}"),
    }
    *text = text.strip_prefix(&expected[..]).unwrap_or_else(|| panic!("{} in {}", expected.escape_ascii(), text.escape_ascii()));
}

/// The length in the first line.
fn elements(text: &[u8]) -> usize {
    let line = text[1..].split(|&byte| byte == b'\r').next().unwrap_or_default();
    std::str::from_utf8(line).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Removes one value that was encoded by [`write`].
fn skip(text: &mut &[u8]) {
    let mut left = 1;
    while left > 0 {
        left -= 1;
        let kind = text[0];
        let len = elements(text);
        let line = text.windows(2).position(|end| end == b"\r\n").map_or(text.len(), |at| at + 2);
        *text = &text[line..];
        match kind {
            b'$' | b'=' | b'!' => *text = &text[len + 2..],
            b'*' | b'~' | b'>' => left += len,
            b'%' => left += 2 * len,
            _ => {}
        }
    }
}
