//! Publish/subscribe and keyspace notifications, over the engine.

use portcullis::base::ids::SessionId;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::keyspace::change::Classes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::bare::Bare;

/// A push message of strings, with blanks for line ends.
fn push(mark: char, parts: &[&str]) -> String {
    let mut text = format!("{mark}{}", parts.len());
    for part in parts {
        text.push_str(&format!(" ${} {part}", part.len()));
    }
    text
}

fn classes(letters: &str) -> Classes {
    Classes::parse(letters.as_bytes()).expect("known letters")
}

#[track_caller]
fn assert_got(bare: &mut Bare, id: SessionId, pushes: &[String]) {
    let got = bare.take(id);
    assert_eq!(got.replace("\r\n", " ").trim_end(), pushes.join(" "));
}

#[test]
fn confirmations_count_channels_and_patterns_together_and_shards_apart() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.script(
        id,
        &[
            ("UNSUBSCRIBE", "*3 $11 unsubscribe $-1 :0"),
            ("PUNSUBSCRIBE", "*3 $12 punsubscribe $-1 :0"),
            ("SUNSUBSCRIBE", "*3 $12 sunsubscribe $-1 :0"),
            ("UNSUBSCRIBE x", "*3 $11 unsubscribe $1 x :0"),
            ("SUBSCRIBE a b a", "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 *3 $9 subscribe $1 a :2"),
            ("PSUBSCRIBE a* b", "*3 $10 psubscribe $2 a* :3 *3 $10 psubscribe $1 b :4"),
            ("SSUBSCRIBE a", "*3 $10 ssubscribe $1 a :1"),
            ("UNSUBSCRIBE none a", "*3 $11 unsubscribe $4 none :4 *3 $11 unsubscribe $1 a :3"),
            ("PUNSUBSCRIBE", "*3 $12 punsubscribe $2 a* :2 *3 $12 punsubscribe $1 b :1"),
            ("SUNSUBSCRIBE a", "*3 $12 sunsubscribe $1 a :0"),
            ("SUBSCRIBE", "-ERR wrong number of arguments for 'subscribe' command"),
            ("UNSUBSCRIBE", "*3 $11 unsubscribe $1 b :0"),
            ("PING", "+PONG"),
        ],
    );
    let id = bare.connect3();
    bare.script(
        id,
        &[
            ("UNSUBSCRIBE", ">3 $11 unsubscribe _ :0"),
            ("SUBSCRIBE a", ">3 $9 subscribe $1 a :1"),
            ("SUNSUBSCRIBE", ">3 $12 sunsubscribe _ :0"),
            ("UNSUBSCRIBE", ">3 $11 unsubscribe $1 a :0"),
        ],
    );
}

#[test]
fn a_resp2_subscriber_may_do_little_else() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.run(id, "SSUBSCRIBE s");
    let only = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
    bare.script(
        id,
        &[
            ("GET x", &format!("-ERR Can't execute 'get': {only}")),
            ("CLIENT ID", &format!("-ERR Can't execute 'client|id': {only}")),
            ("PING", "*2 $4 pong $0"),
            ("PING there", "*2 $4 pong $5 there"),
            ("SUNSUBSCRIBE", "*3 $12 sunsubscribe $1 s :0"),
            ("GET x", "$-1"),
            ("SUBSCRIBE c", "*3 $9 subscribe $1 c :1"),
            ("RESET", "+RESET"),
            ("GET x", "$-1"),
            ("SUBSCRIBE c", "*3 $9 subscribe $1 c :1"),
            ("QUIT", "+OK"),
        ],
    );
    let id = bare.connect3();
    bare.run(id, "SUBSCRIBE c");
    bare.script(id, &[("GET x", "_"), ("PING", "+PONG")]);
}

