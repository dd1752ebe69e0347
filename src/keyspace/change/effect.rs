//! What a change does to the data: a closed list, from which an equal state can be made elsewhere.

use crate::lock::Lock;
use crate::lock::requests::Remembered;
use crate::lock::sessions::Session;
use crate::store::values::list::End;
use crate::store::values::stream::StreamId;
use crate::store::values::value::Value;

/// The effect of a change on the data, free of anything relative: applied in order to an equal state it gives an equal state.
/// Deadlines are unix times in milliseconds.
#[cfg_attr(not(any(test, feature = "internals")), expect(dead_code, reason = "the log that reads it is to come; tests read it"))]
#[derive(Debug)]
pub enum Effect<'a> {
    /// The key holds this string now.
    SetString {
        /// The string.
        value: &'a [u8],
        /// Its deadline.
        deadline: Option<i64>,
    },
    /// The string has these bytes from an offset on and is so long, with zeros where nothing was; with it the key may have come
    /// into being.
    SetRange {
        /// Where the bytes begin.
        offset: usize,
        /// The bytes.
        bytes: &'a [u8],
        /// Bytes of the whole string.
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
    /// The key's deadline is this now.
    Deadline(Option<i64>),
    /// A field of the hash holds this now, its deadline with it.
    HashSet {
        /// The field.
        field: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Its deadline.
        deadline: Option<i64>,
    },
    /// A field of the hash is gone, and with the last one the key.
    HashRemove {
        /// The field.
        field: &'a [u8],
    },
    /// Elements were put at an end of the list, one after the other; with the first one the key came into being.
    ListPush {
        /// Where.
        end: End,
        /// The elements.
        elements: &'a [&'a [u8]],
    },
    /// Elements were taken from an end of the list, and with the last one the key.
    ListPop {
        /// From where.
        end: End,
        /// How many.
        count: usize,
    },
    /// An element of the list is this now.
    ListSet {
        /// Its index.
        index: usize,
        /// The element.
        element: &'a [u8],
    },
    /// An element came into the list; those from its index on stand one further.
    ListInsert {
        /// Its index now.
        index: usize,
        /// The element.
        element: &'a [u8],
    },
    /// The first elements of the list, from an end, that are equal to this are gone, and with the last one the key.
    ListRemove {
        /// From where they are searched for.
        from: End,
        /// How many.
        count: usize,
        /// The element.
        element: &'a [u8],
    },
    /// A member of the sorted set has this score now.
    ZSetAdd {
        /// The member.
        member: &'a [u8],
        /// Its score.
        score: f64,
    },
    /// A member of the sorted set is gone, and with the last one the key.
    ZSetRemove {
        /// The member.
        member: &'a [u8],
    },
    /// The set has this member now.
    SetAdd {
        /// The member.
        member: &'a [u8],
    },
    /// A member of the set is gone, and with the last one the key.
    SetRemove {
        /// The member.
        member: &'a [u8],
    },
    /// An entry came to the end of the stream; with the first one the key may have come into being.
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
    /// All entries of the stream before this id are gone.
    StreamTrim {
        /// The id.
        below: StreamId,
    },
    /// The counters of the stream are these now.
    StreamSet {
        /// The largest id that was ever given out.
        last_id: StreamId,
        /// Entries that ever came in.
        entries_added: u64,
        /// The largest id that was deleted by itself.
        max_deleted_id: StreamId,
    },
    /// A group of the stream has read so far; if it was not there it is now.
    GroupSet {
        /// Its name.
        group: &'a [u8],
        /// The id of the last entry that was given to any consumer.
        last_id: StreamId,
        /// How many entries the stream had up to it, where that is known.
        entries_read: Option<u64>,
    },
    /// A group of the stream is gone.
    GroupRemove {
        /// Its name.
        group: &'a [u8],
    },
    /// A consumer is there, and was given something or came into being at this time. That it only asked is not told.
    ConsumerSet {
        /// Its group.
        group: &'a [u8],
        /// Its name.
        consumer: &'a [u8],
        /// When it last asked; unix milliseconds.
        seen_ms: i64,
        /// When it last got anything.
        active_ms: Option<i64>,
    },
    /// A consumer is gone, and with it what it had not acknowledged.
    ConsumerRemove {
        /// Its group.
        group: &'a [u8],
        /// Its name.
        consumer: &'a [u8],
    },
    /// An entry waits for a consumer to acknowledge it.
    PendingSet {
        /// The group.
        group: &'a [u8],
        /// The id of the entry.
        id: StreamId,
        /// The consumer.
        consumer: &'a [u8],
        /// When it was given last; unix milliseconds.
        delivered_ms: i64,
        /// How often it was given.
        count: i64,
    },
    /// An entry does not wait any more.
    PendingRemove {
        /// The group.
        group: &'a [u8],
        /// The id of the entry.
        id: StreamId,
    },
    /// The database is empty; the change has no key.
    Flush,
    /// This database and that one have changed places; the change has no key.
    Swap {
        /// The other one.
        with: u32,
    },
    /// A library of functions is there, in the place of one with its name. Libraries belong to no database, and the change has no
    /// key.
    LoadLibrary {
        /// Its source, in whose first line it is named.
        source: &'a [u8],
    },
    /// A library of functions is gone; the change has no key.
    DeleteLibrary {
        /// Its name.
        name: &'a [u8],
    },
    /// All libraries of functions are gone; the change has no key.
    FlushLibraries,
    /// The key is this lock now, whatever it was before. The times in it are monotonic: [`Change::now`] has the unix time that goes
    /// with them.
    SetLock {
        /// The lock.
        lock: &'a Lock,
    },
    /// This is remembered now of an owner's requests for the lock that is the key. The times in it are as in a lock.
    SetRequests {
        /// The owner.
        owner: &'a [u8],
        /// What is remembered.
        remembered: &'a Remembered,
    },
    /// Nothing is remembered any more of an owner's requests for the lock that is the key.
    ForgetRequests {
        /// The owner.
        owner: &'a [u8],
    },
    /// A named session of locks is this now; the change's key is its id, in no database. The times in it are as in a lock. Grants name
    /// it by its number.
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
    /// Nothing but the event: a second name for a change that was already reported.
    None,
}

impl Effect<'_> {
    /// How many changes it counts as in [`Changes::count`](crate::keyspace::change::Changes::count): elements of a list count one by one, what is beside the data not at all.
    #[inline(always)]
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Effect::ListPush { elements, .. } => elements.len() as u64,
            Effect::ListPop { count, .. } | Effect::ListRemove { count, .. } => *count as u64,
            // A consumer that comes into being counts; that it was given something does not. Trimming counts with what is added, and
            // XTRIM counts what it removes.
            Effect::ConsumerSet { active_ms, .. } => u64::from(active_ms.is_none()),
            Effect::None | Effect::StreamTrim { .. } => 0,
            _ => 1,
        }
    }

    /// Whether it changes no key: what is known of requests for locks, and sessions.
    pub fn is_beside_the_keys(&self) -> bool {
        matches!(
            self,
            Effect::SetRequests { .. } | Effect::ForgetRequests { .. } | Effect::SetSession { .. } | Effect::EndSession { .. }
        )
    }

    /// Whether it changes only how far groups have read a stream, or its counters: to Redis the value is the same as before, for those
    /// who watch its key and for those who have it cached.
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
