//! A grant: an owner holds a lock, or permits of a semaphore, until the lease ends.

use smallvec::SmallVec;

use crate::base::ids::SessionId;

/// The name of an owner; most are a UUID and the number of a thread.
pub type Owner = SmallVec<[u8; 40]>;

/// Maximum number of bytes of an owner's name.
pub const OWNER_MAX: usize = 1024;

/// Fencing tokens and numbers of sessions are below this: a double, as JSON and Lua have it, holds them exactly.
pub const TOKEN_END: u64 = 1 << 53;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one owner alone.
    Exclusive,
    /// Together with other sharing owners.
    Shared,
}

impl Mode {
    /// Whether two owners can hold a lock in these modes at the same time.
    #[cfg(any(test, feature = "internals"))]
    pub fn goes_with(self, other: Mode) -> bool {
        self == Mode::Shared && other == Mode::Shared
    }

    /// Its name in `LOCK.INFO`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// Tells users apart in the search for deadlocks, where owners of different users are different owners. It follows from the user's
/// name, so that it means the same after a restart and on every node. 0 is the default user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserKey(pub u32);

/// A connection that acquires locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The client's number, which is never reused.
    pub id: u64,
    /// The number of its session in the engine, while that exists.
    pub slot: u32,
    /// Its user.
    pub user: UserKey,
}

impl Client {
    /// The session of this connection.
    pub fn session(&self) -> SessionId {
        SessionId::new(self.slot, self.id as u32)
    }

    /// This connection for what an owner has as another user.
    pub fn as_user(self, user: UserKey) -> Client {
        Client { user, ..self }
    }
}

/// What ends a grant besides its lease and its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Nothing.
    #[default]
    Lease,
    /// The end of the connection that acquired it.
    Connection,
    /// The end of the named session with this number: see [`crate::lock::sessions`].
    Session(SessionNumber),
}

/// The number of a named session, below 2^56. Seven bytes keep [`Bound`] at eight and a grant small enough to be copied without a
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNumber([u8; SESSION_BYTES]);

impl SessionNumber {
    /// Stores a number. It was a token, so it is below 2^53.
    #[inline]
    pub fn new(number: u64) -> SessionNumber {
        let [kept @ .., above] = number.to_le_bytes();
        assert!(above == 0, "a session's number would be cut off");
        SessionNumber(kept)
    }

    /// The number.
    #[inline]
    pub fn get(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, 0])
    }
}

/// Distinguishes the keys of sessions from those of connections.
const SESSION_KEY: u64 = 1 << 63;

impl Bound {
    /// The key of the connection or session that the grant ends with; `None` if it ends with neither.
    #[inline]
    pub fn key(self, client: Client) -> Option<u64> {
        match self {
            Bound::Lease => None,
            Bound::Connection => Some(client.id),
            Bound::Session(number) => Some(Bound::session_key(number.get())),
        }
    }

    /// The key of a named session.
    pub fn session_key(number: u64) -> u64 {
        number | SESSION_KEY
    }

    /// The number of the named session with this key; `None` for the key of a connection.
    pub fn session_of_key(key: u64) -> Option<u64> {
        (key & SESSION_KEY != 0).then_some(key & !SESSION_KEY)
    }
}

/// An owner's hold on a lock or on permits. Times are monotonic milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The owner.
    pub owner: Owner,
    /// The fencing token: larger than every one before it.
    pub token: u64,
    /// Number of acquisitions that are not released yet; at least 1.
    pub holds: u32,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Number of permits of a semaphore; 1 for a lock.
    pub permits: u32,
    /// Number of renewals; 65,535 means as many or more. A file does not keep it.
    pub renewed: u16,
    /// The time of the grant.
    pub granted_ms: u64,
    /// The end of its lease.
    pub end_ms: u64,
    /// No renewal carries the lease beyond this; 0 without a limit.
    pub max_end_ms: u64,
    /// Delay before the next grant, in milliseconds, if this one ends otherwise than by its release or the lock's deletion.
    pub delay_ms: u32,
    /// What it ends with besides its lease.
    pub bound: Bound,
    /// The connection that acquired it, or has taken it over. The user stays the one that acquired it.
    pub client: Client,
}

impl Grant {
    /// Whether its lease has ended.
    pub fn ended(&self, now_ms: u64) -> bool {
        now_ms >= self.end_ms
    }

