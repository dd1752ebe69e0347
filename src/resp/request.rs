//! The request parser: finds the arguments of one request in a read buffer, without copying them and without reading a byte twice.
//!
//! Two forms are understood, as Redis does: the multibulk form that clients send (`*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`) and the inline
//! form for people (`GET k`, with quotes and escapes). What is taken for a number, a line end or a quote follows Redis to the
//! byte, and so do the texts of [`ProtocolError`].
//!
//! The parser holds no bytes and no socket. Its caller keeps the buffer, calls [`RequestParser::parse`] again when more has come,
//! and drops what a finished request consumed:
//!
//! ```text
//!   read buffer ─▶ parse ─▶ Incomplete ─▶ read more (needed() bytes at least)
//!                     ├───▶ Complete ──▶ arguments(buf) ─▶ execute ─▶ reset, drop `consumed` bytes
//!                     └───▶ Empty ─────▶ reset, drop `consumed` bytes
//! ```
//!
//! Nearly every request is complete when it is first read, and plain: [`whole_request`] finds its arguments. The parser handles all
//! others.
//!
//! A declared length or count of more than two digits reserves no memory: memory grows with the bytes received. Whether a request is
//! accepted never depends on how the stream was cut into pieces.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;

mod inline;

/// Arguments that an unauthenticated client may send in one request.
const UNAUTHENTICATED_ARGS: i64 = 10;
/// Bytes that an unauthenticated client may send in one argument.
const UNAUTHENTICATED_BULK: i64 = 16_384;
/// No argument of a multibulk request takes fewer bytes than this: `$0\r\n\r\n`.
const ARGUMENT_BYTES_MIN: usize = 6;
/// How every TLS handshake begins: the record's type and the first byte of its version.
const TLS_HANDSHAKE: &[u8] = b"\x16\x03";
/// Argument positions that a parser keeps room for between requests.
const SPANS_KEPT: usize = 32;

/// The words of a line as an inline request has them, quotes and escapes undone.
pub(crate) fn split_words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    let (mut spans, mut text) = (Vec::new(), Vec::with_capacity(line.len()));
    inline::split_quoted(line, &mut spans, &mut text)?;
    Ok(spans.iter().map(|span| text[span.start..][..span.len].to_vec()).collect())
}

/// What one request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest argument, in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: u64,
    /// The most arguments of a multibulk request.
    pub max_args: u64,
    /// The longest line, in bytes before its end: an inline request, or the line of a count or a length.
    pub max_inline: usize,
    /// Whether the client has authenticated; one that has not is held to 10 arguments of 16,384 bytes.
    pub authenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_bulk_len: 512 * 1024 * 1024, max_args: 1024 * 1024, max_inline: 64 * 1024, authenticated: true }
    }
}

/// The result of [`RequestParser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request goes on behind the end of the buffer; see [`RequestParser::needed`].
    Incomplete,
    /// The request takes the first `consumed` bytes of the buffer and has at least one argument.
    Complete {
        /// Length of the request in bytes.
        consumed: usize,
    },
    /// The first `consumed` bytes ask for nothing: a blank line, `*0` or a negative count.
    Empty {
        /// Length of the request in bytes.
        consumed: usize,
    },
}

/// Why a stream cannot be followed any further. The client gets the text as an error and its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The count behind `*` is no number, or too large.
    InvalidMultibulkLength,
    /// The length behind `$` is no number, negative, or beyond `proto-max-bulk-len`.
    InvalidBulkLength,
    /// An argument begins with this byte.
    ExpectedDollar(u8),
    /// No line end within `max_inline` bytes of a count.
    TooBigCount,
    /// No line end within `max_inline` bytes of a length.
    TooBigLength,
    /// No line end within `max_inline` bytes of an inline request.
    TooBigInline,
    /// A quote that does not end, or ends in the middle of an argument.
    UnbalancedQuotes,
    /// More arguments than a client may send before it has authenticated.
    UnauthenticatedMultibulkLength,
    /// A longer argument than a client may send before it has authenticated.
    UnauthenticatedBulkLength,
    /// The beginning of a TLS handshake, whose client would wait for an answer to what may never become a line.
    Tls,
}

