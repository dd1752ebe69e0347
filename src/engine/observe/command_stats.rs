//! Statistics of each command: calls and times. `INFO commandstats` and `latencystats` show them.

use crate::engine::command::Command;
use crate::engine::observe::histogram::Histogram;

/// Number of slots of the table: a power of two, more than twice the number of rows.
const SLOTS: usize = 1024;
const _: () = assert!(SLOTS <= 1 << u16::BITS, "a slot's number fits into a u16");

/// Statistics of one command.
#[derive(Debug, Default)]
pub struct Slot {
    row: Option<&'static Command>,
    /// Whether its cost is bounded by its arguments and its reply.
    pub bounded: bool,
    /// Whether its requests are checked while there are locks: see `Command::needs_guard`.
    pub guarded: bool,
    /// Number of executions.
    pub calls: u64,
    /// Number of refusals before execution.
    pub rejected: u64,
    /// Number of error replies.
    pub failed: u64,
    /// Total time in nanoseconds.
    pub ns: u64,
    /// Histogram of its times; `None` before the first one, and while `latency-tracking` is off.
    pub histogram: Option<Histogram>,
}

/// Statistics of all commands. A row is found by its address, which takes a nanosecond or two. Queued requests of transactions and
/// sessions hold slot numbers, so a row never leaves its slot.
#[derive(Debug)]
pub struct CommandStats {
    slots: Box<[Slot; SLOTS]>,
}

impl Default for CommandStats {
    fn default() -> Self {
        // Made from a vector, which allocates in place; an array would be created on the stack first.
        let slots: Box<[Slot]> = std::iter::repeat_with(Slot::default).take(SLOTS).collect();
        CommandStats { slots: slots.try_into().unwrap_or_else(|_| unreachable!("there are as many")) }
    }
}

impl Slot {
    /// The command's row.
    pub fn row(&self) -> Option<&'static Command> {
        self.row
    }
}

impl CommandStats {
    /// The number of a command's slot.
    #[inline]
    pub fn find(&mut self, command: &'static Command) -> usize {
        let mut at = Self::home(command);
        loop {
            match self.slots[at].row {
                Some(row) if std::ptr::eq(row, command) => return at,
                Some(_) => at = (at + 1) % SLOTS,
                None => return self.enter(at, command),
            }
        }
    }

    #[inline]
    fn home(command: &'static Command) -> usize {
        let address = std::ptr::from_ref(command) as usize as u64;
        (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS
    }

    #[cold]
    fn enter(&mut self, at: usize, command: &'static Command) -> usize {
        self.slots[at] =
            Slot { row: Some(command), bounded: command.is_bounded(), guarded: command.needs_guard(), ..Slot::default() };
        at
    }

    /// The slot with a number from [`CommandStats::find`].
    #[inline]
    pub fn slot(&mut self, number: usize) -> &mut Slot {
        &mut self.slots[number]
    }

    /// The row of the slot with a number from [`CommandStats::find`].
    pub fn row(&self, number: usize) -> Option<&'static Command> {
        self.slots[number].row
    }

    /// The slot of a command.
    #[cold]
    pub fn of(&mut self, command: &'static Command) -> &mut Slot {
        let number = self.find(command);
        self.slot(number)
    }

    /// Resets all statistics; numbers of slots stay valid.
    pub fn reset(&mut self) {
        for slot in self.slots.iter_mut() {
            *slot = Slot { row: slot.row, bounded: slot.bounded, guarded: slot.guarded, ..Slot::default() };
        }
    }

    /// The statistics of a command; `None` if it was never called.
    pub fn get(&self, command: &'static Command) -> Option<&Slot> {
        let mut at = Self::home(command);
        loop {
            match self.slots[at].row {
                Some(row) if std::ptr::eq(row, command) => return Some(&self.slots[at]),
                Some(_) => at = (at + 1) % SLOTS,
                None => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_slot_of_its_own() {
        let mut stats = CommandStats::default();
        let rows = || crate::commands::all().flat_map(|row| std::iter::once(row).chain(row.subcommands));
        assert!(rows().count() * 2 < SLOTS, "{} rows", rows().count());
        for row in rows() {
            assert!(stats.get(row).is_none());
            let slot = stats.find(row);
            stats.slot(slot).calls += 1;
        }
        for row in rows() {
            assert_eq!(stats.get(row).map(|slot| slot.calls), Some(1), "{}", row.name);
        }
    }
}
