//! A grant: that an owner holds a lock, or permits of a semaphore, until its lease ends.

use smallvec::SmallVec;

/// The name of an owner; most are a UUID and the number of a thread.
pub type Owner = SmallVec<[u8; 40]>;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one owner alone.
    Exclusive,
    /// Together with others who share it.
    Shared,
}

impl Mode {
    /// Whether two owners can hold a lock like this at the same time.
    #[cfg(any(test, feature = "internals"))]
    pub fn goes_with(self, other: Mode) -> bool {
        self == Mode::Shared && other == Mode::Shared
    }

    /// What `LOCK.INFO` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

/// The connection that acquired something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// The client's number, which is never given twice.
    pub id: u64,
    /// Where the engine has its session, for as long as it has one.
    pub slot: u32,
}

/// What ends a grant beside its lease and its holder.
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

/// The number of a named session, below 2^56. In bytes, so that [`Bound`] has eight of them, and no grant more than can be copied without
/// a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNumber([u8; SESSION_BYTES]);

impl SessionNumber {
    /// Keeps a number, which is one that was a token's and so below 2^53.
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

/// Sets the keys of sessions apart from those of connections.
const SESSION_KEY: u64 = 1 << 63;

impl Bound {
    /// The key of what the grant ends with; `None` where it is bound to nothing.
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

    /// The number of the named session of a key; `None` for the key of a connection.
    pub fn session_of_key(key: u64) -> Option<u64> {
        (key & SESSION_KEY != 0).then_some(key & !SESSION_KEY)
    }
}

/// That an owner holds something. Times are monotonic milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub owner: Owner,
    /// The fencing token: larger than every one before it.
    pub token: u64,
    /// How often it was acquired and not yet released; at least 1.
    pub holds: u32,
    /// How it is held.
    pub mode: Mode,
    /// How many permits of a semaphore; 1 for a lock.
    pub permits: u32,
    /// When it was granted.
    pub granted_ms: u64,
    /// When its lease ends.
    pub end_ms: u64,
    /// Beyond this its lease is never carried; 0 where it may be carried on for ever.
    pub max_end_ms: u64,
    /// How long the next grant is held back where this one ends otherwise than by its release or the lock's deletion; milliseconds.
    pub delay_ms: u32,
    /// What it ends with beside its lease.
    pub bound: Bound,
    /// The connection that acquired it.
    pub client: Client,
}

impl Grant {
    /// Whether its lease has ended.
    pub fn ended(&self, now_ms: u64) -> bool {
        now_ms >= self.end_ms
    }

    /// Begins the lease anew, as far as it may be carried.
    pub fn renew(&mut self, end_ms: u64) {
        self.end_ms = if self.max_end_ms == 0 { end_ms } else { end_ms.min(self.max_end_ms) };
    }

    /// Why it ends when its lease does.
    pub fn end_reason(&self) -> Reason {
        if self.max_end_ms != 0 && self.end_ms >= self.max_end_ms { Reason::MaxHold } else { Reason::Lease }
    }
}

/// Why a grant ended without its holder's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease ended.
    Lease,
    /// It was held for as long as its holder had allowed.
    MaxHold,
    /// The lock was deleted, or its database emptied.
    Deleted,
    /// Its connection was closed.
    Session,
}

impl Reason {
    /// What the push `lock-lost` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Lease => "lease",
            Reason::MaxHold => "maxhold",
            Reason::Deleted => "deleted",
            Reason::Session => "session",
        }
    }
}

/// Bytes of a packed grant before what not every one has and the owner.
const HEAD: usize = 31;
/// Bytes of a packed grant at most.
const PACKED_MAX: usize = 128;
/// Bytes of an owner in it at most.
const OWNER_MAX: usize = PACKED_MAX - HEAD - 6 - 4;
const MAX_END: u8 = 1;
const DELAY: u8 = 2;
const CONNECTION: u8 = 4;
const SESSION: u8 = 8;
/// Bytes of a session's number.
const SESSION_BYTES: usize = 7;
const U48: u64 = (1 << 48) - 1;
const U56: u64 = (1 << 56) - 1;

/// Room for a grant as bytes.
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

