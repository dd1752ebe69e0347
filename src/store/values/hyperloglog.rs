//! HyperLogLogs: estimates of the number of different elements, in at most 12 KiB and a header of 16 bytes, in exactly Redis's
//! format.
//!
//! ```text
//!   "HYLL" │ encoding │ 3 unused │ count, 8 bytes │ registers
//!   dense:  16,384 registers of 6 bits, the lowest bits first
//!   sparse: 00zzzzzz             z+1 registers are 0
//!           01zzzzzz zzzzzzzz    z+1 registers are 0
//!           1vvvvvll             l+1 registers are v+1
//! ```
//! The count is the cached estimate; it is valid while its highest bit is clear. The lowest 14 bits of an element's hash select a
//! register; the register stores the longest run of zero bits above them, plus one. Such strings may come from clients, so all
//! functions accept any bytes that pass [`is_valid`].

/// Number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// The values of all registers, one per byte.
pub type Registers = [u8; REGISTERS];

const INDEX_BITS: u32 = 14;
/// Number of bits of a hash that are searched for zeros.
const RUN_BITS: usize = 64 - INDEX_BITS as usize;
const HEAD: usize = 16;
/// The position of the cached estimate.
pub const CACHE: std::ops::Range<usize> = 8..HEAD;
const MAGIC: &[u8] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const DENSE_LEN: usize = HEAD + REGISTERS * 6 / 8;
const VALUE_MAX: u8 = 32;
const VALUES_MAX: usize = 4;
const ZEROS_MAX: usize = 64;

/// The error of invalid registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A HyperLogLog without elements, in the sparse encoding.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4] = SPARSE;
    push_zeros(&mut bytes, REGISTERS);
    bytes
}

/// Whether a string can be a HyperLogLog, judging by its header and length.
pub fn is_valid(bytes: &[u8]) -> bool {
    bytes.len() >= HEAD
        && bytes.starts_with(MAGIC)
        && match bytes[4] {
            DENSE => bytes.len() == DENSE_LEN,
            encoding => encoding == SPARSE,
        }
}

/// Whether it is in the dense encoding.
pub fn is_dense(bytes: &[u8]) -> bool {
    bytes[4] == DENSE
}

/// The cached estimate, if it is valid.
pub fn cached_count(bytes: &[u8]) -> Option<u64> {
    let count = u64::from_le_bytes(bytes[CACHE].try_into().ok()?);
    (count >> 63 == 0).then_some(count)
}

/// Invalidates the cached estimate.
pub fn invalidate(bytes: &mut [u8]) {
    bytes[HEAD - 1] |= 0x80;
}

/// MurmurHash64A.
fn murmur(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut h = 0xadc8_3b19 ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        h = (h ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        h = (h ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    h = (h ^ (h >> R)).wrapping_mul(M);
    h ^ (h >> R)
}

/// The register of an element, and the value that the element gives it.
fn register_of(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element);
    let run = (hash >> INDEX_BITS) | 1 << RUN_BITS;
    (hash as usize & (REGISTERS - 1), run.trailing_zeros() as u8 + 1)
}

/// Reads a register of the dense encoding.
fn dense_get(bytes: &[u8], index: usize) -> u8 {
    let (at, shift) = (HEAD + index * 6 / 8, index * 6 % 8);
    let low = u16::from(bytes[at]);
    let high = bytes.get(at + 1).map_or(0, |byte| u16::from(*byte));
    ((low | high << 8) >> shift) as u8 & 63
}

fn dense_put(bytes: &mut [u8], index: usize, value: u8) {
    let (at, shift) = (HEAD + index * 6 / 8, index * 6 % 8);
    let mask = !(63u16 << shift);
    let value = u16::from(value) << shift;
    bytes[at] = bytes[at] & mask as u8 | value as u8;
    if shift > 2 {
        bytes[at + 1] = bytes[at + 1] & (mask >> 8) as u8 | (value >> 8) as u8;
    }
}

/// A run of registers in the sparse encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// This many registers are 0, in one byte.
    Zeros(usize),
    /// This many registers are 0, in two bytes.
    ManyZeros(usize),
    /// Registers with this value, and their number.
    Values(u8, usize),
}

