//! Roles, what they refuse, what a change of role does, and `WAIT`.

use crate::base::ids::SessionId;
use crate::commands;
use crate::engine::Action;
use crate::engine::harness::Harness;
use crate::engine::persistence::{Figures, Position};
use crate::engine::replication::acknowledged::Awaited;
use crate::engine::replication::{Node, Patience, Quorum, Role};
use crate::engine::session::{Peer, SessionFlags};

const FOLLOWER: Role = Role::Follower { leader: Some(2) };
const LEADERLESS: Role = Role::Follower { leader: None };

fn connect(h: &mut Harness) -> SessionId {
    h.engine.connect(h.now, Peer::default())
}

fn send(h: &mut Harness, id: SessionId, words: &str) -> String {
    let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
    h.engine.execute(h.now, id, &args);
    h.engine.check_invariants();
    h.outbox(id)
}

#[test]
fn a_follower_answers_nothing_from_its_keys() {
    let mut h = Harness::replicated(FOLLOWER, false);
    let write = "-READONLY You can't write against a read only replica.";
    let read = "-READONLY You can't read from this replica, which may be late. The master is at 10.0.0.2:6379.";
    h.script(&[
        ("SET a 1", write),
        ("LOCK.ACQUIRE a ann 1000", write),
        ("EVAL return 0", write),
        ("FCALL f 0", write),
        ("FLUSHALL", write),
        ("GET a", read),
        ("LOCK.INFO a", read),
        ("LOCK.STATS", read),
        ("EVAL_RO return 0", read),
        ("WATCH a", read),
        ("DBSIZE", read),
        ("KEYS *", read),
        ("WAIT x 0", "-ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated."),
        ("WAITAOF 0 1 0", "-ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and are not propagated."),
        ("WAITAOF 2 1 0", "-ERR value is out of range, value must between 0 and 1"),
        ("BGSAVE", read),
        ("SCRIPT EXISTS a", read),
        ("FUNCTION LIST", read),
        ("DEBUG DIGEST", read),
        ("DEBUG OBJECT a", read),
        ("DEBUG RELOAD", "-ERR A replicated server loads its files only when it starts"),
        ("PING", "+PONG"),
        ("SELECT 1", "+OK"),
        ("SUBSCRIBE news", "*3 $9 subscribe $4 news :1"),
        ("UNSUBSCRIBE", "*3 $11 unsubscribe $4 news :0"),
        ("SSUBSCRIBE news", "*3 $10 ssubscribe $4 news :1"),
        ("RESET", "+RESET"),
        ("SUBSCRIBE news __keyevent@0__:expired", read),
        ("PSUBSCRIBE __key*", read),
        ("SUBSCRIBE __portcullis__:lock-lost:7", read),
        ("PSUBSCRIBE __portcullis__:lock-lost:*", read),
        ("CLIENT TRACKING ON BCAST PREFIX a", "+OK"),
        ("CLIENT TRACKING OFF", "+OK"),
        ("CLIENT TRACKING ON OPTIN", "+OK"),
        ("CLIENT CACHING YES", "+OK"),
        ("GET a", read),
        ("CLIENT TRACKING ON", "+OK"),
        ("CLIENT TRACKING OFF", "+OK"),
        ("PUBLISH news 1", ":0"),
    ]);
    assert!(h.engine.diagnosis.stats.errors.iter().any(|(code, count)| &**code == "READONLY" && *count > 10));
    assert_eq!([h.run("INFO keyspace"), h.run("INFO locks")], ["$0", "$0"], "it counts no keys rather than none");
}

#[test]
fn an_unknown_master_is_not_named() {
    let mut h = Harness::replicated(LEADERLESS, false);
    h.script(&[("GET a", "-READONLY You can't read from this replica, which may be late. No master is known at present.")]);
    let without =
        "-READONLY Link with MASTER is down: this node reaches no majority of its cluster, and neither reads nor writes.";
    h.become_one(Role::NoQuorum);
    h.script(&[("GET a", without), ("SET a 1", without), ("PUBLISH news 1", without), ("PING", "+PONG")]);
    h.become_one(Role::Leader);
    h.script(&[("SET a 1", "+OK"), ("GET a", "$1 1")]);
}

