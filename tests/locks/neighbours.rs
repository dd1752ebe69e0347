//! What a user with `~a:*` learns of other keys: nothing, by any command of the table.
//!
//! Two stores differ in the names, the owners and the values of those keys alone, and see the same requests at the same times. Every
//! row of the table is asked in every form that its syntax has, directly, in a transaction and by a script, with words of its own and
//! with names of the first store, which the second one does not have. Whatever the user gets must be the same: replies, errors, and
//! what comes while others go on.

use std::collections::BTreeSet;

use portcullis::base::ids::SessionId;
use portcullis::commands;
use portcullis::commands::reference::syntax::{self, Arg, Kind, Type};
use portcullis::engine::command::{Command, Flags, Group, Keys};
use portcullis::engine::session::SessionFlags;

use crate::bare::Bare;

/// What shows something of other keys all the same, and why. Redis 7.4 does the same, and so programs rely on it.
const SHOWN: &[(&str, &str)] = &[
    ("acl|log", "shows the keys that others were refused; @admin"),
    ("keys", "shows names of keys that the user may not read; @dangerous"),
    ("monitor", "shows all requests; @admin"),
    ("pubsub|channels", "shows channels, which may have names of keys"),
    ("randomkey", "shows a name of a key that the user may not read"),
    ("scan", "shows names of keys that the user may not read"),
    ("slowlog|get", "shows requests; @admin"),
];

/// How the keys begin that are not the user's, in both stores. Owners and values of them begin so, too.
const FOREIGN: [&str; 2] = ["v:red", "w:sky"];

/// Sets the store up: who asks, and what for. `%` stands for a word of [`FOREIGN`].
const BEFORE: &str = "
    root: ACL SETUSER ua on nopass ~a:* &* +@all
    root: ACL SETUSER ub on nopass ~b:* &* +@all
    root: ACL SETUSER uv on nopass ~* &* +@all
    root: CONFIG SET notify-keyspace-events KEAk lock-slowlog-log-slower-than 20 slowlog-log-slower-than 0
    root: FUNCTION LOAD #!lua|name=lib|redis.register_function('f',function()return|1|end)
    a1: AUTH ua x
    b1: AUTH ub x
    v1: AUTH uv x
    v2: AUTH uv x
    v3: AUTH uv x
    v4: AUTH uv x
    v5: AUTH uv x
    v6: AUTH uv x
    a1: SET a:str 1
    a1: RPUSH a:list 1 2 3
    a1: HSET a:hash f 1 g 2
    a1: SADD a:set 1 2 3
    a1: ZADD a:zset 1 x 2 y
    a1: GEOADD a:geo 13.3 38.1 x
    a1: XADD a:stream 1-1 f 1
    a1: XGROUP CREATE a:stream g 0
    a1: PFADD a:hll 1 2
    a1: LATCH.SET a:latch 2
    a1: LOCK.GUARD a:guard 5
    a1: LOCK.ACQUIRE a:lock ann 60000
    v1: LOCK.ACQUIRE a:2 bob 60000
    a1: SEM.ACQUIRE a:sem ann 60000 LIMIT 3
    v1: SET %str %val
    v1: SET %lock:1 %val NX PX 60000
    v1: HSET %lock:2 %own 1
    v1: RPUSH %list %val 2 3
    v1: SADD %set %val
    v1: ZADD %zset 1 %val
    v1: XADD %stream 1-1 f %val
    v1: LATCH.SET %latch 2
    v1: LOCK.GUARD %guard 7
    v1: CL.THROTTLE %throttle 3 10 60
    v1: LOCK.ACQUIRE %1 %own1 60000
    v1: LOCK.ACQUIRE %2 %own1 60000
    v1: LOCK.ACQUIRE %3 carl 60000
    v1: SEM.ACQUIRE %sem %own1 60000 LIMIT 2
    v1: LOCK.ACQUIRE %4 %own4 40
    v2: LOCK.ACQUIRE %1 %own2 60000 WAIT 0
    v3: LOCK.ACQUIRE %1 bob 60000 WAIT 0
    v4: LOCK.ACQUIRE a:2 carl 60000 WAIT 0
    v5: LOCK.ACQUIRE %3 %own5 60000 WAIT 30
    v6: LOCK.ACQUIRE %4 %own6 60000 WAIT 0
    v1: LOCK.ACQUIRE %5 %own2 60000
    v1: LOCK.ACQUIRE %5 %own1 60000 WAIT 9
    wait: 100
    v5: SUBSCRIBE %news
    v1: GET %list
    b1: GET %str
    a1: LOCK.ACQUIRE a:3 ann 60000";