impl Run {
    /// Decodes the run at `at`. A missing byte at the end is read as zero.
    fn read(bytes: &[u8], at: usize) -> Run {
        let byte = bytes[at];
        match byte >> 6 {
            0 => Run::Zeros(usize::from(byte & 0x3f) + 1),
            1 => {
                let low = bytes.get(at + 1).copied().unwrap_or(0);
                Run::ManyZeros((usize::from(byte & 0x3f) << 8 | usize::from(low)) + 1)
            }
            _ => Run::Values((byte >> 2 & 0x1f) + 1, usize::from(byte & 3) + 1),
        }
    }

    /// Number of registers.
    fn len(self) -> usize {
        match self {
            Run::Zeros(len) | Run::ManyZeros(len) | Run::Values(_, len) => len,
        }
    }

    /// Number of bytes.
    fn size(self) -> usize {
        if matches!(self, Run::ManyZeros(_)) { 2 } else { 1 }
    }

    fn value(self) -> u8 {
        if let Run::Values(value, _) = self { value } else { 0 }
    }
}

/// The runs of the sparse encoding.
fn runs(bytes: &[u8]) -> impl Iterator<Item = Run> {
    let mut at = HEAD;
    std::iter::from_fn(move || {
        let run = (at < bytes.len()).then(|| Run::read(bytes, at))?;
        at += run.size();
        Some(run)
    })
}

fn push_zeros(into: &mut Vec<u8>, len: usize) {
    let coded = len - 1;
    if len > ZEROS_MAX {
        into.push(0x40 | (coded >> 8) as u8);
    }
    into.push(coded as u8);
}

fn values(value: u8, len: usize) -> u8 {
    0x80 | (value - 1) << 2 | (len - 1) as u8
}

/// Calls `visit` with the value and the range of each run of registers.
fn each_run(bytes: &[u8], mut visit: impl FnMut(u8, std::ops::Range<usize>)) -> Result<(), Corrupt> {
    if is_dense(bytes) {
        (0..REGISTERS).for_each(|index| visit(dense_get(bytes, index), index..index + 1));
        return Ok(());
    }
    let mut from = 0;
    for run in runs(bytes) {
        let to = from + run.len();
        fail_if!(to > REGISTERS, Corrupt);
        visit(run.value(), from..to);
        from = to;
    }
    if from == REGISTERS { Ok(()) } else { Err(Corrupt) }
}

/// Converts to the dense encoding. Returns false if it is dense already.
pub fn to_dense(bytes: &mut Vec<u8>) -> Result<bool, Corrupt> {
    if is_dense(bytes) {
        return Ok(false);
    }
    let mut dense = vec![0; DENSE_LEN];
    dense[..HEAD].copy_from_slice(&bytes[..HEAD]);
    dense[4] = DENSE;
    each_run(bytes, |value, extent| {
        if value > 0 {
            extent.for_each(|index| dense_put(&mut dense, index, value));
        }
    })?;
    *bytes = dense;
    Ok(true)
}

/// The change of the dense encoding by an element: the position and the new value of two bytes; `None` if nothing changes.
pub fn change(bytes: &[u8], element: &[u8]) -> Option<(usize, [u8; 2])> {
    let (index, value) = register_of(element);
    if dense_get(bytes, index) >= value {
        return None;
    }
    // The last register ends in the last byte.
    let at = (HEAD + index * 6 / 8).min(DENSE_LEN - 2);
    let mut both = [bytes[at], bytes[at + 1]];
    let shift = index * 6 - (at - HEAD) * 8;
    let word = u16::from_le_bytes(both) & !(63 << shift) | u16::from(value) << shift;
    both = word.to_le_bytes();
    Some((at, both))
}

/// Adds an element. Returns whether a register changed. A sparse encoding that would exceed `sparse_max` bytes becomes dense.
pub fn add(bytes: &mut Vec<u8>, element: &[u8], sparse_max: usize) -> Result<bool, Corrupt> {
    let (index, value) = register_of(element);
    raise(bytes, index, value, sparse_max)
}

/// Raises a register to a value. Returns false if it is at least as high already.
pub fn raise(bytes: &mut Vec<u8>, index: usize, value: u8, sparse_max: usize) -> Result<bool, Corrupt> {
    if !is_dense(bytes) {
        if value <= VALUE_MAX
            && let Some(changed) = sparse_raise(bytes, index, value, sparse_max)?
        {
            return Ok(changed);
        }
        to_dense(bytes)?;
    }
    let changed = dense_get(bytes, index) < value;
    if changed {
        dense_put(bytes, index, value);
    }
    Ok(changed)
}

