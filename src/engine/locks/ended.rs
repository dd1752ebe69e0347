//! What is known of the clients of locks, also after their connections have ended.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::SessionFlags;
use crate::lock::Client;
use crate::lock::ended_clients::KnownClient;

/// Maximum number of bytes of a client's name and of its user's name that are remembered.
const NAME_MAX: usize = 256;

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

    /// The number of the client that wrote a key, of which the key has the last 32 bits, and what is known of the client. Visits
    /// all sessions.
    pub(crate) fn known_writer(&self, number: u32) -> (u64, KnownClient) {
        let session = self.sessions.iter().find(|(_, session)| session.id as u32 == number);
        if let Some((slot, session)) = session {
            return (session.id, self.known_client(Client { id: session.id, slot: slot as u32 }));
        }
        let ended = self.ended_clients.latest(number);
        ended.map_or((u64::from(number), KnownClient::default()), |(id, client)| (id, client.clone()))
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
            None => self.ended_clients.get(client.id).cloned().unwrap_or_default(),
        }
    }
}
