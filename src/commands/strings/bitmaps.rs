//! Bitmaps: the bits of strings. The first bit is the highest bit of the first byte. Integers of any width are in
//! [`crate::commands::strings::bitfields`].

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{choice, integer};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::store::entry::{Form, INLINE_MAX};
use crate::store::values::value::Value;

/// What the rows of bitmap commands have in common.
pub(crate) const BITMAP: Command = Command { group: Group::Bitmap, keys: Keys::ONE, since: "2.2.0", ..Command::DEFAULT };
pub(crate) const WRITE: Flags = Flags::WRITE.union(Flags::DENYOOM);
pub(crate) const SETBIT: Event = Event::new(Classes::STRING, "setbit");

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("setbit", setbit, "key offset value:integer",
        "Sets or clears a bit of a string value and returns its previous value. Extends the string if necessary.";
        replies: Replies::Integer, flags: WRITE, access: Access::ReadWrite, ..BITMAP),
    row!("getbit", getbit, "key offset", "Returns a bit of a string value; 0 beyond its end.";
        replies: Replies::Integer, flags: Flags::READONLY.union(Flags::FAST), ..BITMAP),
    row!("bitcount", bitcount, "key [start end [BYTE | BIT]]", "Counts the set bits of a string value or of a part of it.";
        replies: Replies::Integer, flags: Flags::READONLY, since: "2.6.0", complexity: "O(N) for N examined bytes", ..BITMAP),
    row!("bitpos", bitpos, "key bit [start [end [BYTE | BIT]]]",
        "Finds the first set or clear bit of a string value or of a part of it.";
        replies: Replies::Integer, flags: Flags::READONLY, since: "2.8.7", complexity: "O(N) for N examined bytes", ..BITMAP),
    row!("bitop", bitop, "<AND | OR | XOR | NOT> destkey key [key ...]",
        "Performs a bitwise operation on several string values and stores the result.";
        replies: Replies::Integer, flags: WRITE, keys: Keys::Range { first: 2, last: -1, step: 1 }, access: Access::Overwrite,
        since: "2.6.0", key_uses: uses::STORED, complexity: "O(N) for N bytes of all strings", ..BITMAP),
]);

/// Parses the offset of a bit, which must be inside the longest possible string. With `width`, `#n` is the n-th field of that
/// many bits.
pub(crate) fn parse_offset(cx: &Context<'_>, argument: &[u8], width: Option<u32>) -> Result<u64> {
    let (number, unit) = match (argument, width) {
        ([b'#', number @ ..], Some(width)) => (number, i64::from(width)),
        _ => (argument, 1),
    };
    // An overflow is out of range, too.
    let offset = parse_i64(number).and_then(|n| n.checked_mul(unit)).and_then(|n| u64::try_from(n).ok());
    offset.filter(|offset| offset >> 3 < cx.engine.config().proto_max_bulk_len).ok_or(Error::BIT_OFFSET)
}

/// Growth in bytes from which an allocation is tried first.
const TRY_ALLOCATION_FROM: usize = 1 << 20;

/// Fails if there is no memory for a string of this length.
pub(crate) fn check_growth(cx: &mut Context<'_>, key: &[u8], len: usize) -> Result {
    if len <= INLINE_MAX {
        return Ok(());
    }
    let have = cx.db().peek(key).and_then(|entry| entry.bytes()).map_or(0, <[u8]>::len);
    if len <= have {
        return Ok(());
    }
    if len - have >= TRY_ALLOCATION_FROM {
        // proto-max-bulk-len may exceed the memory of the machine, so the allocator decides.
        Vec::<u8>::new().try_reserve_exact(len).map_err(|_| Error::OOM)?;
    }
    let now = cx.now;
    cx.engine.check_room(now, len - have)
}