/// As [`raise`] for the sparse encoding; `None` if it would become too long.
fn sparse_raise(bytes: &mut Vec<u8>, index: usize, value: u8, sparse_max: usize) -> Result<Option<bool>, Corrupt> {
    // Find the run of the register, and the run before it.
    let (mut at, mut before, mut first) = (HEAD, HEAD, 0);
    let run = loop {
        fail_if!(at >= bytes.len(), Corrupt);
        let run = Run::read(bytes, at);
        if index < first + run.len() {
            break run;
        }
        before = at;
        at += run.size();
        first += run.len();
    };
    if run.value() >= value {
        return Ok(Some(false));
    }
    // The registers of the run before this one, the register itself, and those after it.
    let mut runs = Vec::with_capacity(5);
    let mut part = |len: usize| match run {
        _ if len == 0 => {}
        Run::Values(old, _) => runs.push(values(old, len)),
        _ => push_zeros(&mut runs, len),
    };
    part(index - first);
    let split = runs.len();
    let mut part = |len: usize| match run {
        _ if len == 0 => {}
        Run::Values(old, _) => runs.push(values(old, len)),
        _ => push_zeros(&mut runs, len),
    };
    part(first + run.len() - 1 - index);
    runs.insert(split, values(value, 1));
    let end = (at + run.size()).min(bytes.len());
    if runs.len() > run.size() && bytes.len() + runs.len() - run.size() > sparse_max {
        return Ok(None);
    }
    bytes.splice(at..end, runs);
    merge_values(bytes, before);
    invalidate(bytes);
    Ok(Some(true))
}

/// Merges adjacent runs with the same value, among the five runs from `at` on.
fn merge_values(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        if at >= bytes.len() {
            return;
        }
        let run = Run::read(bytes, at);
        if let Run::Values(value, len) = run
            && at + 1 < bytes.len()
            && let Run::Values(other, more) = Run::read(bytes, at + 1)
            && value == other
            && len + more <= VALUES_MAX
        {
            bytes[at + 1] = values(value, len + more);
            bytes.remove(at);
            continue;
        }
        at += run.size();
    }
}

/// Raises registers to those of another HyperLogLog.
pub fn merge(registers: &mut Registers, bytes: &[u8]) -> Result<(), Corrupt> {
    each_run(bytes, |value, extent| {
        if value > 0 {
            registers[extent].iter_mut().for_each(|register| *register = value.max(*register));
        }
    })
}

/// The estimated number of elements.
pub fn count(bytes: &[u8]) -> Result<u64, Corrupt> {
    let mut histogram = [0; 64];
    each_run(bytes, |value, extent| histogram[usize::from(value)] += extent.len())?;
    Ok(estimate(&histogram))
}

/// As [`count`] for registers.
pub fn count_registers(registers: &Registers) -> u64 {
    let mut histogram = [0; 64];
    registers.iter().for_each(|value| histogram[usize::from(*value)] += 1);
    estimate(&histogram)
}

