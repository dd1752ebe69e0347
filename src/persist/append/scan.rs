//! Finds requests and annotations in bytes, without copying them and without reading a byte twice.

use std::ops::Range;

use crate::persist::append::read::Reason;

/// Maximum number of bytes of a line: Redis reads as many at once.
const LINE_MAX: usize = 128;

/// No argument takes fewer bytes than this: `$0\r\n\r\n`.
const ARGUMENT_BYTES_MIN: u64 = 6;

/// What comes next in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// It is not whole yet.
    More,
    /// A request: its arguments are the last ones.
    Request {
        /// The number of its arguments.
        args: usize,
    },
    /// An annotation: this line, without its end.
    Annotation(Range<usize>),
}

/// A position in bytes, which may be in the middle of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanner {
    /// The position.
    pub at: usize,
    /// Where the current request began.
    pub start: usize,
    /// The arguments of all requests so far, the current one included.
    pub args: Vec<Range<usize>>,
    /// The number of arguments of the current request.
    count: usize,
    /// How many of them are still to come.
    left: usize,
}

impl Scanner {
    /// Finds the next request or annotation in `bytes`; `left` more bytes will follow them.
    pub fn next(&mut self, bytes: &[u8], left: u64) -> Result<Item, Reason> {
        if self.left == 0 {
            match bytes.get(self.at) {
                None => return Ok(Item::More),
                Some(b'#') => {
                    let Some(line) = line(bytes, self.at)? else { return Ok(Item::More) };
                    (self.start, self.at) = (self.at, line.end + 2);
                    return Ok(Item::Annotation(line));
                }
                Some(b'*') => {}
                Some(0) => return Err(Reason::Unwritten),
                Some(_) => return Err(Reason::NoRequest),
            }
            let Some((count, at)) = number(bytes, self.at, Reason::BadCount)? else { return Ok(Item::More) };
            let count = count.filter(|&count| count > 0).ok_or(Reason::BadCount)?;
            // Bytes that cannot come are not waited for.
            if count.saturating_mul(ARGUMENT_BYTES_MIN) > (bytes.len() - at) as u64 + left {
                return Err(Reason::Short);
            }
            let count = usize::try_from(count).map_err(|_| Reason::BadCount)?;
            (self.start, self.at, self.count, self.left) = (self.at, at, count, count);
        }
        while self.left > 0 {
            match bytes.get(self.at) {
                None => return Ok(Item::More),
                Some(b'$') => {}
                Some(_) => return Err(Reason::BadLength),
            }
            let Some((len, at)) = number(bytes, self.at, Reason::BadLength)? else { return Ok(Item::More) };
            let len = len.ok_or(Reason::BadLength)?;
            let have = (bytes.len() - at) as u64;
            if len.saturating_add(2) > have + left {
                return Err(Reason::Short);
            }
            if len + 2 > have {
                return Ok(Item::More);
            }
            let end = at + len as usize;
            if &bytes[end..end + 2] != b"\r\n" {
                return Err(Reason::BadEnd);
            }
            self.args.push(at..end);
            (self.at, self.left) = (end + 2, self.left - 1);
        }
        Ok(Item::Request { args: self.count })
    }
}

/// The line that begins at a position, without its end; `None` if it is not whole yet.
fn line(bytes: &[u8], at: usize) -> Result<Option<Range<usize>>, Reason> {
    let part = &bytes[at..bytes.len().min(at + LINE_MAX)];
    match memchr::memchr(b'\n', part) {
        Some(end) if end > 0 && part[end - 1] == b'\r' => Ok(Some(at..at + end - 1)),
        Some(_) => Err(Reason::BadLine),
        None if part.len() == LINE_MAX => Err(Reason::BadLine),
        None => Ok(None),
    }
}

/// The number in the line at a position, behind its first byte, and where the next line begins; `Some((None, _))` if there is none.
#[allow(clippy::type_complexity, reason = "a number that may be missing, in a line that may not be there yet")]
fn number(bytes: &[u8], at: usize, reason: Reason) -> Result<Option<(Option<u64>, usize)>, Reason> {
    let Some(line) = line(bytes, at).map_err(|_| reason)? else { return Ok(None) };
    let digits = &bytes[line.start + 1..line.end];
    // 19 digits always fit.
    let plain = (1..=19).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number = plain.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')));
    Ok(Some((number, line.end + 2)))
}
