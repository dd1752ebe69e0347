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
    /// Whether it ends with its connection.
    pub session: bool,
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

/// Bytes of a packed grant before the owner.
const HEAD: usize = 31;
const MAX_END: u8 = 1;
const DELAY: u8 = 2;
const SESSION: u8 = 4;
const U48: u64 = (1 << 48) - 1;

/// A grant as bytes, where the lock has no other and nothing in it needs more room than most do: that of an exclusive lock with a few
/// holds.
pub fn pack(grant: &Grant, into: &mut SmallVec<[u8; 128]>) -> bool {
    let fits = grant.mode == Mode::Exclusive
        && grant.permits == 1
        && grant.holds <= u32::from(u8::MAX)
        && grant.token >> 56 == 0
        && grant.granted_ms.max(grant.end_ms).max(grant.max_end_ms).max(grant.client.id) <= U48
        && grant.owner.len() <= 1024;
    if !fits {
        return false;
    }
    let flag = |is, flag| if is { flag } else { 0 };
    let flags = flag(grant.max_end_ms != 0, MAX_END) | flag(grant.delay_ms != 0, DELAY) | flag(grant.session, SESSION);
    let mut head = [0; HEAD];
    (head[0], head[1]) = (flags, grant.holds as u8);
    head[2..9].copy_from_slice(&grant.token.to_le_bytes()[..7]);
    head[9..15].copy_from_slice(&grant.granted_ms.to_le_bytes()[..6]);
    head[15..21].copy_from_slice(&grant.end_ms.to_le_bytes()[..6]);
    head[21..27].copy_from_slice(&grant.client.id.to_le_bytes()[..6]);
    head[27..31].copy_from_slice(&grant.client.slot.to_le_bytes());
    into.clear();
    into.extend_from_slice(&head);
    if flags & MAX_END != 0 {
        into.extend_from_slice(&grant.max_end_ms.to_le_bytes()[..6]);
    }
    if flags & DELAY != 0 {
        into.extend_from_slice(&grant.delay_ms.to_le_bytes());
    }
    into.extend_from_slice(&grant.owner);
    true
}

/// What [`pack`] has packed; `None` for any other bytes that are too few.
pub fn unpack(bytes: &[u8]) -> Option<Grant> {
    let (head, mut rest) = bytes.split_at_checked(HEAD)?;
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut take = |flag: u8, len: usize| -> Option<u64> {
        if head[0] & flag == 0 {
            return Some(0);
        }
        let (taken, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(number(taken))
    };
    let (max_end_ms, delay_ms) = (take(MAX_END, 6)?, take(DELAY, 4)? as u32);
    Some(Grant {
        owner: Owner::from_slice(rest),
        token: number(&head[2..9]),
        holds: u32::from(head[1]),
        mode: Mode::Exclusive,
        permits: 1,
        granted_ms: number(&head[9..15]),
        end_ms: number(&head[15..21]),
        max_end_ms,
        delay_ms,
        session: head[0] & SESSION != 0,
        client: Client { id: number(&head[21..27]), slot: number(&head[27..31]) as u32 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_out_as_it_was(
            owner in proptest::collection::vec(any::<u8>(), 0..60),
            (token, holds, granted_ms, end_ms) in (1u64..1 << 53, 1u32..300, 0u64..1 << 45, 0u64..1 << 50),
            (max_end_ms, delay_ms, session) in (prop_oneof![Just(0), 1u64..1 << 45], prop_oneof![Just(0), any::<u32>()], any::<bool>()),
            (id, slot, shared) in (1u64..1 << 48, any::<u32>(), any::<bool>()),
        ) {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let owner = Owner::from_slice(&owner);
            let client = Client { id, slot };
            let grant = Grant { owner, token, holds, mode, permits: 1, granted_ms, end_ms, max_end_ms, delay_ms, session, client };
            let mut bytes = SmallVec::new();
            if pack(&grant, &mut bytes) {
                prop_assert!(!shared);
                prop_assert_eq!(unpack(&bytes), Some(grant));
            } else {
                prop_assert!(shared || holds > 255 || end_ms >> 48 != 0);
            }
        }

        #[test]
        fn no_bytes_are_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            unpack(&bytes);
        }
    }
}
