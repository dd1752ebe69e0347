//! The hash value. (placeholder, for now)

/// Fields and their values.
#[derive(Debug, Clone, Default)]
pub struct Hash {}

impl Hash {
    /// The wheel's timer for the earliest field deadline; 0 where there is none.
    pub fn field_timer(&self) -> u32 {
        0
    }

    /// Notes the wheel's timer.
    pub fn set_field_timer(&mut self, _timer: u32) {}

    /// The earliest deadline of a field, in monotonic milliseconds.
    pub fn next_field_deadline(&self) -> Option<u64> {
        None
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        0
    }

    /// Frees up to `budget` fields; true when none is left.
    pub fn free_some(&mut self, _budget: &mut u32) -> bool {
        true
    }
}
