//! What the server says unasked, and who wants to hear it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError, Weak};

use tokio::sync::broadcast;

use crate::client::value::Value;

/// Pushes that are kept for a listener that does not take them.
const KEPT: usize = 1024;
/// Lost grants that are remembered for those who have not learnt yet that they were granted.
const REMEMBERED: usize = 256;

/// Who is to be told that a grant has ended.
pub(crate) trait Loser: Send + Sync {
    /// The server says that the grant with this token has ended, and why.
    fn lost(&self, token: u64, reason: &str);
}

/// Gives out what came unasked on any of a client's connections.
pub(crate) struct Pushes {
    inner: Mutex<Inner>,
    others: broadcast::Sender<Vec<Value>>,
}

#[derive(Default)]
struct Inner {
    /// Those who hold something, by their tokens. Several may hold by one token, as grants are reentrant.
    losers: HashMap<u64, Vec<Weak<dyn Loser>>>,
    /// Tokens that were lost before anybody asked, the oldest first.
    lost: VecDeque<(u64, String)>,
}

impl Pushes {
    pub fn new() -> Pushes {
        Pushes { inner: Mutex::default(), others: broadcast::Sender::new(KEPT) }
    }

    /// All that is not about lost locks, from now on.
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
        // Nobody may be listening.
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

    /// From now on this one is told when the grant with this token is lost; at once where that was already said.
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

    /// This one is to be told no more.
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