/// A follower's engine may load as long as it follows.
#[test]
fn the_role_decides_and_not_the_load_behind_it() {
    let mut h = Harness::replicated(FOLLOWER, true);
    let loaded = h.engine.begin_loading(h.now, 1);
    assert!(h.run("GET a").starts_with("-MOVED"));
    assert!(h.run("CLUSTER NODES").contains("myself,slave"));
    h.become_one(Role::Leader);
    h.script(&[("GET a", "-LOADING Redis is loading the dataset in memory")]);
    h.engine.end_loading(*loaded);
    h.script(&[("GET a", "$-1")]);
}

#[test]
fn commands_that_any_node_executes() {
    let rows =
        commands::all().flat_map(|row| if row.subcommands.is_empty() { std::slice::from_ref(row) } else { row.subcommands });
    let names: Vec<String> = rows.filter(|row| !row.needs_leader()).map(|row| commands::full_name(row).into_owned()).collect();
    let families = ["acl|", "client|", "clock|", "cluster|", "command|", "config|", "fault|", "latency|", "module|", "pubsub|"];
    let others = ["node|", "sentinel|", "slowlog|"];
    let left = |name: &&String| !families.iter().chain(&others).any(|family| name.starts_with(family));
    let mut left: Vec<&str> = names.iter().filter(left).map(String::as_str).collect();
    let expected = "object|help pfselftest xgroup|help xinfo|help auth echo hello ping quit reset select info time role wait waitaof lastsave shutdown \
                    debug monitor memory|doctor memory|help memory|malloc-stats memory|purge memory|stats readonly readwrite asking \
                    replicaof slaveof failover replconf psubscribe publish punsubscribe spublish ssubscribe subscribe sunsubscribe \
                    unsubscribe script|help script|kill script|load function|help function|kill function|stats discard exec multi unwatch";
    let mut expected: Vec<&str> = expected.split(' ').collect();
    expected.sort_unstable();
    left.sort_unstable();
    assert_eq!(left, expected);
}

#[test]
fn transactions_are_refused_when_they_are_queued_or_run() {
    let mut h = Harness::replicated(FOLLOWER, false);
    let write = "READONLY You can't write against a read only replica.";
    h.script(&[
        ("MULTI", "+OK"),
        ("SET a 1", &format!("-{write}")),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("PING", "+QUEUED"),
        ("EXEC", "*1 +PONG"),
    ]);
    h.become_one(Role::Leader);
    h.script(&[("MULTI", "+OK"), ("SET a 1", "+QUEUED"), ("PING", "+QUEUED")]);
    h.become_one(FOLLOWER);
    h.script(&[("EXEC", &format!("-EXECABORT Transaction discarded because of: {write}")), ("EXEC", "-ERR EXEC without MULTI")]);
}

