//! Numbers for the rows of the table, subcommands included, so that a set of commands can be a set of bits.

use std::ops::Range;
use std::sync::LazyLock;

use crate::engine::command::Command;

/// Rows that lie one behind the other.
struct Stretch {
    addresses: Range<usize>,
    first: usize,
}

struct Numbers {
    /// In the order of their addresses.
    stretches: Vec<Stretch>,
    count: usize,
}

static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| {
    let mut numbers = Numbers { stretches: Vec::new(), count: 0 };
    for family in super::FAMILIES {
        numbers.add(family);
        for row in *family {
            numbers.add(row.subcommands);
        }
    }
    numbers.stretches.sort_by_key(|stretch| stretch.addresses.start);
    numbers
});

impl Numbers {
    fn add(&mut self, rows: &'static [Command]) {
        let known = self.stretches.iter().any(|stretch| stretch.addresses.start == rows.as_ptr().addr());
        if rows.is_empty() || known {
            return;
        }
        let Range { start, end } = rows.as_ptr_range();
        self.stretches.push(Stretch { addresses: start.addr()..end.addr(), first: self.count });
        self.count += rows.len();
    }
}

/// How many numbers there are.
pub fn count() -> usize {
    NUMBERS.count
}

/// The number of a row of the table, below [`count`]; `None` for a row that is not in it.
pub fn of(command: &'static Command) -> Option<usize> {
    let address = std::ptr::from_ref(command).addr();
    let stretches = &NUMBERS.stretches;
    let stretch = &stretches[stretches.partition_point(|stretch| stretch.addresses.start <= address).checked_sub(1)?];
    let within = stretch.addresses.contains(&address);
    within.then(|| stretch.first + (address - stretch.addresses.start) / size_of::<Command>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{all, resolve};

    #[test]
    fn every_row_has_a_number_of_its_own() {
        let rows = all().flat_map(|row| std::iter::once(row).chain(row.subcommands));
        let mut seen: Vec<usize> = rows.filter_map(of).collect();
        assert_eq!(seen.len(), all().map(|row| 1 + row.subcommands.len()).sum::<usize>());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count());
        assert!(seen.last().is_some_and(|last| *last < count()));
    }

    #[test]
    fn a_row_that_a_request_finds_is_one_of_the_table() {
        for args in [&[b"get".as_slice(), b"k"] as &[&[u8]], &[b"config", b"get", b"*"], &[b"client", b"id"]] {
            assert!(resolve(args).is_ok_and(|row| of(row).is_some()));
        }
        static FOREIGN: Command = Command::DEFAULT;
        assert_eq!(of(&FOREIGN), None);
    }
}