#[test]
fn messages_reach_channels_before_patterns_in_the_order_of_subscribing() {
    let mut bare = Bare::new();
    let (one, two, three, publisher) = (bare.connect(), bare.connect3(), bare.connect(), bare.connect());
    bare.run(three, "PSUBSCRIBE n?ws*");
    bare.run(two, "SUBSCRIBE news");
    bare.run(one, "SUBSCRIBE other news");
    bare.run(two, "PSUBSCRIBE news n?ws*");
    let mut dirty = Vec::new();
    bare.engine.take_pending_writes(&mut dirty);
    dirty.clear();

    bare.script(publisher, &[("PUBLISH news hi", ":5"), ("PUBLISH nothing hi", ":0"), ("SPUBLISH news hi", ":0")]);
    bare.engine.take_pending_writes(&mut dirty);
    assert_eq!(dirty, [two, one, three]);
    assert_got(&mut bare, one, &[push('*', &["message", "news", "hi"])]);
    let direct = push('>', &["message", "news", "hi"]);
    let globbed = push('>', &["pmessage", "n?ws*", "news", "hi"]);
    assert_got(&mut bare, two, &[direct, globbed, push('>', &["pmessage", "news", "news", "hi"])]);
    assert_got(&mut bare, three, &[push('*', &["pmessage", "n?ws*", "news", "hi"])]);

    bare.run(two, "SSUBSCRIBE news");
    bare.script(publisher, &[("SPUBLISH news s", ":1")]);
    assert_got(&mut bare, two, &[push('>', &["smessage", "news", "s"])]);
    assert_got(&mut bare, one, &[]);
}

#[test]
fn what_a_session_publishes_to_itself_follows_its_reply() {
    let mut bare = Bare::new();
    let id = bare.connect3();
    bare.run(id, "SUBSCRIBE c");
    bare.script(id, &[("PUBLISH c x", ":1 >3 $7 message $1 c $1 x")]);
}

#[test]
fn switched_off_replies_do_not_stop_pushes() {
    let mut bare = Bare::new();
    let id = bare.connect3();
    bare.run(id, "CLIENT REPLY OFF");
    bare.script(id, &[("SUBSCRIBE c", ">3 $9 subscribe $1 c :1"), ("PUBLISH c x", ">3 $7 message $1 c $1 x"), ("GET x", "")]);
}

#[test]
fn pubsub_tells_who_listens() {
    let mut bare = Bare::new();
    let (one, two, asking) = (bare.connect(), bare.connect(), bare.connect());
    bare.run(one, "SUBSCRIBE a ab");
    bare.run(two, "SUBSCRIBE ab c");
    bare.run(one, "PSUBSCRIBE x* y");
    bare.run(two, "PSUBSCRIBE x*");
    bare.run(two, "SSUBSCRIBE s");
    bare.script(
        asking,
        &[
            ("PUBSUB CHANNELS", "*3 $1 a $2 ab $1 c"),
            ("PUBSUB CHANNELS a*", "*2 $1 a $2 ab"),
            ("PUBSUB CHANNELS s", "*0"),
            ("PUBSUB CHANNELS a b", "-ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP."),
            ("PUBSUB NUMSUB", "*0"),
            ("PUBSUB NUMSUB ab none a", "*6 $2 ab :2 $4 none :0 $1 a :1"),
            ("PUBSUB NUMPAT", ":2"),
            ("PUBSUB NUMPAT x", "-ERR wrong number of arguments for 'pubsub|numpat' command"),
            ("PUBSUB SHARDCHANNELS", "*1 $1 s"),
            ("PUBSUB SHARDCHANNELS t*", "*0"),
            ("PUBSUB SHARDNUMSUB s a", "*4 $1 s :1 $1 a :0"),
            ("PUBSUB ODD", "-ERR unknown subcommand 'ODD'. Try PUBSUB HELP."),
        ],
    );
    bare.engine.disconnect(bare.now, two);
    bare.engine.check_invariants();
    bare.script(
        asking,
        &[("PUBSUB CHANNELS", "*2 $1 a $2 ab"), ("PUBSUB NUMPAT", ":2"), ("PUBSUB SHARDCHANNELS", "*0"), ("PUBLISH ab x", ":1")],
    );
}