#[test]
fn a_cluster_sends_clients_to_its_leader() {
    let mut h = Harness::replicated(FOLLOWER, true);
    h.script(&[
        ("GET a", "-MOVED 15495 10.0.0.2:6379"),
        ("READONLY", "+OK"),
        ("GET a", "-MOVED 15495 10.0.0.2:6379"),
        ("LOCK.ACQUIRE a ann 1000", "-MOVED 15495 10.0.0.2:6379"),
        ("SSUBSCRIBE a", "-MOVED 15495 10.0.0.2:6379"),
        ("SPUBLISH a 1", "-MOVED 15495 10.0.0.2:6379"),
        ("MGET a b", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ("FLUSHALL", "-READONLY You can't write against a read only replica."),
        ("DBSIZE", "-READONLY You can't read from this replica, which may be late. The master is at 10.0.0.2:6379."),
        ("MULTI", "+OK"),
        ("GET a", "-MOVED 15495 10.0.0.2:6379"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
    ]);
    h.become_one(Role::Leader);
    h.script(&[("MULTI", "+OK"), ("GET a", "+QUEUED")]);
    h.become_one(FOLLOWER);
    h.script(&[("EXEC", "-MOVED 15495 10.0.0.2:6379"), ("EXEC", "-ERR EXEC without MULTI")]);
    h.become_one(Role::Leader);
    h.script(&[("MULTI", "+OK"), ("GET a", "+QUEUED"), ("GET b", "+QUEUED")]);
    h.become_one(FOLLOWER);
    h.script(&[("EXEC", "-CROSSSLOT Keys in request don't hash to the same slot")]);
    for role in [LEADERLESS, Role::NoQuorum] {
        h.become_one(role);
        h.script(&[
            ("GET a", "-CLUSTERDOWN The cluster is down"),
            ("DBSIZE", "-CLUSTERDOWN The cluster is down"),
            ("MGET a b", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("PING", "+PONG"),
        ]);
    }
}

#[test]
fn clients_of_tls_are_sent_to_the_tls_port() {
    let mut h = Harness::replicated(FOLLOWER, true);
    h.session = h.engine.connect(h.now, Peer { laddr: "10.0.0.1:6390".into(), ..Peer::default() });
    h.script(&[("GET a", "-MOVED 15495 10.0.0.2:6390")]);
    let node = |port, tls_port| Node { port, tls_port, ..Node::default() };
    assert_eq!([false, true].map(|tls| node(1, 2).port_for(tls)), [1, 2]);
    assert_eq!([false, true].map(|tls| node(1, 0).port_for(tls)), [1, 1]);
    assert_eq!([false, true].map(|tls| node(0, 2).port_for(tls)), [2, 2]);
}

#[test]
fn a_leader_that_is_deposed_ends_all_waits_and_grants_nothing() {
    let error = "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    for role in [FOLLOWER, Role::NoQuorum, Role::Single] {
        let mut h = Harness::replicated(Role::Leader, false);
        h.engine.replication.settled_index = 200;
        for request in ["LOCK.ACQUIRE l ann 60000", "SEM.ACQUIRE s ann 60000 LIMIT 3 PERMITS 2"] {
            assert!(h.run(request).starts_with(':'), "{request}");
        }
        let requests = [
            "BLPOP a 0",
            "LOCK.ACQUIRE l bob 1000 WAIT 9000",
            "LOCK.ACQUIRE l cem 1000 WAIT 9000",
            // The one behind it would have its permit when the first leaves the queue.
            "SEM.ACQUIRE s bob 1000 LIMIT 3 PERMITS 2 WAIT 9000",
            "SEM.ACQUIRE s cem 1000 LIMIT 3 WAIT 9000",
            "WAIT 2 0",
        ];
        let blocked: Vec<SessionId> = requests
            .iter()
            .map(|request| {
                let id = connect(&mut h);
                assert_eq!(send(&mut h, id, request), "", "{request}");
                id
            })
            .collect();
        let idle = connect(&mut h);
        h.become_one(role);
        h.engine.check_invariants();
        for (id, request) in blocked.iter().zip(requests) {
            let flags = h.engine.clients.sessions[*id].flags;
            assert_eq!(h.outbox(*id), error, "{request}");
            assert!(flags.contains(SessionFlags::CLOSE_AFTER_REPLY) && !flags.contains(SessionFlags::BLOCKED), "{request}");
        }
        let mut pending_writes = Vec::new();
        h.engine.take_pending_writes(&mut pending_writes);
        assert!(blocked.iter().all(|id| pending_writes.contains(id)) && !pending_writes.contains(&idle));
        assert_eq!(h.engine.blocked_clients(), 0);
    }
}

#[test]
fn what_a_pause_holds_back_is_refused_after_it() {
    let mut h = Harness::replicated(Role::Leader, false);
    let held = connect(&mut h);
    h.script(&[("CLIENT PAUSE 100", "+OK")]);
    assert_eq!(send(&mut h, held, "SET a 1"), "");
    h.become_one(FOLLOWER);
    assert_eq!(h.outbox(held), "");
    h.pass(100);
    assert_eq!(h.outbox(held), "-READONLY You can't write against a read only replica.");
}

/// The messages of a subscriber to everything, each as `channel message`.
fn messages(h: &mut Harness, subscriber: SessionId) -> Vec<String> {
    let text = String::from_utf8(std::mem::take(&mut h.engine.clients.sessions[subscriber].out)).unwrap_or_default();
    let parts: Vec<&str> = text.split("*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n").skip(1).collect();
    let lines = |part: &str| part.split("\r\n").filter(|line| !line.starts_with('$')).collect::<Vec<_>>().join(" ");
    parts.into_iter().map(|part| lines(part).trim().to_owned()).collect()
}

#[test]
fn subscribers_get_the_events_of_sentinel() {
    let mut h = Harness::new();
    let all = connect(&mut h);
    send(&mut h, all, "PSUBSCRIBE *");
    let check = |h: &mut Harness, role, expected: &[&str]| {
        h.become_one(role);
        assert_eq!(messages(h, all), expected, "{role:?}");
    };
    check(&mut h, LEADERLESS, &[]);
    h.become_one(FOLLOWER);
    let first = messages(&mut h, all);
    assert_eq!(first[0], "+monitor master mymaster 10.0.0.2 6379 quorum 2");
    assert_eq!(first[1], "+slave slave 10.0.0.1:6379 10.0.0.1 6379 @ mymaster 10.0.0.2 6379");
    check(&mut h, FOLLOWER, &[]);
    let lost = ["+sdown master mymaster 10.0.0.2 6379", "+odown master mymaster 10.0.0.2 6379 #quorum 3/2"];
    check(&mut h, LEADERLESS, &lost);
    check(&mut h, FOLLOWER, &["-sdown master mymaster 10.0.0.2 6379", "-odown master mymaster 10.0.0.2 6379"]);
    check(&mut h, LEADERLESS, &lost);
    check(
        &mut h,
        Role::Leader,
        &[
            "+promoted-slave slave 10.0.0.1:6379 10.0.0.1 6379 @ mymaster 10.0.0.2 6379",
            "+failover-end master mymaster 10.0.0.2 6379",
            "+switch-master mymaster 10.0.0.2 6379 10.0.0.1 6379",
            "+slave slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379",
            "+slave slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster 10.0.0.1 6379",
        ],
    );
    // Nodes that fall silent, come back, and join.
    let mut state = Harness::three_nodes(Role::Leader);
    state.nodes[2].link_up = false;
    h.engine.set_replication(h.now, state.clone());
    assert_eq!(messages(&mut h, all), ["+sdown slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster 10.0.0.1 6379"]);
    state.nodes[2].link_up = true;
    state.nodes.push(Node { id: 4, host: "10.0.0.4".into(), port: 1, link_up: true, ..Node::default() });
    h.engine.set_replication(h.now, state.clone());
    let id = h.engine.replication.name_of(4);
    assert_eq!(
        messages(&mut h, all),
        [
            "-sdown slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster 10.0.0.1 6379",
            "+slave slave 10.0.0.4:1 10.0.0.4 1 @ mymaster 10.0.0.1 6379",
            &format!("+sentinel sentinel {id} 10.0.0.4 1 @ mymaster 10.0.0.1 6379"),
        ]
    );
    // Another address of the same leader.
    state.nodes[0].host = "10.1.0.1".into();
    h.engine.set_replication(h.now, state);
    let moved = messages(&mut h, all);
    assert_eq!(moved[0], "+switch-master mymaster 10.0.0.1 6379 10.1.0.1 6379");
}

/// Makes a log that is durable up to `durable` of `recorded`.
fn log(h: &mut Harness, recorded: u64, durable: u64) {
    let position = Position { recorded, durable };
    h.engine.persistence.figures = Some(Box::new(move || Figures { position, ..Figures::default() }));
}

#[test]
fn wait_counts_a_majority_as_soon_as_changes_are_settled() {
    let mut h = Harness::replicated(Role::Leader, false);
    log(&mut h, 7, 7);
    // No follower is known to have all that is settled.
    h.engine.replication.settled_index = 200;
    h.script(&[
        ("WAIT 0 0", ":1"),
        ("WAIT 1 0", ":1"),
        ("WAITAOF 1 1 0", "*2 :1 :1"),
        ("WAIT x 0", "-ERR value is not an integer or out of range"),
    ]);
    log(&mut h, 9, 7);
    h.script(&[("WAIT 0 0", ":0"), ("WAITAOF 0 0 0", "*2 :0 :0")]);
    h.script(&[("MULTI", "+OK"), ("WAIT 1 0", "+QUEUED"), ("EXEC", "*1 :0")]);
    let (one, local) = (connect(&mut h), connect(&mut h));
    assert_eq!(send(&mut h, one, "WAIT 1 0"), "");
    assert_eq!(send(&mut h, local, "WAITAOF 1 0 0"), "");
    // The driver reports positions that say nothing about what is not settled.
    h.become_one(Role::Leader);
    assert_eq!([h.outbox(one), h.outbox(local)], ["", ""]);
    log(&mut h, 9, 9);
    h.engine.end_log_waits(h.now);
    assert_eq!([h.outbox(one), h.outbox(local)], [":1", "*2 :1 :1"]);
    assert_eq!(h.engine.persistence.answered, [one, local]);
}

#[test]
fn wait_for_all_followers_waits_for_their_positions() {
    let mut h = Harness::replicated(Role::Leader, false);
    log(&mut h, 9, 9);
    h.engine.replication.settled_index = 200;
    let (both, aof, late) = (connect(&mut h), connect(&mut h), connect(&mut h));
    assert_eq!(send(&mut h, both, "WAIT 2 0"), "");
    assert_eq!(send(&mut h, aof, "WAITAOF 1 2 0"), "");
    assert_eq!(send(&mut h, late, "WAIT 3 500"), "");
    assert_eq!(h.engine.take_actions(), vec![Action::LookAtFollowers; 3]);
    assert_eq!(h.engine.awaited_of_followers(), [Awaited { followers: 2, index: 200 }], "there is no third follower");
    followers(&mut h, [200, 199]);
    assert_eq!([h.outbox(both), h.outbox(aof)], ["", ""]);
    // The leader is further by now, but that is nothing that they wait for.
    h.engine.replication.settled_index = 300;
    followers(&mut h, [250, 200]);
    assert_eq!([h.outbox(both), h.outbox(aof)], [":2", "*2 :1 :2"]);
    assert_eq!(h.engine.awaited_of_followers(), []);
    h.pass(500);
    assert_eq!(h.outbox(late), ":2");
    assert!(!h.engine.awaits_followers());
    // What both have is answered at once, also where nobody may wait.
    followers(&mut h, [300, 300]);
    h.script(&[("WAIT 2 0", ":2"), ("WAITAOF 1 2 0", "*2 :1 :2"), ("WAIT 9 1", "")]);
    h.pass(1);
    let session = h.session;
    assert_eq!(h.outbox(session), ":2");
    h.script(&[("MULTI", "+OK"), ("WAIT 2 0", "+QUEUED"), ("EXEC", "*1 :2")]);
    // A follower that does not answer has nothing for certain.
    h.engine.replication.settled_index = 301;
    let mut state = Harness::three_nodes(Role::Leader);
    state.nodes[2].link_up = false;
    h.engine.set_replication(h.now, state.clone());
    let (early, patient) = (connect(&mut h), connect(&mut h));
    assert_eq!(send(&mut h, early, "WAIT 2 500"), "");
    assert_eq!(send(&mut h, patient, "WAIT 2 0"), "");
    followers(&mut h, [301, 301]);
    h.pass(500);
    assert_eq!([h.outbox(early), h.outbox(patient)], [":1", ""]);
    // It comes back.
    (state.nodes[1].position, state.nodes[2].position, state.nodes[2].link_up) = (301, 301, true);
    h.engine.set_replication(h.now, state);
    assert_eq!(h.outbox(patient), ":2");
}

/// The changes of each wait are settled before followers are waited for, and each wait ends with its own.
#[test]
fn waits_for_followers_end_one_after_another() {
    let mut h = Harness::replicated(Role::Leader, false);
    followers(&mut h, [0, 0]);
    log(&mut h, 9, 7);
    let waiters = [connect(&mut h), connect(&mut h), connect(&mut h)];
    assert_eq!(send(&mut h, waiters[0], "WAIT 2 0"), "");
    log(&mut h, 12, 7);
    assert_eq!(send(&mut h, waiters[1], "WAIT 2 0"), "");
    assert_eq!(send(&mut h, waiters[2], "WAITAOF 1 2 0"), "");
    // What is not settled has no index yet, so the driver has nothing to look at.
    assert_eq!((h.engine.take_actions(), h.engine.awaits_followers()), (vec![], false));
    followers(&mut h, [400, 400]);
    followers(&mut h, [0, 0]);
    log(&mut h, 12, 9);
    h.engine.replication.settled_index = 20;
    h.engine.end_log_waits(h.now);
    h.engine.check_invariants();
    assert_eq!(h.engine.awaited_of_followers(), [Awaited { followers: 2, index: 20 }]);
    log(&mut h, 12, 12);
    h.engine.replication.settled_index = 21;
    h.engine.end_log_waits(h.now);
    followers(&mut h, [21, 20]);
    assert_eq!(waiters.map(|id| h.outbox(id)), [":2", "", ""]);
    h.engine.disconnect(h.now, waiters[1]);
    assert_eq!(h.engine.awaited_of_followers(), [Awaited { followers: 2, index: 21 }]);
    // With a fourth node and a fifth, a majority is two followers and the leader.
    let mut state = Harness::three_nodes(Role::Leader);
    for id in [4, 5] {
        state.nodes.push(Node { id, host: "10.0.0.4".into(), port: 1, voter: true, link_up: true, ..Node::default() });
    }
    state.nodes.iter_mut().for_each(|node| node.position = 0);
    h.engine.set_replication(h.now, state);
    assert_eq!(h.outbox(waiters[2]), "*2 :1 :2", "what is settled, two have");
    assert!(!h.engine.awaits_followers());
}

/// Sets how far the followers of [`Harness::three_nodes`] are.
fn followers(h: &mut Harness, positions: [u64; 2]) {
    h.engine.set_follower_positions(h.now, &[2, 3].into_iter().zip(positions).collect());
    h.engine.check_invariants();
}

#[test]
fn a_node_that_has_not_told_its_address_is_not_shown() {
    let mut h = Harness::replicated(LEADERLESS, false);
    let all = connect(&mut h);
    send(&mut h, all, "PSUBSCRIBE *");
    let mut state = Harness::three_nodes(FOLLOWER);
    for node in &mut state.nodes[1..] {
        (node.host, node.port, node.tls_port) = (String::new(), 0, 0);
    }
    // A node that has just started knows from its log that node 2 led.
    let mut h2 = Harness::replicated(LEADERLESS, true);
    for h in [&mut h, &mut h2] {
        h.engine.set_replication(h.now, state.clone());
        h.engine.check_invariants();
    }
    assert_eq!(messages(&mut h, all), Vec::<String>::new());
    assert_eq!(h.engine.replication.quorum(), Quorum { usable: 3, majority: 2 });
    h.script(&[
        ("GET a", "-READONLY You can't read from this replica, which may be late. No master is known at present."),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster", "*-1"),
        ("SENTINEL MASTERS", "*0"),
        ("SENTINEL MASTER mymaster", "-ERR No such master with that name"),
        ("SENTINEL REPLICAS mymaster", "-ERR No such master with that name"),
        ("SENTINEL SENTINELS mymaster", "*0"),
        ("ROLE", "*5 $5 slave $0  :0 $7 connect :99"),
        ("NODE REMOVE 3", "-ERR no node leads: members cannot change without a majority"),
    ]);
    let info = h.run("INFO replication sentinel");
    assert!(info.contains("master_link_status:down") && info.contains("sentinel_masters:0"), "{info}");
    assert!(!info.contains("master0") && !info.contains("?"), "{info}");
    let down = "-CLUSTERDOWN The cluster is down";
    h2.script(&[("GET a", down), ("CLUSTER SLOTS", down), ("CLUSTER SHARDS", down)]);
    assert!(h2.run("CLUSTER INFO").contains("cluster_state:fail"));
    let nodes = h2.run("CLUSTER NODES");
    assert!(nodes.contains("myself,slave") && nodes.matches("connected").count() == 1, "{nodes}");
    // It tells its address.
    h.become_one(FOLLOWER);
    assert_eq!(messages(&mut h, all)[0], "+monitor master mymaster 10.0.0.2 6379 quorum 2");
    h.script(&[("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster", "*2 $8 10.0.0.2 $4 6379")]);
}

#[test]
fn a_subscription_to_shard_channels_waits_for_the_next_leader() {
    let mut h = Harness::replicated(FOLLOWER, true);
    for role in [LEADERLESS, Role::NoQuorum] {
        h.become_one(role);
        let [moved, late, closed] = [connect(&mut h), connect(&mut h), connect(&mut h)];
        for id in [moved, closed] {
            assert_eq!(send(&mut h, id, "SSUBSCRIBE a"), "");
        }
        // Other subscriptions are to this node, and a publication goes elsewhere.
        assert_eq!(send(&mut h, late, "SUBSCRIBE a"), "*3 $9 subscribe $1 a :1");
        assert_eq!(send(&mut h, late, "SUNSUBSCRIBE a"), "*3 $12 sunsubscribe $1 a :0");
        h.engine.disconnect(h.now, closed);
        h.become_one(role);
        assert_eq!(h.outbox(moved), "");
        // A leader that is known to be dead is none.
        let mut state = Harness::three_nodes(FOLLOWER);
        state.nodes[1].link_up = false;
        h.engine.set_replication(h.now, state);
        assert_eq!(h.outbox(moved), "");
        h.become_one(FOLLOWER);
        assert_eq!(h.outbox(moved), "-MOVED 15495 10.0.0.2:6379");
        h.become_one(role);
        assert_eq!(send(&mut h, moved, "SSUBSCRIBE a"), "");
        h.become_one(Role::Leader);
        assert_eq!(h.outbox(moved), "*3 $10 ssubscribe $1 a :1");
        h.become_one(FOLLOWER);
        assert_eq!(send(&mut h, moved, "SUNSUBSCRIBE a"), "*3 $12 sunsubscribe $1 a :0", "it is about the connection alone");
        h.become_one(role);
        assert_eq!(send(&mut h, moved, "SSUBSCRIBE a"), "");
        h.pass(Patience::OF_SUBSCRIPTION.ms);
        let flags = h.engine.clients.sessions[moved].flags;
        assert_eq!(h.outbox(moved), "");
        assert!(flags.contains(SessionFlags::CLOSE_NOW) && !flags.contains(SessionFlags::BLOCKED));
    }
}

#[test]
fn a_question_for_the_nodes_waits_for_the_next_leader() {
    let mut h = Harness::replicated(FOLLOWER, true);
    let second = "*1 *5 :0 :16383 *4 $8 10.0.0.2 :6379";
    assert!(h.run("CLUSTER SLOTS").starts_with(second));
    let mut dead = Harness::three_nodes(FOLLOWER);
    dead.nodes[1].link_up = false;
    h.engine.set_replication(h.now, dead.clone());
    let asked = ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"].map(|request| {
        let id = connect(&mut h);
        assert_eq!(send(&mut h, id, request), "");
        id
    });
    h.script(&[("PING", "+PONG"), ("CLUSTER KEYSLOT a", ":15495")]);
    assert!(h.run("CLUSTER INFO").contains("cluster_state:ok"));
    h.become_one(Role::Follower { leader: Some(3) });
    let replies = asked.map(|id| h.outbox(id));
    assert!(replies[0].starts_with("*1 *5 :0 :16383 *4 $8 10.0.0.3 :6379"), "{}", replies[0]);
    assert!(replies[2].contains("10.0.0.3:6379@0 master"), "{}", replies[2]);
    // Without a next leader, the last one is shown after a while.
    h.become_one(FOLLOWER);
    h.engine.set_replication(h.now, dead);
    let (asked, unblocked) = (connect(&mut h), connect(&mut h));
    assert_eq!([send(&mut h, asked, "CLUSTER SLOTS"), send(&mut h, unblocked, "CLUSTER SLOTS")], ["", ""]);
    let number = h.engine.clients.sessions[unblocked].id;
    h.script(&[(&format!("CLIENT UNBLOCK {number}"), ":1")]);
    assert!(h.outbox(unblocked).starts_with(second));
    h.pass(Patience::OF_QUESTION.ms - 1);
    assert_eq!(h.outbox(asked), "");
    h.pass(1);
    assert!(h.outbox(asked).starts_with(second));
    // A node without a majority answers at once, so that clients ask another one, and so does one that knew no leader yet.
    h.become_one(Role::NoQuorum);
    h.script(&[("CLUSTER SLOTS", "-CLUSTERDOWN The cluster is down")]);
    Harness::replicated(LEADERLESS, true).script(&[("CLUSTER SHARDS", "-CLUSTERDOWN The cluster is down")]);
}

