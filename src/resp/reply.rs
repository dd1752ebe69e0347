//! Replies: what a handler says, and how it looks on the wire.
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
    /// An error, beginning with its code and without the leading `-`. CR and LF are replaced by spaces.
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

    /// Goes on in another protocol, as `HELLO` asks for; sinks that have no wire ignore it.
    fn switch(&mut self, _protocol: Protocol) {}

    /// The status `OK`.
    fn ok(&mut self) {
        self.simple("OK");
    }
}

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

    fn header(&mut self, kind: u8, n: i64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(n).as_bytes();
        self.out.reserve(digits.len() + 3);
        self.out.push(kind);
        self.out.extend_from_slice(digits);
        self.out.extend_from_slice(b"\r\n");
    }

    fn resp3(&self) -> bool {
        self.protocol == Protocol::Resp3
    }
}

impl Sink for WireReply<'_> {
    fn switch(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn error(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(text.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }));
        self.out.extend_from_slice(b"\r\n");
    }

    fn integer(&mut self, n: i64) {
        self.header(b':', n);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(bytes.len()).as_bytes();
        self.out.reserve(digits.len() + bytes.len() + 5);
        self.out.push(b'$');
        self.out.extend_from_slice(digits);
        self.out.extend_from_slice(b"\r\n");
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3() { b"_\r\n" } else { b"$-1\r\n" });
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
            self.out.push(b',');
            self.out.extend_from_slice(text);
            self.out.extend_from_slice(b"\r\n");
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
        if self.resp3() {
            self.out.push(b'(');
            self.out.extend_from_slice(decimal.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(decimal.as_bytes());
        }
    }

    fn verbatim(&mut self, format: &str, text: &[u8]) {
        if self.resp3() {
            self.header(b'=', text.len() as i64 + 4);
            self.out.extend_from_slice(&format.as_bytes()[..3]);
            self.out.push(b':');
            self.out.extend_from_slice(text);
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text);
        }
    }
}
