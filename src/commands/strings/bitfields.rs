//! `BITFIELD`: signed and unsigned integers of any width at any bit offset of a string.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::strings::bitmaps::{BITMAP, SETBIT, WRITE, check_growth, parse_offset};
use crate::engine::command::keys::{KeyUse, uses};
use crate::engine::command::options::{Options, choice, integer, words};
use crate::engine::command::{Access, Command, Flags, Natives, row, rows};
use crate::engine::context::Context;
use crate::store::entry::Form;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("bitfield", bitfield, SYNTAX, "Reads, sets and increments integers of any width at bit offsets of a string value.";
        flags: WRITE, access: Access::ReadWrite, since: "3.2.0", key_uses: uses::SET_OR_READ,
        use_in: |args| if only_gets(args) { (Access::Read, KeyUse::ACCESS) } else { CHANGES }, natives: Natives::Checked,
        key_notes: &["Reads, writes or both, depending on the operations."], complexity: "O(1) for each operation", ..BITMAP),
    row!("bitfield_ro", |cx, args| {
            let operations = parse(cx, args)?;
            fail_if!(operations.iter().any(|operation| operation.change.is_some()), Error::BITFIELD_RO);
            read(cx, args[1], &operations)
        }, "key [GET encoding offset [GET encoding offset ...]]", "Reads integers of any width at bit offsets of a string value.";
        flags: Flags::READONLY.union(Flags::FAST), since: "6.0.0", complexity: "O(1) for each operation", ..BITMAP),
]);

const CHANGES: (Access, KeyUse) = (Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::UPDATE));

/// The operations, and `OVERFLOW`.
const OPERATIONS: Options = &[("GET", 2), ("SET", 3), ("INCRBY", 3), ("OVERFLOW", 1)];

/// Whether all operations of `BITFIELD` are reads. An invalid operation counts as a write.
fn only_gets(args: &[&[u8]]) -> bool {
    words(args, 2, OPERATIONS).all(|word| matches!(word.name, "GET" | "OVERFLOW"))
}

/// As in Redis's documentation, the choice is written twice: the second one stands for any number of repetitions.
const SYNTAX: &str = concat!(
    "key [<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value:integer | INCRBY encoding offset increment>> ",
    "[<GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value:integer | INCRBY encoding offset increment>> ...]]"
);

/// What happens to a value out of range.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// The width of an integer and whether it is signed.
#[derive(Clone, Copy, Debug)]
struct Encoding {
    signed: bool,
    bits: u32,
}

#[derive(Clone, Copy)]
enum Change {
    Set(i64),
    Increment(i64),
}

struct Operation {
    encoding: Encoding,
    offset: u64,
    /// The change, if it is not only a read, and what happens if the result is out of range.
    change: Option<(Change, Overflow)>,
}

impl Encoding {
    fn parse(text: &[u8]) -> Option<Encoding> {
        let (sign, digits) = text.split_first()?;
        // Redis parses it as a C string, which ends at the first NUL.
        let digits = digits.split(|&b| b == 0).next().unwrap_or_default();
        let bits = parse_i64(digits).filter(|&bits| bits >= 1).and_then(|bits| u32::try_from(bits).ok())?;
        match sign {
            b'i' if bits <= 64 => Some(Encoding { signed: true, bits }),
            b'u' if bits <= 63 => Some(Encoding { signed: false, bits }),
            _ => None,
        }
    }

    /// The integer at an offset. Bits beyond the end of the string are 0.
    fn get(self, bytes: &[u8], offset: u64) -> i64 {
        let (from, shift) = ((offset >> 3) as usize, (offset & 7) as u32);
        let mut wide = 0u128;
        for i in 0..9 {
            wide = wide << 8 | u128::from(bytes.get(from + i).copied().unwrap_or(0));
        }
        // 72 bits, of which the first `shift` precede the integer.
        let value = (wide >> (72 - shift - self.bits)) as u64 & (u64::MAX >> (64 - self.bits));
        if self.signed { (value << (64 - self.bits)) as i64 >> (64 - self.bits) } else { value as i64 }
    }

