//! Numbers the rows of the table, including subcommands, so that a set of commands can be a bit set.
//!
//! Knows no rows, so that it can be read without the engine: [`super::CommandTable`] passes in what it needs.

use std::ops::Range;

/// Rows that lie next to each other in memory.
struct Stretch {
    addresses: Range<usize>,
    first: usize,
}

/// The number of each row. A row is identified by its address.
pub(super) struct Numbers {
    /// In the order of their addresses.
    stretches: Vec<Stretch>,
    /// Size of a row in bytes.
    size: usize,
    count: usize,
}

impl Numbers {
    /// Numbers the rows, which are `size` bytes each and lie at these addresses.
    pub(super) fn new(addresses: impl Iterator<Item = Range<usize>>, size: usize) -> Numbers {
        let mut numbers = Numbers { stretches: Vec::new(), size, count: 0 };
        for rows in addresses {
            numbers.add(rows);
        }
        numbers.stretches.sort_by_key(|stretch| stretch.addresses.start);
        numbers
    }

    fn add(&mut self, addresses: Range<usize>) {
        let known = self.stretches.iter().any(|stretch| stretch.addresses.start == addresses.start);
        if addresses.is_empty() || known {
            return;
        }
        let first = self.count;
        self.count += addresses.len() / self.size;
        self.stretches.push(Stretch { addresses, first });
    }

    /// Number of rows.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number of the row at an address, below [`Numbers::count`]; `None` if there is no row of the table.
    pub(super) fn of(&self, address: usize) -> Option<usize> {
        let stretches = &self.stretches;
        let stretch = &stretches[stretches.partition_point(|stretch| stretch.addresses.start <= address).checked_sub(1)?];
        let within = stretch.addresses.contains(&address);
        within.then(|| stretch.first + (address - stretch.addresses.start) / self.size)
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::{all, resolve, table};
    use crate::engine::command::Command;

    #[test]
    fn every_row_has_a_number_of_its_own() {
        let rows = all().flat_map(|row| std::iter::once(row).chain(row.subcommands));
        let mut seen: Vec<usize> = rows.filter_map(|row| table().number(row)).collect();
        assert_eq!(seen.len(), all().map(|row| 1 + row.subcommands.len()).sum::<usize>());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), table().len());
        assert!(seen.last().is_some_and(|last| *last < table().len()));
    }

    #[test]
    fn a_row_that_a_request_finds_is_one_of_the_table() {
        for args in [&[b"get".as_slice(), b"k"] as &[&[u8]], &[b"config", b"get", b"*"], &[b"client", b"id"]] {
            assert!(resolve(args).is_ok_and(|row| table().number(row).is_some()));
        }
        static FOREIGN: Command = Command::DEFAULT;
        assert_eq!(table().number(&FOREIGN), None);
    }
}
