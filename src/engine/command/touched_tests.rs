//! What a handler touches is what its row names: for every command, with its options in any order and repeated, and with options'
//! words as keys, groups and values.
//!
//! ```text
//!   syntax of the row ─▶ forms ─▶ requests ─▶ a handler ─▶ names looked up, keys changed, contents in the reply
//!                                     └─▶ the row's keys and their uses ◀───────── must be these ─────┘
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::base::ids::SessionId;
use crate::commands::all;
use crate::commands::reference::forms::{Form, Slot, orders};
use crate::engine::cluster::key_slot;
use crate::engine::command::keys::KeyUse;
use crate::engine::command::{Command, Flags, Group, Keys};
use crate::engine::config::Config;
use crate::engine::harness::Harness;
use crate::engine::session::Peer;
use crate::keyspace::change::{Change, ChangeLog, Effect};

/// Options of a request, for commands whose keys are at fixed places, and for those whose options decide.
const OPTIONS_MOST: (usize, usize) = (2, 4);
/// Requests of one row: what exceeds the most is thinned out.
const REQUESTS_MOST: usize = 12_000;
const REQUESTS_LEAST: usize = 400;
/// The minimum number of requests that the table must yield.
const REQUESTS_MIN: usize = 150_000;

/// Requests that create a key of each type: `%` is the key, `@` the mark in its content, `^` each word in turn.
const SEEDS: [(&str, &[&str]); 13] = [
    ("string", &["SET % @1"]),
    ("list", &["RPUSH % @1 @2"]),
    ("set", &["SADD % @1 @2 1"]),
    ("zset", &["ZADD % @1 @1 @2 @2 5 1", "ZADD % 5 ^"]),
    ("hash", &["HSET % 1 @1 @2 @2", "HSET % ^ @1"]),
    ("geo", &["GEOADD % 13 38 @1 13 38 1", "GEOADD % 13 38 ^"]),
    ("stream", &["XADD % 5-5 1 @2", "XGROUP CREATE % g 0", "XREADGROUP GROUP g c STREAMS % >", "XGROUP CREATE % ^ 0"]),
    ("hyperloglog", &["PFADD % @1"]),
    ("none", &[]),
    ("lock", &["LOCK.ACQUIRE % @1 500000"]),
    ("semaphore", &["SEM.ACQUIRE % @1 500000 LIMIT 3"]),
    ("latch", &["LATCH.SET % 3"]),
    ("guard", &["LOCK.GUARD % 7"]),
];

/// The minimum number of requests that a user with few permissions must be served.
const SERVED_MIN: usize = 5_000;

const LIBRARY: &str = "#!lua name=lib\n\
                       local function touch(keys) for _, key in ipairs(keys) do redis.call('exists', key) end return 1 end\n\
                       redis.register_function{function_name='touch', callback=touch, flags={'no-writes'}}\n\
                       redis.register_function('call', function(keys, args) return redis.call(unpack(args)) end)";
const SCRIPT: &str = "#!lua flags=no-writes\nfor _, key in ipairs(KEYS) do redis.call('exists', key) end return 1";

const WRITES: KeyUse = KeyUse::UPDATE.union(KeyUse::INSERT).union(KeyUse::DELETE);

/// Rows that touch keys which their arguments do not name, and why that is right.
const BEYOND: &[(&str, &str)] = &[
    ("sort", "the keys that patterns stand for; only who may read every key may use them"),
    ("sort_ro", "as sort"),
    ("randomkey", "it is about any key"),
    ("lock.list", "it lists all locks that its user may read"),
    ("lock.graph", "as lock.list"),
    ("lock.leaks", "as lock.list"),
];

/// Rows that change keys without the permission to write, and why that is right.
const KEEPING: &[(&str, &str)] = &[
    ("pfcount", "the key keeps what it has counted"),
    ("pfdebug", "the registers become another form"),
    ("xreadgroup", "as in Redis, what a group has read is not the value"),
    ("lock.session", "what it changes is a session, not a key"),
];

