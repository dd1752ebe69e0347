//! Numbers that name things of the engine in every layer.

/// Names a session until it disconnects. The number may then name another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);