/// Ertl's improved estimator ("New cardinality estimation algorithms for HyperLogLog sketches", arXiv:1702.01284), from the
/// number of registers with each value.
fn estimate(histogram: &[usize; 64]) -> u64 {
    /// 1/(2 ln 2).
    const ALPHA: f64 = std::f64::consts::LOG2_E / 2.0;
    let m = REGISTERS as f64;
    let mut z = m * tau((m - histogram[RUN_BITS + 1] as f64) / m);
    for count in histogram[1..=RUN_BITS].iter().rev() {
        z = (z + *count as f64) * 0.5;
    }
    z += m * sigma(histogram[0] as f64 / m);
    (ALPHA * m * m / z).round() as u64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// The runs of the sparse encoding in readable form.
pub fn describe(bytes: &[u8]) -> String {
    let run = |run: Run| match run {
        Run::Zeros(len) => format!("z:{len}"),
        Run::ManyZeros(len) => format!("Z:{len}"),
        Run::Values(value, len) => format!("v:{value},{len}"),
    };
    runs(bytes).map(run).collect::<Vec<_>>().join(" ")
}

/// The registers of the dense encoding.
pub fn registers(bytes: &[u8]) -> impl Iterator<Item = u8> {
    (0..REGISTERS).map(|index| dense_get(bytes, index))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn elements_are_counted_with_the_expected_error() {
        let (mut sparse, mut dense) = (empty(), empty());
        to_dense(&mut dense).unwrap();
        assert_eq!(count(&sparse), Ok(0));
        let mut checkpoint = 1;
        for n in 1..=20_000u64 {
            let element = (n ^ 0x5555_1234).to_le_bytes();
            let mut changed = dense.clone();
            let change = change(&dense, &element);
            change.iter().for_each(|(at, bytes)| changed[*at..*at + 2].copy_from_slice(bytes));
            assert_eq!(change.is_some(), add(&mut dense, &element, 3000).unwrap());
            assert!(changed == dense, "{n}");
            add(&mut sparse, &element, 3000).unwrap();
            if n == checkpoint {
                assert_eq!(count(&sparse), count(&dense), "{n}");
                assert!(n > 1000 || !is_dense(&sparse), "{n}");
                let error = count(&dense).unwrap().abs_diff(n);
                assert!(error as f64 <= (1.04 / 128.0 * 6.0 * n as f64).ceil(), "{error} off at {n}");
                checkpoint *= 10;
            }
        }
        assert!(is_dense(&sparse));
        assert_eq!(sparse[HEAD..], dense[HEAD..]);
    }

    /// All registers.
    fn registers_of(bytes: &[u8]) -> Vec<u8> {
        let mut registers = [0; REGISTERS];
        merge(&mut registers, bytes).unwrap();
        registers.to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        #[cfg_attr(miri, ignore = "takes Miri too long")]
        fn sparse_and_dense_agree_with_plain_registers(
            // Close together, so that runs are split and merged.
            steps in prop::collection::vec((prop_oneof![0..12usize, 60..70usize, 16_370..REGISTERS], 1..36u8), 1..120),
            sparse_max in 18..60usize,
        ) {
            let (mut sparse, mut bounded, mut dense) = (empty(), empty(), empty());
            to_dense(&mut dense).unwrap();
            let mut model = vec![0; REGISTERS];
            for (index, value) in steps {
                let news = model[index] < value;
                model[index] = value.max(model[index]);
                for (bytes, max) in [(&mut sparse, usize::MAX), (&mut bounded, sparse_max), (&mut dense, 0)] {
                    prop_assert_eq!(raise(bytes, index, value, max), Ok(news));
                    prop_assert!(is_valid(bytes));
                }
                prop_assert!(is_dense(&bounded) || bounded.len() <= sparse_max);
                prop_assert_eq!(&registers_of(&sparse), &model);
                prop_assert_eq!(&registers_of(&bounded), &model);
                prop_assert_eq!(&registers(&dense).collect::<Vec<_>>(), &model);
                prop_assert_eq!(count(&sparse), count(&dense));
                prop_assert_eq!(count(&dense).unwrap(), count_registers(&model.clone().try_into().unwrap()));
            }
        }

        #[test]
        fn any_bytes_will_do(
            tail in prop::collection::vec(any::<u8>(), 0..60),
            steps in prop::collection::vec((0..REGISTERS, 1..40u8), 1..20),
        ) {
            let mut bytes = empty()[..HEAD].to_vec();
            bytes.extend(tail);
            prop_assert!(is_valid(&bytes));
            describe(&bytes);
            for (index, value) in steps {
                let _ = raise(&mut bytes, index, value, 3000);
                let _ = count(&bytes);
            }
            let _ = to_dense(&mut bytes);
        }
    }

    #[test]
    fn the_estimate_is_kept_until_something_changes() {
        let mut bytes = empty();
        assert_eq!(cached_count(&bytes), Some(0));
        add(&mut bytes, b"a", 3000).unwrap();
        assert_eq!(cached_count(&bytes), None);
        bytes[CACHE].copy_from_slice(&1u64.to_le_bytes());
        assert_eq!(cached_count(&bytes), Some(1));
        add(&mut bytes, b"a", 3000).unwrap();
        assert_eq!(cached_count(&bytes), Some(1));
    }
}