/// Rows that need not touch all keys that they name, even if they succeed, and why.
const SHORT: &[(&str, &str)] = &[
    ("watch", "it looks at no value"),
    ("lmpop", "the first list counts"),
    ("blmpop", "the first list counts"),
    ("blpop", "the first list counts"),
    ("brpop", "the first list counts"),
    ("zmpop", "the first sorted set counts"),
    ("bzmpop", "the first sorted set counts"),
    ("bzpopmin", "the first sorted set counts"),
    ("bzpopmax", "the first sorted set counts"),
    ("msetnx", "a key that exists ends it"),
    ("msetex", "a key that does not meet the condition ends it"),
    ("copy", "without a source, the destination does not count"),
    ("lmove", "without a source, the destination does not count"),
    ("blmove", "without a source, the destination does not count"),
    ("rpoplpush", "without a source, the destination does not count"),
    ("brpoplpush", "without a source, the destination does not count"),
    ("smove", "without a source, the destination does not count"),
];

/// Values to try for an argument, by its name.
fn values(name: &str) -> &'static [&'static str] {
    match name {
        "encoding" => &["i8", "u16"],
        "offset" | "index" | "start" | "min-idle-time" | "cursor" => &["0"],
        "min" => &["-inf", "-", "0"],
        "max" => &["+inf", "+"],
        "end" | "stop" => &["-1", "+"],
        "id" | "last-id" | "lastid" => &["0", ">", "$", "5-5", "9-9"],
        "group" | "consumer" => &["g", "c"],
        "ifdeq-digest" | "ifdne-digest" => &["38e23bf5a2a77616"],
        "seconds" => &["100"],
        "milliseconds" => &["100000"],
        "unix-time-seconds" => &["9999999999"],
        "unix-time-milliseconds" => &["9999999999999"],
        "count" => &["1", "100"],
        "radius" | "width" | "height" => &["5000"],
        "longitude" => &["13"],
        "latitude" => &["38"],
        "by-pattern" => &["nosort", "weight*"],
        "get-pattern" => &["#", "value*"],
        "subcommand" => &["GETREG"],
        "owner" => &["me", "you"],
        "lease" => &["1000"],
        "limit" => &["3"],
        "timeout" => &["1"],
        "destination-db" => &["1"],
        "function" => &["touch"],
        "script" => &[SCRIPT],
        "member" | "field" | "element" | "value" | "pattern" | "name" | "arg" | "ifeq-value" | "ifne-value" => &["1"],
        _ => &["1"],
    }
}

/// Whether only numbers or fixed words are valid for an argument, so that other words are refused at once.
fn is_fixed(name: &str) -> bool {
    !matches!(
        name,
        "id" | "group"
            | "consumer"
            | "owner"
            | "member"
            | "field"
            | "element"
            | "value"
            | "pattern"
            | "name"
            | "arg"
            | "by-pattern"
            | "get-pattern"
            | "ifeq-value"
            | "ifne-value"
            | "reason"
            | "message"
            | "pivot"
            | "min"
            | "max"
    )
}

/// A sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end.max(1)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// The names of the keys that have changed.
#[derive(Clone, Default)]
struct Changed(Rc<RefCell<BTreeSet<Box<[u8]>>>>);

impl ChangeLog for Changed {
    fn record(&mut self, change: &Change<'_>) {
        if !matches!(change.effect, Effect::None) && !change.key.is_empty() {
            self.0.borrow_mut().insert(change.key.into());
        }
    }

    fn end_unit(&mut self) {}
}

/// What a request did.
struct Done {
    reply: Vec<u8>,
    names: BTreeSet<Box<[u8]>>,
    changed: BTreeSet<Box<[u8]>>,
}

/// An engine with keys, all of one type.
struct Scene {
    h: Harness,
    changed: Changed,
    /// The words of the command's options.
    words: Vec<String>,
    keys: Vec<String>,
    seed: usize,
    sha: Vec<u8>,
    dump: Vec<u8>,
}

