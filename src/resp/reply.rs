//! Replies: the interface of handlers, and the encoding on the wire.
//!
//! Handlers speak to a [`Sink`]. [`WireReply`] writes RESP2 or RESP3 into a session's outbox; the script side has a sink that
//! pushes straight onto the Lua stack. A handler says what it means (`map`, `set`, `double`) and the sink lowers it to what the
//! session's protocol has.

pub use crate::resp::double::{DOUBLE_MAX, format_double};

/// The version of the protocol that a session speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Protocol {
    /// What every client speaks until it says `HELLO 3`.
    #[default]
    Resp2,
    /// Typed replies and pushes.
    Resp3,
}

/// Where a reply goes. Aggregates are opened by their length and then filled with that many elements.
pub trait Sink {
    /// The protocol whose types may be used; a handler asks only where the two differ in more than encoding.
    fn protocol(&self) -> Protocol;
    /// A status such as `OK`; `text` has no CR or LF.
    fn simple(&mut self, text: &str);
    /// As [`Sink::simple`] for bytes that a script made, which need not be text; they have no CR or LF either.
    fn status(&mut self, text: &[u8]) {
        self.simple(&String::from_utf8_lossy(text));
    }
    /// An error, beginning with its code and without the leading `-`. CR and LF at its ends go, others become spaces.
    fn error(&mut self, text: &[u8]);
    /// A 64-bit integer.
    fn integer(&mut self, n: i64);
    /// A string of bytes.
    fn bulk(&mut self, bytes: &[u8]);
    /// No value: a nil bulk on RESP2, null on RESP3.
    fn null(&mut self);
    /// No aggregate: a nil array on RESP2, null on RESP3.
    fn null_array(&mut self);
    /// `len` elements follow.
    fn array(&mut self, len: usize);
    /// `pairs` keys and values follow, alternating; a flat array on RESP2.
    fn map(&mut self, pairs: usize);
    /// `len` distinct elements follow; an array on RESP2.
    fn set(&mut self, len: usize);
    /// `len` elements of an out-of-band message follow; an array on RESP2.
    fn push(&mut self, len: usize);
    /// A double; its shortest decimal form as a bulk on RESP2.
    fn double(&mut self, value: f64);
    /// A truth value; 1 or 0 on RESP2.
    fn boolean(&mut self, value: bool);
    /// An integer of any size, in decimal; a bulk on RESP2.
    fn big_number(&mut self, decimal: &str);
    /// A text with a three-letter format (`txt`, `mkd`); a bulk on RESP2.
    fn verbatim(&mut self, format: &str, text: &[u8]);

    /// As [`Sink::big_number`] for bytes that a script made, which need not be digits; they have no CR or LF.
    fn big_number_of(&mut self, text: &[u8]) {
        self.big_number(&String::from_utf8_lossy(text));
    }

    /// As [`Sink::verbatim`] for a format that a script made, which need not be text.
    fn verbatim_of(&mut self, format: [u8; 3], text: &[u8]) {
        self.verbatim(&String::from_utf8_lossy(&format), text);
    }

    /// Begins an attribute of `pairs` keys and values about the next reply. Returns false if attributes are not sent: in RESP2 and in
    /// scripts.
    fn attribute(&mut self, _pairs: usize) -> bool {
        false
    }

    /// Number of bytes written so far; always 0 for sinks that write no bytes.
    fn mark(&self) -> usize {
        0
    }

    /// Discards everything written since this [`Sink::mark`].
    fn rewind(&mut self, _mark: usize) {}

    /// Switches to another protocol, for `HELLO`. Sinks that write no bytes ignore it.
    fn switch(&mut self, _protocol: Protocol) {}

    /// The status `OK`.
    fn ok(&mut self) {
        self.simple("OK");
    }

    /// The status `PONG`.
    fn pong(&mut self) {
        self.simple("PONG");
    }
}

/// Maximum number of bytes of a bulk string besides its own: kind, length and two line ends.
const BULK_FRAME_MAX: usize = 1 + 20 + 4;
/// Maximum length of a line with a number: its kind, the digits, CR and LF; a multiple of 8.
const HEADER_MAX: usize = 24;