/// What goes on when the user has asked.
const AFTER: &str = "
    a1: SET a:new 1
    a1: DEL a:new
    v1: SET %new %val
    v1: SET %str %val2
    v1: RENAME %str %str2
    v1: RENAME %str2 %str
    v1: RPUSH %list %val
    v1: PEXPIRE %new 5
    v1: LOCK.RELEASE %1 %own1
    v1: LOCK.ACQUIRE %new2 %own1 5
    v1: PUBLISH news hello
    wait: 20
    a1: LOCK.ACQUIRE a:new2 ann 5
    wait: 20";

/// A store, and a connection of the user that asks.
struct Store {
    bare: Bare,
    word: &'static str,
    sessions: Vec<(String, SessionId)>,
}

impl Store {
    fn new(word: &'static str) -> Store {
        let mut store = Store { bare: Bare::new(), word, sessions: Vec::new() };
        store.bare.engine.set_test_mode(true);
        store.play(BEFORE);
        store
    }

    fn session(&mut self, name: &str) -> SessionId {
        if let Some((_, id)) = self.sessions.iter().find(|(known, _)| known == name) {
            return *id;
        }
        let id = self.bare.connect();
        self.sessions.push((name.to_owned(), id));
        id
    }

    fn play(&mut self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (who, what) = line.split_once(": ").unwrap();
            if who == "wait" {
                self.bare.now.advance_us(what.parse::<u64>().unwrap() * 1000);
                while self.bare.engine.advance(self.bare.now) {}
                continue;
            }
            let id = self.session(who);
            let words: Vec<Vec<u8>> = what.split(' ').map(|word| self.word_of(word)).collect();
            self.execute(id, &words);
        }
    }

    fn word_of(&self, word: &str) -> Vec<u8> {
        // A script is one word.
        word.replace('%', self.word).replace("|name", " name").replace("=lib|", "=lib\n").replace('|', " ").into_bytes()
    }

    fn execute(&mut self, id: SessionId, words: &[Vec<u8>]) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        // It may wait, and a pause of the user's may hold others.
        if self.bare.engine.sessions()[id].flags.contains(SessionFlags::BLOCKED) {
            return;
        }
        self.bare.engine.execute(self.bare.now, id, &words);
    }

    /// What a new connection of the user gets for these requests, and while others go on.
    fn ask(&mut self, protocol: &str, requests: &[Vec<Vec<u8>>]) -> String {
        let id = self.bare.connect();
        for words in [["AUTH", "ua", "x"].as_slice(), &["HELLO", protocol]] {
            self.execute(id, &words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
        }
        self.bare.take(id);
        requests.iter().for_each(|words| self.execute(id, words));
        self.play(AFTER);
        // The turn ends: those who track prefixes are told what has changed.
        self.bare.engine.take_pending_writes(&mut Vec::new());
        let got = self.bare.take(id);
        self.bare.engine.disconnect(self.bare.now, id);
        got
    }
}

/// The words that values of a request are made of.
#[derive(Clone, Copy)]
struct Words {
    string: &'static str,
    pattern: &'static str,
    /// Whether keys are those of others.
    foreign: bool,
}

