//! The last connections that have acquired locks and ended: a lock may outlive its holder's connection, and an administrator wants
//! to know whose it was.

use std::collections::{BTreeMap, VecDeque};

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::SessionFlags;
use crate::lock::Client;

/// Maximum number of connections that are remembered.
const CLIENTS_MAX: usize = 10_000;
/// Maximum number of bytes of a client's name and of its user's name that are remembered.
const NAME_MAX: usize = 256;

/// What is known of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownClient {
    /// Its name (`CLIENT SETNAME`); empty for none.
    pub name: Box<[u8]>,
    /// Its address.
    pub addr: Box<str>,
    /// Its user, at present or at its end.
    pub user: Box<[u8]>,
    /// When it ended, in monotonic milliseconds; `None` while it is connected, and where nothing is known of it.
    pub ended_ms: Option<u64>,
}

/// The last connections that have acquired locks and ended, by client number.
#[derive(Debug, Default)]
pub(crate) struct EndedClients {
    by_id: BTreeMap<u64, KnownClient>,
    /// Their numbers, in the order in which they ended.
    order: VecDeque<u64>,
}

impl EndedClients {
    fn add(&mut self, id: u64, client: KnownClient) {
        if self.order.len() >= CLIENTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.by_id.insert(id, client);
        self.order.push_back(id);
    }

    /// Moves the times when the clock was set back or forth.
    pub(in crate::engine) fn move_marks(&mut self, by_ms: i64) {
        for ended_ms in self.by_id.values_mut().filter_map(|client| client.ended_ms.as_mut()) {
            *ended_ms = ended_ms.saturating_add_signed(by_ms);
        }
    }
}

impl Engine {
    /// Remembers a connection that ends, if it has acquired locks.
    pub(in crate::engine) fn remember_client(&mut self, now: Now, id: SessionId) {
        let session = &self.sessions[id.0 as usize];
        if !session.flags.contains(SessionFlags::ACQUIRED) {
            return;
        }
        let cut = |text: &[u8]| Box::from(&text[..text.len().min(NAME_MAX)]);
        let known = KnownClient {
            name: cut(session.name.as_deref().unwrap_or_default()),
            addr: session.addr.clone(),
            user: cut(self.users.name(session.user).unwrap_or_default()),
            ended_ms: Some(now.mono_ms()),
        };
        self.ended_clients.add(session.id, known);
    }

    /// What is known of a client: of one that is connected, and of the last 10,000 that ended after they had acquired locks.
    pub(crate) fn known_client(&self, client: Client) -> KnownClient {
        let session = self.sessions.get(client.slot as usize).filter(|session| session.id == client.id);
        match session {
            Some(session) => KnownClient {
                name: session.name.clone().unwrap_or_default(),
                addr: session.addr.clone(),
                user: self.users.name(session.user).unwrap_or_default().into(),
                ended_ms: None,
            },
            None => self.ended_clients.by_id.get(&client.id).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_connections_are_remembered() {
        let mut ended = EndedClients::default();
        for id in 1..=CLIENTS_MAX as u64 + 3 {
            ended.add(id, KnownClient { ended_ms: Some(id), ..KnownClient::default() });
        }
        assert_eq!((ended.by_id.len(), ended.order.len()), (CLIENTS_MAX, CLIENTS_MAX));
        assert!(!ended.by_id.contains_key(&3) && ended.by_id.contains_key(&4));
        ended.move_marks(-2);
        assert_eq!(ended.by_id[&4].ended_ms, Some(2));
    }
}
