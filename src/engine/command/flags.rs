//! What kind of command a row is: its flags, group and ACL categories, and the further facts that the engine needs about it.
//!
//! Code that the engine's state is made of imports from here, not from `command`, because a row's handler names the whole engine.

bitflags::bitflags! {
    /// Flags of a command, with the names of `COMMAND INFO`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// May change the keyspace.
        const WRITE = 1 << 0;
        /// Reads the keyspace.
        const READONLY = 1 << 1;
        /// Refused when memory is over `maxmemory`.
        const DENYOOM = 1 << 2;
        /// For administrators.
        const ADMIN = 1 << 3;
        /// Publish and subscribe.
        const PUBSUB = 1 << 4;
        /// Not allowed from a script.
        const NOSCRIPT = 1 << 5;
        /// May block.
        const BLOCKING = 1 << 6;
        /// Allowed while loading.
        const LOADING = 1 << 7;
        /// Allowed on a stale replica.
        const STALE = 1 << 8;
        /// Not shown to MONITOR.
        const SKIP_MONITOR = 1 << 9;
        /// Not in the slow log.
        const SKIP_SLOWLOG = 1 << 10;
        /// Constant or logarithmic time.
        const FAST = 1 << 11;
        /// Allowed before authentication.
        const NO_AUTH = 1 << 12;
        /// Its key positions depend on its arguments.
        const MOVABLEKEYS = 1 << 13;
        /// Not allowed inside MULTI.
        const NO_MULTI = 1 << 14;
        /// Allowed while a long script runs.
        const ALLOW_BUSY = 1 << 15;
        /// Not propagated itself; its effects are.
        const MAY_REPLICATE = 1 << 16;
        /// Not allowed while a data set is loaded asynchronously.
        const NO_ASYNC_LOADING = 1 << 17;
        /// Is a command with keys even if a request has none.
        const NO_MANDATORY_KEYS = 1 << 18;
        /// For tests only; `CLIENT PAUSE` does not hold it back.
        const TEST_MODE = 1 << 19;
    }
}

bitflags::bitflags! {
    /// ACL categories. A row names only those that do not follow from its group and flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Categories: u32 {
        /// `@keyspace`
        const KEYSPACE = 1 << 0;
        /// `@read`
        const READ = 1 << 1;
        /// `@write`
        const WRITE = 1 << 2;
        /// `@set`
        const SET = 1 << 3;
        /// `@sortedset`
        const SORTEDSET = 1 << 4;
        /// `@list`
        const LIST = 1 << 5;
        /// `@hash`
        const HASH = 1 << 6;
        /// `@string`
        const STRING = 1 << 7;
        /// `@bitmap`
        const BITMAP = 1 << 8;
        /// `@hyperloglog`
        const HYPERLOGLOG = 1 << 9;
        /// `@geo`
        const GEO = 1 << 10;
        /// `@stream`
        const STREAM = 1 << 11;
        /// `@pubsub`
        const PUBSUB = 1 << 12;
        /// `@admin`
        const ADMIN = 1 << 13;
        /// `@fast`
        const FAST = 1 << 14;
        /// `@slow`
        const SLOW = 1 << 15;
        /// `@blocking`
        const BLOCKING = 1 << 16;
        /// `@dangerous`
        const DANGEROUS = 1 << 17;
        /// `@connection`
        const CONNECTION = 1 << 18;
        /// `@transaction`
        const TRANSACTION = 1 << 19;
        /// `@scripting`
        const SCRIPTING = 1 << 20;
        /// `@lock`, of Portcullis.
        const LOCK = 1 << 21;
        /// `@lockadmin`, of Portcullis: ends locks of others. A command of it is not in `@lock`.
        const LOCKADMIN = 1 << 22;
    }
}

