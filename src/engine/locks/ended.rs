//! What is known of the clients of locks, also after their connections have ended.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::base::words::brief;
use crate::engine::Engine;
use crate::engine::session::{Session, SessionFlags};
use crate::lock::Client;
use crate::lock::ended_clients::KnownClient;

impl Engine {
    /// Remembers a connection that ends, if it has acquired locks.
    pub(in crate::engine) fn remember_client(&mut self, now: Now, id: SessionId) {
        let session = &self.clients.sessions[id];
        if !session.flags.contains(SessionFlags::ACQUIRED) {
            return;
        }
        let (number, known) = (session.id, KnownClient { ended_ms: Some(now.mono_ms()), ..self.describe_client(session) });
        self.clients.ended.add(number, known);
        self.bound_diagnosis();
    }

    /// The number of the client that wrote a key, of which the key has the last 32 bits, and what is known of the client. Visits
    /// all sessions.
    pub(crate) fn known_writer(&self, number: u32) -> (u64, KnownClient) {
        if let Some((_, session)) = self.clients.sessions.iter().find(|(_, session)| session.id as u32 == number) {
            return (session.id, self.describe_client(session));
        }
        let ended = self.clients.ended.latest(number);
        ended.map_or((u64::from(number), KnownClient::default()), |(id, client)| (id, client.clone()))
    }

    /// What is known of a client: of one that is connected, and of the last 10,000 that ended after they had acquired locks.
    pub(crate) fn known_client(&self, client: Client) -> KnownClient {
        match self.clients.sessions.get(client.session()) {
            Some(session) => self.describe_client(session),
            None => self.clients.ended.get(client.id).cloned().unwrap_or_default(),
        }
    }

    fn describe_client(&self, session: &Session) -> KnownClient {
        KnownClient {
            name: session.brief_name().into(),
            addr: session.addr.clone(),
            user: brief(self.users.name(session.user).unwrap_or_default()).into(),
            ended_ms: None,
        }
    }
}