fn setbit(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let offset = parse_offset(cx, args[2], None)?;
    let set = match parse_i64(args[3]) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(Error::BIT_VALUE),
    };
    let (at, mask) = ((offset >> 3) as usize, 0x80 >> (offset & 7));
    check_growth(cx, args[1], at + 1)?;
    let mut db = cx.db();
    let mut edit = db.edit_string(args[1])?;
    let grows = edit.bytes().len() <= at;
    edit.grow(at + 1);
    let old = edit.bytes()[at];
    let new = if set { old | mask } else { old & !mask };
    let changed = grows || old != new;
    if changed {
        edit.write(at, &[new]);
    }
    edit.finish(Form::Raw, changed.then_some(SETBIT));
    cx.reply.integer(i64::from(old & mask != 0));
    Ok(())
}

fn getbit(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let offset = parse_offset(cx, args[2], None)?;
    let (mut db, reply) = cx.db_and_reply();
    let byte = db.string(args[1])?.and_then(|bytes| bytes.get((offset >> 3) as usize)).copied().unwrap_or(0);
    reply.integer(i64::from(byte >> (7 - (offset & 7)) & 1));
    Ok(())
}

/// Whether positions are in bits, according to the last argument.
fn counts_bits(unit: Option<&&[u8]>) -> Result<bool> {
    unit.map_or(Ok(false), |word| choice(word, &[("BIT", true), ("BYTE", false)]).ok_or(Error::SYNTAX))
}

/// The bits from a first to a last position, both included. Negative positions count from the end. Empty if the first position
/// is after the last one.
fn bit_range(bytes: usize, start: i64, end: i64, bits: bool) -> Range<u64> {
    let unit = if bits { 1 } else { 8 };
    let len = (bytes * 8 / unit) as i64;
    let from_end = |at: i64| (if at < 0 { len.saturating_add(at) } else { at }).max(0);
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end { 0..0 } else { start as u64 * unit as u64..(end as u64 + 1) * unit as u64 }
}

/// The bytes that contain the bits of a range. In the first and the last byte, bits outside of the range have the value
/// `outside`.
struct Window<'a> {
    first: u8,
    middle: &'a [u8],
    last: Option<u8>,
}