bitflags::bitflags! {
    /// Facts that the engine needs about a command, besides those that `COMMAND INFO` shows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Traits: u16 {
        /// Its cost is bounded by its arguments and its reply, although it is not [`Flags::FAST`]: it defers freeing memory.
        /// Scripts count their own work.
        const BOUNDED_COST = 1 << 0;
        /// Runs immediately, even between `MULTI` and `EXEC`.
        const AT_ONCE = 1 << 1;
        /// Allowed for a RESP2 client with subscriptions.
        const WHILE_SUBSCRIBED = 1 << 2;
        /// Runs the queue of a transaction (`EXEC`).
        const EXEC = 1 << 3;
        /// Scripts may call it after `DEBUG SET-DISABLE-DENY-SCRIPTS`.
        const DEBUG = 1 << 4;
        /// `CLIENT CACHING` stays in effect for the next request.
        const KEEPS_CACHING = 1 << 5;
        /// Refused, as writes are, while the disk takes no writes. Monitoring that sends it notices the disk. As in Redis.
        const TELLS_OF_DISK = 1 << 6;
        /// Its reply shows no key, although its flags or its group do not say so: it does not wait for the disk.
        const SHOWS_NO_KEY = 1 << 7;
        /// Its reply counts keys or locks, although its flags or its group do not say so. It does not wait for the disk, but a
        /// leader must be certain that it leads.
        const COUNTS_KEYS = 1 << 9;
        /// As `COUNTS_KEYS`, in some of the sections that its arguments name (`INFO`).
        const COUNTS_KEYS_IN_SECTIONS = 1 << 10;
        /// Waits for replicas. A follower refuses it with an error of its own.
        const WAITS_FOR_REPLICAS = 1 << 11;
        /// Ends subscriptions, which is about the connection alone.
        const ENDS_SUBSCRIPTIONS = 1 << 12;
        /// Subscribes to shard channels, which belong to the leader. While the leader of a cluster is dead, it waits for the next one.
        const AWAITS_LEADER = 1 << 13;
        /// Asks for the nodes of a cluster. While their leader is dead, it waits a moment for the next one.
        const ASKS_FOR_NODES = 1 << 14;
        /// Exists only on a replicated server. Any other replies as to an unknown command.
        const REPLICATED = 1 << 8;
    }
}

/// The type of a command's reply, for commands in a script's plan: see `script::plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// An aggregate, or any type.
    #[default]
    Any,
    /// An integer, unless it fails.
    Integer,
    /// An integer, a string, a status or null.
    Scalar,
    /// As [`Replies::Scalar`], unless the second argument is a count.
    ScalarWithoutCount,
}

/// The script or function whose flags apply to the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runs {
    /// Nothing.
    #[default]
    Nothing,
    /// The script in its first argument.
    Source,
    /// The script whose digest is its first argument.
    Digest,
    /// The function whose name is its first argument.
    Function,
}

named! {
    /// The command's group in `COMMAND DOCS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub enum Group {
        Generic = "generic",
        String = "string",
        Hash = "hash",
        List = "list",
        Set = "set",
        SortedSet = "sorted-set",
        Stream = "stream",
        Bitmap = "bitmap",
        Hyperloglog = "hyperloglog",
        Geo = "geo",
        PubSub = "pubsub",
        Transactions = "transactions",
        Connection = "connection",
        Server = "server",
        Scripting = "scripting",
        Cluster = "cluster",
        Lock = "lock",
    }
}

/// What a write command may do to a held lock, a queue, a semaphore, a latch or a guard. Only their own commands change them, and
/// only an explicit deletion ends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Natives {
    /// Nothing. The engine refuses a request with WRONGTYPE before it runs, if it would change, replace, move or remove such a
    /// key; its key specifications say which keys those are. For commands of one value type, only the keys that they overwrite
    /// are checked, because they check the type of all others themselves.
    #[default]
    Refused,
    /// Nothing. The handler checks the type of each key before it changes anything.
    Checked,
    /// Deletes them: the administrator's way to end a hold.
    Deleted,
    /// A native command, which changes them.
    Own,
}