/// Writes replies as bytes at the end of a buffer.
pub struct WireReply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> WireReply<'a> {
    /// A sink that appends to `out` in the given protocol.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        WireReply { out, protocol }
    }

    /// One line with a number. A small one is written without a look at its digits, and without a copy of unknown length.
    #[inline]
    fn header(&mut self, kind: u8, n: i64) {
        match n {
            0..=9 => self.out.extend_from_slice(&[kind, b'0' + n as u8, b'\r', b'\n']),
            10..=99 => self.out.extend_from_slice(&[kind, b'0' + (n / 10) as u8, b'0' + (n % 10) as u8, b'\r', b'\n']),
            _ => self.long_header(kind, n),
        }
    }

    #[inline(never)]
    fn long_header(&mut self, kind: u8, n: i64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(n).as_bytes();
        let mut line = [0; HEADER_MAX];
        let end = 1 + digits.len();
        line[0] = kind;
        line[1..end].copy_from_slice(digits);
        line[end..end + 2].copy_from_slice(b"\r\n");
        // Copying the whole array is cheaper, because its length is known.
        let len = self.out.len() + end + 2;
        self.out.extend_from_slice(&line);
        self.out.truncate(len);
    }

    /// One line: its kind, a text without line ends, CR and LF.
    #[inline(always)]
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the header of a verbatim string of `len` bytes; see [`Sink::verbatim_of`].
    pub(crate) fn verbatim_head(&mut self, format: [u8; 3], len: usize) {
        if self.resp3() {
            self.header(b'=', len as i64 + 4);
            self.out.extend_from_slice(&format);
            self.out.push(b':');
        } else {
            self.header(b'$', len as i64);
        }
    }

    fn resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }
}

