//! Numbers the rows of the table, including subcommands, so that a set of commands can be a bit set.

use std::ops::Range;

use crate::engine::command::Command;

/// Adjacent rows in memory.
struct Stretch {
    addresses: Range<usize>,
    first: usize,
}

/// The numbers of all rows.
pub(super) struct Numbers {
    /// In the order of their addresses.
    stretches: Vec<Stretch>,
    count: usize,
}

impl Numbers {
    pub(super) fn new(families: &[&'static [Command]]) -> Numbers {
        let mut numbers = Numbers { stretches: Vec::new(), count: 0 };
        for family in families {
            numbers.add(family);
            for row in *family {
                numbers.add(row.subcommands);
            }
        }
        numbers.stretches.sort_by_key(|stretch| stretch.addresses.start);
        numbers
    }

    fn add(&mut self, rows: &'static [Command]) {
        let known = self.stretches.iter().any(|stretch| stretch.addresses.start == rows.as_ptr().addr());
        if rows.is_empty() || known {
            return;
        }
        let Range { start, end } = rows.as_ptr_range();
        self.stretches.push(Stretch { addresses: start.addr()..end.addr(), first: self.count });
        self.count += rows.len();
    }

    /// The number of rows.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number of a row, below [`Numbers::count`]; `None` if it is not in the table.
    pub(super) fn of(&self, command: &'static Command) -> Option<usize> {
        let address = std::ptr::from_ref(command).addr();
        let stretches = &self.stretches;
        let stretch = &stretches[stretches.partition_point(|stretch| stretch.addresses.start <= address).checked_sub(1)?];
        let within = stretch.addresses.contains(&address);
        within.then(|| stretch.first + (address - stretch.addresses.start) / size_of::<Command>())
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