const WORDS: [Words; 5] = [
    Words { string: "1", pattern: "*", foreign: false },
    Words { string: "a:lock", pattern: "a:*", foreign: false },
    Words { string: "v:red1", pattern: "v:red*", foreign: false },
    Words { string: "v:redown1", pattern: "*lock*", foreign: false },
    Words { string: "v:redval", pattern: "?:*", foreign: true },
];

/// A key of the user that a command of this group takes.
fn own_key(command: &Command, name: &str) -> &'static str {
    match command.group {
        Group::List => "a:list",
        Group::Hash => "a:hash",
        Group::Set => "a:set",
        Group::SortedSet => "a:zset",
        Group::Geo => "a:geo",
        Group::Stream => "a:stream",
        Group::Hyperloglog => "a:hll",
        Group::Lock if name.starts_with("sem") => "a:sem",
        Group::Lock if name.starts_with("latch") => "a:latch",
        Group::Lock if name == "lock.guard" => "a:guard",
        Group::Lock => "a:2",
        _ => "a:str",
    }
}

struct Maker<'a> {
    command: &'a Command,
    name: &'a str,
    words: Words,
}

impl Maker<'_> {
    /// The words of arguments. Of optional ones, those at these places are given, in the order of the tree; `next` is the next place.
    /// Of alternatives, the one with the number `choice`, if there are so many.
    fn make(&self, args: &[Arg<'_>], given: &dyn Fn(usize) -> bool, choice: usize, next: &mut usize, out: &mut Vec<String>) {
        for arg in args {
            if arg.optional {
                *next += 1;
                if !given(*next - 1) {
                    continue;
                }
            }
            if let Some(token) = arg.token {
                out.push(token.to_owned());
            }
            match &arg.kind {
                Kind::PureToken => {}
                Kind::Value(kind) => out.push(self.value(*kind, &arg.name)),
                Kind::Block(parts) => self.make(parts, given, choice, next, out),
                Kind::OneOf(choices) => {
                    let chosen = &choices[choice.min(choices.len() - 1)];
                    self.make(std::slice::from_ref(chosen), given, choice, next, out);
                }
            }
        }
    }

    fn value(&self, kind: Type, name: &str) -> String {
        match kind {
            Type::Key if self.words.foreign => "v:redstr".to_owned(),
            Type::Key => own_key(self.command, self.name).to_owned(),
            Type::Pattern => self.words.pattern.to_owned(),
            Type::Integer | Type::Double | Type::UnixTime => "1".to_owned(),
            // Scripts, and what must be a number though it is none in the syntax.
            Type::String if name == "script" => "return redis.call('lock.list')".to_owned(),
            Type::String if name == "function" => "f".to_owned(),
            Type::String => self.words.string.to_owned(),
        }
    }
}

/// The requests of a row: with no optional argument, with each of them, with all, and with each alternative.
fn requests(name: &str, command: &Command) -> BTreeSet<Vec<String>> {
    let tree = syntax::parse(command.syntax).unwrap();
    let mut requests = BTreeSet::new();
    for words in WORDS {
        let maker = Maker { command, name, words };
        let mut add = |given: &dyn Fn(usize) -> bool, choice: usize| {
            let mut request: Vec<String> = name.split('|').map(str::to_owned).collect();
            let mut places = 0;
            maker.make(&tree, given, choice, &mut places, &mut request);
            requests.insert(request);
            places
        };
        let places = add(&|_| true, 0);
        (0..6).for_each(|choice| _ = add(&|_| false, choice));
        for (only, choice) in (0..places).flat_map(|only| [(only, 0), (only, 1)]) {
            add(&|place| place == only, choice);
        }
    }
    requests
}

fn rows() -> Vec<(String, &'static Command)> {
    let mut rows = Vec::new();
    for command in commands::all() {
        if command.subcommands.is_empty() {
            rows.push((command.name.to_owned(), command));
        }
        rows.extend(command.subcommands.iter().map(|sub| (format!("{}|{}", command.name, sub.name), sub)));
    }
    rows
}