impl ProtocolError {
    /// The error as it goes on the wire, without the leading `-`: `ERR Protocol error: …`. May hold a CR, an LF or bytes that are
    /// not UTF-8, which is for [`Sink::error`](crate::resp::reply::Sink::error) to mend.
    pub fn text(&self) -> Cow<'static, [u8]> {
        Cow::Borrowed(match self {
            Self::InvalidMultibulkLength => b"ERR Protocol error: invalid multibulk length",
            Self::InvalidBulkLength => b"ERR Protocol error: invalid bulk length",
            Self::ExpectedDollar(got) => {
                let mut text = b"ERR Protocol error: expected '$', got '".to_vec();
                text.extend([*got, b'\'']);
                return Cow::Owned(text);
            }
            Self::TooBigCount => b"ERR Protocol error: too big mbulk count string",
            Self::TooBigLength => b"ERR Protocol error: too big bulk count string",
            Self::TooBigInline => b"ERR Protocol error: too big inline request",
            Self::UnbalancedQuotes => b"ERR Protocol error: unbalanced quotes in request",
            Self::UnauthenticatedMultibulkLength => b"ERR Protocol error: unauthenticated multibulk length",
            Self::Tls => b"ERR Protocol error: this is a TLS handshake, and not the port for it",
            Self::UnauthenticatedBulkLength => b"ERR Protocol error: unauthenticated bulk length",
        })
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ProtocolError {}

/// Where an argument lies.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    len: usize,
}

/// What comes next in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The first byte of a request.
    #[default]
    Start,
    /// The rest of an inline request.
    Inline,
    /// The line with the number of arguments.
    Count,
    /// The line with an argument's length.
    Length,
    /// An argument and the two bytes behind it.
    Body,
    /// Nothing: the request is complete.
    Done,
}

/// The arguments of an inline request that had quotes, one behind the other, unquoted.
#[derive(Debug)]
struct Unquoted {
    text: Vec<u8>,
}

/// Finds the arguments of one request after the other; see the [module](self).
#[derive(Debug, Default)]
pub struct RequestParser {
    spans: Vec<Span>,
    unquoted: Option<Box<Unquoted>>,
    /// Start of the line or the argument that is being read.
    at: usize,
    /// In a line: where the search for its end goes on. In an argument: its length.
    mark: usize,
    /// Bytes that must come before parsing can go on.
    needed: u32,
    /// Arguments still to come, the one being read included.
    remaining: u32,
    stage: Stage,
}

impl RequestParser {
    /// A parser at the start of a request.
    pub fn new() -> Self {
        RequestParser::default()
    }

    /// Continues the current request. `buf` begins with the first byte of the request; on each later call it has the same bytes and
    /// more after them, possibly at another address. After an error, nothing more can be parsed on this stream.
    #[inline]
    pub fn parse(&mut self, buf: &[u8], limits: &Limits) -> Result<Progress, ProtocolError> {
        if self.stage == Stage::Done {
            self.reset();
        }
        if self.stage == Stage::Start {
            match buf.first() {
                None => return self.incomplete(1),
                Some(b'*') => self.stage = Stage::Count,
                Some(_) => self.stage = Stage::Inline,
            }
        }
        fail_if!(self.stage == Stage::Inline && buf.starts_with(TLS_HANDSHAKE), ProtocolError::Tls);
        if self.stage == Stage::Inline { self.parse_inline(buf, limits) } else { self.parse_multibulk(buf, limits) }
    }

