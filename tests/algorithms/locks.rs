//! The locks, written as clients of any Redis server write them.

use std::sync::Arc;

use redis::{Connection, Script, cmd};

/// One client's lock. A client that waits polls.
pub trait Lock: Send {
    /// Tries once. Returns whether the client holds the lock now.
    fn acquire(&mut self, connection: &mut Connection) -> bool;
    /// Releases the lock. Returns false if the client did not hold it any more, as far as the algorithm can tell.
    fn release(&mut self, connection: &mut Connection) -> bool;
}

/// The parameters of a lock.
#[derive(Clone)]
pub struct Terms {
    /// The key.
    pub key: String,
    /// The owner, which is unique to the client.
    pub owner: String,
    /// The lease in milliseconds; whole seconds for algorithms that only have these.
    pub lease_ms: i64,
}

/// Makes one client's lock.
pub type Make = fn(Terms, Clock) -> Box<dyn Lock>;

/// Unix time in milliseconds by one client's clock.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// All locks, with their number in the list of algorithms and whether the lock of a dead holder becomes free.
pub const LOCKS: &[(&str, bool, Make)] = &[
    ("1: SETNX", false, |terms, _| Box::new(SetNx(terms))),
    ("2: SETNX, then EXPIRE", true, |terms, _| Box::new(SetNxExpire(terms))),
    ("3: SETNX with a time stamp, GETSET", true, |terms, clock| Box::new(TimeStamp { terms, clock, stamp: 0 })),
    ("4: SET NX PX with a token", true, |terms, _| Box::new(Token(terms))),
    ("5: the same, DELEX IFEQ", true, |terms, _| Box::new(Native(terms, "DELEX"))),
    ("5: the same, DELIFEQ", true, |terms, _| Box::new(Native(terms, "DELIFEQ"))),
    ("6: reentrant hash lock", true, |terms, _| Box::new(Reentrant(terms))),
    ("17: memcached's add", true, |terms, _| Box::new(Add(terms))),
];

/// 1: no expiry and no owner.
struct SetNx(Terms);

impl Lock for SetNx {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        cmd("SETNX").arg(&self.0.key).arg(&self.0.owner).query(connection).unwrap()
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        cmd("DEL").arg(&self.0.key).query(connection).unwrap()
    }
}

/// 2: two commands, between which the client may die.
struct SetNxExpire(Terms);

impl Lock for SetNxExpire {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        let won = cmd("SETNX").arg(&self.0.key).arg(&self.0.owner).query(connection).unwrap();
        if won {
            let set: bool = cmd("EXPIRE").arg(&self.0.key).arg(self.0.lease_ms / 1000).query(connection).unwrap();
            assert!(set);
        }
        won
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        cmd("DEL").arg(&self.0.key).query(connection).unwrap()
    }
}

/// 3: the value is the end of the lease. A client that finds it in the past takes the lock over with GETSET.
struct TimeStamp {
    terms: Terms,
    clock: Clock,
    stamp: i64,
}

impl Lock for TimeStamp {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        let now = (self.clock)();
        self.stamp = now + self.terms.lease_ms + 1;
        if cmd("SETNX").arg(&self.terms.key).arg(self.stamp).query(connection).unwrap() {
            return true;
        }
        let seen: Option<i64> = cmd("GET").arg(&self.terms.key).query(connection).unwrap();
        // The client that replaced the expired stamp first gets it back and holds the lock. The others get the new stamp.
        seen.is_some_and(|until| until < now) && {
            let old: Option<i64> = cmd("GETSET").arg(&self.terms.key).arg(self.stamp).query(connection).unwrap();
            old.is_none() || old == seen
        }
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        let until: Option<i64> = cmd("GET").arg(&self.terms.key).query(connection).unwrap();
        until.is_some_and(|until| (self.clock)() < until) && cmd("DEL").arg(&self.terms.key).query(connection).unwrap()
    }
}

/// Deletes the key if it holds the owner's token.
pub const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// Restarts the lease if the key holds the owner's token.
pub const RENEW: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// 4: acquired by one command, released by a script.
struct Token(Terms);

impl Lock for Token {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        let mut set = cmd("SET");
        set.arg(&self.0.key).arg(&self.0.owner).arg("NX").arg("PX").arg(self.0.lease_ms).query(connection).unwrap()
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        Script::new(RELEASE).key(&self.0.key).arg(&self.0.owner).invoke(connection).unwrap()
    }
}

/// 5: like 4, with compare-and-delete as one command.
struct Native(Terms, &'static str);

impl Lock for Native {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        Token(self.0.clone()).acquire(connection)
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        let mut delete = cmd(self.1);
        delete.arg(&self.0.key);
        if self.1 == "DELEX" {
            delete.arg("IFEQ");
        }
        delete.arg(&self.0.owner).query(connection).unwrap()
    }
}

/// Returns nil if the lock was acquired (again), otherwise the rest of the other owner's lease in milliseconds.
pub const ENTER: &str = "
    if redis.call('EXISTS', KEYS[1]) == 0 then
        redis.call('HSET', KEYS[1], ARGV[1], 1)
    elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
        redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    else
        return redis.call('PTTL', KEYS[1])
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return nil";
/// Returns nil if the owner did not hold the lock, 0 if it still holds it, 1 if it released the last hold.
pub const LEAVE: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return 0
    end
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[2], ARGV[1])
    return 1";
/// Returns 1 if the owner's lease was renewed, 0 if the owner does not hold the lock.
pub const WATCH: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// 6: a hash with the one holder and its number of holds.
#[derive(Clone)]
pub struct Reentrant(pub Terms);

impl Reentrant {
    /// `None` if it was acquired, otherwise the rest of the holder's lease in milliseconds.
    pub fn enter(&self, connection: &mut Connection) -> Option<i64> {
        Script::new(ENTER).key(&self.0.key).arg(&self.0.owner).arg(self.0.lease_ms).invoke(connection).unwrap()
    }

    /// `None` if this owner did not hold it, otherwise whether that was the last hold.
    pub fn leave(&self, connection: &mut Connection) -> Option<bool> {
        let channel = format!("unlocked:{{{}}}", self.0.key);
        Script::new(LEAVE).key(&self.0.key).key(channel).arg(&self.0.owner).arg(self.0.lease_ms).invoke(connection).unwrap()
    }

    /// Whether the lease was renewed.
    pub fn renew(&self, connection: &mut Connection) -> bool {
        Script::new(WATCH).key(&self.0.key).arg(&self.0.owner).arg(self.0.lease_ms).invoke(connection).unwrap()
    }
}

impl Lock for Reentrant {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        self.enter(connection).is_none()
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        self.leave(connection) == Some(true)
    }
}

/// 17: fails if the key exists; no owner.
struct Add(Terms);

impl Lock for Add {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        let mut set = cmd("SET");
        set.arg(&self.0.key).arg("1").arg("NX").arg("EX").arg(self.0.lease_ms / 1000).query(connection).unwrap()
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        cmd("DEL").arg(&self.0.key).query(connection).unwrap()
    }
}
