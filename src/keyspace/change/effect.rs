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
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Debug)]
pub enum Effect<'a> {
    /// The key holds this string now, with this deadline.
    SetString { value: &'a [u8], deadline: Option<i64> },
    /// The string has these bytes from an offset on, after zeros if it was shorter. The key may be new. Without bytes, an
    /// existing string is unchanged. `len`: bytes of the whole string: its previous length or the end of the bytes, whichever
    /// is larger.
    SetRange { offset: usize, bytes: &'a [u8], len: usize },
    /// The key holds this value now, with this deadline, whatever it held before.
    Store { value: &'a Value, deadline: Option<i64> },
    /// The key is gone.
    Delete,
    /// The key has this deadline now.
    Deadline(Option<i64>),
    /// A field of the hash has this value and this deadline now.
    HashSet { field: &'a [u8], value: &'a [u8], deadline: Option<i64> },
    /// A field of the hash was removed; with the last field, the key.
    HashRemove { field: &'a [u8] },
    /// Elements were pushed to one end of the list, one after the other. The first push creates the key.
    ListPush { end: End, elements: &'a [&'a [u8]] },
    /// A number of elements were popped from one end of the list; with the last one, the key.
    ListPop { end: End, count: usize },
    /// The element at this index of the list was replaced by this one.
    ListSet { index: usize, element: &'a [u8] },
    /// An element was inserted into the list beside the first one that equals the pivot, `after` it or before; later elements
    /// move by one. `index`: its new index.
    ListInsert { index: usize, element: &'a [u8], pivot: &'a [u8], after: bool },
    /// The first elements of the list, from an end, that equal this one were removed; with the last one, the key. `count`:
    /// how many.
    ListRemove { from: End, count: usize, element: &'a [u8] },
    /// A member of the sorted set was added or has a new score.
    ZSetAdd { member: &'a [u8], score: f64 },
    /// A member of the sorted set was removed; with the last one, the key.
    ZSetRemove { member: &'a [u8] },
    /// A member was added to the set.
    SetAdd { member: &'a [u8] },
    /// A member of the set was removed; with the last one, the key.
    SetRemove { member: &'a [u8] },
    /// An entry with this id was appended to the stream. The key may be new. `pairs`: names and values of its fields, one
    /// after the other.
    StreamAdd { id: StreamId, pairs: &'a [&'a [u8]] },
    /// The entry of the stream with this id was deleted. The key stays even without entries.
    StreamRemove { id: StreamId },
    /// All entries of the stream before this id were removed; `None` if no larger id than those of the removed entries is
    /// possible.
    StreamTrim { below: Option<StreamId> },
    /// The counters of the stream were set: the largest id that was ever used, the number of entries ever added, and the
    /// largest id that was ever deleted individually.
    StreamSet { last_id: StreamId, entries_added: u64, max_deleted_id: StreamId },
    /// A group of the stream was created or has read up to an entry. `last_id`: the id of the last entry delivered to any
    /// consumer. `entries_read`: number of entries of the stream up to that one, where it is known.
    GroupSet { group: &'a [u8], last_id: StreamId, entries_read: Option<u64>, created: bool },
    /// A group of the stream was removed.
    GroupRemove { group: &'a [u8] },
    /// A consumer was created or got an entry at this time. A read that gets nothing is not reported. `seen_ms` and
    /// `active_ms`: the times of its last read and of its last delivery, in unix milliseconds.
    ConsumerSet { group: &'a [u8], consumer: &'a [u8], seen_ms: i64, active_ms: Option<i64> },
    /// A consumer was removed, together with its pending entries.
    ConsumerRemove { group: &'a [u8], consumer: &'a [u8] },
    /// An entry is pending: a consumer has to acknowledge it. `delivered_ms`: the time of its last delivery, in unix
    /// milliseconds. `count`: number of deliveries.
    PendingSet { group: &'a [u8], id: StreamId, consumer: &'a [u8], delivered_ms: i64, count: i64 },
    /// An entry is not pending any more.
    PendingRemove { group: &'a [u8], id: StreamId },
    /// The database was emptied; the change has no key.
    Flush,
    /// This database and the one `with` this number were swapped; the change has no key.
    Swap { with: u32 },
    /// A library of functions was loaded; it replaces one of the same name, which is in the first line of its source.
    /// Libraries belong to no database, and the change has no key.
    LoadLibrary { source: &'a [u8] },
    /// The library of functions with this name was deleted; the change has no key.
    DeleteLibrary { name: &'a [u8] },
    /// All libraries of functions were deleted; the change has no key.
    FlushLibraries,
    /// The key is this lock now, whatever it was before. Its times are monotonic: [`Change::now`] has the corresponding unix
    /// time.
    SetLock { lock: &'a Lock },
    /// The remembered requests of an owner for the lock that is the key. The times are monotonic, as in a lock.
    SetRequests { owner: &'a [u8], remembered: &'a Remembered },
    /// The remembered requests of an owner for the lock that is the key were forgotten.
    ForgetRequests { owner: &'a [u8] },
    /// A named session of locks was created or changed; the change's key is its id, in no database. The times are monotonic, as
    /// in a lock. Grants refer to it by its number.
    SetSession { number: u64, session: &'a Session },
    /// A named session of locks has ended; the change's key is its id, in no database.
    EndSession { number: u64 },
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
