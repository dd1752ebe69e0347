//! The memory of what is remembered for diagnosis. It has one budget, `diagnostics-max-memory`, whoever fills it.
//!
//! ```text
//!   a memory grows ─▶ bound_diagnosis ─▶ all within the budget?  ── yes ─▶ done
//!                                          └─ no ─▶ the memory with the oldest entry of all forgets it ─▶ again
//! ```
//!
//! It does not count against `maxmemory`: a client that fills it neither has keys evicted nor has writes of others refused. Of what
//! clients choose, the texts are bounded before they are remembered: owners by
//! [`OWNER_MAX`](crate::lock::grant::OWNER_MAX), names of locks by [`NAME_MAX`](crate::lock::history::NAME_MAX), names of clients
//! and reasons by [`brief`](crate::base::words::brief).
//!
//! Locks remember far more than all others, and at each request. They ask for the budget only when they have used up what was left:
//! [`History::is_over`](crate::lock::history::History::is_over).

use crate::base::kept::Memory;
use crate::engine::Engine;
use crate::lock::Locks;

/// Maximum number of entries that are forgotten at once: a lowered budget takes effect in slices.
const FORGOTTEN_AT_ONCE: usize = 512;

/// The part of the budget that is free after it was applied.
const SPARE: u64 = 64;

/// Where a memory is in the engine.
type Place = fn(&mut Engine) -> Option<&mut dyn Memory>;

/// All memories of diagnosis.
const MEMORIES: [Place; 9] = [
    |engine| Some(&mut engine.diagnosis.slowlog.kept),
    |engine| Some(&mut engine.users.log.kept),
    |engine| Some(&mut engine.clients.ended),
    |engine| Some(&mut engine.locks_mut()?.stats.long),
    |engine| Some(&mut engine.locks_mut()?.history),
    |engine| Some(&mut engine.locks_mut()?.history.breaks.0),
    |engine| Some(&mut engine.locks_mut()?.history.recent.ends),
    |engine| Some(&mut engine.locks_mut()?.history.recent.breaks),
    |engine| Some(&mut engine.locks_mut()?.history.recent.deadlocks),
];

impl Engine {
    fn locks_mut(&mut self) -> Option<&mut Locks> {
        self.keyspace.changes.locks.as_deref_mut()
    }

    /// Bytes of all memories of diagnosis.
    pub(crate) fn diagnosis_bytes(&mut self) -> u64 {
        MEMORIES.iter().filter_map(|of| Some(of(self)?.bytes() as u64)).sum()
    }

    /// Bytes that do not count against `maxmemory`: the memories of diagnosis, and what is remembered of requests whose grants have
    /// ended, which has a bound of its own.
    pub(crate) fn not_counted(&mut self) -> u64 {
        let requests = self.locks_mut().map_or(0, |locks| locks.requests.ended_bytes() as u64);
        self.diagnosis_bytes() + requests
    }

    /// Applies the budget. Must be called when a memory of diagnosis has grown.
    #[cold]
    pub(in crate::engine) fn bound_diagnosis(&mut self) {
        let budget = self.config.diagnostics_max_memory;
        let mut bytes = self.diagnosis_bytes();
        // What is forgotten at once leaves room for many more entries.
        let wanted = if bytes > budget { budget - budget / SPARE } else { budget };
        for _ in 0..FORGOTTEN_AT_ONCE {
            if bytes <= wanted {
                break;
            }
            let oldest = |of: &Place, engine: &mut Engine| of(engine)?.oldest_ms();
            let all = MEMORIES.iter().filter_map(|of| Some((oldest(of, self)?, of)));
            let Some((_, of)) = all.min_by_key(|(at_ms, _)| *at_ms) else { break };
            let Some(memory) = of(self) else { break };
            let before = memory.bytes();
            memory.forget_oldest();
            bytes = bytes + memory.bytes() as u64 - before as u64;
        }
        self.diagnosis.exceeds =
            bytes > budget && MEMORIES.iter().any(|of| of(self).is_some_and(|memory| memory.oldest_ms().is_some()));
        if let Some(locks) = self.locks_mut() {
            let left = budget.saturating_sub(bytes - locks.history.all_bytes() as u64);
            locks.history.settle(usize::try_from(left).unwrap_or(usize::MAX));
        }
    }

    /// Applies the budget if locks have used up what it left them.
    #[inline]
    pub(in crate::engine) fn follow_up_diagnosis(&mut self) {
        if self.keyspace.changes.locks.as_ref().is_some_and(|locks| locks.history.is_over()) {
            self.bound_diagnosis();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