impl Scene {
    fn new(cluster: bool) -> Scene {
        let mut h = Harness::new();
        if cluster {
            let config = Config { cluster_enabled: true, ..Config::default() };
            h.engine = crate::engine::Engine::new(config, 7, h.now, crate::commands::table());
            h.session = h.engine.connect(h.now, Peer::default());
        }
        h.args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]);
        let sha = bulk(&h.args(&[b"SCRIPT", b"LOAD", SCRIPT.as_bytes()]));
        h.run("SET dumped 1");
        let dump = bulk(&h.args(&[b"DUMP", b"dumped"]));
        h.run("DEL dumped");
        let changed = Changed::default();
        h.engine.keyspace.changes.log = Some(Box::new(changed.clone()));
        Scene { h, changed, words: Vec::new(), keys: Vec::new(), seed: 0, sha, dump }
    }

    /// Executes a request, without looking at all invariants afterwards.
    fn does(&mut self, request: &str) {
        let args: Vec<&[u8]> = request.split_whitespace().map(str::as_bytes).collect();
        self.h.args(&args);
    }

    /// Fills the database for a command: with keys that are named like its options.
    fn fill(&mut self, words: &[String], seed: usize) {
        self.does("FLUSHALL");
        self.words = words.to_vec();
        let names = if self.h.engine.in_cluster() { ["{a}1", "{a}2", "{a}3", "b"] } else { ["a1", "a2", "a3", "b"] };
        self.keys = names.map(str::to_owned).into_iter().chain(words.iter().cloned()).collect();
        self.seed = seed;
        for at in 0..self.keys.len() {
            self.create(at);
        }
        for name in ["weight1", "value1"] {
            self.does(&format!("SET {name} 3"));
        }
        let rules = self.keys.iter().enumerate().map(|(key, name)| match permission(key) {
            (true, true) => format!("~{name}"),
            (true, false) => format!("%R~{name}"),
            (false, true) => format!("%W~{name}"),
            (false, false) => String::new(),
        });
        let rules = rules.collect::<Vec<_>>().join(" ");
        self.does(&format!("ACL SETUSER bob reset on nopass +@all &* {rules}"));
    }

    fn create(&mut self, at: usize) {
        let key = self.keys[at].clone();
        self.does(&format!("DEL {key}"));
        for request in SEEDS[self.seed].1 {
            let request = request.replace('%', &key).replace('@', &mark(at));
            let words = if request.contains('^') { self.words.clone() } else { vec![String::new()] };
            for word in words {
                self.does(&request.replace('^', &word));
            }
        }
    }

    /// Restores what a request has changed.
    fn restore(&mut self, done: &Done) {
        for at in 0..self.keys.len() {
            if done.changed.contains(self.keys[at].as_bytes()) {
                self.create(at);
            }
        }
    }

    fn request(&self, form: &Form, random: &mut Random) -> Vec<Vec<u8>> {
        let word = |random: &mut Random| {
            let word = random.pick(&self.words).clone();
            if random.below(3) == 0 { word.to_ascii_lowercase() } else { word }
        };
        let shared = RefCell::new(random);
        let keys = std::iter::from_fn(|| {
            let random = &mut **shared.borrow_mut();
            Some(random.pick(&self.keys).clone().into_bytes())
        });
        let mut request = form.request(keys, |name| {
            let random = &mut **shared.borrow_mut();
            let odd = random.below(if is_fixed(name) { 30 } else { 2 }) == 0;
            match name {
                "serialized-value" => self.dump.clone(),
                "sha1" => self.sha.clone(),
                _ if odd && !self.words.is_empty() => word(random).into_bytes(),
                "owner" | "ifeq-value" if random.below(2) == 0 => format!("{}1", mark(random.below(4))).into_bytes(),
                _ => random.pick(values(name)).as_bytes().to_vec(),
            }
        });
        let random = &mut **shared.borrow_mut();
        let fixed = form
            .slots
            .iter()
            .take_while(|slot| matches!(slot, Slot::Word(word) if !word.bytes().any(|b| b.is_ascii_uppercase())))
            .count();
        match random.below(12) {
            0 if request.len() > fixed + 1 => drop(request.pop()),
            1 if !self.words.is_empty() => {
                let at = fixed + random.below(request.len() - fixed + 1);
                request.insert(at, word(random).into_bytes());
            }
            2 => {
                if let Some(at) = form.slots.iter().position(|slot| *slot == Slot::Count(None)) {
                    request[at] = random
                        .pick(&["0", "1", "-1", "2", "3", "99", "1x", " 1", "+1", "9223372036854775807"])
                        .as_bytes()
                        .to_vec();
                }
            }
            _ => {}
        }
        request
    }

    /// Executes requests for a session, and records what they touch.
    fn run(&mut self, id: SessionId, requests: &[Vec<Vec<u8>>]) -> Done {
        self.h.engine.keyspace.space.names.watch();
        self.changed.0.borrow_mut().clear();
        let mut reply = Vec::new();
        for request in requests {
            let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
            self.h.engine.execute(self.h.now, id, &args);
            reply = std::mem::take(&mut self.h.engine.clients.sessions[id].out);
        }
        let names = self.h.engine.keyspace.space.names.take();
        let changed = std::mem::take(&mut *self.changed.0.borrow_mut());
        Done { reply, names, changed }
    }

    /// The keys whose marks are in a text.
    fn shown_in<'a>(&'a self, text: &'a [u8], request: &'a [Vec<u8>]) -> impl Iterator<Item = &'a String> {
        let has = |text: &[u8], at| {
            let mark = mark(at);
            text.windows(mark.len()).any(|part| part == mark.as_bytes())
        };
        let shown = (0..self.keys.len()).filter(move |&at| has(text, at) && !request.iter().any(|arg| has(arg, at)));
        shown.map(|at| &self.keys[at])
    }
}