    /// Writes the integer at an offset into the bytes of a string that contain it. Returns these bytes, the position of the first,
    /// and how many of the nine are used.
    fn put(self, bytes: &[u8], offset: u64, value: i64) -> ([u8; 9], usize, usize) {
        let (from, shift) = ((offset >> 3) as usize, (offset & 7) as u32);
        let count = ((shift + self.bits).div_ceil(8)) as usize;
        let mut parts = [0; 9];
        parts[..count].copy_from_slice(&bytes[from..from + count]);
        let mut word = [0; 16];
        word[..9].copy_from_slice(&parts);
        let below = 128 - shift - self.bits;
        let mask = u128::from(u64::MAX >> (64 - self.bits)) << below;
        let wide = u128::from_be_bytes(word) & !mask | (u128::from(value as u64) << below) & mask;
        parts.copy_from_slice(&wide.to_be_bytes()[..9]);
        (parts, from, count)
    }

    /// The value in the range of the type; `None` if the operation fails.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i64> {
        let (least, most) = match self.signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        if (least..=most).contains(&value) {
            return Some(value as i64);
        }
        match overflow {
            Overflow::Fail => None,
            Overflow::Saturate => Some(value.clamp(least, most) as i64),
            Overflow::Wrap => {
                let bits = value as u64 & (u64::MAX >> (64 - self.bits));
                let spare = 64 - self.bits;
                Some(if self.signed { (bits << spare) as i64 >> spare } else { bits as i64 })
            }
        }
    }

    /// The value of a `SET`. For an unsigned type, a negative number is taken as an unsigned one of 64 bits, which is too large
    /// for any type.
    fn requested(self, value: i64) -> i128 {
        if self.signed { i128::from(value) } else { i128::from(value as u64) }
    }
}

fn parse(cx: &Context<'_>, args: &[&[u8]]) -> Result<Vec<Operation>> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    for word in words(args, 2, OPERATIONS) {
        match (word.name, word.args) {
            ("OVERFLOW", [kind]) => {
                let kinds = [("WRAP", Overflow::Wrap), ("SAT", Overflow::Saturate), ("FAIL", Overflow::Fail)];
                overflow = choice(kind, &kinds).ok_or(Error::BITFIELD_OVERFLOW)?;
            }
            (name, [encoding, offset, value @ ..]) => {
                let encoding = Encoding::parse(encoding).ok_or(Error::BITFIELD_TYPE)?;
                let offset = parse_offset(cx, offset, Some(encoding.bits))?;
                let mut change = None;
                if let [value] = value {
                    let value = integer(value)?;
                    change = Some((if name == "SET" { Change::Set(value) } else { Change::Increment(value) }, overflow));
                }
                operations.push(Operation { encoding, offset, change });
            }
            _ => return Err(Error::SYNTAX),
        }
    }
    Ok(operations)
}

fn read(cx: &mut Context<'_>, key: &[u8], operations: &[Operation]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let bytes = db.string(key)?.unwrap_or_default();
    reply.array(operations.len());
    operations.iter().for_each(|operation| reply.integer(operation.encoding.get(bytes, operation.offset)));
    Ok(())
}