/// How a request is made.
const WAYS: [&str; 4] = ["2", "3", "MULTI", "EVAL"];

fn in_way(way: &str, request: &[String]) -> Vec<Vec<Vec<u8>>> {
    let bytes = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let words: Vec<&str> = request.iter().map(String::as_str).collect();
    match way {
        "MULTI" => vec![bytes(&["MULTI"]), bytes(&words), bytes(&["EXEC"])],
        "EVAL" => vec![bytes(&[&["EVAL", "return redis.call(unpack(ARGV))", "0"], &words[..]].concat())],
        _ => vec![bytes(&words)],
    }
}

#[test]
fn nothing_of_other_keys_is_told_by_any_command() {
    let mut told: BTreeSet<String> = BTreeSet::new();
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for (name, command) in rows() {
        // What reads, or writes keys that it names, leaves what is not the user's as it is.
        let is_kept = !command.flags.contains(Flags::ADMIN)
            && (!matches!(command.keys, Keys::None) || !command.flags.contains(Flags::WRITE));
        let mut stores: Option<[Store; 2]> = None;
        for request in requests(&name, command) {
            for way in WAYS.into_iter().take(if request.len() <= 4 { WAYS.len() } else { 2 }) {
                let mut pair = stores.take().filter(|_| is_kept).unwrap_or_else(|| FOREIGN.map(Store::new));
                let protocol = if way == "2" { "2" } else { "3" };
                let [one, other] = [0, 1].map(|at| pair[at].ask(protocol, &in_way(way, &request)));
                stores = Some(pair);
                asked += 1;
                if one != other && told.insert(name.clone()) && !SHOWN.iter().any(|(known, _)| *known == name) {
                    wrong.push(format!("{way} {request:?}\n  {one:?}\n  {other:?}"));
                }
            }
        }
        stores.into_iter().flatten().for_each(|store| store.bare.engine.check_invariants());
    }
    assert!(asked > 5_000, "{asked} requests are too few");
    assert!(wrong.is_empty(), "{} commands tell of other keys:\n{}", wrong.len(), wrong.join("\n"));
    let known: BTreeSet<String> = SHOWN.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(told, known, "the list of exceptions has those that there are");
    let is_ours = |name: &String| commands::all().any(|row| *name == row.name && row.group == Group::Lock);
    assert!(!known.iter().any(is_ours), "no command of ours is one");
}

#[test]
fn the_stores_of_the_test_are_what_they_should_be() {
    // The same questions of a user who may read all: they have answers, and the answers differ.
    for request in [
        "LOCK.LIST",
        "LOCK.LIST CONTENDED",
        "LOCK.GRAPH",
        "LOCK.GRAPH v:red1",
        "LOCK.DOCTOR",
        "LOCK.LEAKS",
        "LOCK.RECENT",
        "LOCK.SLOWLOG GET",
        "LOCK.WHY v:red1",
    ] {
        let [one, other] = FOREIGN.map(|word| {
            let mut store = Store::new(word);
            let id = store.session("v1");
            store.bare.run(id, request)
        });
        assert_ne!(one, other, "{request}");
        assert!(one.contains("v:red"), "{request}: {one}");
    }
    // Events are told of own keys, and one may see who waits for a foreign lock.
    let mut store = Store::new(FOREIGN[0]);
    let words = |text: &str| vec![text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>()];
    let events = store.ask("3", &words("PSUBSCRIBE *"));
    assert!(events.contains("a:new") && events.contains("lock.granted") && events.contains("hello"), "{events}");
    let doctor = store.ask("2", &words("LOCK.DOCTOR"));
    assert!(doctor.contains("bob waits for a lock that you may not see."), "{doctor}");
    let tracked = store.ask("3", &words("CLIENT TRACKING on BCAST"));
    assert!(tracked.contains("a:new"), "{tracked}");
}