#[test]
fn a_slow_subscriber_is_let_go_and_nobody_else() {
    let mut bare = Bare::new();
    let (slow, fast, publisher) = (bare.connect(), bare.connect(), bare.connect());
    bare.run(slow, "SUBSCRIBE c");
    bare.run(fast, "SUBSCRIBE c");
    let message = vec![b'x'; 1 << 20];
    for n in 1..=40 {
        assert_eq!(bare.args(publisher, &[b"PUBLISH", b"c", &message]), ":2\r\n", "message {n}");
        assert!(bare.take(fast).len() > message.len());
    }
    let gone = &bare.engine.sessions()[slow];
    assert!(gone.flags.contains(SessionFlags::CLOSE_NOW) && gone.out.is_empty());
    assert_eq!(bare.engine.stats().output_limit_disconnections, 1);
    let mut dirty = Vec::new();
    bare.engine.take_pending_writes(&mut dirty);
    assert!(dirty.contains(&slow));
    bare.engine.disconnect(bare.now, slow);
    assert_eq!(bare.run(publisher, "PUBLISH c x"), ":1\r\n");
}

#[test]
fn a_session_with_many_channels_costs_only_its_own() {
    let mut bare = Bare::new();
    let (many, one) = (bare.connect(), bare.connect());
    let names: Vec<String> = (0..100_000).map(|n| format!("channel:{n}")).collect();
    let mut subscribe: Vec<&[u8]> = vec![b"SUBSCRIBE"];
    subscribe.extend(names.iter().map(|name| name.as_bytes()));
    bare.engine.execute(bare.now, many, &subscribe);
    bare.engine.execute(bare.now, one, &subscribe);
    bare.take(one);
    assert!(bare.take(many).ends_with("$13\r\nchannel:99999\r\n:100000\r\n"));
    subscribe[0] = b"UNSUBSCRIBE";
    bare.engine.execute(bare.now, one, &subscribe[..1]);
    assert!(bare.take(one).ends_with("$13\r\nchannel:99999\r\n:0\r\n"));
    bare.engine.disconnect(bare.now, many);
    bare.engine.check_invariants();
    bare.script(one, &[("PUBSUB CHANNELS", "*0")]);
}

#[test]
fn keyspace_events_are_published_as_configured() {
    let mut bare = Bare::with(|config| config.notify_keyspace_events = classes("KEA"));
    let (listener, writer) = (bare.connect(), bare.connect());
    bare.run(listener, "PSUBSCRIBE __key*__:*");
    bare.run(listener, "SUBSCRIBE __keyevent@0__:del");
    bare.run(writer, "SET k v PX 100");
    let space = |event| push('*', &["pmessage", "__key*__:*", "__keyspace@0__:k", event]);
    let key = |event: &str| push('*', &["pmessage", "__key*__:*", &format!("__keyevent@0__:{event}"), "k"]);
    assert_got(&mut bare, listener, &[space("set"), key("set"), space("expire"), key("expire")]);
    bare.run(writer, "DEL k");
    let direct = push('*', &["message", "__keyevent@0__:del", "k"]);
    assert_got(&mut bare, listener, &[space("del"), direct, key("del")]);

    bare.run(writer, "SELECT 3");
    bare.engine.keyspace_mut().changes.notify = classes("E$");
    bare.run(writer, "SET k v");
    bare.run(writer, "DEL k");
    assert_got(&mut bare, listener, &[push('*', &["pmessage", "__key*__:*", "__keyevent@3__:set", "k"])]);
    bare.engine.keyspace_mut().changes.notify = classes("Kg");
    bare.run(writer, "SET k v");
    bare.run(writer, "DEL k");
    assert_got(&mut bare, listener, &[push('*', &["pmessage", "__key*__:*", "__keyspace@3__:k", "del"])]);
    bare.engine.keyspace_mut().changes.notify = classes("g$");
    bare.run(writer, "SET k v");
    assert_got(&mut bare, listener, &[]);
}

