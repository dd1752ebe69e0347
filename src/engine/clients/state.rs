//! The engine's part that has the sessions, and what reaches them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::engine::clients::sessions::Sessions;
use crate::engine::memory::clients::ClientMemory;
use crate::engine::pause::Pause;
use crate::engine::pubsub::subscriptions::PubSub;
use crate::lock::ended_clients::EndedClients;

/// Sessions, and what reaches them.
pub(in crate::engine) struct Clients {
    /// All sessions.
    pub(in crate::engine) sessions: Sessions,
    /// Channels and patterns.
    pub(in crate::engine) pubsub: PubSub,
    /// `CLIENT PAUSE`, and the requests that it holds back.
    pub(in crate::engine) pause: Pause,
    /// Sessions that see all requests (`MONITOR`).
    pub(in crate::engine) monitors: Vec<SessionId>,
    /// The memory of all sessions, while it has a limit.
    pub(in crate::engine) memory: ClientMemory,
    /// Sessions with output to write: see `Engine::take_pending_writes`.
    pub(in crate::engine) pending_writes: Vec<SessionId>,
    /// The local address of the newest connection; sessions share it.
    pub(in crate::engine) last_local: Arc<str>,
    /// The last connections that have acquired locks and ended.
    pub(in crate::engine) ended: EndedClients,
    /// Clients whose connections closed while a script ran long, and whose grants end with the connection.
    pub(in crate::engine) closed_meanwhile: Vec<u64>,
    /// Disconnected clients that still have such grants: more than end in one step.
    pub(in crate::engine) ending: VecDeque<u64>,
}

impl Clients {
    /// No clients. `seed` is that of the hash of channels.
    pub(in crate::engine) fn new(seed: u64) -> Clients {
        Clients {
            sessions: Sessions::default(),
            pubsub: PubSub::new(seed),
            pause: Pause::default(),
            monitors: Vec::new(),
            memory: ClientMemory::default(),
            pending_writes: Vec::new(),
            last_local: Arc::default(),
            ended: EndedClients::default(),
            closed_meanwhile: Vec::new(),
            ending: VecDeque::new(),
        }
    }
}