#[test]
fn owners_of_other_users_are_no_part_of_a_cycle() {
    let mut bare = Bare::new();
    let [root, alice, bob, ann] = [0; 4].map(|_| bare.connect());
    let [stranger, waiting] = [0; 2].map(|_| bare.connect());
    bare.script(root, &[("ACL SETUSER su on nopass ~a:* +@lock", "+OK"), ("ACL SETUSER wu on nopass ~* +@all", "+OK")]);
    for id in [stranger, waiting] {
        bare.script(id, &[("AUTH su x", "+OK")]);
    }
    // The stranger holds its own lock as `alice`, and waits for it as `bob`.
    assert!(bare.run(stranger, "LOCK.ACQUIRE a:1 alice 60000").starts_with(':'));
    assert_eq!(bare.run(waiting, "LOCK.ACQUIRE a:1 bob 60000 WAIT 0"), "");
    assert!(bare.run(bob, "LOCK.ACQUIRE work bob 60000").starts_with(':'));
    assert_eq!(bare.run(alice, "LOCK.ACQUIRE work alice 60000 WAIT 0"), "", "it waits");
    // For everything else, an owner is its name.
    bare.script(ann, &[("AUTH wu x", "+OK")]);
    let token = bare.run(ann, "LOCK.ACQUIRE work bob 60000");
    assert!(token.starts_with(':'), "the same owner has it again: {token}");
    bare.script(ann, &[("LOCK.RELEASE work bob ALL", ":0")]);
    assert!(bare.take(alice).starts_with(':'), "the waiter is next");
    // A real cycle of two users is refused.
    assert!(bare.run(stranger, "LOCK.ACQUIRE a:2 carl 60000").starts_with(':'));
    assert!(bare.run(bob, "LOCK.ACQUIRE a:3 dora 60000").starts_with(':'));
    assert_eq!(bare.run(bob, "LOCK.ACQUIRE a:2 dora 60000 WAIT 0"), "");
    let refused = "-DEADLOCK 'carl' waits for 'a:3' held by 'dora', who waits for 'a:2' held by 'carl'";
    bare.script(stranger, &[("LOCK.ACQUIRE a:3 carl 60000 WAIT 0", refused)]);
}

#[test]
fn a_refused_cycle_names_what_its_user_may_read() {
    let mut bare = Bare::new();
    let [root, one, two, three] = [0; 4].map(|_| bare.connect());
    let user = bare.connect();
    bare.script(root, &[("ACL SETUSER su on nopass ~a:* +@lock", "+OK")]);
    bare.script(user, &[("AUTH su x", "+OK")]);
    assert!(bare.run(user, "LOCK.ACQUIRE a:1 me 60000").starts_with(':'));
    for (id, holds, owner, waits_for) in [(one, "v:2", "dan", "a:1"), (two, "v:1", "cy", "v:2"), (three, "a:2", "bob", "v:1")] {
        assert!(bare.run(id, &format!("LOCK.ACQUIRE {holds} {owner} 60000")).starts_with(':'));
        assert_eq!(bare.run(id, &format!("LOCK.ACQUIRE {waits_for} {owner} 60000 WAIT 0")), "");
    }
    bare.script(
        user,
        &[(
            "LOCK.ACQUIRE a:2 me 60000 WAIT 0",
            "-DEADLOCK 'me' waits for 'a:2' held by 'bob', who waits for a lock that you may not see behind 'dan', who waits for 'a:1' \
             held by 'me'",
        )],
    );
    // Whoever may read all is told all. The lock is the same.
    bare.script(root, &[("ACL SETUSER su ~*", "+OK")]);
    let text = bare.run(user, "LOCK.ACQUIRE a:2 me 60000 WAIT 0");
    assert!(text.contains("who waits for 'v:1' held by 'cy', who waits for 'v:2' held by 'dan'"), "{text}");
}
