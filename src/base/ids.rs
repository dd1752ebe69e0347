//! Identifiers of engine objects that every layer uses.

/// Identifies a session until it disconnects. The number may be reused for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);
