//! Steps of several calls or several clients: transactions, blocked clients, and values that go from one server to the other.

use crate::common::random::Random;
use crate::generate::{Call, Generator, Step, upper};
use crate::grammar::Line;

/// Blocking calls.
pub const WAITERS: &[&str] = &[
    "3! BLPOP <key> 0",
    "2! BLPOP <key> <key> 90",
    "3! BRPOP <key> <key> 0",
    "3! BLMOVE <key> <key> ( LEFT | RIGHT ) ( LEFT | RIGHT ) 0",
    "2! BRPOPLPUSH <key> <key> 90",
    "3! BLMPOP 0 2 <key> <key> ( LEFT | RIGHT ) [ COUNT 2 ]",
    "3! BZPOPMIN <key> 0",
    "2! BZPOPMAX <key> <key> 90.5",
    "3! BZMPOP 0 2 <key> <key> ( MIN | MAX ) [ COUNT 2 ]",
    "4! XREAD [ COUNT 2 ] BLOCK 0 STREAMS <key> ( $ | 0 | <stream-id> )",
    "2! XREAD BLOCK 90000 STREAMS <key> <key> $ $",
    "6! XREADGROUP GROUP <group> <consumer> [ COUNT 1 ] [ NOACK ] BLOCK 0 STREAMS <key> >",
    "1! XREADGROUP GROUP g1 c1 BLOCK 90000 STREAMS <key> <key> > >",
];

/// The calls of another client meanwhile.
pub const FEEDS: &[&str] = &[
    "6! RPUSH <key> { <value> }",
    "4! LPUSH <key> { <value> }",
    "6! ZADD <key> { <score> <member> }",
    "8! XADD <key> <new-id> { <field> <value> }",
    "2! DEL { <key> }",
    "1! UNLINK <key>",
    "2! SET <key> <value>",
    "1! SADD <key> <member>",
    "2! RENAME <key> <key>",
    "1! COPY <key> <key> REPLACE",
    "2! LMOVE <key> <key> LEFT RIGHT",
    // If Redis stores over another key, it does not serve the clients that wait for that key.
    "1! ZUNIONSTORE new 2 <key> <key>",
    "2! RENAME new <key>",
    "1! SORT <key> BY nosort STORE new",
    "1! GEOADD <key> 13.361389 38.115556 here",
    "1! LPUSHX <key> <value>",
    "1! ZINCRBY <key> 1 <member>",
    "3! XGROUP CREATE <key> g1 0 MKSTREAM",
    "1! XGROUP DESTROY <key> g1",
    "1! XGROUP DELCONSUMER <key> g1 c1",
    "1! RESTORE <key> 0 <payload> REPLACE",
    "1! EXPIRE <key> -1",
    "1! PEXPIREAT <key> 1",
    "1! FLUSHDB",
    "1! LPOP <key>",
    "1! XTRIM <key> MAXLEN 0",
    "1! SWAPDB 0 1",
    "2! EVAL <feeding-script> 1 <key>",
];

/// The fields of a hash in an order that does not depend on its encoding.
const FIELDS_SORTED: &str = "local all, found = redis.call('HGETALL', KEYS[1]), {}
for at = 1, #all, 2 do found[#found + 1] = all[at] .. '=' .. all[at + 1] end
table.sort(found)
return found";

/// The members of a set, likewise.
const MEMBERS_SORTED: &str = "local all = redis.call('SMEMBERS', KEYS[1]) table.sort(all) return all";

