//! What a server says, read from its replies.

use std::collections::HashMap;

use crate::client::Value;
use crate::top::names::Name;
use crate::top::read;

/// Makes structs that are read from a reply: `of()` calls what stands behind each field with the reply and the arguments there.
macro_rules! facts {
    ($($(#[$meta:meta])* pub struct $of:ident {
        $($(#[$doc:meta])* pub $field:ident: $type:ty = $($read:ident)::+($($argument:expr),*),)*
    })*) => {$(
        $(#[$meta])*
        pub struct $of {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $of {
            fn of(reply: &Value) -> $of {
                $of { $($field: $($read)::+(reply $(, $argument)*),)* }
            }
        }
    )*};
}

/// Why there is no reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The server does not have the command.
    Missing,
    /// The server refuses it, in these words.
    Refused(String),
}

/// A reply, or why there is none.
pub type Answer = Result<Value, Absence>;

/// The replies of one look at a server.
#[derive(Clone, Debug)]
pub struct Replies {
    /// The server's address and database.
    pub at: String,
    /// `INFO`.
    pub info: Answer,
    /// `ACL WHOAMI`.
    pub user: Answer,
    /// `LOCK.LIST`.
    pub list: Answer,
    /// The same with the locks of the wanted owner only, if one is wanted.
    pub owned: Answer,
    /// `LOCK.RECENT`.
    pub recent: Answer,
    /// The database.
    pub db: u32,
    /// `LOCK.GRAPH`.
    pub graph: Answer,
    /// `LOCK.STATS`.
    pub stats: Answer,
    /// Whether the server has `LOCK.BREAK`.
    pub can_break: bool,
    /// The name that was asked for, with `LOCK.INFO` and `LOCK.WHY`.
    pub detail: Option<(Name, Answer, Answer)>,
}

/// The server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Address and database.
    pub at: String,
    /// `portcullis`, `valkey` or `redis`.
    pub product: &'static str,
    /// Version of that product; empty if the server does not say.
    pub version: String,
    /// Process id.
    pub pid: Option<u64>,
    /// Seconds since it started.
    pub uptime_s: Option<u64>,
    /// `master` or `slave`.
    pub role: Option<String>,
    /// Port.
    pub port: Option<u64>,
    /// The user that asks.
    pub user: Name,
    /// Number of connected clients.
    pub clients: Option<u64>,
    /// Number of clients that wait in any blocking command.
    pub blocked: Option<u64>,
    /// Commands a second.
    pub ops: Option<u64>,
    /// Memory in use, with its unit.
    pub memory: Option<String>,
    /// Number of keys in all databases.
    pub keys: Option<u64>,
}

facts! {
    /// An owner that holds a lock.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Holder {
        /// The owner.
        pub owner: Name = read::name("owner"),
        /// The fencing token.
        pub token: u64 = read::number_or("token", 0),
        /// `exclusive` or `shared`.
        pub mode: Name = read::name("mode"),
        /// Number of permits, for a semaphore.
        pub permits: Option<u64> = read::number("permits"),
        /// How many times the owner holds it.
        pub holds: u64 = read::number_or("holds", 1),
        /// Milliseconds left of its lease.
        pub lease_ms: u64 = read::number_or("lease", 0),
        /// Milliseconds since it was granted.
        pub held_ms: u64 = read::number_or("held", 0),
        /// Number of renewals, if the server says.
        pub renewed: Option<u64> = read::number("renewed"),
        /// Whether it ends with a connection or a session.
        pub session: bool = read::is("session"),
        /// Id of its connection.
        pub client: u64 = read::number_or("client", 0),
        /// Name of its connection.
        pub client_name: Name = read::name("client-name"),
        /// Address of its connection.
        pub addr: Name = read::name("addr"),
        /// The user that acquired it.
        pub user: Name = read::name("user"),
        /// Milliseconds since its connection ended, if the server knows that it ended.
        pub gone_ms: Option<u64> = read::number("gone"),
    }

    /// An owner that waits.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Waiter {
        /// The owner.
        pub owner: Name = read::name("owner"),
        /// `exclusive` or `shared`.
        pub mode: Name = read::name("mode"),
        /// Milliseconds that it has waited.
        pub waited_ms: u64 = read::number_or("waited", 0),
        /// Milliseconds until it gives up; `None` if it waits without limit.
        pub left_ms: Option<u64> = read::number("left"),
        /// Id of its connection.
        pub client: u64 = read::number_or("client", 0),
        /// Name of its connection.
        pub client_name: Name = read::name("client-name"),
        /// Address of its connection.
        pub addr: Name = read::name("addr"),
    }

    /// How a grant ended, or another event of a lock.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Event {
        /// What happened, as `LOCK.WHY` names it.
        pub event: Name = read::name("event"),
        /// The owner.
        pub owner: Name = read::name("owner"),
        /// The owner's token, if it has one.
        pub token: Option<u64> = read::number("token"),
        /// Milliseconds ago.
        pub ago_ms: u64 = read::number_or("ago", 0),
        /// Milliseconds that a granted owner had waited.
        pub waited_ms: Option<u64> = read::number("waited"),
        /// Who broke it, escaped, such as `ops, shell at 10.0.0.1:999`. It is `client 7` if no more is known, and empty if nobody did.
        pub by: String = breaker(),
        /// Why it was broken.
        pub reason: Name = read::name("reason"),
    }

    /// The client that wrote a plain key.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Writer {
        /// Name of its connection.
        pub name: Name = read::name("client-name"),
        /// Address of its connection.
        pub addr: Name = read::name("addr"),
        /// Id of its connection.
        pub client: u64 = read::number_or("client", 0),
        /// For how many milliseconds its connection has been gone; `None` while it is connected, and where nothing is known of it.
        pub gone_ms: Option<u64> = read::number("gone"),
    }
}