    /// The arguments of the request that `parse` found complete in this `buf`, in order. Empty before that.
    #[inline]
    pub fn arguments<'a>(&'a self, buf: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let source = if let Some(unquoted) = &self.unquoted { &unquoted.text } else { buf };
        let spans = if self.stage == Stage::Done { &self.spans[..] } else { &[] };
        spans.iter().map(move |span| source.get(span.start..span.start + span.len).unwrap_or_default())
    }

    /// Appends the arguments of the complete request. Returns false for an inline request with quotes, whose arguments are not in
    /// `buf`.
    pub fn append_arguments<'a>(&self, buf: &'a [u8], arguments: &mut Vec<&'a [u8]>) -> bool {
        if self.unquoted.is_some() || self.stage != Stage::Done {
            return false;
        }
        arguments.extend(self.spans.iter().map(|span| buf.get(span.start..span.start + span.len).unwrap_or_default()));
        true
    }

    /// Forgets the finished request; the next one starts at the beginning of the next buffer. Room for the arguments is kept,
    /// unless there were many.
    #[inline]
    pub fn reset(&mut self) {
        if self.spans.capacity() > SPANS_KEPT {
            self.spans = Vec::new();
        }
        self.spans.clear();
        self.unquoted = None;
        self.at = 0;
        self.mark = 0;
        self.needed = 0;
        self.stage = Stage::Start;
    }

    /// Bytes that are surely missing after [`Progress::Incomplete`], such as the rest of an argument, at most `max_bulk_len + 2`.
    #[cfg(any(test, feature = "internals"))]
    pub fn needed(&self) -> usize {
        self.needed as usize
    }

    /// Whether a request has begun and is not complete.
    pub fn is_partial(&self) -> bool {
        !matches!(self.stage, Stage::Start | Stage::Done)
    }

    fn incomplete(&mut self, needed: usize) -> Result<Progress, ProtocolError> {
        self.needed = u32::try_from(needed).unwrap_or(u32::MAX);
        Ok(Progress::Incomplete)
    }

    fn parse_multibulk(&mut self, buf: &[u8], limits: &Limits) -> Result<Progress, ProtocolError> {
        if self.stage == Stage::Count {
            let (count, next) = match number_line(buf, b'*', 0, &mut self.mark, limits.max_inline) {
                Line::Number(count, next) => (count, next),
                Line::Invalid => return Err(ProtocolError::InvalidMultibulkLength),
                Line::TooLong => return Err(ProtocolError::TooBigCount),
                Line::Incomplete => return self.incomplete(1),
            };
            fail_if!(count > 0 && count as u64 > limits.max_args.min(u32::MAX as u64), ProtocolError::InvalidMultibulkLength);
            fail_if!(count > UNAUTHENTICATED_ARGS && !limits.authenticated, ProtocolError::UnauthenticatedMultibulkLength);
            if count <= 0 {
                self.stage = Stage::Done;
                return Ok(Progress::Empty { consumed: next });
            }
            self.remaining = count as u32;
            self.at = next;
            self.mark = 0;
            self.stage = Stage::Length;
            // One allocation for a request that is there as a whole, and none for a count with nothing behind it.
            self.spans.reserve((count as usize).min(buf.len().saturating_sub(next) / ARGUMENT_BYTES_MIN + 1));
        }
        let mut at = self.at;
        if self.stage == Stage::Length && self.mark == 0 {
            at = self.parse_short(buf, at, limits);
            if self.remaining == 0 {
                self.stage = Stage::Done;
                return Ok(Progress::Complete { consumed: at });
            }
        }
        loop {
            if self.stage == Stage::Length {
                let (len, next) = match number_line(buf, b'$', at, &mut self.mark, limits.max_inline) {
                    Line::Number(len, next) if buf[at] == b'$' => (len, next),
                    Line::Number(..) | Line::Invalid if buf[at] != b'$' => return Err(ProtocolError::ExpectedDollar(buf[at])),
                    Line::Number(..) | Line::Invalid => return Err(ProtocolError::InvalidBulkLength),
                    Line::TooLong => return Err(ProtocolError::TooBigLength),
                    Line::Incomplete => {
                        self.at = at;
                        return self.incomplete(1);
                    }
                };
                if len < 0 || len as u64 > limits.max_bulk_len || len as u64 > (usize::MAX / 4) as u64 {
                    return Err(ProtocolError::InvalidBulkLength);
                }
                fail_if!(len > UNAUTHENTICATED_BULK && !limits.authenticated, ProtocolError::UnauthenticatedBulkLength);
                at = next;
                self.mark = len as usize;
            }
            // The two bytes behind an argument are skipped whatever they are, as Redis does.
            let end = at + self.mark + 2;
            if end > buf.len() {
                self.stage = Stage::Body;
                self.at = at;
                return self.incomplete(end - buf.len());
            }
            self.spans.push(Span { start: at, len: self.mark });
            self.stage = Stage::Length;
            self.mark = 0;
            at = end;
            self.remaining -= 1;
            if self.remaining == 0 {
                self.stage = Stage::Done;
                return Ok(Progress::Complete { consumed: end });
            }
        }
    }

    /// Fast path: reads complete arguments with short, valid lengths. Returns the start of the first other one.
    #[inline(always)]
    fn parse_short(&mut self, buf: &[u8], at: usize, limits: &Limits) -> usize {
        let longest = longest_argument(limits);
        let mut rest = buf.get(at..).unwrap_or_default();
        while self.remaining > 0 && longest >= SHORTEST_NUMBER_MAX {
            let Some((argument, behind)) = whole_argument(rest, longest) else { break };
            let end = buf.len() - behind.len();
            self.spans.push(Span { start: end - 2 - argument.len(), len: argument.len() });
            self.remaining -= 1;
            rest = behind;
        }
        buf.len() - rest.len()
    }

    #[cold]
    fn parse_inline(&mut self, buf: &[u8], limits: &Limits) -> Result<Progress, ProtocolError> {
        let newline = match line_end(buf, b'\n', 0, &mut self.mark, limits.max_inline) {
            LineEnd::At(newline) => newline,
            LineEnd::TooLong => return Err(ProtocolError::TooBigInline),
            LineEnd::Incomplete => return self.incomplete(1),
        };
        let line = &buf[..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if find_either(b'"', b'\'', line).is_none() {
            inline::split_plain(line, &mut self.spans);
        } else {
            let mut text = Vec::with_capacity(line.len());
            inline::split_quoted(line, &mut self.spans, &mut text)?;
            self.unquoted = Some(Box::new(Unquoted { text }));
        }
        self.stage = Stage::Done;
        let consumed = newline + 1;
        Ok(if self.spans.is_empty() { Progress::Empty { consumed } } else { Progress::Complete { consumed } })
    }
}

