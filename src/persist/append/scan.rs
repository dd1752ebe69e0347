//! Finds requests and annotations in bytes, without copying them and without reading a byte twice.

use std::ops::Range;

use crate::persist::append::read::Reason;

/// Maximum number of bytes of a line, its end included: Redis reads as many at once.
pub const LINE_MAX: usize = 1024;

/// Maximum number of bytes of an argument, as Redis has it for requests (`proto-max-bulk-len`).
pub const ARGUMENT_BYTES_MAX: u64 = 512 << 20;

/// Maximum number of arguments of a request, as Redis has it.
pub const ARGUMENTS_MAX: u64 = 1024 * 1024;

/// No argument takes fewer bytes than this: `$0\n\r\n`.
const ARGUMENT_BYTES_MIN: u64 = 5;

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
    /// Finds the next request or annotation in `bytes`; `left` more bytes will follow them. `limited`: requests have Redis's limits.
    pub fn next(&mut self, bytes: &[u8], left: u64, limited: bool) -> Result<Item, Reason> {
        if self.left == 0 {
            match bytes.get(self.at) {
                None => return Ok(Item::More),
                Some(b'#') => {
                    let Some((line, next)) = line(bytes, self.at)? else { return Ok(Item::More) };
                    (self.start, self.at) = (self.at, next);
                    return Ok(Item::Annotation(line));
                }
                Some(b'*') => {}
                Some(0) => return Err(Reason::Unwritten),
                Some(_) => return Err(Reason::NoRequest),
            }
            let Some((count, at)) = number(bytes, self.at, Reason::BadCount)? else { return Ok(Item::More) };
            let count = count.filter(|&count| count > 0).ok_or(Reason::BadCount)?;
            fail_if!(limited && count > ARGUMENTS_MAX, Reason::TooManyArguments);
            // Bytes that cannot come are not waited for.
            fail_if!(count.saturating_mul(ARGUMENT_BYTES_MIN) > (bytes.len() - at) as u64 + left, Reason::Short);
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
            fail_if!(limited && len > ARGUMENT_BYTES_MAX, Reason::TooLongArgument);
            let have = (bytes.len() - at) as u64;
            fail_if!(len.saturating_add(2) > have + left, Reason::Short);
            if len + 2 > have {
                return Ok(Item::More);
            }
            let end = at + len as usize;
            fail_if!(&bytes[end..end + 2] != b"\r\n", Reason::BadEnd);
            self.args.push(at..end);
            (self.at, self.left) = (end + 2, self.left - 1);
        }
        Ok(Item::Request { args: self.count })
    }

    /// Whether the position is between requests.
    pub fn is_between(&self) -> bool {
        self.left == 0
    }
}

/// The line that begins at a position, without its end, and where the next one begins; `None` if it is not whole yet.
fn line(bytes: &[u8], at: usize) -> Result<Option<(Range<usize>, usize)>, Reason> {
    let part = &bytes[at..bytes.len().min(at + LINE_MAX)];
    match memchr::memchr(b'\n', part) {
        Some(end) => {
            let len = if part[..end].ends_with(b"\r") { end - 1 } else { end };
            Ok(Some((at..at + len, at + end + 1)))
        }
        None if part.len() == LINE_MAX => Err(Reason::LongLine),
        None => Ok(None),
    }
}

/// The number in the line at a position, behind its first byte, and where the next line begins; `Some((None, _))` if there is none.
#[allow(clippy::type_complexity, reason = "a number that may be missing, in a line that may not be there yet")]
fn number(bytes: &[u8], at: usize, reason: Reason) -> Result<Option<(Option<u64>, usize)>, Reason> {
    let Some((line, next)) = line(bytes, at).map_err(|_| reason)? else { return Ok(None) };
    Ok(Some((plain_number(&bytes[line.start + 1..line.end]), next)))
}

/// A number in decimal.
pub(super) fn plain_number(digits: &[u8]) -> Option<u64> {
    // 19 digits always fit.
    let plain = (1..=19).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