#[test]
fn tracking_that_a_follower_took_works_when_it_leads() {
    let mut h = Harness::replicated(FOLLOWER, false);
    let (plain, all) = (connect(&mut h), connect(&mut h));
    for id in [plain, all] {
        send(&mut h, id, "HELLO 3");
    }
    assert_eq!(send(&mut h, plain, "CLIENT TRACKING ON"), "+OK");
    assert_eq!(send(&mut h, all, "CLIENT TRACKING ON BCAST"), "+OK");
    assert!(h.engine.hears_of_keys(plain), "it is closed when this node is deposed");
    h.become_one(Role::Leader);
    assert_eq!(send(&mut h, plain, "GET a"), "_");
    h.run("SET a 1");
    // Those who track prefixes are told at the end of the turn.
    h.engine.take_pending_writes(&mut Vec::new());
    let told = ">2 $10 invalidate *1 $1 a";
    assert_eq!([h.outbox(plain), h.outbox(all)], [told, told]);
}

#[test]
fn a_majority_is_one_of_voters() {
    let mut h = Harness::replicated(Role::Leader, false);
    assert_eq!(h.engine.replication.quorum(), Quorum { usable: 3, majority: 2 });
    let mut state = Harness::three_nodes(FOLLOWER);
    state.nodes[1].link_up = false;
    state.nodes[2].link_up = false;
    for (role, usable) in [(FOLLOWER, 2), (LEADERLESS, 1), (Role::NoQuorum, 1)] {
        state.role = role;
        h.engine.set_replication(h.now, state.clone());
        assert_eq!(h.engine.replication.quorum(), Quorum { usable, majority: 2 }, "{role:?}");
    }
    (state.nodes[1].voter, state.nodes[2].voter) = (false, false);
    h.engine.set_replication(h.now, state);
    assert_eq!(h.engine.replication.majority(), 1);
}

#[test]
fn names_of_nodes_follow_from_the_cluster_and_the_number() {
    let mut h = Harness::replicated(Role::Leader, false);
    let names: Vec<String> = (0..4).map(|id| h.engine.replication.name_of(id)).collect();
    assert!(names.iter().all(|name| name.len() == 40 && name.bytes().all(|b| b.is_ascii_hexdigit())));
    let mut state = Harness::three_nodes(Role::Leader);
    state.cluster = 10;
    h.engine.set_replication(h.now, state);
    let others: Vec<String> = (0..4).map(|id| h.engine.replication.name_of(id)).collect();
    let mut all = [names, others].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8);
}

#[test]
fn leaders_and_servers_alone_stay_on_the_fast_path() {
    let mut h = Harness::replicated(Role::Leader, false);
    assert!(h.engine.slow_path.is_empty());
    h.become_one(FOLLOWER);
    assert!(!h.engine.slow_path.is_empty());
    h.become_one(Role::Single);
    assert!(h.engine.slow_path.is_empty() && h.engine.replication.master().is_none());
}
