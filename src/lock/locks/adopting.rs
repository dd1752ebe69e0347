//! Locks that come from elsewhere as they were: out of a snapshot, or out of what a server that was started again still knows.

use super::{Keys, Locks};
use crate::engine::time::Now;
use crate::lock::grant::{Client, Owner, Reason};
use crate::lock::holders::{Holders, Lock};

impl Locks {
    /// Keeps a lock under a name that is free. Grants that end with their connections end now, where those are gone. Tokens go on
    /// beyond those in it.
    pub fn adopt(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (db, name): (u32, &[u8]),
        lock: Lock,
        connected: impl Fn(Client) -> bool,
    ) {
        let mut kept = Lock { holders: Holders::default(), ..lock };
        let mut ended: Vec<Owner> = Vec::new();
        for grant in lock.holders.iter() {
            self.set_next_token(grant.token + 1);
            if grant.session {
                self.bound.insert((grant.client.id, grant.token), (self.home(db), name.into()));
                if !connected(grant.client) {
                    ended.push(grant.owner.clone());
                }
            }
            kept.holders.insert(grant.clone());
            self.held.granted(db, &kept, grant.permits);
        }
        for owner in ended {
            if let Some(grant) = kept.holders.remove(&owner) {
                self.stats.session_ends += 1;
                self.lose(keys, now, (db, name), &mut kept, grant, Reason::Session);
            }
        }
        self.close(keys, (db, name), &mut kept);
    }
}
