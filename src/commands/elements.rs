//! What the commands of several types share: `HSCAN`, `SSCAN` and `ZSCAN`; `HRANDFIELD`, `SRANDMEMBER` and `ZRANDMEMBER`; index
//! ranges of `LRANGE` and `ZRANGE`; the arguments of `LMPOP` and `ZMPOP`.
//!
//! Hashes, sets and sorted sets are [`Collection`]s of an [`Element`] type. Their handlers look up the key; [`scan()`] and
//! [`Draw::reply`] write the reply.

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::keys::scan::{self, ScanOptions};
use crate::engine::command::keys::{CountFault, counted};
use crate::engine::command::options::{Tail, flag, integer};
use crate::engine::context::Context;
use crate::keyspace::types::collection::{Collection, Picker};
use crate::resp::reply::{Protocol, Sink};

/// Maximum number of elements that a command with a negative count returns.
const RANDOM_MAX: u64 = 10_000_000;

/// A field of a hash, or a member of a set or of a sorted set.
pub trait Element {
    /// The field or the member. `digits` holds the text of an integer.
    fn name<'b>(&'b self, digits: &'b mut itoa::Buffer) -> &'b [u8];

    /// Writes the value of the field or the score of the member. The members of a set have none.
    fn write_value(&self, reply: &mut dyn Sink);

    /// Bytes of the value that count towards `proto-max-bulk-len`.
    fn value_len(&self) -> usize {
        0
    }
}

/// A collection that has a `SCAN` command of its own.
pub trait Scanned: Collection<Element: Element> {
    /// Whether elements have values.
    const VALUES: bool = true;
    /// Whether the command has the option `NOVALUES`.
    const TAKES_NO_VALUES: bool = false;
    /// Maximum number of elements that one call visits.
    const VISITED_MAX: usize = scan::VISITED_MAX;

    /// Writes the value of an element.
    fn write_scanned_value(&self, element: &Self::Element, reply: &mut dyn Sink) {
        element.write_value(reply);
    }
}

/// Replies to `HSCAN`, `SSCAN` or `ZSCAN`; `args` are the options after the cursor. A missing key is an empty collection, whose
/// options Redis does not check.
pub fn scan<C: Scanned>(reply: &mut dyn Sink, collection: Option<C>, cursor: u64, args: &[&[u8]]) -> Result {
    let Some(collection) = collection else {
        scan::write_cursor(reply, 0);
        reply.array(0);
        return Ok(());
    };
    let options = ScanOptions::parse(args, false, C::TAKES_NO_VALUES)?;
    let with_values = C::VALUES && !options.no_values;
    let mut found = Vec::new();
    let next = collection.scan(cursor, options.visited(C::VISITED_MAX), |element| {
        if options.matches(element.name(&mut itoa::Buffer::new())) {
            found.push(element);
        }
    });
    scan::write_cursor(reply, next);
    reply.array(if with_values { found.len() * 2 } else { found.len() });
    for element in found {
        reply.bulk(element.name(&mut itoa::Buffer::new()));
        if with_values {
            collection.write_scanned_value(&element, reply);
        }
    }
    Ok(())
}

/// Writes the head of a reply with this many elements: on RESP2, a value is an element of the array of its own.
pub fn write_head(reply: &mut dyn Sink, elements: usize, with_values: bool) {
    let flat = with_values && reply.protocol() == Protocol::Resp2;
    reply.array(if flat { elements * 2 } else { elements });
}

/// Writes an element. On RESP3 an element and its value are a pair, on RESP2 the value follows the element.
pub fn write_element(reply: &mut dyn Sink, element: &impl Element, with_value: bool) {
    if with_value && reply.protocol() == Protocol::Resp3 {
        reply.array(2);
    }
    reply.bulk(element.name(&mut itoa::Buffer::new()));
    if with_value {
        element.write_value(reply);
    }
}

/// A sequence of random numbers that can be repeated: elements are picked once to measure them and once to write them.
#[derive(Clone)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A request for random elements: `HRANDFIELD`, `SRANDMEMBER` or `ZRANDMEMBER`.
pub struct Draw {
    /// Number of elements, different ones unless it is negative; `None` for a single element instead of an array.
    count: Option<i64>,
    /// Whether values follow the elements.
    with_values: bool,
    sequence: Sequence,
    /// `proto-max-bulk-len`: maximum bytes of the elements that a negative count returns.
    bytes_max: usize,
}

