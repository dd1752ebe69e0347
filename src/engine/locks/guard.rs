//! Protects locks, semaphores, latches and guards from all other commands.
//!
//! ```text
//!   request ─▶ row ─▶ key specifications ─▶ a native key that would be written? ── yes ─▶ WRONGTYPE, and nothing has changed
//!                                                └─ no ─▶ handler ─▶ keyspace: each store over a native key fails with WRONGTYPE
//! ```
//!
//! The first check covers all keys of a request, so a request with many keys is refused as a whole. The second check needs no
//! row: a key that the specifications miss is equally safe. Deletions are explicit: [`Db::delete`] deletes plain keys only,
//! [`Db::force_delete`] all.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::keys::{KeyAt, KeyUse};
use crate::engine::command::{Access, Command, Flags, Group, Natives};
use crate::keyspace::natives::lock_of;
use crate::lock::held_counts::Held;
use crate::store::entry::EntryRef;

impl Engine {
    /// Refuses a request that would overwrite a lock, a semaphore, a latch or a guard. Must be called for commands with
    /// [`Command::needs_guard`].
    #[cold]
    pub(crate) fn guard_natives(
        &mut self,
        now: Now,
        id: SessionId,
        db: u32,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Result {
        self.keyspace.changes.client = self.lock_client(id);
        if command.natives == Natives::Deleted || (command.only_creates)(args) {
            return Ok(());
        }
        for KeyAt { position, access, uses } in command.key_positions(args).into_iter().flatten() {
            if command.writes_untyped(access, uses)
                && self.keyspace.db(db, now).peek(args[position]).is_some_and(EntryRef::is_native)
            {
                return Err(Error::WRONG_TYPE);
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Panics if the counts of held grants differ from the keys that hold them: a key was removed or overwritten without its
    /// holders.
    pub(crate) fn check_held(&self) {
        let Some(locks) = &self.keyspace.changes.locks else { return };
        for (db, &dict) in self.keyspace.numbers.iter().enumerate() {
            let mut kept = Held::default();
            let natives = self.keyspace.space.dict(dict as usize).iter().filter(|entry| entry.is_native());
            for lock in natives.filter_map(lock_of).filter(|lock| !lock.holders.is_empty()) {
                kept.grants += lock.holders.len() as u64;
                if lock.limit == 0 {
                    kept.locks += 1;
                } else {
                    kept.semaphores += 1;
                    kept.permits += lock.holders.permits();
                }
            }
            assert_eq!(kept, locks.held.in_db(db as u32), "what is held in database {db}");
        }
    }
}

impl Command {
    /// Whether the engine must check the request's keys for native ones, or record the client that deletes them.
    pub(crate) fn needs_guard(&self) -> bool {
        self.flags.contains(Flags::WRITE)
            && match self.natives {
                Natives::Deleted => true,
                Natives::Checked | Natives::Own => false,
                Natives::Refused => self
                    .key_specs()
                    .iter()
                    .any(|spec| spec.uses.contains(KeyUse::VARIABLE) || self.writes_untyped(spec.access, spec.uses)),
            }
    }

    /// Whether it changes a key with such a use without checking the type of the existing value.
    fn writes_untyped(&self, access: Access, uses: KeyUse) -> bool {
        match access {
            Access::Read => false,
            // If the name is taken, the command replies so.
            Access::Overwrite => uses != KeyUse::INSERT,
            Access::Remove => true,
            // It reads the value, and so checks its type.
            Access::ReadWrite => !self.is_for_one_type(),
        }
    }

    /// Whether its group is a type of plain values.
    fn is_for_one_type(&self) -> bool {
        matches!(
            self.group,
            Group::String
                | Group::Hash
                | Group::List
                | Group::Set
                | Group::SortedSet
                | Group::Stream
                | Group::Bitmap
                | Group::Hyperloglog
                | Group::Geo
        )
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
