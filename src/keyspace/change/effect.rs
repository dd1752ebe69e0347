//! The effect of a change on the data: a closed list from which a copy of the state can be built elsewhere.

use crate::lock::Lock;
use crate::lock::requests::Remembered;
use crate::lock::sessions::Session;
use crate::store::values::list::End;
use crate::store::values::stream::StreamId;
use crate::store::values::value::Value;

/// The effect of a change on the data. It contains nothing relative: the same effects, applied in order to equal states, give
/// equal states. Deadlines are unix times in milliseconds.
#[cfg_attr(not(any(test, feature = "internals")), expect(dead_code, reason = "followers in tests read all of it"))]
#[derive(Debug)]
pub enum Effect<'a> {
    /// The key holds this string now.
    SetString {
        /// The string.
        value: &'a [u8],
        /// Its deadline.
        deadline: Option<i64>,
    },
    /// The string has these bytes from an offset on, after zeros if it was shorter. The key may be new. Without bytes, an existing
    /// string is unchanged.
    SetRange {
        /// Where the bytes begin.
        offset: usize,
        /// The bytes.
        bytes: &'a [u8],
        /// Bytes of the whole string: its previous length or the end of the bytes, whichever is larger.
        len: usize,
    },
    /// The key holds this value now, whatever it held before.
    Store {
        /// The value.
        value: &'a Value,
        /// Its deadline.
        deadline: Option<i64>,
    },
    /// The key is gone.
    Delete,
    /// The key has this deadline now.
    Deadline(Option<i64>),
    /// A field of the hash has this value and this deadline now.
    HashSet {
        /// The field.
        field: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Its deadline.
        deadline: Option<i64>,
    },
    /// A field of the hash was removed; with the last field, the key.
    HashRemove {
        /// The field.
        field: &'a [u8],
    },
    /// Elements were pushed to one end of the list, one after the other. The first push creates the key.
    ListPush {
        /// The end.
        end: End,
        /// The elements.
        elements: &'a [&'a [u8]],
    },
    /// Elements were popped from one end of the list; with the last one, the key.
    ListPop {
        /// The end.
        end: End,
        /// Number of elements.
        count: usize,
    },
    /// An element of the list was replaced.
    ListSet {
        /// Its index.
        index: usize,
        /// The new element.
        element: &'a [u8],
    },
    /// An element was inserted into the list beside the first one that equals the pivot; later elements move by one.
    ListInsert {
        /// Its new index.
        index: usize,
        /// The element.
        element: &'a [u8],
        /// The pivot.
        pivot: &'a [u8],
        /// Whether it was inserted behind the pivot.
        after: bool,
    },
    /// The first elements of the list, from an end, that equal this one were removed; with the last one, the key.
    ListRemove {
        /// The end at which the search begins.
        from: End,
        /// Number of elements.
        count: usize,
        /// The element.
        element: &'a [u8],
    },
    /// A member of the sorted set was added or has a new score.
    ZSetAdd {
        /// The member.
        member: &'a [u8],
        /// Its score.
        score: f64,
    },
    /// A member of the sorted set was removed; with the last one, the key.
    ZSetRemove {
        /// The member.
        member: &'a [u8],
    },
    /// A member was added to the set.
    SetAdd {
        /// The member.
        member: &'a [u8],
    },
    /// A member of the set was removed; with the last one, the key.
    SetRemove {
        /// The member.
        member: &'a [u8],
    },
    /// An entry was appended to the stream. The key may be new.
    StreamAdd {
        /// Its id.
        id: StreamId,
        /// Names and values of its fields, one after the other.
        pairs: &'a [&'a [u8]],
    },
    /// An entry of the stream was deleted. The key stays even without entries.
    StreamRemove {
        /// Its id.
        id: StreamId,
    },
    /// All entries of the stream before this id were removed.
    StreamTrim {
        /// The id; `None` if no larger id than those of the removed entries is possible.
        below: Option<StreamId>,
    },
    /// The counters of the stream were set.
    StreamSet {
        /// The largest id that was ever used.
        last_id: StreamId,
        /// Number of entries ever added.
        entries_added: u64,
        /// The largest id that was ever deleted individually.
        max_deleted_id: StreamId,
    },
    /// A group of the stream was created or has read up to an entry.
    GroupSet {
        /// Its name.
        group: &'a [u8],
        /// The id of the last entry delivered to any consumer.
        last_id: StreamId,
        /// Number of entries of the stream up to that one, where it is known.
        entries_read: Option<u64>,
        /// Whether the group was created.
        created: bool,
    },
    /// A group of the stream was removed.
    GroupRemove {
        /// Its name.
        group: &'a [u8],
    },
    /// A consumer was created or got an entry at this time. A read that gets nothing is not reported.
    ConsumerSet {
        /// Its group.
        group: &'a [u8],
        /// Its name.
        consumer: &'a [u8],
        /// The time of its last read; unix milliseconds.
        seen_ms: i64,
        /// The time of its last delivery; unix milliseconds.
        active_ms: Option<i64>,
    },
    /// A consumer was removed, together with its pending entries.
    ConsumerRemove {
        /// Its group.
        group: &'a [u8],
        /// Its name.
        consumer: &'a [u8],
    },
    /// An entry is pending: a consumer has to acknowledge it.
    PendingSet {
        /// The group.
        group: &'a [u8],
        /// The id of the entry.
        id: StreamId,
        /// The consumer.
        consumer: &'a [u8],
        /// The time of its last delivery; unix milliseconds.
        delivered_ms: i64,
        /// Number of deliveries.
        count: i64,
    },
    /// An entry is not pending any more.
    PendingRemove {
        /// The group.
        group: &'a [u8],
        /// The id of the entry.
        id: StreamId,
    },
    /// The database was emptied; the change has no key.
    Flush,
    /// This database and another one were swapped; the change has no key.
    Swap {
        /// The other database.
        with: u32,
    },
    /// A library of functions was loaded; it replaces one of the same name. Libraries belong to no database, and the change has
    /// no key.
    LoadLibrary {
        /// Its source; the first line has its name.
        source: &'a [u8],
    },
    /// A library of functions was deleted; the change has no key.
    DeleteLibrary {
        /// Its name.
        name: &'a [u8],
    },
    /// All libraries of functions were deleted; the change has no key.
    FlushLibraries,
    /// The key is this lock now, whatever it was before. Its times are monotonic: [`Change::now`] has the corresponding unix
    /// time.
    SetLock {
        /// The lock.
        lock: &'a Lock,
    },
    /// The remembered requests of an owner for the lock that is the key. The times are monotonic, as in a lock.
    SetRequests {
        /// The owner.
        owner: &'a [u8],
        /// The remembered requests.
        remembered: &'a Remembered,
    },
    /// The remembered requests of an owner for the lock that is the key were forgotten.
    ForgetRequests {
        /// The owner.
        owner: &'a [u8],
    },
    /// A named session of locks was created or changed; the change's key is its id, in no database. The times are monotonic, as
    /// in a lock. Grants refer to it by its number.
    SetSession {
        /// Its number.
        number: u64,
        /// The session.
        session: &'a Session,
    },
    /// A named session of locks has ended; the change's key is its id, in no database.
    EndSession {
        /// Its number.
        number: u64,
    },
    /// Only the event: a second event for a change that was already reported.
    None,
}