#[test]
fn the_end_of_a_key_is_published_when_it_comes() {
    let mut bare = Bare::with(|config| config.notify_keyspace_events = classes("Ex"));
    let (listener, writer) = (bare.connect(), bare.connect());
    bare.run(listener, "SUBSCRIBE __keyevent@0__:expired");
    bare.run(writer, "SET a v PX 100");
    bare.run(writer, "SET b v PX 50");
    bare.pass(49);
    assert_got(&mut bare, listener, &[]);
    bare.pass(1);
    assert_got(&mut bare, listener, &[push('*', &["message", "__keyevent@0__:expired", "b"])]);
    bare.pass(200);
    assert_got(&mut bare, listener, &[push('*', &["message", "__keyevent@0__:expired", "a"])]);
}

/// The subscriptions in the model: in the order of subscribing.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Session, kind and name, oldest first.
    subscriptions: Vec<(usize, usize, String)>,
    /// Patterns that have subscribers, oldest first.
    patterns: Vec<String>,
}

impl Model {
    fn count(&self, session: usize, kind: usize) -> usize {
        self.subscriptions.iter().filter(|entry| entry.0 == session && entry.1 == kind).count()
    }

    fn confirmed(&self, session: usize, kind: usize) -> usize {
        if kind == 2 { self.count(session, 2) } else { self.count(session, 0) + self.count(session, 1) }
    }

    fn subscribe(&mut self, session: usize, kind: usize, name: &str) {
        let entry = (session, kind, name.to_owned());
        if !self.subscriptions.contains(&entry) {
            self.subscriptions.push(entry);
        }
        if kind == 1 && !self.patterns.iter().any(|known| known == name) {
            self.patterns.push(name.to_owned());
        }
    }

    fn end(&mut self, gone: impl Fn(&(usize, usize, String)) -> bool) {
        self.subscriptions.retain(|entry| !gone(entry));
        let subscriptions = &self.subscriptions;
        self.patterns.retain(|pattern| subscriptions.iter().any(|entry| entry.1 == 1 && entry.2 == *pattern));
    }

    /// The messages of a publish, with their sessions, in the order of delivery.
    fn publish(&self, kind: usize, channel: &str, message: &str) -> Vec<(usize, String)> {
        let word = if kind == 2 { "smessage" } else { "message" };
        let to = |kind: usize, name: &str| {
            let (name, subscriptions) = (name.to_owned(), self.subscriptions.iter());
            subscriptions.filter(move |entry| entry.1 == kind && entry.2 == name).map(|entry| entry.0)
        };
        let mut sent: Vec<_> = to(kind, channel).map(|session| (session, push('*', &[word, channel, message]))).collect();
        if kind == 0 {
            for pattern in &self.patterns {
                if pattern == channel || pattern.strip_suffix('*').is_some_and(|start| channel.starts_with(start)) {
                    let text = push('*', &["pmessage", pattern, channel, message]);
                    sent.extend(to(1, pattern).map(|session| (session, text.clone())));
                }
            }
        }
        sent
    }
}

const SESSIONS: usize = 4;
const NAMES: [&str; 6] = ["a", "ab", "b", "a*", "ab*", "*"];