    /// Gives the grant to another connection.
    pub fn move_to(&mut self, client: Client) {
        self.client = client.as_user(self.client.user);
    }

    /// Restarts the lease, up to its maximum.
    pub fn renew(&mut self, end_ms: u64) {
        self.end_ms = if self.max_end_ms == 0 { end_ms } else { end_ms.min(self.max_end_ms) };
    }

    /// The reason for the end of the grant when its lease ends.
    pub fn end_reason(&self) -> Reason {
        if self.max_end_ms != 0 && self.end_ms >= self.max_end_ms { Reason::MaxHold } else { Reason::Lease }
    }
}

/// Why a grant ended without its holder's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease ended.
    Lease,
    /// Its maximum hold time is over.
    MaxHold,
    /// The lock was deleted, or its database emptied.
    Deleted,
    /// Its connection was closed.
    Session,
    /// An administrator broke it.
    Broken,
}

impl Reason {
    /// Its name in the push `lock-lost`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Lease => "lease",
            Reason::MaxHold => "maxhold",
            Reason::Deleted => "deleted",
            Reason::Session => "session",
            Reason::Broken => "broken",
        }
    }
}

/// Bytes of a packed grant before the optional fields and the owner.
const HEAD: usize = 33;
/// Maximum number of bytes of a packed grant.
const PACKED_MAX: usize = 128;
/// Maximum number of bytes of the owner in it.
const PACKED_OWNER_MAX: usize = PACKED_MAX - HEAD - 6 - 4 - 4;
const MAX_END: u8 = 1;
const DELAY: u8 = 2;
const CONNECTION: u8 = 4;
const SESSION: u8 = 8;
const USER: u8 = 16;
/// What has a field of its own behind the head.
const OPTIONAL: u8 = MAX_END | DELAY | SESSION | USER;
/// Bytes of a session's number.
const SESSION_BYTES: usize = 7;
const U48: u64 = (1 << 48) - 1;
const U56: u64 = (1 << 56) - 1;

/// Buffer for a packed grant.
pub struct Packed {
    bytes: [u8; PACKED_MAX],
    len: usize,
}

impl Default for Packed {
    #[inline]
    fn default() -> Self {
        Packed { bytes: [0; PACKED_MAX], len: 0 }
    }
}