impl Sink for WireReply<'_> {
    fn attribute(&mut self, pairs: usize) -> bool {
        if self.resp3() {
            self.header(b'|', pairs as i64);
        }
        self.resp3()
    }

    fn mark(&self) -> usize {
        self.out.len()
    }

    fn rewind(&mut self, mark: usize) {
        self.out.truncate(mark);
    }

    fn switch(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn simple(&mut self, text: &str) {
        self.status(text.as_bytes());
    }

    fn status(&mut self, text: &[u8]) {
        self.line(b'+', text);
    }

    fn error(&mut self, text: &[u8]) {
        let line_end = |b: &u8| *b == b'\r' || *b == b'\n';
        let start = text.iter().position(|b| !line_end(b)).unwrap_or(text.len());
        let end = text.iter().rposition(|b| !line_end(b)).map_or(start, |last| last + 1);
        self.out.push(b'-');
        self.out.extend(text[start..end].iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
        self.out.extend_from_slice(b"\r\n");
    }

    fn integer(&mut self, n: i64) {
        self.header(b':', n);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + BULK_FRAME_MAX);
        self.header(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    fn pong(&mut self) {
        self.out.extend_from_slice(b"+PONG\r\n");
    }

    fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.out.extend_from_slice(b"$-1\r\n"),
            Protocol::Resp3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3() { b"_\r\n" } else { b"*-1\r\n" });
    }

    fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    fn map(&mut self, pairs: usize) {
        if self.resp3() { self.header(b'%', pairs as i64) } else { self.header(b'*', pairs as i64 * 2) }
    }

    fn set(&mut self, len: usize) {
        self.header(if self.resp3() { b'~' } else { b'*' }, len as i64);
    }

    fn push(&mut self, len: usize) {
        self.header(if self.resp3() { b'>' } else { b'*' }, len as i64);
    }

    fn double(&mut self, value: f64) {
        let mut text = [0; DOUBLE_MAX];
        let text = format_double(value, &mut text);
        if self.resp3() {
            self.line(b',', text);
        } else {
            self.bulk(text);
        }
    }

    fn boolean(&mut self, value: bool) {
        if self.resp3() {
            self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" });
        } else {
            self.integer(value as i64);
        }
    }

    fn big_number(&mut self, decimal: &str) {
        self.big_number_of(decimal.as_bytes());
    }

    fn big_number_of(&mut self, text: &[u8]) {
        if self.resp3() {
            self.line(b'(', text);
        } else {
            self.bulk(text);
        }
    }

    fn verbatim(&mut self, format: &str, text: &[u8]) {
        let format = format.as_bytes().first_chunk().copied().unwrap_or(*b"txt");
        self.verbatim_of(format, text);
    }

    fn verbatim_of(&mut self, format: [u8; 3], text: &[u8]) {
        self.verbatim_head(format, text.len());
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use redis_protocol::resp2::decode::decode as decode2;
    use redis_protocol::resp2::types::OwnedFrame as Frame2;
    use redis_protocol::resp3::decode::complete::decode as decode3;
    use redis_protocol::resp3::types::{OwnedFrame as Frame3, VerbatimStringFormat};

    /// Everything that a handler can say.
    #[derive(Clone, Debug)]
    enum Said {
        Simple(String),
        Error(String),
        Integer(i64),
        Bulk(Vec<u8>),
        Null,
        NullArray,
        Double(f64),
        Boolean(bool),
        BigNumber(String),
        Verbatim(Vec<u8>),
        Array(Vec<Said>),
        /// Distinct keys, as `i64`, and their values.
        Map(Vec<(i64, Said)>),
        Set(Vec<i64>),
        Push(Vec<Said>),
    }

    fn say(said: &Said, sink: &mut dyn Sink) {
        match said {
            Said::Simple(text) => sink.simple(text),
            Said::Error(text) => sink.error(text.as_bytes()),
            Said::Integer(n) => sink.integer(*n),
            Said::Bulk(bytes) => sink.bulk(bytes),
            Said::Null => sink.null(),
            Said::NullArray => sink.null_array(),
            Said::Double(value) => sink.double(*value),
            Said::Boolean(value) => sink.boolean(*value),
            Said::BigNumber(decimal) => sink.big_number(decimal),
            Said::Verbatim(text) => sink.verbatim("txt", text),
            Said::Array(elements) => {
                sink.array(elements.len());
                elements.iter().for_each(|element| say(element, sink));
            }
            Said::Map(pairs) => {
                sink.map(pairs.len());
                for (key, value) in pairs {
                    sink.integer(*key);
                    say(value, sink);
                }
            }
            Said::Set(elements) => {
                sink.set(elements.len());
                elements.iter().for_each(|element| sink.integer(*element));
            }
            Said::Push(elements) => {
                sink.push(elements.len());
                elements.iter().for_each(|element| say(element, sink));
            }
        }
    }

    fn wire(said: &Said, protocol: Protocol) -> Vec<u8> {
        let mut out = Vec::new();
        say(said, &mut WireReply::new(&mut out, protocol));
        out
    }

    fn double_text(value: f64) -> Vec<u8> {
        format_double(value, &mut [0; DOUBLE_MAX]).to_vec()
    }

    fn expected2(said: &Said) -> Frame2 {
        match said {
            Said::Simple(text) => Frame2::SimpleString(text.clone().into()),
            Said::Error(text) => Frame2::Error(text.trim_matches(['\r', '\n']).replace(['\r', '\n'], " ")),
            Said::Integer(n) => Frame2::Integer(*n),
            Said::Bulk(bytes) | Said::Verbatim(bytes) => Frame2::BulkString(bytes.clone()),
            Said::Null | Said::NullArray => Frame2::Null,
            Said::Double(value) => Frame2::BulkString(double_text(*value)),
            Said::Boolean(value) => Frame2::Integer(*value as i64),
            Said::BigNumber(decimal) => Frame2::BulkString(decimal.clone().into()),
            Said::Array(elements) | Said::Push(elements) => Frame2::Array(elements.iter().map(expected2).collect()),
            Said::Map(pairs) => {
                Frame2::Array(pairs.iter().flat_map(|(key, value)| [Frame2::Integer(*key), expected2(value)]).collect())
            }
            Said::Set(elements) => Frame2::Array(elements.iter().map(|element| Frame2::Integer(*element)).collect()),
        }
    }

    fn number3(data: i64) -> Frame3 {
        Frame3::Number { data, attributes: None }
    }

    fn expected3(said: &Said) -> Frame3 {
        let attributes = None;
        match said {
            Said::Simple(text) => Frame3::SimpleString { data: text.clone().into(), attributes },
            Said::Error(text) => {
                Frame3::SimpleError { data: text.trim_matches(['\r', '\n']).replace(['\r', '\n'], " "), attributes }
            }
            Said::Integer(n) => number3(*n),
            Said::Bulk(bytes) => Frame3::BlobString { data: bytes.clone(), attributes },
            Said::Null | Said::NullArray => Frame3::Null,
            Said::Double(data) => Frame3::Double { data: *data, attributes },
            Said::Boolean(data) => Frame3::Boolean { data: *data, attributes },
            Said::BigNumber(decimal) => Frame3::BigNumber { data: decimal.clone().into(), attributes },
            Said::Verbatim(text) => Frame3::VerbatimString { data: text.clone(), format: VerbatimStringFormat::Text, attributes },
            Said::Array(elements) => Frame3::Array { data: elements.iter().map(expected3).collect(), attributes },
            Said::Push(elements) => Frame3::Push { data: elements.iter().map(expected3).collect(), attributes },
            Said::Map(pairs) => {
                Frame3::Map { data: pairs.iter().map(|(key, value)| (number3(*key), expected3(value))).collect(), attributes }
            }
            Said::Set(elements) => Frame3::Set { data: elements.iter().map(|element| number3(*element)).collect(), attributes },
        }
    }

    fn said() -> impl Strategy<Value = Said> {
        let leaf = prop_oneof![
            "[ -~]{0,20}".prop_map(Said::Simple),
            "[ -~\r\n]{0,20}".prop_map(|text| Said::Error(format!("ERR {text}"))),
            any::<i64>().prop_map(Said::Integer),
            (-20i64..200).prop_map(Said::Integer),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Said::Bulk),
            Just(Said::Null),
            Just(Said::NullArray),
            any::<f64>().prop_filter("NaN is not equal to itself", |value| !value.is_nan()).prop_map(Said::Double),
            any::<bool>().prop_map(Said::Boolean),
            "-?[1-9][0-9]{0,40}".prop_map(Said::BigNumber),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Said::Verbatim),
            prop::collection::btree_set(any::<i64>(), 0..5).prop_map(|set| Said::Set(set.into_iter().collect())),
        ];
        let tree = leaf.prop_recursive(3, 24, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Said::Array),
                prop::collection::btree_map(any::<i64>(), inner, 0..5).prop_map(|map| Said::Map(map.into_iter().collect())),
            ]
        });
        prop_oneof![
            4 => tree.clone(),
            1 => prop::collection::vec(tree, 1..5).prop_map(|mut elements| {
                elements.insert(0, Said::Bulk(b"message".to_vec()));
                Said::Push(elements)
            }),
        ]
    }

    proptest! {
        #[test]
        fn redis_protocol_reads_what_was_said(said in said()) {
            let bytes = wire(&said, Protocol::Resp2);
            prop_assert_eq!(decode2(&bytes).unwrap(), Some((expected2(&said), bytes.len())));
            let bytes = wire(&said, Protocol::Resp3);
            prop_assert_eq!(decode3(&bytes).unwrap(), Some((expected3(&said), bytes.len())));
        }
    }

    #[test]
    fn each_kind_on_the_wire() {
        let cases: &[(Said, &str, &str)] = &[
            (Said::Simple("OK".into()), "+OK\r\n", "+OK\r\n"),
            (Said::Error("ERR a\r\nb".into()), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (Said::Integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (Said::Bulk(b"a\r\n".to_vec()), "$3\r\na\r\n\r\n", "$3\r\na\r\n\r\n"),
            (Said::Bulk(vec![]), "$0\r\n\r\n", "$0\r\n\r\n"),
            (Said::Null, "$-1\r\n", "_\r\n"),
            (Said::NullArray, "*-1\r\n", "_\r\n"),
            (Said::Double(3.0), "$1\r\n3\r\n", ",3\r\n"),
            (Said::Double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
            (Said::Double(f64::NAN), "$3\r\nnan\r\n", ",nan\r\n"),
            (Said::Boolean(true), ":1\r\n", "#t\r\n"),
            (Said::Boolean(false), ":0\r\n", "#f\r\n"),
            (Said::BigNumber("123".into()), "$3\r\n123\r\n", "(123\r\n"),
            (Said::Verbatim(b"hi".to_vec()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (Said::Array(vec![]), "*0\r\n", "*0\r\n"),
            (Said::Map(vec![(1, Said::Null)]), "*2\r\n:1\r\n$-1\r\n", "%1\r\n:1\r\n_\r\n"),
            (Said::Set(vec![7]), "*1\r\n:7\r\n", "~1\r\n:7\r\n"),
            (Said::Push(vec![Said::Integer(7)]), "*1\r\n:7\r\n", ">1\r\n:7\r\n"),
        ];
        for (said, resp2, resp3) in cases {
            assert_eq!(wire(said, Protocol::Resp2), resp2.as_bytes(), "{said:?}");
            assert_eq!(wire(said, Protocol::Resp3), resp3.as_bytes(), "{said:?}");
        }
    }

    #[test]
    fn replies_follow_one_another_and_the_protocol_can_change_between_them() {
        let mut out = b"+before\r\n".to_vec();
        let mut reply = WireReply::new(&mut out, Protocol::Resp2);
        reply.null();
        reply.switch(Protocol::Resp3);
        reply.ok();
        reply.null();
        assert_eq!(reply.protocol(), Protocol::Resp3);
        assert_eq!(out, b"+before\r\n$-1\r\n+OK\r\n_\r\n");
    }
}
