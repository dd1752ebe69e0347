//! Dispatches RESP3 pushes to their listeners.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError, Weak};

use tokio::sync::broadcast;

use crate::client::value::Value;

/// Number of pushes kept for a slow listener.
const KEPT: usize = 1024;
/// Number of lost grants remembered for callers that have not received the grant's reply yet.
const REMEMBERED: usize = 256;

/// Receives the notice that a grant has ended.
pub(crate) trait Loser: Send + Sync {
    /// The server says that the grant with this token has ended, and why.
    fn lost(&self, token: u64, reason: &str);
}

/// Dispatches the pushes of all connections of a client.
pub(crate) struct Pushes {
    inner: Mutex<Inner>,
    others: broadcast::Sender<Vec<Value>>,
}

#[derive(Default)]
struct Inner {
    /// Holders by token. Several may hold by one token, because grants are reentrant.
    losers: HashMap<u64, Vec<Weak<dyn Loser>>>,
    /// Tokens that were lost before anybody watched them, the oldest first.
    lost: VecDeque<(u64, String)>,
}

impl Pushes {
    pub fn new() -> Pushes {
        Pushes { inner: Mutex::default(), others: broadcast::Sender::new(KEPT) }
    }

    /// All pushes that are not about lost locks, from now on.
    pub fn listen(&self) -> broadcast::Receiver<Vec<Value>> {
        self.others.subscribe()
    }

    pub fn push(&self, items: Vec<Value>) {
        if let [kind, _, _, token, reason] = &items[..]
            && kind.as_str() == Some("lock-lost")
            && let (Some(token), Some(reason)) = (token.as_integer().and_then(|token| u64::try_from(token).ok()), reason.as_str())
        {
            return self.lost(token, reason);
        }
        // There may be no listener.
        let _ = self.others.send(items);
    }

    fn lost(&self, token: u64, reason: &str) {
        let losers = {
            let mut inner = self.inner();
            let losers = inner.losers.get(&token).cloned().unwrap_or_default();
            if losers.is_empty() {
                if inner.lost.len() == REMEMBERED {
                    inner.lost.pop_front();
                }
                inner.lost.push_back((token, reason.to_owned()));
            }
            losers
        };
        losers.iter().filter_map(Weak::upgrade).for_each(|loser| loser.lost(token, reason));
    }

    /// Registers a holder for the loss of the grant with this token. If the loss has already been pushed, the holder is told at
    /// once.
    pub fn watch(&self, token: u64, loser: Weak<dyn Loser>) {
        let said = {
            let mut inner = self.inner();
            inner.losers.entry(token).or_default().push(loser.clone());
            inner.lost.iter().find(|(lost, _)| *lost == token).map(|(_, reason)| reason.clone())
        };
        if let (Some(reason), Some(loser)) = (said, loser.upgrade()) {
            loser.lost(token, &reason);
        }
    }

    /// Removes a holder.
    pub fn unwatch(&self, token: u64, loser: &Weak<dyn Loser>) {
        let mut inner = self.inner();
        if let Some(losers) = inner.losers.get_mut(&token) {
            losers.retain(|other| !Weak::ptr_eq(other, loser) && other.strong_count() > 0);
            if losers.is_empty() {
                inner.losers.remove(&token);
            }
        }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