/// A lock, or anything else that clients wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// Its name.
    pub name: Name,
    /// `lock`, `semaphore`, `latch`, `string`, ….
    pub kind: Name,
    /// `exclusive`, `shared`, `semaphore`, or `free`.
    pub mode: Name,
    /// Number of permits of a semaphore.
    pub limit: Option<u64>,
    /// The token of the last grant.
    pub fence: Option<u64>,
    /// Milliseconds until it can be granted again after its last holder lost it.
    pub held_back_ms: Option<u64>,
    /// Its holders.
    pub holders: Vec<Holder>,
    /// Number of its holders, of whom the server may show only some.
    pub holding: u64,
    /// Its waiters, in order.
    pub waiters: Vec<Waiter>,
    /// Number of its waiters.
    pub waiting: u64,
    /// The longest of the present waits, in milliseconds.
    pub oldest_ms: u64,
    /// Number of grants, of waits, and of leases that ended.
    pub counts: Option<(u64, u64, u64)>,
    /// How the last grant ended.
    pub last_end: Option<Event>,
    /// The count of a latch.
    pub count: Option<u64>,
    /// The highest token that a guard has seen.
    pub token: Option<u64>,
    /// The first fields and values of a plain hash, as locks of Redis clients have it.
    pub fields: Vec<(Name, Name)>,
    /// The first bytes of a plain string.
    pub value: Option<Name>,
    /// Seconds since a plain key was used.
    pub idle_s: Option<u64>,
    /// Milliseconds until a plain key expires; -1 if it does not.
    pub ttl_ms: Option<i64>,
    /// Who wrote a plain key.
    pub writer: Option<Writer>,
}

facts! {
    /// A lock in the tree of who waits for whom.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Node {
        /// 0 for a root.
        pub depth: u64 = read::number_or("depth", 0),
        /// The lock's name.
        pub name: Name = read::name("name"),
        /// The owner that holds this lock and waits for the one above.
        pub via: Option<Name> = read::name_if_any("via"),
        /// Number of waiters of this lock.
        pub waiters: u64 = read::number_or("waiters", 0),
        /// The longest of its present waits, in milliseconds.
        pub oldest_ms: u64 = read::number_or("oldest-wait", 0),
        /// Number of waiters here and below.
        pub blocked: u64 = blocked(),
        /// Its holders.
        pub holders: Vec<Holder> = holders(),
        /// Whether what is below is left out.
        pub cut: bool = read::is("cut"),
        /// A lock of another database that a holder waits for.
        pub elsewhere: Option<Elsewhere> = elsewhere(),
        /// Whether the server has not followed all waiters: there may be more locks, and more waiters.
        pub is_partial: bool = read::is("partial"),
    }
}

/// A lock of another database, or one that the user may not see, and the owner that waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// The database and the lock's name, if the user may see them.
    pub lock: Option<(u64, Name)>,
    /// The owner.
    pub owner: Name,
}

impl Elsewhere {
    /// The lock in words. `shown` is how a name is shown.
    pub fn in_words(&self, shown: impl Fn(&Name) -> String) -> String {
        match &self.lock {
            Some((db, name)) => format!("{} in database {db}", shown(name)),
            None => "a lock that you may not see".to_owned(),
        }
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The server.
    pub server: Server,
    /// The locks, as the server listed them.
    pub locks: Result<Vec<Lock>, Absence>,
    /// The tree.
    pub graph: Result<Vec<Node>, Absence>,
    /// The totals, by their names in `LOCK.STATS`.
    pub stats: Result<HashMap<String, u64>, Absence>,
    /// The locks of the wanted owner.
    pub owned: Vec<Lock>,
    /// Grants that were broken lately in this database, with the names of their locks, the last first.
    pub broken: Vec<(Name, Event)>,
    /// Whether the server has `LOCK.BREAK`.
    pub can_break: bool,
    /// One lock in detail.
    pub detail: Option<Detail>,
}

/// One lock in detail.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Its name.
    pub name: Name,
    /// `None` if there is no such lock.
    pub lock: Result<Option<Lock>, Absence>,
    /// Its last events, the oldest first.
    pub events: Result<Vec<Event>, Absence>,
}