fn words(words: &[&str]) -> Call {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Generator<'_> {
    /// Appends a call behind its probes, all with one reply each.
    fn judged(&self, random: &mut Random, calls: &mut Vec<Call>) {
        loop {
            let call = self.call(random);
            let name = upper(&call[0]);
            let authenticates = name == "AUTH" || name == "HELLO" && call.len() > 2;
            // In a cluster Redis checks later keys of a transaction against the slot that a script without keys used last.
            let stray = self.catalogue.cluster
                && ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO", "DEBUG"].contains(&name.as_str());
            // RESET ends the transaction, and a later blocking call would wait forever. QUIT, SYNC, PSYNC and MONITOR change or
            // end the exchange of requests and replies. A failed AUTH may stay unanswered in a pipeline (see the session).
            if ["QUIT", "RESET", "SYNC", "PSYNC", "MONITOR"].contains(&name.as_str()) && call.len() == 1 || authenticates || stray
            {
                continue;
            }
            calls.extend(self.probes(&call));
            calls.push(call);
            return;
        }
    }

    /// A transaction, perhaps incomplete or with errors.
    pub fn transaction(&self, on: usize, random: &mut Random) -> Step {
        let mut calls = Vec::new();
        for _ in 0..random.below(3) {
            let mut watch = words(&["WATCH"]);
            watch.extend((0..random.range(0..=3)).map(|_| self.key(random)));
            calls.push(watch);
            if random.one_in(3) {
                self.judged(random, &mut calls);
            }
        }
        if random.one_in(5) {
            calls.push(words(&["UNWATCH"]));
        }
        // Outside of a transaction a wait must end soon.
        let open = !random.one_in(20);
        let (forever, soon) = if open { ("0", "0.01") } else { ("0.002", "0.002") };
        if open {
            calls.push(words(&["MULTI"]));
        }
        for _ in 0..random.below(9) {
            let key = self.key(random);
            calls.push(match random.below(36) {
                0 => words(&["MULTI"]),
                1 => words(&["UNWATCH"]),
                2 => [words(&["WATCH"]), vec![key]].concat(),
                3 if random.one_in(3) => words(&["NOSUCH", "argument"]),
                4 if random.one_in(3) => words(&["GET"]),
                5 | 6 => {
                    let name = *random.pick(&["BLPOP", "BRPOP", "BZPOPMIN", "BZPOPMAX"]);
                    [words(&[name]), vec![key], words(&[forever])].concat()
                }
                7 => [words(&["BLMOVE"]), vec![key, self.key(random)], words(&["LEFT", "RIGHT", soon])].concat(),
                8 => [words(&["BRPOPLPUSH"]), vec![key, self.key(random)], words(&["-1"])].concat(),
                9 => [words(&["BLMPOP", forever, "2"]), vec![key, self.key(random)], words(&["LEFT", "COUNT", "2"])].concat(),
                10 => [words(&["BZMPOP", "x", "1"]), vec![key], words(&["MAX"])].concat(),
                11 => [words(&["XREAD", "BLOCK", if open { "0" } else { "2" }, "STREAMS"]), vec![key], words(&["$"])].concat(),
                12 if open => words(&["CLIENT", *random.pick(&["LIST", "INFO"])]),
                13 => words(&["WAIT", if open { "1" } else { "0" }, "0"]),
                _ => {
                    self.judged(random, &mut calls);
                    continue;
                }
            });
        }
        calls.push(words(&[if random.one_in(6) { "DISCARD" } else { "EXEC" }]));
        if random.one_in(12) {
            calls.push([words(&["BLPOP"]), vec![self.key(random), self.key(random)], words(&["0.002"])].concat());
        }
        calls.push(words(&["DISCARD"]));
        Step::Sequence { on, calls }
    }

    /// A value, or the functions, that each server passes to the other.
    pub fn carry(&self, on: usize, random: &mut Random) -> Step {
        let to = self.key(random);
        if random.one_in(6) {
            return Step::Carry { on, from: None, to, calls: vec![words(&["FUNCTION", "LIST", "WITHCODE"])] };
        }
        let about = |words: &[&str], more: &[&str]| -> Call {
            let text = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Call>();
            [text(words), vec![to.clone()], text(more)].concat()
        };
        let mut calls = vec![about(&["TYPE"], &[]), about(&["PTTL"], &[])];
        for (call, more) in [
            (&["GET"][..], &[][..]),
            (&["LRANGE"], &["0", "-1"]),
            (&["EVAL", FIELDS_SORTED, "1"], &[]),
            (&["EVAL", MEMBERS_SORTED, "1"], &[]),
            (&["ZRANGE"], &["0", "-1", "WITHSCORES"]),
            (&["XRANGE"], &["-", "+"]),
            (&["XINFO", "GROUPS"], &[]),
            (&["HPTTL"], &["FIELDS", "3", "f1", "f2", "7"]),
        ] {
            // A version without deadlines of fields does not have the command.
            if call[0] == "HPTTL" && self.catalogue.strtod {
                continue;
            }
            calls.push(about(call, more));
        }
        // The iteration order of hash tables was carried over too, and would show in later replies.
        calls.push(about(&["DEL"], &[]));
        Step::Carry { on, from: Some(self.key(random)), to: to.clone(), calls }
    }

    fn of_lines(&self, lines: &[Line], random: &mut Random) -> Call {
        let weights: Vec<u32> = lines.iter().map(|line| line.weight).collect();
        let mut call = Call::new();
        self.expand(&lines[random.weighted(&weights)].nodes, random, &mut call);
        self.keep_scores_alike(&mut call);
        call
    }

    /// Clients that wait for a few keys.
    pub fn waiting(&self, random: &mut Random) -> Step {
        let few = Generator { keys: self.keys.iter().copied().take(2).collect(), ..self.clone() };
        // 7.0 serves only the key that became ready; later versions execute the whole request again, with all of its keys.
        let one = Generator { keys: self.keys[..1].to_vec(), ..self.clone() };
        let waiting = if self.catalogue.strtod { &one } else { &few };
        let mut calls = Vec::new();
        if random.one_in(2) {
            calls.push(words(&["FLUSHDB"]));
        }
        let streams = random.one_in(2);
        let waiters = (0..random.range(1..=4))
            .map(|_| {
                loop {
                    let call = waiting.of_lines(&self.catalogue.waiters, random);
                    if streams == upper(&call[0]).starts_with('X') {
                        return call;
                    }
                }
            })
            .collect();
        if streams {
            for key in &few.keys {
                calls.push([words(&["XGROUP", "CREATE"]), vec![key.to_vec()], words(&["g1", "0", "MKSTREAM"])].concat());
            }
        }
        if streams && self.catalogue.strtod {
            // 7.0 creates a consumer only if there is an entry for it.
            for (key, group) in few.keys.iter().flat_map(|key| [(key, "g1"), (key, "g2")]) {
                for consumer in ["c1", "c2", "c3"] {
                    calls.push([words(&["XGROUP", "CREATECONSUMER"]), vec![key.to_vec()], words(&[group, consumer])].concat());
                }
            }
        }
        // Marks the moment at which the clients begin to wait.
        calls.push(Call::new());
        for _ in 0..random.range(1..=6) {
            calls.push(few.of_lines(&self.catalogue.feeds, random));
        }
        Step::Waiting { waiters, calls }
    }

    /// A connection that the server closes.
    pub fn ending(&self, random: &mut Random) -> Step {
        let mut calls: Vec<Call> = (0..random.below(3)).map(|_| self.plain_call(random)).collect();
        if random.one_in(3) {
            calls.push(words(&["MULTI"]));
            calls.push(self.plain_call(random));
        }
        calls.push(words(&["QUIT"]));
        calls.push(words(&["PING"]));
        Step::Ending { calls }
    }

    /// Calls under a monitor.
    pub fn watched(&self, on: usize, random: &mut Random) -> Step {
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..random.range(1..=5) {
            calls.push(self.plain_call(random));
        }
        if random.one_in(2) {
            calls.push(words(&["MULTI"]));
            calls.push(self.plain_call(random));
            calls.push(words(&["EXEC"]));
        }
        Step::Watched { on, calls }
    }
}