/// The text that is in the content of the key with this number, and nowhere else.
fn mark(key: usize) -> String {
    format!("81{key:02}81")
}

/// The bytes of a bulk string.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let start = reply.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    reply[start..reply.len() - 2].to_vec()
}

fn show(request: &[Vec<u8>]) -> String {
    request.join(&b' ').escape_ascii().to_string()
}

/// Every row that may touch keys, with the words that name it.
fn rows() -> Vec<(Vec<&'static str>, &'static Command)> {
    let with_subcommands = all().flat_map(|row| {
        let subcommands = row.subcommands.iter().map(|sub| (vec![row.name, sub.name], sub));
        std::iter::once((vec![row.name], row)).chain(subcommands)
    });
    let flags = Flags::WRITE | Flags::READONLY;
    let may_touch =
        |row: &Command| row.has_keys() || row.flags.intersects(flags) || matches!(row.group, Group::Lock | Group::Scripting);
    with_subcommands.filter(|(_, row)| row.subcommands.is_empty() && may_touch(row)).collect()
}

/// The types of keys that a row is about, and whether its handler goes far with them.
fn seeds(row: &Command) -> Vec<usize> {
    let of = |names: &[&str]| (0..SEEDS.len()).filter(|&at| names.contains(&SEEDS[at].0)).collect();
    match row.group {
        Group::String | Group::Bitmap => of(&["string", "none", "list"]),
        Group::List => of(&["list", "none"]),
        Group::Set => of(&["set", "none"]),
        Group::Hash => of(&["hash", "none"]),
        Group::SortedSet => of(&["zset", "set", "none"]),
        Group::Stream => of(&["stream", "none"]),
        Group::Hyperloglog => of(&["hyperloglog", "none"]),
        Group::Geo => of(&["geo", "none"]),
        Group::Lock => of(&["lock", "semaphore", "latch", "guard", "none"]),
        Group::Generic => (0..SEEDS.len()).collect(),
        _ => of(&["string", "none"]),
    }
}

/// The words of a command's options that can be names of keys.
fn words_of(forms: &[Form]) -> Vec<String> {
    let slots = forms.iter().flat_map(|form| &form.slots);
    let words: BTreeSet<String> = slots
        .filter_map(|slot| match slot {
            Slot::Word(word) if word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()) => Some(word.clone()),
            _ => None,
        })
        .collect();
    words.into_iter().collect()
}

/// Whether the options of a command decide which of its arguments are keys.
fn moves_keys(row: &Command) -> bool {
    !matches!(row.keys, Keys::None | Keys::Range { .. })
}