impl Facts {
    /// Reads the replies of a look.
    pub fn of(replies: &Replies) -> Facts {
        let all =
            |answer: &Answer| answer.as_ref().map_err(Clone::clone).map(|value| value.as_array().unwrap_or_default().to_vec());
        let locks = |answer: &Answer| all(answer).map(|entries| entries.iter().map(Lock::of).collect::<Vec<_>>());
        let listed = locks(&replies.list);
        Facts {
            broken: broken(replies, listed.as_deref().unwrap_or_default()),
            owned: locks(&replies.owned).unwrap_or_default(),
            server: Server::of(replies),
            locks: listed,
            graph: all(&replies.graph).map(|nodes| nodes.iter().map(Node::of).collect()),
            stats: replies.stats.as_ref().map_err(Clone::clone).map(stats),
            can_break: replies.can_break,
            detail: replies.detail.as_ref().map(|(name, info, why)| Detail {
                name: name.clone(),
                lock: info
                    .as_ref()
                    .map_err(Clone::clone)
                    .map(|reply| (!reply.is_null()).then(|| Lock { name: name.clone(), ..Lock::of(reply) })),
                events: all(why).map(|events| events.iter().map(Event::of).collect()),
            }),
        }
    }

    /// The locks that an owner holds or waits for, and those where a part of an owner, or of the name or address of a client, is `who`.
    pub fn locks_of(&self, who: &Name) -> Vec<Lock> {
        let listed = self.locks.as_deref().unwrap_or_default();
        // The server may know that the owner waits although it does not show so many waiters.
        let is_owned = |lock: &Lock| self.owned.iter().any(|owned| owned.name == lock.name);
        let mut found: Vec<Lock> = listed.iter().filter(|lock| lock.concerns(who) || is_owned(lock)).cloned().collect();
        found.extend(self.owned.iter().filter(|lock| listed.iter().all(|other| other.name != lock.name)).cloned());
        found
    }

    /// The lock of this name, if it is listed.
    pub fn lock(&self, name: &Name) -> Option<&Lock> {
        self.locks.as_ref().ok()?.iter().find(|lock| lock.name == *name)
    }

    /// A total of `LOCK.STATS`.
    pub fn stat(&self, name: &str) -> Option<u64> {
        self.stats.as_ref().ok()?.get(name).copied()
    }
}

/// Grants that were broken. `LOCK.RECENT` knows who did it; a list of locks knows only the last end of each.
fn broken(replies: &Replies, locks: &[Lock]) -> Vec<(Name, Event)> {
    let all = match &replies.recent {
        Ok(recent) => {
            let events = recent.as_array().unwrap_or_default().iter();
            let here = events.filter(|event| read::number(event, "db").is_none_or(|db| db == u64::from(replies.db)));
            here.map(|event| (read::name(event, "name"), Event::of(event))).collect::<Vec<_>>()
        }
        Err(_) => locks.iter().filter_map(|lock| Some((lock.name.clone(), lock.last_end.clone()?))).collect(),
    };
    all.into_iter().filter(|(_, event)| event.is_break()).collect()
}

/// Who broke a grant, if anybody did. The user that everybody is says nothing.
fn breaker(reply: &Value) -> String {
    let text = |field: &str| read::name_if_any(reply, field).map(|name| name.to_string());
    let joined = |parts: [Option<String>; 2], by: &str| parts.into_iter().flatten().collect::<Vec<_>>().join(by);
    let client = joined([text("by-name"), text("by-addr")], " at ");
    let user = text("by-user").filter(|user| user != "default");
    let known = joined([user, Some(client).filter(|client| !client.is_empty())], ", ");
    match reply.field("by").and_then(Value::as_integer) {
        Some(client) if known.is_empty() => format!("client {client}"),
        _ => known,
    }
}

fn stats(reply: &Value) -> HashMap<String, u64> {
    let pairs: Vec<(&Value, &Value)> = match reply {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| (field, value)).collect(),
        _ => reply.as_array().unwrap_or_default().chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
    };
    let number = |value: &Value| value.as_integer().and_then(|number| u64::try_from(number).ok());
    pairs.into_iter().filter_map(|(field, value)| Some((field.as_str()?.to_owned(), number(value)?))).collect()
}