impl Effect<'_> {
    /// Its weight in [`Changes::count`](crate::keyspace::change::Changes::count): each element of a list counts; effects besides
    /// the data do not.
    #[inline(always)]
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Effect::ListPush { elements, .. } => elements.len() as u64,
            Effect::ListPop { count, .. } | Effect::ListRemove { count, .. } => *count as u64,
            // The creation of a consumer counts; a delivery to it does not. Trimming counts with the addition, and XTRIM counts
            // the entries it removes.
            Effect::ConsumerSet { active_ms, .. } => u64::from(active_ms.is_none()),
            Effect::None | Effect::StreamTrim { .. } => 0,
            _ => 1,
        }
    }

    /// Whether it changes no key: remembered requests and named sessions of locks.
    pub fn is_beside_the_keys(&self) -> bool {
        matches!(
            self,
            Effect::SetRequests { .. } | Effect::ForgetRequests { .. } | Effect::SetSession { .. } | Effect::EndSession { .. }
        )
    }

    /// Whether it changes only how far groups have read a stream, or its counters: to Redis the value is unchanged, for WATCH and
    /// for client-side caches.
    pub(crate) fn is_beside_the_value(&self) -> bool {
        matches!(
            self,
            Effect::StreamSet { .. }
                | Effect::GroupSet { .. }
                | Effect::GroupRemove { .. }
                | Effect::ConsumerSet { .. }
                | Effect::ConsumerRemove { .. }
                | Effect::PendingSet { .. }
                | Effect::PendingRemove { .. }
        )
    }
}