/// Packs a grant, where the lock has no other and nothing in it needs more room than most do: that of an exclusive lock with a few holds.
/// Gives whether it could be done.
#[inline]
pub fn pack(grant: &Grant, packed: &mut Packed) -> bool {
    let owner_max = if let Bound::Session(_) = grant.bound { OWNER_MAX - SESSION_BYTES } else { OWNER_MAX };
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
    let flags = flag(grant.max_end_ms != 0, MAX_END) | flag(grant.delay_ms != 0, DELAY) | bound;
    packed.len = HEAD;
    let head = &mut packed.bytes;
    (head[0], head[1]) = (flags, grant.holds as u8);
    // Each in a whole word, whose last bytes are zero and come to lie under the next one.
    head[2..10].copy_from_slice(&grant.token.to_le_bytes());
    head[9..17].copy_from_slice(&grant.granted_ms.to_le_bytes());
    head[15..23].copy_from_slice(&grant.end_ms.to_le_bytes());
    head[21..29].copy_from_slice(&grant.client.id.to_le_bytes());
    head[27..31].copy_from_slice(&grant.client.slot.to_le_bytes());
    if flags & MAX_END != 0 {
        packed.push(&grant.max_end_ms.to_le_bytes()[..6]);
    }
    if flags & DELAY != 0 {
        packed.push(&grant.delay_ms.to_le_bytes());
    }
    if let Bound::Session(number) = grant.bound {
        packed.push(&number.0);
    }
    packed.push(&grant.owner);
    true
}

/// What [`pack`] has packed; `None` for any other bytes that are too few.
#[inline(always)]
pub fn unpack(bytes: &[u8]) -> Option<Grant> {
    let (head, mut rest) = bytes.split_first_chunk::<HEAD>()?;
    let word = |at: usize, mask: u64| -> u64 {
        let word: [u8; 8] = std::array::from_fn(|i| head[at + i]);
        u64::from_le_bytes(word) & mask
    };
    let (mut max_end_ms, mut delay_ms) = (0, 0);
    if head[0] & MAX_END != 0 {
        let (taken, left) = rest.split_first_chunk::<6>()?;
        (max_end_ms, rest) = (u64::from_le_bytes([taken[0], taken[1], taken[2], taken[3], taken[4], taken[5], 0, 0]), left);
    }
    if head[0] & DELAY != 0 {
        let (taken, left) = rest.split_first_chunk::<4>()?;
        (delay_ms, rest) = (u32::from_le_bytes(*taken), left);
    }
    let mut bound = if head[0] & CONNECTION != 0 { Bound::Connection } else { Bound::Lease };
    if head[0] & SESSION != 0 {
        let (taken, left) = rest.split_first_chunk::<SESSION_BYTES>()?;
        (bound, rest) = (Bound::Session(SessionNumber(*taken)), left);
    }
    Some(Grant {
        owner: Owner::from_slice(rest),
        token: word(2, U56),
        holds: u32::from(head[1]),
        mode: Mode::Exclusive,
        permits: 1,
        granted_ms: word(9, U48),
        end_ms: word(15, U48),
        max_end_ms,
        delay_ms,
        bound,
        client: Client { id: word(21, U48), slot: u32::from_le_bytes([head[27], head[28], head[29], head[30]]) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_out_as_it_was(
            owner in prop_oneof![proptest::collection::vec(any::<u8>(), 0..60), proptest::collection::vec(any::<u8>(), OWNER_MAX - 2..OWNER_MAX + 2)],
            (token, holds, granted_ms, end_ms) in (1u64..1 << 53, 1u32..300, 0u64..1 << 45, 0u64..1 << 50),
            (max_end_ms, delay_ms) in (prop_oneof![Just(0), 1u64..1 << 45], prop_oneof![Just(0), any::<u32>()]),
            bound in prop_oneof![Just(Bound::Lease), Just(Bound::Connection), (1u64..1 << 53).prop_map(|number| Bound::Session(SessionNumber::new(number)))],
            (id, slot, shared) in (1u64..1 << 48, any::<u32>(), any::<bool>()),
        ) {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let owner = Owner::from_slice(&owner);
            let client = Client { id, slot };
            let grant = Grant { owner, token, holds, mode, permits: 1, granted_ms, end_ms, max_end_ms, delay_ms, bound, client };
            let mut packed = Packed::default();
            if pack(&grant, &mut packed) {
                prop_assert!(!shared);
                prop_assert_eq!(unpack(packed.bytes()), Some(grant));
            } else {
                let named = if matches!(bound, Bound::Session(_)) { SESSION_BYTES } else { 0 };
                prop_assert!(shared || holds > 255 || end_ms >> 48 != 0 || grant.owner.len() + named > OWNER_MAX);
            }
        }

        #[test]
        fn no_bytes_are_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            unpack(&bytes);
        }
    }
}