impl Server {
    fn of(replies: &Replies) -> Server {
        let text = replies.info.as_ref().ok().and_then(Value::as_str).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        let lines: HashMap<&str, &str> = pairs.clone().collect();
        let word = |name: &str| lines.get(name).map(|word| (*word).to_owned());
        let number = |name: &str| lines.get(name).and_then(|word| word.parse().ok());
        let products = [("portcullis", "portcullis_version"), ("valkey", "valkey_version"), ("redis", "redis_version")];
        let product = products.into_iter().find_map(|(product, field)| Some((product, word(field)?)));
        let (product, version) = product.unwrap_or(("server", String::new()));
        let keys_of = |line: &str| line.strip_prefix("keys=")?.split(',').next()?.parse::<u64>().ok();
        let databases = pairs.filter(|(name, _)| name.strip_prefix("db").is_some_and(|db| db.parse::<u32>().is_ok()));
        Server {
            at: replies.at.clone(),
            product,
            version,
            pid: number("process_id"),
            uptime_s: number("uptime_in_seconds"),
            role: word("role"),
            port: number("tcp_port"),
            user: Name(replies.user.as_ref().ok().and_then(Value::as_bytes).unwrap_or_default().to_vec()),
            clients: number("connected_clients"),
            blocked: number("blocked_clients"),
            ops: number("instantaneous_ops_per_sec"),
            memory: word("used_memory_human"),
            keys: (!text.is_empty()).then(|| databases.filter_map(|(_, line)| keys_of(line)).sum()),
        }
    }

    /// Product and version.
    pub fn title(&self) -> String {
        format!("{} {}", self.product, self.version).trim_end().to_owned()
    }
}

/// The holder that most likely is the problem: one whose connection is gone, otherwise the one that holds for the longest time.
pub fn main_holder(holders: &[Holder]) -> Option<&Holder> {
    holders.iter().max_by_key(|holder| (holder.gone_ms, holder.held_ms))
}

impl Event {
    /// Whether it is the end of a grant that was broken.
    pub fn is_break(&self) -> bool {
        self.event.0 == b"broken"
    }
}

impl Lock {
    /// Reads an entry of `LOCK.LIST`, or the reply to `LOCK.INFO`.
    pub fn of(reply: &Value) -> Lock {
        let waiters: Vec<Waiter> = read::maps(reply, "waiters").iter().map(Waiter::of).collect();
        let holders = holders(reply);
        let oldest = || waiters.iter().map(|waiter| waiter.waited_ms).max().unwrap_or(0);
        let limit = read::number(reply, "limit");
        let counts = ["granted", "contended", "expired"].map(|field| read::number(reply, field));
        Lock {
            name: read::name(reply, "name"),
            // An older server lists locks and semaphores, and does not name their kinds.
            kind: read::name_if_any(reply, "kind").unwrap_or_else(|| if limit.is_some() { "semaphore" } else { "lock" }.into()),
            mode: read::name(reply, "mode"),
            limit,
            fence: read::number(reply, "fence"),
            held_back_ms: read::number(reply, "held-back"),
            holding: read::number(reply, "holding").unwrap_or(holders.len() as u64),
            holders,
            waiting: read::number(reply, "waiting").unwrap_or(waiters.len() as u64),
            oldest_ms: read::number(reply, "oldest-wait").unwrap_or_else(oldest),
            waiters,
            counts: match counts {
                [Some(granted), Some(contended), Some(expired)] => Some((granted, contended, expired)),
                _ => None,
            },
            last_end: read::map(reply, "last-end").map(Event::of),
            count: read::number(reply, "count"),
            token: read::number(reply, "token"),
            fields: read::fields(reply, "fields"),
            value: reply.field("value").and_then(Value::as_bytes).map(|bytes| Name(bytes.to_vec())),
            idle_s: read::number(reply, "idle"),
            ttl_ms: read::integer(reply, "ttl"),
            writer: read::map(reply, "writer").map(Writer::of),
        }
    }

    /// Whether a part of the owner, of the client's name or of its address is `who`, of any holder or waiter that is shown.
    fn concerns(&self, who: &Name) -> bool {
        let has = |known: [&Name; 3]| known.into_iter().any(|name| name.contains(who));
        self.holders.iter().any(|holder| has([&holder.owner, &holder.client_name, &holder.addr]))
            || self.waiters.iter().any(|waiter| has([&waiter.owner, &waiter.client_name, &waiter.addr]))
    }
}

fn holders(reply: &Value) -> Vec<Holder> {
    read::maps(reply, "holders").iter().map(Holder::of).collect()
}

fn blocked(reply: &Value) -> u64 {
    read::number(reply, "blocked").unwrap_or_else(|| read::number_or(reply, "waiters", 0))
}

fn elsewhere(reply: &Value) -> Option<Elsewhere> {
    let there = read::map(reply, "elsewhere")?;
    let lock = read::number(there, "db").map(|db| (db, read::name(there, "name")));
    Some(Elsewhere { lock, owner: read::name(there, "owner") })
}
