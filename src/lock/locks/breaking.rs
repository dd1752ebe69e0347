//! Breaking: an administrator ends one grant.

use super::{Cause, Found, Keys, Locks, Refusal};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Client, Owner, Reason};
use crate::lock::history::What;
use crate::lock::history::breaks::Breaker;
use crate::lock::holders::Lock;

impl Locks {
    /// Ends the grant with a token, and serves the waiters at once: a delay of the grant does not apply. Returns the grant's owner.
    ///
    /// # Errors
    /// If the name holds neither a lock nor a semaphore, or has no grant with this token. Nothing has changed then.
    pub fn break_grant(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        key: Key<'_>,
        token: u64,
        (client, by): (Client, Breaker),
    ) -> Result<Owner, Refusal> {
        let mut lock = Lock::default();
        let found = self.load(keys, now, key, &mut lock);
        if let Found::Native | Found::Plain = found {
            return Err(Refusal::WrongType);
        }
        let owner = lock.holders.with_token(token).map(|grant| grant.owner.clone());
        let Some(grant) = owner.and_then(|owner| lock.holders.remove(&owner)) else {
            let refusal = self.no_grant(now, key, &lock, token);
            self.put_aside(keys, key, &mut lock, false);
            return Err(refusal);
        };
        let owner = grant.owner.clone();
        self.stats.broken += 1;
        self.history.breaks.note(now.mono_ms(), token, by);
        self.lose_by(keys, now, key, &mut lock, grant, (Reason::Broken, client));
        self.grant_waiters(keys, now, key, &mut lock);
        self.store(keys, key, &mut lock);
        self.work(keys, now);
        Ok(owner)
    }

    /// Why a lock in hand has no grant with a token.
    fn no_grant(&self, now: Now, key: Key<'_>, lock: &Lock, token: u64) -> Refusal {
        let mut events = self.history.events(key).filter(|event| event.what.token() == Some(token));
        let ago = |at_ms| now.mono_ms().saturating_sub(at_ms);
        let (owner, cause) = match events.next_back() {
            Some(event) if event.what.is_end() => {
                (event.owner.to_vec(), Cause::of_end(event, ago(event.at_ms), &self.history.breaks))
            }
            // It was granted and has not ended, but its database was emptied.
            Some(event) if matches!(event.what, What::Granted { .. }) && self.flushed_since(key.db, event.at_ms).is_some() => {
                let (client, at_ms) =
                    self.flushed_since(key.db, event.at_ms).map(|flush| (flush.by.id, flush.at_ms)).unwrap_or_default();
                (event.owner.to_vec(), Cause::Deleted { client, ago_ms: ago(at_ms) })
            }
            _ => match lock.holders.iter().next() {
                Some(grant) => (grant.owner.to_vec(), Cause::OtherToken { token: grant.token, for_ms: ago(grant.granted_ms) }),
                None => (Vec::new(), Cause::Never),
            },
        };
        Refusal::NoGrant { token, owner, cause }
    }
}