impl Packed {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Packs a grant, if it has the usual form: an exclusive lock with few holds, whose numbers and owner fit. The lock must have no
/// other holder. Returns whether it was packed.
#[inline]
pub fn pack(grant: &Grant, packed: &mut Packed) -> bool {
    let owner_max = if let Bound::Session(_) = grant.bound { PACKED_OWNER_MAX - SESSION_BYTES } else { PACKED_OWNER_MAX };
    let fits = grant.mode == Mode::Exclusive
        && grant.permits == 1
        && grant.holds <= u32::from(u8::MAX)
        && grant.token <= U56
        && (grant.granted_ms | grant.end_ms | grant.max_end_ms | grant.client.id) <= U48
        && grant.owner.len() <= owner_max;
    if !fits {
        return false;
    }
    let flag = |is, flag| if is { flag } else { 0 };
    let bound = match grant.bound {
        Bound::Lease => 0,
        Bound::Connection => CONNECTION,
        Bound::Session(_) => SESSION,
    };
    let user = flag(grant.client.user != UserKey::default(), USER);
    let flags = flag(grant.max_end_ms != 0, MAX_END) | flag(grant.delay_ms != 0, DELAY) | bound | user;
    packed.len = HEAD;
    let head = &mut packed.bytes;
    (head[0], head[1]) = (flags, grant.holds as u8);
    // Each is written as a whole word. Its last bytes are zero, and the next word overwrites them.
    head[2..10].copy_from_slice(&grant.token.to_le_bytes());
    head[9..17].copy_from_slice(&grant.granted_ms.to_le_bytes());
    head[15..23].copy_from_slice(&grant.end_ms.to_le_bytes());
    head[21..29].copy_from_slice(&grant.client.id.to_le_bytes());
    head[27..31].copy_from_slice(&grant.client.slot.to_le_bytes());
    head[31..33].copy_from_slice(&grant.renewed.to_le_bytes());
    if flags & OPTIONAL != 0 {
        if flags & MAX_END != 0 {
            packed.push(&grant.max_end_ms.to_le_bytes()[..6]);
        }
        if flags & DELAY != 0 {
            packed.push(&grant.delay_ms.to_le_bytes());
        }
        if let Bound::Session(number) = grant.bound {
            packed.push(&number.0);
        }
        if flags & USER != 0 {
            packed.push(&grant.client.user.0.to_le_bytes());
        }
    }
    packed.push(&grant.owner);
    true
}

/// Reads what [`pack`] has packed; `None` if there are too few bytes.
#[inline(always)]
pub fn unpack(bytes: &[u8]) -> Option<Grant> {
    let (head, mut rest) = bytes.split_first_chunk::<HEAD>()?;
    let word = |at: usize, mask: u64| -> u64 {
        let word: [u8; 8] = std::array::from_fn(|i| head[at + i]);
        u64::from_le_bytes(word) & mask
    };
    let (mut max_end_ms, mut delay_ms, mut user) = (0, 0, 0);
    let mut bound = if head[0] & CONNECTION != 0 { Bound::Connection } else { Bound::Lease };
    if head[0] & OPTIONAL != 0 {
        if head[0] & MAX_END != 0 {
            let (taken, left) = rest.split_first_chunk::<6>()?;
            (max_end_ms, rest) = (u64::from_le_bytes([taken[0], taken[1], taken[2], taken[3], taken[4], taken[5], 0, 0]), left);
        }
        if head[0] & DELAY != 0 {
            let (taken, left) = rest.split_first_chunk::<4>()?;
            (delay_ms, rest) = (u32::from_le_bytes(*taken), left);
        }
        if head[0] & SESSION != 0 {
            let (taken, left) = rest.split_first_chunk::<SESSION_BYTES>()?;
            (bound, rest) = (Bound::Session(SessionNumber(*taken)), left);
        }
        if head[0] & USER != 0 {
            let (taken, left) = rest.split_first_chunk::<4>()?;
            (user, rest) = (u32::from_le_bytes(*taken), left);
        }
    }
    Some(Grant {
        owner: Owner::from_slice(rest),
        token: word(2, U56),
        holds: u32::from(head[1]),
        mode: Mode::Exclusive,
        permits: 1,
        renewed: u16::from_le_bytes([head[31], head[32]]),
        granted_ms: word(9, U48),
        end_ms: word(15, U48),
        max_end_ms,
        delay_ms,
        bound,
        client: Client {
            id: word(21, U48),
            slot: u32::from_le_bytes([head[27], head[28], head[29], head[30]]),
            user: UserKey(user),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_out_as_it_was(
            owner in prop_oneof![proptest::collection::vec(any::<u8>(), 0..60), proptest::collection::vec(any::<u8>(), PACKED_OWNER_MAX - 2..PACKED_OWNER_MAX + 2)],
            (token, holds, granted_ms, end_ms) in (1u64..1 << 53, 1u32..300, 0u64..1 << 45, 0u64..1 << 50),
            (max_end_ms, delay_ms) in (prop_oneof![Just(0), 1u64..1 << 45], prop_oneof![Just(0), any::<u32>()]),
            bound in prop_oneof![Just(Bound::Lease), Just(Bound::Connection), (1u64..1 << 53).prop_map(|number| Bound::Session(SessionNumber::new(number)))],
            (id, slot, shared, renewed) in (1u64..1 << 48, any::<u32>(), any::<bool>(), any::<u16>()),
            user in prop_oneof![Just(0), any::<u32>()],
        ) {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let owner = Owner::from_slice(&owner);
            let client = Client { id, slot, user: UserKey(user) };
            let grant = Grant { owner, token, holds, mode, permits: 1, renewed, granted_ms, end_ms, max_end_ms, delay_ms, bound, client };
            let mut packed = Packed::default();
            if pack(&grant, &mut packed) {
                prop_assert!(!shared);
                prop_assert_eq!(unpack(packed.bytes()), Some(grant));
            } else {
                let named = if matches!(bound, Bound::Session(_)) { SESSION_BYTES } else { 0 };
                prop_assert!(shared || holds > 255 || end_ms >> 48 != 0 || grant.owner.len() + named > PACKED_OWNER_MAX);
            }
        }

        #[test]
        fn no_bytes_are_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            unpack(&bytes);
        }
    }
}
