//! What is wrong with an append-only file, and where.

use std::fmt;

use crate::persist::append::native::Refusal;
#[cfg(doc)]
use crate::persist::append::scan::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, LINE_MAX};

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file ends within a unit or a batch, or a length exceeds what is left of the file.
    Short,
    /// There is a NUL: space that was laid out and never written.
    Unwritten,
    /// There is neither a request nor an annotation.
    NoRequest,
    /// The number of arguments of a request is malformed.
    BadCount,
    /// A request has more than [`ARGUMENTS_MAX`] arguments.
    TooManyArguments,
    /// The length of an argument is malformed.
    BadLength,
    /// An argument is longer than [`ARGUMENT_BYTES_MAX`].
    TooLongArgument,
    /// An argument is longer or shorter than its length says.
    BadEnd,
    /// An annotation is longer than [`LINE_MAX`].
    LongLine,
    /// `MULTI` within `MULTI`.
    NestedMulti,
    /// `EXEC` without `MULTI`.
    ExecWithoutMulti,
    /// A batch begins between `MULTI` and `EXEC`.
    MultiWithoutExec,
    /// The first line of a file is malformed.
    BadFirstLine,
    /// The file has the format of a later version.
    NewerFormat,
    /// The header of a batch or the last line is malformed, or its check is wrong.
    BadHeader,
    /// The checksum of a batch is not what its header says.
    WrongChecksum,
    /// A unit does not end with its batch.
    SplitUnit,
    /// There is a line of ours in a file without our first line.
    NoFirstLine,
    /// There is a line of ours behind the last line of a clean stop.
    BehindLastLine,
    /// A redis-server appended requests to a batch that is not whole.
    Continued,
    /// A native record is not read.
    Refused(Refusal),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Short => "the file ends too early",
            Reason::Unwritten => "space that was never written",
            Reason::NoRequest => "neither a request nor an annotation",
            Reason::BadCount => "a malformed number of arguments",
            Reason::TooManyArguments => "a request of more than 1048576 arguments",
            Reason::BadLength => "a malformed length of an argument",
            Reason::TooLongArgument => "an argument of more than 512 MiB",
            Reason::BadEnd => "an argument of another length than is written before it",
            Reason::LongLine => "an annotation of more than 1024 bytes",
            Reason::NestedMulti => "MULTI within MULTI",
            Reason::ExecWithoutMulti => "EXEC without MULTI",
            Reason::MultiWithoutExec => "MULTI without EXEC",
            Reason::BadFirstLine => "a malformed first line",
            Reason::NewerFormat => "a first line of a later version",
            Reason::BadHeader => "a malformed header of a batch",
            Reason::WrongChecksum => "a batch with another checksum than its header says",
            Reason::SplitUnit => "a unit that does not end with its batch",
            Reason::NoFirstLine => "a batch in a file without a first line",
            Reason::BehindLastLine => "a batch behind the last line",
            Reason::Continued => "a torn batch that was continued by another server",
            Reason::Refused(refusal) => return refusal.fmt(f),
        })
    }
}

/// Damage that is not at the end of the file, or a record that this version does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where in the file it was found.
    pub offset: u64,
    /// Where the unit or batch with the damage begins: all before is whole.
    pub whole: u64,
    /// What is wrong.
    pub reason: Reason,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}; the file is whole up to offset {}", self.reason, self.offset, self.whole)
    }
}

impl std::error::Error for Damage {}