impl<'a> Window<'a> {
    /// The window of a range, which must not be empty.
    fn new(bytes: &'a [u8], range: &Range<u64>, outside: bool) -> Window<'a> {
        let (from, to) = ((range.start >> 3) as usize, ((range.end - 1) >> 3) as usize);
        let head = 0xffu8 >> (range.start & 7);
        let tail = 0xffu8 << (7 - ((range.end - 1) & 7));
        let within = |byte: u8, mask: u8| if outside { byte | !mask } else { byte & mask };
        if from == to {
            return Window { first: within(bytes[from], head & tail), middle: &[], last: None };
        }
        Window { first: within(bytes[from], head), middle: &bytes[from + 1..to], last: Some(within(bytes[to], tail)) }
    }
}

fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    words + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

fn bitcount(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let range = match args.len() {
        2 => None,
        4 | 5 => Some((integer(args[2])?, integer(args[3])?, counts_bits(args.get(4))?)),
        _ => return Err(Error::SYNTAX),
    };
    let (mut db, reply) = cx.db_and_reply();
    let bytes = db.string(args[1])?.unwrap_or_default();
    let count = match range {
        None => count_ones(bytes),
        // Checked before both are clamped to the string, because both might become position 0.
        Some((start, end, _)) if start < 0 && end < 0 && start > end => 0,
        Some((start, end, bits)) => {
            let range = bit_range(bytes.len(), start, end, bits);
            if range.is_empty() {
                0
            } else {
                let Window { first, middle, last } = Window::new(bytes, &range, false);
                count_ones(&[first, last.unwrap_or(0)]) + count_ones(middle)
            }
        }
    };
    reply.integer(count as i64);
    Ok(())
}

/// The position of the first bit with this value.
fn find_bit(bytes: &[u8], wanted: bool) -> Option<u64> {
    let (none, flip) = if wanted { (0, 0) } else { (u64::MAX, 0xff) };
    let (words, rest) = bytes.as_chunks::<8>();
    let skipped = words.iter().take_while(|word| u64::from_ne_bytes(**word) == none).count() * 8;
    let at = if skipped < words.len() * 8 { &bytes[skipped..] } else { rest };
    let byte = at.iter().position(|&byte| byte ^ flip != 0)?;
    Some(((skipped + byte) * 8) as u64 + u64::from((at[byte] ^ flip).leading_zeros()))
}

fn bitpos(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let wanted = match integer(args[2])? {
        0 => false,
        1 => true,
        _ => return Err(Error::BIT_ARGUMENT),
    };
    fail_if!(args.len() > 6, Error::SYNTAX);
    let number = |at: usize| args.get(at).map(|text| integer(text)).transpose();
    let (start, bits, end) = (number(3)?, counts_bits(args.get(5))?, number(4)?);
    let (mut db, reply) = cx.db_and_reply();
    let Some(bytes) = db.string(args[1])? else {
        // A missing key is an infinite string of zeros.
        reply.integer(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let range = bit_range(bytes.len(), start.unwrap_or(0), end.unwrap_or(-1), bits);
    if range.is_empty() {
        reply.integer(-1);
        return Ok(());
    }
    let Window { first, middle, last } = Window::new(bytes, &range, !wanted);
    let base = range.start & !7;
    let found = find_bit(&[first], wanted)
        .or_else(|| find_bit(middle, wanted).map(|at| at + 8))
        .or_else(|| find_bit(&[last?], wanted).map(|at| at + 8 + middle.len() as u64 * 8));
    reply.integer(match found {
        Some(at) => (base + at) as i64,
        // Without an end, the string is followed by infinitely many zeros.
        None if !wanted && end.is_none() => (bytes.len() * 8) as i64,
        None => -1,
    });
    Ok(())
}

/// An operation of `BITOP`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

impl Operation {
    fn parse(word: &[u8]) -> Result<Operation> {
        let known = [("AND", Operation::And), ("OR", Operation::Or), ("XOR", Operation::Xor), ("NOT", Operation::Not)];
        choice(word, &known).ok_or(Error::SYNTAX)
    }

    /// Applies the operation to the result of the previous strings, which is as long as the longest string, and another string.
    fn apply(self, so_far: &mut [u8], bytes: &[u8]) {
        let (common, beyond) = so_far.split_at_mut(bytes.len());
        let pairs = common.iter_mut().zip(bytes);
        match self {
            Operation::And => {
                pairs.for_each(|(a, b)| *a &= b);
                beyond.fill(0);
            }
            Operation::Or => pairs.for_each(|(a, b)| *a |= b),
            Operation::Xor => pairs.for_each(|(a, b)| *a ^= b),
            Operation::Not => pairs.for_each(|(a, b)| *a = !b),
        }
    }
}

fn bitop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let operation = Operation::parse(args[1])?;
    fail_if!(operation == Operation::Not && args.len() != 4, Error::BITOP_NOT);
    let (target, sources) = (args[2], &args[3..]);
    let mut len = 0;
    let mut db = cx.db();
    for key in sources {
        len = len.max(db.string(key)?.map_or(0, <[u8]>::len));
    }
    if len == 0 {
        db.delete(target, Event::DEL)?;
        cx.reply.integer(0);
        return Ok(());
    }
    let now = cx.now;
    cx.engine.check_room(now, len)?;
    let mut db = cx.db();
    let mut result = vec![0; len];
    for (number, key) in sources.iter().enumerate() {
        let bytes = db.peek(key).and_then(|entry| entry.bytes()).unwrap_or_default();
        if number == 0 && operation != Operation::Not {
            result[..bytes.len()].copy_from_slice(bytes);
        } else {
            operation.apply(&mut result, bytes);
        }
    }
    if len > INLINE_MAX {
        db.put(target, Box::new(Value::Bytes(result)), Ttl::Clear, Event::SET)?;
    } else {
        db.put_string(target, &result, Ttl::Clear, Event::SET)?;
        db.set_form(target, Form::Raw);
    }
    cx.reply.integer(len as i64);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use crate::engine::environment::Usage;
    use crate::engine::harness::Harness;
    use crate::keyspace::change::{Change, ChangeLog, Effect};

    /// The bits from a first to a last position, one by one.
    fn bits_of(bytes: &[u8], start: i64, end: i64, bits: bool) -> Vec<(usize, bool)> {
        let unit = if bits { 1 } else { 8 };
        let len = (bytes.len() * 8 / unit) as i128;
        let from_end = |at: i64| if at < 0 { (len + i128::from(at)).max(0) } else { i128::from(at) };
        let (start, end) = (from_end(start), from_end(end));
        (0..bytes.len() * 8)
            .filter(|&at| (start..=end).contains(&((at / unit) as i128)))
            .map(|at| (at, bytes[at / 8] >> (7 - at % 8) & 1 == 1))
            .collect()
    }

    fn number(reply: &[u8]) -> i64 {
        std::str::from_utf8(reply).unwrap().trim_end().trim_start_matches(':').parse().unwrap()
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![3 => Just(0u8), 3 => Just(0xff), 1 => any::<u8>()];
        prop::collection::vec(byte, 1..40)
    }

    fn position() -> impl Strategy<Value = i64> {
        prop_oneof![8 => -330..330i64, 1 => any::<i64>()]
    }

    proptest! {
        #[test]
        fn bits_are_counted_and_found_as_one_by_one(bytes in bytes(), start in position(), end in position(), bits: bool) {
            let mut h = Harness::new();
            h.args(&[b"SET", b"k", &bytes]);
            let (first, last) = (start.to_string(), end.to_string());
            let unit: &[u8] = if bits { b"BIT" } else { b"BYTE" };
            let range = bits_of(&bytes, start, end, bits);
            let reversed = start < 0 && end < 0 && start > end;
            let count = if reversed { 0 } else { range.iter().filter(|(_, set)| *set).count() };
            prop_assert_eq!(number(&h.args(&[b"BITCOUNT", b"k", first.as_bytes(), last.as_bytes(), unit])), count as i64);
            for (wanted, word) in [(true, b"1"), (false, b"0")] {
                let found = range.iter().find(|(_, set)| *set == wanted).map_or(-1, |(at, _)| *at as i64);
                prop_assert_eq!(number(&h.args(&[b"BITPOS", b"k", word, first.as_bytes(), last.as_bytes(), unit])), found);
                let rest = bits_of(&bytes, start, -1, false);
                let open = rest.iter().find(|(_, set)| *set == wanted).map_or(
                    if wanted || rest.is_empty() { -1 } else { bytes.len() as i64 * 8 },
                    |(at, _)| *at as i64,
                );
                prop_assert_eq!(number(&h.args(&[b"BITPOS", b"k", word, first.as_bytes()])), open);
            }
        }

        #[test]
        fn strings_are_combined_byte_by_byte(strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..5)) {
            let mut h = Harness::new();
            let keys: Vec<String> = (0..strings.len()).map(|n| format!("k{n}")).collect();
            for (key, string) in keys.iter().zip(&strings) {
                if !string.is_empty() {
                    h.args(&[b"SET", key.as_bytes(), string]);
                }
            }
            let len = strings.iter().map(Vec::len).max().unwrap();
            let byte = |string: &Vec<u8>, at: usize| string.get(at).copied().unwrap_or(0);
            for (name, combine) in [
                (&b"AND"[..], (|a, b| a & b) as fn(u8, u8) -> u8),
                (b"or", |a, b| a | b),
                (b"Xor", |a, b| a ^ b),
            ] {
                let mut args: Vec<&[u8]> = vec![b"BITOP", name, b"result"];
                args.extend(keys.iter().map(String::as_bytes));
                prop_assert_eq!(number(&h.args(&args)), len as i64);
                let wanted: Vec<u8> =
                    (0..len).map(|at| strings.iter().map(|s| byte(s, at)).reduce(combine).unwrap()).collect();
                let held = h.engine.keyspace_mut().db(0, h.now).peek(b"result").and_then(|e| e.bytes()).map(<[u8]>::to_vec);
                prop_assert_eq!(held.unwrap_or_default(), wanted);
            }
        }
    }

    /// The number of bytes that each change of a string wrote.
    #[derive(Clone, Default)]
    struct Written(Rc<RefCell<Vec<usize>>>);

    impl ChangeLog for Written {
        fn record(&mut self, change: &Change<'_>) {
            if let Effect::SetRange { bytes, .. } | Effect::SetString { value: bytes, .. } = change.effect {
                self.0.borrow_mut().push(bytes.len());
            }
        }

        fn end_unit(&mut self) {}
    }

    #[test]
    fn a_bit_of_a_long_string_is_set_where_it_lies() {
        let mut h = Harness::new();
        let written = Written::default();
        h.engine.keyspace_mut().changes.log = Some(Box::new(written.clone()));
        h.script(&[("SETBIT k 80000000 1", ":0"), ("STRLEN k", ":10000001"), ("OBJECT ENCODING k", "$3 raw")]);
        let address = |h: &mut Harness| h.engine.keyspace_mut().db(0, h.now).peek(b"k").unwrap().bytes().unwrap().as_ptr();
        let before = address(&mut h);
        h.script(&[
            ("SETBIT k 7 1", ":0"),
            ("SETBIT k 7 1", ":1"),
            ("BITFIELD k SET u16 800 65535", "*1 :0"),
            ("SETRANGE k 5000 hello", ":10000001"),
            ("BITCOUNT k", ":39"),
        ]);
        assert_eq!(address(&mut h), before);
        h.run("APPEND k !");
        assert_eq!(*written.0.borrow(), [1, 1, 2, 5, 1], "and no more than what changed is reported");
    }

    #[test]
    fn what_only_looks_changes_nothing_and_what_sets_makes_it_raw() {
        let mut h = Harness::new();
        h.script(&[
            ("SET k 12", "+OK"),
            ("PEXPIRE k 5000", ":1"),
            ("GETBIT k 2", ":1"),
            ("GETBIT k 100000", ":0"),
            ("OBJECT ENCODING k", "$3 int"),
            ("SETBIT k 2 1", ":1"),
            ("OBJECT ENCODING k", "$3 raw"),
            ("PTTL k", ":5000"),
            ("SETBIT k 4294967296 1", "-ERR bit offset is not an integer or out of range"),
            ("SETBIT k -1 1", "-ERR bit offset is not an integer or out of range"),
            ("SETBIT k #1 1", "-ERR bit offset is not an integer or out of range"),
            ("SETBIT k 0 2", "-ERR bit is not an integer or out of range"),
            ("HSET h f v", ":1"),
            ("SETBIT h 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("BITOP AND k h", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("BITOP NOT k a b", "-ERR BITOP NOT must be called with a single source key."),
            ("BITOP NAND k a b", "-ERR syntax error"),
            ("BITOP AND k none none", ":0"),
            ("EXISTS k", ":0"),
            ("BITPOS none 0", ":0"),
            ("BITPOS none 1", ":-1"),
            ("BITPOS none 2", "-ERR The bit argument must be 1 or 0."),
        ]);
    }

    #[test]
    fn a_string_grows_only_where_there_is_memory() {
        let mut h = Harness::new();
        h.engine.environment_mut().usage = Some(|| Usage { allocated: 900_000, ..Usage::default() });
        h.script(&[("SETBIT k 7 1", ":0"), ("CONFIG SET maxmemory 1000000", "+OK")]);
        let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
        for request in
            ["SETBIT k 4000000000 1", "BITFIELD k SET u8 4000000000 1", "SETRANGE k 500000000 x", "SETBIT new 4000000000 1"]
        {
            assert_eq!(h.run(request), refused, "{request}");
        }
        h.script(&[
            ("STRLEN k", ":1"),
            ("EXISTS new", ":0"),
            ("SETBIT k 8 1", ":0"),
            ("CONFIG SET maxmemory 0", "+OK"),
            ("CONFIG SET proto-max-bulk-len 9223372036854775807", "+OK"),
            ("SETBIT k 9223372036854775807 1", refused),
            ("BITFIELD k SET i64 9223372036854775807 1", refused),
            ("SETRANGE k 9223372036854775000 x", refused),
        ]);
    }
}