/// The forms of a row's requests, for keys of one of `seeds` types.
fn forms_of(names: &[&str], row: &'static Command, seeds: usize, random: &mut Random) -> Vec<Form> {
    let most = if moves_keys(row) { OPTIONS_MOST.1 } else { OPTIONS_MOST.0 };
    let mut forms = orders(names, row, most).unwrap_or_else(|error| panic!("{error}"));
    while forms.len() > REQUESTS_MOST / seeds {
        let at = random.below(forms.len());
        forms.swap_remove(at);
    }
    // Few forms are tried with more values.
    let least = if row.has_keys() { REQUESTS_LEAST } else { REQUESTS_LEAST / 10 };
    let times = (least / (forms.len() * seeds).max(1)).clamp(1, 100);
    (0..times).flat_map(|_| forms.iter().cloned()).collect()
}

/// Runs the requests of every row. `each` gets the scene, the row, a request, and adds to the wrong ones.
fn with_every_request(
    cluster: bool,
    mut each: impl FnMut(&mut Scene, (&str, &'static Command), &[Vec<u8>], &mut Vec<String>),
) -> usize {
    let mut random = Random(5);
    let (mut requests, mut rows_wrong) = (0, 0);
    for (names, row) in rows() {
        let seeds = seeds(row);
        let forms = forms_of(&names, row, seeds.len(), &mut random);
        let (words, name, mut wrong) = (words_of(&forms), names.join("|"), Vec::new());
        let mut scene = Scene::new(cluster);
        for seed in seeds {
            scene.fill(&words, seed);
            for form in &forms {
                let request = scene.request(form, &mut random);
                requests += 1;
                each(&mut scene, (&name, row), &request, &mut wrong);
            }
        }
        if !wrong.is_empty() {
            rows_wrong += 1;
            println!("{name}: {} requests\n    {}", wrong.len(), wrong[..wrong.len().min(4)].join("\n    "));
        }
    }
    println!("{requests} requests");
    assert_eq!(rows_wrong, 0, "rows whose handlers touch other keys");
    requests
}

#[test]
fn handlers_touch_the_keys_that_their_rows_name() {
    let requests = with_every_request(false, |scene, (name, row), request, wrong| {
        let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let keys = row.key_positions(&args).unwrap_or_default();
        let named: BTreeSet<Box<[u8]>> = keys.iter().map(|key| args[key.position].into()).collect();
        let id = scene.h.engine.connect(scene.h.now, Peer::default());
        let done = scene.run(id, &[request.to_vec()]);
        scene.h.engine.disconnect(scene.h.now, id);
        let has = |list: &[(&str, &str)]| list.iter().any(|(other, _)| *other == name);
        let mut tell = |what: &str, key: &[u8]| {
            let reply = done.reply.escape_ascii().to_string();
            wrong.push(format!("{what} {} [{}] {}: {:.100}", key.escape_ascii(), SEEDS[scene.seed].0, show(request), reply));
        };
        let with = |key: &[u8], uses: KeyUse| {
            keys.iter().any(|at| args[at.position] == key && at.uses.intersects(uses | KeyUse::UNKNOWN))
        };
        for key in done.names.iter().filter(|key| !named.contains(*key) && !has(BEYOND)) {
            tell("unnamed", key);
        }
        for key in done.changed.iter().filter(|key| !with(key, WRITES) && !has(KEEPING)) {
            tell("written", key);
        }
        for key in scene.shown_in(&done.reply, request).filter(|key| !with(key.as_bytes(), KeyUse::ACCESS) && !has(BEYOND)) {
            tell("shown", key.as_bytes());
        }
        let succeeded = !done.reply.starts_with(b"-") && !done.reply.is_empty();
        for key in named.iter().filter(|key| succeeded && !done.names.contains(*key) && !has(SHORT)) {
            tell("untouched", key);
        }
        scene.restore(&done);
    });
    assert!(requests >= REQUESTS_MIN, "{requests}");
}

/// How a request is sent.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Multi,
    /// `redis.call` with arguments that are known only at run time.
    Script,
    /// `redis.call` with the request written out.
    WrittenOut,
    Function,
}

impl Way {
    fn requests(self, request: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
        let words = |line: &[&str]| line.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        match self {
            Way::Plain => vec![request.to_vec()],
            Way::Multi => vec![words(&["MULTI"]), request.to_vec(), words(&["EXEC"])],
            Way::Script => vec![[words(&["EVAL", "return redis.call(unpack(ARGV))", "0"]), request.to_vec()].concat()],
            Way::WrittenOut => {
                let quoted = |arg: &Vec<u8>| format!("'{}'", arg.iter().map(|byte| format!("\\{byte:03}")).collect::<String>());
                let call = request.iter().map(quoted).collect::<Vec<_>>().join(",");
                vec![words(&["EVAL", &format!("return redis.call({call})"), "0"])]
            }
            Way::Function => vec![[words(&["FCALL", "call", "0"]), request.to_vec()].concat()],
        }
    }
}

/// What the user of the test may do with a key: read it, write it.
fn permission(key: usize) -> (bool, bool) {
    match key % 4 {
        0 => (true, true),
        1 => (true, false),
        2 => (false, true),
        _ => (false, false),
    }
}

#[test]
fn a_user_touches_only_keys_that_its_rules_allow() {
    let (mut at, mut served) = (0, 0);
    let requests = with_every_request(false, |scene, (name, row), request, wrong| {
        if !row.has_keys() && row.group != Group::Scripting {
            return;
        }
        let id = scene.h.engine.connect(scene.h.now, Peer::default());
        scene.run(id, &[[b"AUTH".to_vec(), b"bob".to_vec(), b"x".to_vec()].to_vec()]);
        at += 1;
        let way = [Way::Plain, Way::Multi, Way::Script, Way::WrittenOut, Way::Function][at % 5];
        let done = scene.run(id, &way.requests(request));
        scene.h.engine.disconnect(scene.h.now, id);
        let may = |key: &[u8]| {
            let key = scene.keys.iter().position(|name| name.as_bytes() == key);
            key.map_or((false, false), permission)
        };
        let mut tell = |what: &str, key: &[u8]| {
            let reply = done.reply.escape_ascii().to_string();
            let seed = SEEDS[scene.seed].0;
            wrong.push(format!("{way:?} {what} {} [{seed}] {}: {reply:.100}", key.escape_ascii(), show(request)));
        };
        done.names.iter().filter(|key| may(key) == (false, false)).for_each(|key| tell("touched", key));
        let keeps = KEEPING.iter().any(|(other, _)| *other == name);
        let may_change = |key: &[u8]| may(key).1 || keeps && may(key).0;
        done.changed.iter().filter(|key| !may_change(key)).for_each(|key| tell("written", key));
        scene.shown_in(&done.reply, request).filter(|key| !may(key.as_bytes()).0).for_each(|key| tell("shown", key.as_bytes()));
        served += usize::from(!done.names.is_empty() && !done.reply.starts_with(b"-"));
        scene.restore(&done);
    });
    println!("{served} of {requests} requests were served");
    assert!(served > SERVED_MIN, "{served} of {requests}");
}

#[test]
fn a_request_in_a_cluster_touches_keys_of_one_slot() {
    let mut served = 0;
    let requests = with_every_request(true, |scene, (_, row), request, wrong| {
        if !row.has_keys() {
            return;
        }
        let id = scene.h.engine.connect(scene.h.now, Peer::default());
        let done = scene.run(id, &[request.to_vec()]);
        scene.h.engine.disconnect(scene.h.now, id);
        let slots: BTreeSet<u16> = done.names.iter().map(|name| key_slot(name)).collect();
        if slots.len() > 1 {
            wrong.push(format!("{}: {:.100}", show(request), done.reply.escape_ascii().to_string()));
        }
        served += usize::from(done.names.len() > 1 && !done.reply.starts_with(b"-"));
        scene.restore(&done);
    });
    println!("{served} of {requests} requests with several keys were served");
    assert!(served > SERVED_MIN / 10, "{served} of {requests}");
}