impl Draw {
    /// The arguments of `HRANDFIELD` or `ZRANDMEMBER`; `values_option` is its option that adds values.
    pub fn parse(cx: &mut Context<'_>, args: &[&[u8]], values_option: &str) -> Result<Self> {
        let count = args.get(2).map(|count| integer(count)).transpose()?;
        fail_if!(count == Some(i64::MIN), Error::COUNT_RANGE);
        let with_values = flag(args.get(3..).unwrap_or_default(), &[values_option])?;
        fail_if!(with_values && count.is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2), Error::OUT_OF_RANGE);
        Ok(Self::new(cx, count, with_values))
    }

    /// A request with these arguments.
    pub fn new(cx: &mut Context<'_>, count: Option<i64>, with_values: bool) -> Self {
        let sequence = Sequence(cx.engine.random());
        Draw { count, with_values, sequence, bytes_max: cx.engine.config().proto_max_bulk_len as usize }
    }

    /// Writes the reply; `None` is a missing key.
    pub fn reply<C: Collection<Element: Element>>(mut self, reply: &mut dyn Sink, collection: Option<C>) -> Result {
        match (collection, self.count) {
            (None, None) => reply.null(),
            (None, Some(_)) => reply.array(0),
            (Some(collection), None) => write_element(reply, &collection.draw(|| self.sequence.next_u64()), false),
            (Some(collection), Some(count)) if count >= 0 => {
                let elements = collection.sample(usize::try_from(count).unwrap_or(usize::MAX), || self.sequence.next_u64());
                write_head(reply, elements.len(), self.with_values);
                elements.iter().for_each(|element| write_element(reply, element, self.with_values));
            }
            (Some(collection), Some(count)) => {
                let (count, picker) = (count.unsigned_abs(), Picker::new(collection));
                fail_if!(count > RANDOM_MAX || self.bytes_of(&picker, count) > self.bytes_max, Error::OUT_OF_RANGE);
                write_head(reply, count as usize, self.with_values);
                (0..count).for_each(|_| {
                    let element = picker.pick(|| self.sequence.next_u64());
                    write_element(reply, &element, self.with_values);
                });
            }
        }
        Ok(())
    }

    /// Bytes of the elements that this many picks will return.
    fn bytes_of<C: Collection<Element: Element>>(&self, picker: &Picker<C>, count: u64) -> usize {
        let (mut sequence, mut digits) = (self.sequence.clone(), itoa::Buffer::new());
        let mut len = |element: C::Element| {
            let value_len = if self.with_values { element.value_len() } else { 0 };
            element.name(&mut digits).len() + value_len
        };
        (0..count).map(|_| len(picker.pick(|| sequence.next_u64()))).sum()
    }
}

/// Parses the number of elements to pop from a key, which may be 0.
pub fn pop_count(text: &[u8]) -> Result<usize> {
    parse_i64(text).and_then(|count| usize::try_from(count).ok()).ok_or(Error::NOT_POSITIVE)
}

/// The positions from `start` to `stop`, both included, in a collection of this length. Negative positions count from the end.
pub fn index_range(start: i64, stop: i64, len: usize) -> Range<usize> {
    let len = len as i64;
    let from_start = |index: i64| if index < 0 { len + index } else { index };
    let (start, stop) = (from_start(start).max(0), from_start(stop).min(len - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}

/// The arguments of `LMPOP`, `ZMPOP` and their blocking forms: `numkeys key [key ...] end [COUNT count]`.
pub struct PopRequest<'k, E> {
    /// The keys.
    pub keys: &'k [&'k [u8]],
    /// The end to pop from.
    pub end: E,
    /// Maximum number of elements, at least 1.
    pub count: usize,
}

impl<'k, E> PopRequest<'k, E> {
    /// Parses a request whose number of keys is at position `numkeys`.
    pub fn parse(args: &'k [&'k [u8]], numkeys: usize, parse_end: fn(&[u8]) -> Result<E>) -> Result<Self> {
        let positive = |text: &[u8]| parse_i64(text).filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok());
        let (keys, rest) = counted(args, numkeys, 1).map_err(|fault| match fault {
            CountFault::NoInteger | CountFault::NotPositive => Error::NUMKEYS_POSITIVE,
            CountFault::TooMany(_) => Error::SYNTAX,
        })?;
        let mut rest = Tail(rest);
        let end = parse_end(rest.value()?)?;
        let count = rest.value_of("COUNT")?.map_or(Ok(1), |count| positive(count).ok_or(Error::COUNT_POSITIVE))?;
        if rest.left() > 0 { Err(Error::SYNTAX) } else { Ok(PopRequest { keys, end, count }) }
    }
}
