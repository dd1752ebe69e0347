//! The locks, as a client of any Redis writes them.

use std::sync::Arc;

use redis::{Connection, Script, cmd};

/// A lock that one client tries for. Who waits polls.
pub trait Lock: Send {
    /// Tries once; true when it is this client's now.
    fn acquire(&mut self, connection: &mut Connection) -> bool;
    /// Gives it back; false when it was not this client's any more, where the algorithm can tell.
    fn release(&mut self, connection: &mut Connection) -> bool;
}

/// What a lock is made of.
#[derive(Clone)]
pub struct Terms {
    /// The key.
    pub key: String,
    /// Names the client; nobody else uses it.
    pub owner: String,
    /// For how long it may be held, in milliseconds; whole seconds where the algorithm knows no others.
    pub lease_ms: i64,
}

/// Makes a client's lock.
pub type Make = fn(Terms, Clock) -> Box<dyn Lock>;

/// Unix milliseconds, as one client believes.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// All locks, with their number in the list of algorithms and whether a holder's death frees them.
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

/// 1: no expiry, no owner.
struct SetNx(Terms);

impl Lock for SetNx {
    fn acquire(&mut self, connection: &mut Connection) -> bool {
        cmd("SETNX").arg(&self.0.key).arg(&self.0.owner).query(connection).unwrap()
    }

    fn release(&mut self, connection: &mut Connection) -> bool {
        cmd("DEL").arg(&self.0.key).query(connection).unwrap()
    }
}

/// 2: two commands, between which one may die.
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

/// 3: the value says until when it is held; whoever finds that past takes it over by GETSET.
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
        // Whoever was first to replace the stamp that had run out has it; the others see his stamp come back.
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

/// Deletes the key if it holds this owner's token.
pub const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// Gives the key a new lease if it holds this owner's token.
pub const RENEW: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// 4: one command to take, one script to give back.
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

/// 5: as 4, with compare-and-delete as one command.
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

/// Nothing when it was taken (again), else how long it is held by somebody else, in milliseconds.
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
/// Nothing when it was not held, 0 when it still is, 1 when this was the last level.
pub const LEAVE: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
    if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return 0
    end
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[2], ARGV[1])
    return 1";
/// 1 when the lease of this owner was renewed, 0 when he does not hold it.
pub const WATCH: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// 6: a hash of its one holder and how often he holds it.
#[derive(Clone)]
pub struct Reentrant(pub Terms);

impl Reentrant {
    /// `None` when it was taken, else the milliseconds that the holder has left.
    pub fn enter(&self, connection: &mut Connection) -> Option<i64> {
        Script::new(ENTER).key(&self.0.key).arg(&self.0.owner).arg(self.0.lease_ms).invoke(connection).unwrap()
    }

    /// `None` when it was not this owner's, else whether that was the last level.
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

/// 17: fails if present; no owner.
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