/// Fast path: appends the arguments of a complete multibulk request at the beginning of `buf`, and returns the bytes after it. Its
/// count and lengths are short, valid and within the limits. Returns `None` for any other request; then `arguments` is unchanged, and
/// a [`RequestParser`] must parse the request.
#[inline(always)]
pub fn whole_request<'a>(buf: &'a [u8], limits: &Limits, arguments: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let most = if limits.authenticated { limits.max_args } else { limits.max_args.min(UNAUTHENTICATED_ARGS as u64) };
    let longest = longest_argument(limits);
    let (count, line) = shortest_number_line(u64::from_le_bytes(*buf.first_chunk()?), b'*')?;
    if count as u64 > most || longest < SHORTEST_NUMBER_MAX || count == 0 {
        return None;
    }
    let mut rest = buf.get(line..)?;
    // Room is made once, because the number of arguments is known.
    arguments.reserve(count);
    for place in &mut arguments.spare_capacity_mut()[..count] {
        let (argument, behind) = whole_argument(rest, longest)?;
        place.write(argument);
        rest = behind;
    }
    // SAFETY: the loop has initialized `count` places after the existing arguments.
    unsafe { arguments.set_len(arguments.len() + count) };
    Some(rest)
}

/// The longest argument that the client may send.
#[inline(always)]
fn longest_argument(limits: &Limits) -> u64 {
    if limits.authenticated { limits.max_bulk_len } else { limits.max_bulk_len.min(UNAUTHENTICATED_BULK as u64) }
}

/// The argument at the beginning of `rest` and the bytes after it, if it is complete and its length is short and valid. `longest` must
/// be at least [`SHORTEST_NUMBER_MAX`].
#[inline(always)]
fn whole_argument(rest: &[u8], longest: u64) -> Option<(&[u8], &[u8])> {
    let word = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let Some((len, line)) = word.and_then(|word| shortest_number_line(word, b'$')) else { return longer_argument(rest, longest) };
    // The two bytes behind an argument are skipped whatever they are, as Redis does.
    let (this, behind) = rest.split_at_checked(line + len + 2)?;
    Some((this.get(line..line + len)?, behind))
}

#[inline(never)]
fn longer_argument(rest: &[u8], longest: u64) -> Option<(&[u8], &[u8])> {
    let (len, line) = longer_number_line(rest, b'$')?;
    let (this, behind) = rest.split_at_checked(line + len as usize + 2)?;
    if len as u64 > longest { None } else { Some((this.get(line..line + len as usize)?, behind)) }
}

/// What the line of a count or a length holds.
enum Line {
    /// The number and the position behind the line.
    Number(i64, usize),
    /// A whole line, but no number.
    Invalid,
    TooLong,
    Incomplete,
}

/// Reads the line at `at`: the byte `kind`, a number, CR and one more byte. The search for its end starts at `*scanned` unless that
/// is 0, and stores there how far it came. The caller checks that the line begins with `kind`.
#[inline(always)]
fn number_line(buf: &[u8], kind: u8, at: usize, scanned: &mut usize, max_len: usize) -> Line {
    if *scanned == 0
        && let Some((number, len)) = buf.get(at..).and_then(|rest| short_number_line(rest, kind))
    {
        return Line::Number(number, at + len);
    }
    number_line_anywhere(buf, at, scanned, max_len)
}

