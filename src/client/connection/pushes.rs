//! Distributes RESP3 pushes: `lock-lost` to the guard of the lock, everything else to the listeners of the client.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::broadcast;

use crate::client::value::Value;

/// Maximum number of pushes that wait for a slow listener.
const PENDING_MAX: usize = 1024;
/// Maximum number of lost grants that are remembered for acquisitions that have not received the reply with the token yet.
const LOST_MAX: usize = 256;

/// Receives the notice that the server has ended a grant.
pub(crate) trait LossListener: Send + Sync {
    /// The server has ended the grant with this token, for this reason.
    fn lost(&self, token: u64, reason: &str);
}

/// Distributes the pushes of all connections of a client.
pub(crate) struct Pushes {
    losses: Mutex<Losses>,
    others: broadcast::Sender<Vec<Value>>,
}

#[derive(Default)]
struct Losses {
    /// Listeners by token. A token has several if one owner has acquired the lock several times.
    listeners: HashMap<u64, Vec<Weak<dyn LossListener>>>,
    /// Tokens that were lost before a listener was registered, with the reason; the oldest first.
    unheard: VecDeque<(u64, String)>,
}

impl Pushes {
    pub fn new() -> Pushes {
        Pushes { losses: Mutex::default(), others: broadcast::Sender::new(PENDING_MAX) }
    }

    /// Subscribes to all later pushes but those about lost locks.
    pub fn subscribe(&self) -> broadcast::Receiver<Vec<Value>> {
        self.others.subscribe()
    }

    /// Delivers a push.
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
        let listeners = {
            let mut losses = self.losses();
            let listeners = losses.listeners.get(&token).cloned().unwrap_or_default();
            if listeners.is_empty() {
                if losses.unheard.len() == LOST_MAX {
                    losses.unheard.pop_front();
                }
                losses.unheard.push_back((token, reason.to_owned()));
            }
            listeners
        };
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.lost(token, reason));
    }

    /// Registers a listener for the loss of the grant with this token. If the push has already arrived, the listener is called at
    /// once.
    pub fn listen(&self, token: u64, listener: Weak<dyn LossListener>) {
        let reason = {
            let mut losses = self.losses();
            losses.listeners.entry(token).or_default().push(listener.clone());
            losses.unheard.iter().find(|(lost, _)| *lost == token).map(|(_, reason)| reason.clone())
        };
        if let (Some(reason), Some(listener)) = (reason, listener.upgrade()) {
            listener.lost(token, &reason);
        }
    }

    /// Removes a listener.
    pub fn unlisten(&self, token: u64, listener: &Weak<dyn LossListener>) {
        let mut losses = self.losses();
        if let Some(listeners) = losses.listeners.get_mut(&token) {
            listeners.retain(|other| !Weak::ptr_eq(other, listener) && other.strong_count() > 0);
            if listeners.is_empty() {
                losses.listeners.remove(&token);
            }
        }
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
