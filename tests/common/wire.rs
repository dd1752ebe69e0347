//! A raw client: requests are sent as given, and replies are returned as bytes and as a tree.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A reply as a tree. Numbers keep their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// `+`
    Simple(Vec<u8>),
    /// `-`
    Error(Vec<u8>),
    /// `:`
    Integer(Vec<u8>),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`
    NilBulk,
    /// `*-1`
    NilArray,
    /// `_`
    Null,
    /// `,`
    Double(Vec<u8>),
    /// `#`
    Boolean(bool),
    /// `(`
    BigNumber(Vec<u8>),
    /// `=`, the format included
    Verbatim(Vec<u8>),
    /// `*`, `%` (keys and values in turn), `~` or `>`
    Aggregate(u8, Vec<Frame>),
}

impl Frame {
    /// The elements of an aggregate.
    pub fn elements(&self) -> Option<&[Frame]> {
        match self {
            Frame::Aggregate(_, elements) => Some(elements),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Frame::Integer(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The bytes of a bulk string, a status or an error.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Frame::Simple(text) | Frame::Error(text) | Frame::Bulk(text) | Frame::Verbatim(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is a push message.
    pub fn is_push(&self) -> bool {
        matches!(self, Frame::Aggregate(b'>', _))
    }

    /// Whether it is an error with this beginning.
    pub fn is_error(&self, start: &str) -> bool {
        matches!(self, Frame::Error(text) if text.starts_with(start.as_bytes()))
    }
}

/// A reply, as bytes and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The bytes on the wire.
    pub raw: Vec<u8>,
    /// The decoded reply.
    pub frame: Frame,
}

/// A connection. A reply that takes over twenty seconds is an error.
pub struct Wire {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Wire {
    /// Connects.
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Wire> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(20)))?;
        Ok(Wire { stream: BufReader::with_capacity(1 << 16, stream), out: Vec::new() })
    }

    /// Queues a request for [`Wire::flush`].
    pub fn queue<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
        for arg in args {
            self.out.extend_from_slice(format!("${}\r\n", arg.as_ref().len()).as_bytes());
            self.out.extend_from_slice(arg.as_ref());
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the queued requests.
    pub fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        self.stream.get_mut().write_all(&out)
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next reply or push message.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut raw = Vec::new();
        let frame = self.frame(&mut raw, 0)?;
        Ok(Reply { raw, frame })
    }

    /// Whether input is available.
    pub fn has_input(&mut self) -> bool {
        if !self.stream.buffer().is_empty() {
            return true;
        }
        let socket = self.stream.get_ref();
        let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
        socket.set_nonblocking(false).is_ok() && peeked.is_ok()
    }

    /// Reads this number of raw bytes.
    pub fn raw_now(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut raw = vec![0; count];
        self.stream.read_exact(&mut raw)?;
        Ok(raw)
    }

    /// Reads raw bytes up to a delimiter, which is not returned.
    pub fn raw_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut raw = Vec::new();
        while !raw.ends_with(end) {
            if self.stream.read_until(end[end.len() - 1], &mut raw)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
        }
        raw.truncate(raw.len() - end.len());
        Ok(raw)
    }

    /// Sends a request and reads its reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.queue(args);
        self.flush()?;
        self.reply()
    }

    fn frame(&mut self, raw: &mut Vec<u8>, depth: u32) -> io::Result<Frame> {
        let start = raw.len();
        if self.stream.read_until(b'\n', raw)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        let line = &raw[start..];
        let (Some(&kind), true, true) = (line.first(), line.ends_with(b"\r\n"), depth < 200) else {
            return Err(malformed(line));
        };
        let text = line[1..line.len() - 2].to_vec();
        let length = std::str::from_utf8(&text).ok().and_then(|t| t.parse::<i64>().ok());
        Ok(match kind {
            b'+' => Frame::Simple(text),
            b'-' => Frame::Error(text),
            b':' if length.is_some() => Frame::Integer(text),
            b',' => Frame::Double(text),
            b'(' => Frame::BigNumber(text),
            b'_' if text.is_empty() => Frame::Null,
            b'#' if text == b"t" || text == b"f" => Frame::Boolean(text == b"t"),
            b'$' if length == Some(-1) => Frame::NilBulk,
            b'*' if length == Some(-1) => Frame::NilArray,
            b'$' | b'=' => {
                let length = length.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| malformed(&raw[start..]))?;
                let from = raw.len();
                raw.resize(from + length + 2, 0);
                self.stream.read_exact(&mut raw[from..])?;
                if !raw.ends_with(b"\r\n") {
                    return Err(malformed(&raw[start..]));
                }
                let bytes = raw[from..from + length].to_vec();
                if kind == b'$' { Frame::Bulk(bytes) } else { Frame::Verbatim(bytes) }
            }
            b'*' | b'%' | b'~' | b'>' => {
                let length = length.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| malformed(&raw[start..]))?;
                let length = if kind == b'%' { length * 2 } else { length };
                let mut elements = Vec::new();
                for _ in 0..length {
                    elements.push(self.frame(raw, depth + 1)?);
                }
                Frame::Aggregate(kind, elements)
            }
            // Attributes of the following reply, which are dropped.
            b'|' => {
                for _ in 0..length.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| malformed(&raw[start..]))? * 2 {
                    self.frame(raw, depth + 1)?;
                }
                self.frame(raw, depth)?
            }
            _ => return Err(malformed(&raw[start..])),
        })
    }
}

fn malformed(bytes: &[u8]) -> io::Error {
    let shown = bytes[..bytes.len().min(80)].escape_ascii();
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed reply: {shown}"))
}