/// The number and the length of a line, if the line is complete and its number short and valid.
#[inline(always)]
fn short_number_line(rest: &[u8], kind: u8) -> Option<(i64, usize)> {
    let word = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    match word.and_then(|word| shortest_number_line(word, kind)) {
        Some((number, len)) => Some((number as i64, len)),
        None => longer_number_line(rest, kind),
    }
}

/// The largest number of [`shortest_number_line`].
const SHORTEST_NUMBER_MAX: u64 = 99;

/// As [`short_number_line`], for a number of one or two digits in the first eight bytes.
#[inline(always)]
fn shortest_number_line(word: u64, kind: u8) -> Option<(usize, usize)> {
    let digit = |at: u32| usize::from(((word >> (8 * at)) as u8).wrapping_sub(b'0'));
    let bytes = |mask: u32| word as u32 & mask;
    if bytes(0x00ff_00ff) == u32::from_le_bytes([kind, 0, b'\r', 0]) {
        return (digit(1) <= 9).then_some((digit(1), 4));
    }
    let sound = bytes(0xff00_00ff) == u32::from_le_bytes([kind, 0, 0, b'\r']) && (1..=9).contains(&digit(1)) && digit(2) <= 9;
    sound.then_some((digit(1) * 10 + digit(2), 5))
}

/// As [`short_number_line`] for more digits, or at the end of the buffer.
fn longer_number_line(rest: &[u8], kind: u8) -> Option<(i64, usize)> {
    if *rest.first()? != kind {
        return None;
    }
    if let [_, digit @ b'0'..=b'9', b'\r', _, ..] = rest {
        return Some(((digit - b'0') as i64, 4));
    }
    let digits = rest.get(1..8)?;
    if digits[0] == b'0' {
        return None;
    }
    let mut number = 0;
    for (i, &digit) in digits.iter().enumerate() {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return (digit == b'\r' && i > 0 && i < digits.len() - 1).then_some((number, i + 3));
        }
        number = number * 10 + value as i64;
    }
    None
}

#[cold]
fn number_line_anywhere(buf: &[u8], at: usize, scanned: &mut usize, max_len: usize) -> Line {
    match line_end(buf, b'\r', at, scanned, max_len) {
        LineEnd::TooLong => Line::TooLong,
        LineEnd::Incomplete => Line::Incomplete,
        LineEnd::At(end) if end + 2 > buf.len() => {
            *scanned = end;
            Line::Incomplete
        }
        LineEnd::At(end) => match buf.get(at + 1..end).and_then(parse_number) {
            Some(n) => Line::Number(n, end + 2),
            None => Line::Invalid,
        },
    }
}

enum LineEnd {
    At(usize),
    TooLong,
    Incomplete,
}

/// The position of the first byte that equals `a` or `b`. Short texts are searched here: the first call of [`memchr2`] detects the
/// processor, which takes 50 µs on a virtual machine and would delay the first request.
fn find_either(a: u8, b: u8, text: &[u8]) -> Option<usize> {
    const SHORT: usize = 32;
    if text.len() <= SHORT { text.iter().position(|&byte| byte == a || byte == b) } else { memchr2(a, b, text) }
}

/// The end of the line that starts at `at`. As in Redis, which searches with the C library, a NUL hides everything after it: such a
/// line has no end, and is refused once it is too long.
fn line_end(buf: &[u8], end: u8, at: usize, scanned: &mut usize, max_len: usize) -> LineEnd {
    let from = (*scanned).max(at);
    let found = buf.get(from..).and_then(|rest| find_either(end, 0, rest)).map(|offset| from + offset);
    match found {
        Some(found) if buf[found] == end => {
            if found - at > max_len {
                return LineEnd::TooLong;
            }
            return LineEnd::At(found);
        }
        Some(nul) => *scanned = nul,
        None => *scanned = buf.len(),
    }
    if buf.len().saturating_sub(at) > max_len { LineEnd::TooLong } else { LineEnd::Incomplete }
}

/// A decimal number in the one form that Redis takes: no sign but a minus, no leading zeros, nothing around it.
fn parse_number(text: &[u8]) -> Option<i64> {
    if text == b"0" {
        return Some(0);
    }
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    let mut n: i64 = 0;
    for &digit in digits {
        let value = digit.wrapping_sub(b'0');
        if value > 9 {
            return None;
        }
        // Negative all the way, so that the smallest number fits.
        n = n.checked_mul(10)?.checked_sub(value as i64)?;
    }
    if negative { Some(n) } else { n.checked_neg() }
}

#[cfg(test)]
mod tests;