fn bitfield(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let operations = parse(cx, args)?;
    let writes = operations.iter().filter(|operation| operation.change.is_some());
    let Some(last) = writes.map(|write| write.offset + u64::from(write.encoding.bits) - 1).max() else {
        return read(cx, args[1], &operations);
    };
    let len = (last >> 3) as usize + 1;
    check_growth(cx, args[1], len)?;
    let (mut db, reply) = cx.db_and_reply();
    let mut edit = db.edit_string(args[1])?;
    let grown = edit.bytes().len() < len;
    edit.grow(len);
    reply.array(operations.len());
    let mut changed = false;
    for Operation { encoding, offset, change } in &operations {
        let old = encoding.get(edit.bytes(), *offset);
        let (value, overflow) = match change {
            None => {
                reply.integer(old);
                continue;
            }
            Some((Change::Set(value), overflow)) => (encoding.requested(*value), overflow),
            Some((Change::Increment(by), overflow)) => (i128::from(old) + i128::from(*by), overflow),
        };
        let Some(new) = encoding.fit(value, *overflow) else {
            reply.null();
            continue;
        };
        reply.integer(if matches!(change, Some((Change::Set(_), _))) { old } else { new });
        changed |= grown;
        if old != new {
            let (parts, from, count) = encoding.put(edit.bytes(), *offset, new);
            edit.write(from, &parts[..count]);
            changed = true;
        }
    }
    edit.finish(Form::Raw, changed.then_some(SETBIT));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::harness::Harness;

    fn encoding() -> impl Strategy<Value = Encoding> {
        (any::<bool>(), 1..=64u32).prop_map(|(signed, bits)| Encoding { signed, bits: bits.min(if signed { 64 } else { 63 }) })
    }

    proptest! {
        #[test]
        fn what_is_put_is_what_is_got(encoding in encoding(), offset in 0..200u64, bits: i64, fill: u8) {
            let mut bytes = vec![fill; 40];
            let value = encoding.fit(i128::from(bits), Overflow::Wrap).unwrap();
            let (parts, from, count) = encoding.put(&bytes, offset, value);
            bytes[from..from + count].copy_from_slice(&parts[..count]);
            prop_assert_eq!(encoding.get(&bytes, offset), value);
            // Compares bit by bit: the value inside the field, the previous bits elsewhere.
            for at in 0..bytes.len() as u64 * 8 {
                let bit = bytes[(at / 8) as usize] >> (7 - at % 8) & 1;
                let wanted = if (offset..offset + u64::from(encoding.bits)).contains(&at) {
                    (value >> (offset + u64::from(encoding.bits) - 1 - at)) as u8 & 1
                } else {
                    fill >> (7 - at % 8) & 1
                };
                prop_assert_eq!(bit, wanted, "bit {}", at);
            }
        }
    }

    #[test]
    fn overflow_wraps_saturates_or_fails() {
        let mut h = Harness::new();
        h.script(&[
            ("BITFIELD k INCRBY i5 100 1 GET u4 0", "*2 :1 :0"),
            ("BITFIELD k SET u8 #1 255 INCRBY u8 #1 10 OVERFLOW SAT INCRBY u8 #1 -20 GET u8 8", "*4 :0 :9 :0 :0"),
            ("BITFIELD k OVERFLOW FAIL INCRBY u2 102 4 INCRBY u2 102 1", "*2 $-1 :1"),
            ("BITFIELD k OVERFLOW SAT SET u8 0 -1 GET u8 0 OVERFLOW WRAP SET i8 0 200 GET i8 0", "*4 :0 :255 :-1 :-56"),
            ("BITFIELD k SET i64 0 9223372036854775807 INCRBY i64 0 1", "*2 :-4035225266123964416 :-9223372036854775808"),
            ("BITFIELD k OVERFLOW SAT INCRBY i64 0 -1 OVERFLOW FAIL INCRBY i64 0 -1", "*2 :-9223372036854775808 $-1"),
            ("BITFIELD k", "*0"),
            ("BITFIELD none GET u8 0", "*1 :0"),
            ("EXISTS none", ":0"),
            ("BITFIELD_RO k GET i8 0 GET u1 0", "*2 :-128 :1"),
            ("BITFIELD_RO k SET i8 0 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
            (
                "BITFIELD k GET u64 0",
                "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            ),
            ("BITFIELD k OVERFLOW MAYBE", "-ERR Invalid OVERFLOW type specified"),
            ("BITFIELD k SET u8 0", "-ERR syntax error"),
            ("BITFIELD k SET u8 #x 0", "-ERR bit offset is not an integer or out of range"),
            ("BITFIELD k SET u8 #536870912 0", "-ERR bit offset is not an integer or out of range"),
        ]);
    }
}