#[derive(Clone, Debug)]
enum Step {
    Subscribe(usize, usize, Vec<usize>),
    Unsubscribe(usize, usize, Vec<usize>),
    Publish(usize, usize),
    Reconnect(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let names = || vec(0..NAMES.len(), 0..4);
    prop_oneof![
        4 => (0..SESSIONS, 0..3usize, names()).prop_map(|(s, k, n)| Step::Subscribe(s, k, n)),
        3 => (0..SESSIONS, 0..3usize, names()).prop_map(|(s, k, n)| Step::Unsubscribe(s, k, n)),
        4 => (0..2usize, 0..NAMES.len()).prop_map(|(k, n)| Step::Publish(k * 2, n)),
        1 => (0..SESSIONS).prop_map(Step::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn subscriptions_behave_like_a_list_of_them(steps in vec(step(), 1..60)) {
        const SUBSCRIBE: [&str; 3] = ["subscribe", "psubscribe", "ssubscribe"];
        const UNSUBSCRIBE: [&str; 3] = ["unsubscribe", "punsubscribe", "sunsubscribe"];
        let mut bare = Bare::new();
        let mut model = Model::default();
        let mut ids: Vec<SessionId> = (0..SESSIONS).map(|_| bare.connect()).collect();
        let publisher = bare.connect();
        let shown = |word: &str, name: &str, count: usize| format!("{} :{count}", push('*', &[word, name])).replacen("*2", "*3", 1);
        for step in steps {
            match step {
                Step::Subscribe(_, _, names) if names.is_empty() => {}
                Step::Subscribe(session, kind, names) => {
                    let mut wanted = Vec::new();
                    let mut request = SUBSCRIBE[kind].to_owned();
                    for name in names.iter().map(|&n| NAMES[n]) {
                        request.push_str(&format!(" {name}"));
                        model.subscribe(session, kind, name);
                        wanted.push(shown(SUBSCRIBE[kind], name, model.confirmed(session, kind)));
                    }
                    let wanted = wanted.join(" ");
                    bare.script(ids[session], &[(&request, &wanted)]);
                }
                Step::Unsubscribe(session, kind, names) => {
                    let mut request = UNSUBSCRIBE[kind].to_owned();
                    let mut named: Vec<String> = names.iter().map(|&n| NAMES[n].to_owned()).collect();
                    for name in &named {
                        request.push_str(&format!(" {name}"));
                    }
                    if named.is_empty() {
                        let own = model.subscriptions.iter().filter(|entry| entry.0 == session && entry.1 == kind);
                        named = own.map(|entry| entry.2.clone()).collect();
                    }
                    let mut wanted = Vec::new();
                    for name in named {
                        model.end(|entry| entry.0 == session && entry.1 == kind && entry.2 == name);
                        wanted.push(shown(UNSUBSCRIBE[kind], &name, model.confirmed(session, kind)));
                    }
                    if wanted.is_empty() {
                        let (word, count) = (UNSUBSCRIBE[kind], model.confirmed(session, kind));
                        wanted.push(format!("*3 ${} {word} $-1 :{count}", word.len()));
                    }
                    let wanted = wanted.join(" ");
                    bare.script(ids[session], &[(&request, &wanted)]);
                }
                Step::Publish(kind, name) => {
                    let mut dirty = Vec::new();
                    bare.engine.take_pending_writes(&mut dirty);
                    dirty.clear();
                    let sent = model.publish(kind, NAMES[name], "m");
                    let word = if kind == 2 { "SPUBLISH" } else { "PUBLISH" };
                    let count = format!(":{}", sent.len());
                    bare.script(publisher, &[(&format!("{word} {} m", NAMES[name]), &count)]);
                    bare.engine.take_pending_writes(&mut dirty);
                    let mut order: Vec<SessionId> = Vec::new();
                    for (session, _) in &sent {
                        if !order.contains(&ids[*session]) {
                            order.push(ids[*session]);
                        }
                    }
                    prop_assert_eq!(dirty, order);
                    for (session, id) in ids.iter().enumerate() {
                        let own: Vec<String> = sent.iter().filter(|entry| entry.0 == session).map(|entry| entry.1.clone()).collect();
                        assert_got(&mut bare, *id, &own);
                    }
                }
                Step::Reconnect(session) => {
                    bare.engine.disconnect(bare.now, ids[session]);
                    model.end(|entry| entry.0 == session);
                    ids[session] = bare.engine.connect(bare.now, Peer::default());
                    bare.engine.check_invariants();
                }
            }
        }
    }
}
