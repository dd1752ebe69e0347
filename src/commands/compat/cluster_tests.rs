//! CLUSTER, and hash slots of requests, transactions and scripts.

use crate::commands;
use crate::engine::config::Config;
use crate::engine::harness::Harness;
use crate::engine::replication::{Patience, Role};
use crate::engine::session::Peer;
use crate::engine::{Action, Engine};

fn node() -> Harness {
    let mut harness = Harness::new();
    let config = Config { cluster_enabled: true, ..Config::default() };
    harness.engine = Engine::new(config, 7, harness.now, crate::commands::table());
    let peer = Peer { laddr: "127.0.0.1:7000".into(), ..Peer::default() };
    harness.session = harness.engine.connect(harness.now, peer);
    harness
}

#[test]
fn a_server_that_is_no_node_refuses_all_of_it() {
    let mut harness = Harness::new();
    let cluster = commands::lookup(b"cluster").unwrap();
    for row in cluster.subcommands {
        let args = " 1".repeat(row.arity.unsigned_abs() as usize - 2);
        let reply = harness.run(&format!("CLUSTER {}{args}", row.name));
        assert_eq!(reply, "-ERR This instance has cluster support disabled", "{}", row.name);
    }
    for name in ["READONLY", "READWRITE", "ASKING"] {
        assert_eq!(harness.run(name), "-ERR This instance has cluster support disabled");
    }
}

#[test]
fn one_node_has_all_slots_where_the_client_reached_it() {
    let mut h = node();
    let id = h.engine.run_id().to_owned();
    h.script(&[
        ("READONLY", "+OK"),
        ("ASKING", "+OK"),
        ("CLUSTER MYID", &format!("$40 {id}")),
        ("CLUSTER SLOTS", &format!("*1 *3 :0 :16383 *4 $9 127.0.0.1 :7000 $40 {id} *0")),
        ("CLUSTER KEYSLOT foo", ":12182"),
        ("CLUSTER LINKS", "*0"),
        ("CLUSTER REPLICAS x", "-ERR Unknown node x"),
        (&format!("CLUSTER REPLICAS {id}"), "*0"),
        ("CLUSTER MEET 127.0.0.1 1", "-ERR Portcullis is a cluster of one node that always owns all slots"),
        ("CLUSTER FAILOVER", "-ERR You should send CLUSTER FAILOVER to a replica"),
    ]);
    assert!(h.run("CLUSTER NODES").ends_with(&format!("{id} 127.0.0.1:7000@0 myself,master - 0 0 1 connected 0-16383")));
    assert!(h.run("CLUSTER INFO").contains("cluster_state:ok cluster_slots_assigned:16384"));
    assert!(h.run("CLUSTER SHARDS").contains("$2 ip $9 127.0.0.1"));
    assert!(h.run("INFO").contains("redis_mode:cluster") && h.run("INFO cluster").contains("cluster_enabled:1"));
    h.run("CONFIG SET cluster-announce-ip 10.0.0.9 cluster-announce-port 7777");
    assert!(h.run("CLUSTER SLOTS").contains("$8 10.0.0.9 :7777"));
}

#[test]
fn requests_keep_to_one_slot() {
    let mut h = node();
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot";
    h.script(&[
        ("MSET a 1 b 2", cross),
        ("MSET {x}a 1 {x}b 2", "+OK"),
        ("CLUSTER COUNTKEYSINSLOT 16287", ":2"),
        ("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot"),
        ("CLUSTER GETKEYSINSLOT 0 5", "*0"),
        ("CLUSTER GETKEYSINSLOT 16287 0", "*0"),
        ("CLUSTER GETKEYSINSLOT 0 -1", "-ERR Invalid slot or number of keys"),
        ("SSUBSCRIBE a b", cross),
        ("EVALSHA x 2 a b", cross),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode"),
        ("SELECT 0", "+OK"),
        ("SWAPDB 0 1", "-ERR SWAPDB is not allowed in cluster mode"),
        ("MOVE a 1", "-ERR MOVE is not allowed in cluster mode"),
        ("COPY {a}1 {a}2 DB 1", "-ERR DB index is out of range"),
        ("COPY {a}1 {a}2 DB 0", ":0"),
        ("CONFIG GET databases", "*2 $9 databases $1 1"),
        ("PFMERGE {x}p", "+OK"),
        ("MULTI", "+OK"),
        ("PFMERGE {x}p", "+QUEUED"),
        ("GET a", "+QUEUED"),
        ("EXEC", cross),
        ("DEL {x}p", ":1"),
        ("FAILOVER", "-ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."),
        // The last of several destinations counts. A request with an odd number of arguments after STREAMS has no keys.
        ("GEORADIUS {a}1 15 37 1 km STORE b STORE {a}2", ":0"),
        ("GEORADIUS {a}1 15 37 1 km STORE {a}2 STOREDIST b", cross),
        ("XREAD STREAMS a b 0 0", cross),
        (
            "XREAD COUNT 2 STREAMS a b 0",
            "-ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
        ),
        ("MULTI", "+OK"),
        ("MGET a b", cross),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("GET a", "+QUEUED"),
        ("GET b", "+QUEUED"),
        ("EXEC", cross),
        ("EXEC", "-ERR EXEC without MULTI"),
        // Requests after an error are not queued.
        ("MULTI", "+OK"),
        ("MGET a b", cross),
        ("GET a", "+QUEUED"),
        ("GET b", "+QUEUED"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        ("GET a", "+QUEUED"),
        ("WATCH b", "-ERR WATCH inside MULTI is not allowed"),
        ("EXEC", "*1 $-1"),
        ("MULTI", "+OK"),
        ("SET {x}a 1", "+QUEUED"),
        ("GET {x}b", "+QUEUED"),
        ("EXEC", "*2 +OK $1 2"),
    ]);
    let keys = h.run("CLUSTER GETKEYSINSLOT 16287 1");
    assert!(keys.starts_with("*1 $4 {x}"), "{keys}");
    assert_eq!(h.run("CLUSTER GETKEYSINSLOT 16287 9").matches("$4 {x}").count(), 2);
    h.script(&[("PEXPIRE {x}a 5", ":1"), ("RENAME {x}b {x}c", "+OK"), ("CLUSTER GETKEYSINSLOT 16287 9", "*2 $4 {x}a $4 {x}c")]);
    h.pass(5);
    h.script(&[("CLUSTER COUNTKEYSINSLOT 16287", ":1"), ("FLUSHALL", "+OK"), ("CLUSTER COUNTKEYSINSLOT 16287", ":0")]);
    h.script(&[("SET {x}d 1", "+OK"), ("CLUSTER GETKEYSINSLOT 16287 9", "*1 $4 {x}d")]);
}

#[test]
fn scripts_keep_to_one_slot_as_they_say_of_themselves() {
    let mut h = node();
    h.script(&[("SET a 1", "+OK"), ("SET b 2", "+OK")]);
    let of_a_and_b = "redis.call('get','a') return redis.call('get','b')";
    let mut run = |shebang: &str, body: &str, keys: &[&str]| -> String {
        let (script, count) = (format!("{shebang}{body}"), keys.len().to_string());
        let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        args.extend(keys.iter().map(|key| key.as_bytes()));
        String::from_utf8_lossy(&h.args(&args)).into_owned()
    };
    let crossed = "-ERR Script attempted to access keys that do not hash to the same slot";
    let call_crossed = "-ERR Command 'mget' in script attempted to access keys that don't hash to the same slot";
    // Without a shebang, each call may use its own slot. With one, all calls use the slot of the keys, or of the first call.
    assert_eq!(run("", of_a_and_b, &[]), "$1\r\n2\r\n");
    assert_eq!(run("", "return redis.call('get','b')", &["a"]), "$1\r\n2\r\n");
    assert!(run("#!lua\n", of_a_and_b, &[]).starts_with(crossed));
    assert!(run("#!lua\n", "return redis.call('get','b')", &["a"]).starts_with(crossed));
    assert!(run("#!lua\n", "return redis.call('spublish','b','x')", &["a"]).starts_with(crossed));
    assert_eq!(run("#!lua\n", "return redis.pcall('get','b').err", &["a"]), format!("$69\r\n{}\r\n", &crossed[1..]));
    assert_eq!(run("#!lua flags=allow-cross-slot-keys\n", of_a_and_b, &["a"]), "$1\r\n2\r\n");
    // No call and no request may use several slots.
    for shebang in ["", "#!lua\n", "#!lua flags=allow-cross-slot-keys\n"] {
        assert!(run(shebang, "return redis.call('mget','a','b')", &[]).starts_with(call_crossed));
        let request = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
        assert_eq!(run(shebang, "return 1", &["a", "b"]), request);
    }
    let refused = "-ERR Can not run script on cluster, 'no-cluster' flag is set.\r\n";
    assert_eq!(run("#!lua flags=no-cluster\n", "return 1", &["a"]), refused);
    // A transaction uses one slot, including the scripts in it.
    let library = "#!lua name=l\nredis.register_function('g', function() return redis.call('get', 'b') end) \
                   redis.register_function{function_name='f', callback=function() return 1 end, flags={'no-cluster'}}";
    assert_eq!(h.args(&[b"FUNCTION", b"LOAD", library.as_bytes()]), b"$1\r\nl\r\n");
    h.script(&[("FCALL g 0", "$1 2"), ("MULTI", "+OK"), ("GET a", "+QUEUED"), ("FCALL g 0", "+QUEUED")]);
    assert!(h.run("EXEC").starts_with(&format!("*2 $1 1 {crossed} script: g, ")));
    h.script(&[("FCALL g 0", "$1 2"), ("FCALL f 0", refused.trim_end())]);
}

#[test]
fn slots_are_looked_at_before_what_subscribers_may_call() {
    let mut h = node();
    h.run("SUBSCRIBE news");
    assert_eq!(h.run("MGET a b"), "-CROSSSLOT Keys in request don't hash to the same slot");
    assert!(h.run("GET a").starts_with("-ERR Can't execute 'get'"));
}

#[test]
fn replicated_nodes_are_one_shard() {
    const FOLLOWER: Role = Role::Follower { leader: Some(2) };
    let mut h = Harness::replicated(FOLLOWER, true);
    let [one, two, three] = [1, 2, 3].map(|id| h.engine.replication().name_of(id));
    let node = |host: u8, id: &str| format!("*4 $8 10.0.0.{host} :6379 $40 {id} *0");
    let slots = |all: &[String]| format!("*1 *{} :0 :16383 {}", all.len() + 2, all.join(" "));
    let all = [node(2, &two), node(1, &one), node(3, &three)];
    h.script(&[
        ("CLUSTER SLOTS", &slots(&all)),
        ("CLUSTER MYID", &format!("$40 {one}")),
        ("CLUSTER REPLICAS x", "-ERR Unknown node x"),
        (&format!("CLUSTER REPLICAS {one}"), "-ERR The specified node is not a master"),
        (&format!("CLUSTER FORGET {one}"), "-ERR I tried hard but I can't forget myself..."),
        (&format!("CLUSTER COUNT-FAILURE-REPORTS {two}"), ":0"),
        ("CLUSTER KEYSLOT a", ":15495"),
    ]);
    let refusal = "-ERR Portcullis is a cluster of one shard that always owns all slots, and its nodes elect their leader";
    for request in [format!("CLUSTER FORGET {two}"), format!("CLUSTER REPLICATE {two}"), "CLUSTER MEET 10.0.0.9 1".into()] {
        assert_eq!(h.run(&request), refusal);
    }
    for request in ["CLUSTER COUNTKEYSINSLOT 1", "CLUSTER GETKEYSINSLOT 1 1"] {
        assert!(h.run(request).starts_with("-READONLY You can't read from this replica"));
    }
    let lines = h.run(&format!("CLUSTER REPLICAS {two}"));
    assert!(lines.starts_with(&format!("*2 $126 {one} 10.0.0.1:6379@0 myself,slave {two} 0 0 4 connected")), "{lines}");
    let heard_ms = h.now.unix_ms() - 1500;
    let text = h.run("CLUSTER NODES");
    assert!(text.contains(&format!("{two} 10.0.0.2:6379@0 master - 0 {heard_ms} 4 connected 0-16383\n")), "{text}");
    assert!(text.ends_with(&format!("{three} 10.0.0.3:6379@0 slave {two} 0 {heard_ms} 4 connected")), "{text}");
    let info = h.run("CLUSTER INFO");
    assert!(info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") && info.contains("current_epoch:4"));
    let shards = h.run("CLUSTER SHARDS");
    let master = format!("*14 $2 id $40 {two} $4 port :6379 $2 ip $8 10.0.0.2 $8 endpoint $8 10.0.0.2 $4 role $6 master");
    assert!(
        shards.starts_with(&format!("*1 *4 $5 slots *2 :0 :16383 $5 nodes *3 {master} $18 replication-offset :98")),
        "{shards}"
    );
    assert!(shards.contains("$4 role $7 replica"));
    // A node that does not answer is not listed for clients.
    let mut state = Harness::three_nodes(Role::Leader);
    state.nodes[2].link_up = false;
    h.engine.set_replication(h.now, state);
    h.script(&[("CLUSTER SLOTS", &slots(&[node(1, &one), node(2, &two)])), ("CLUSTER COUNTKEYSINSLOT 1", ":0")]);
    assert!(h.run("CLUSTER NODES").ends_with(&format!("slave,fail {one} 0 {heard_ms} 4 disconnected")));
    assert!(h.run("CLUSTER SHARDS").ends_with("$6 health $4 fail"));
    // During an election the last leader is shown; without a majority, clients are to ask another node.
    h.become_one(Role::Follower { leader: None });
    let mut in_vain = |request: &str| {
        assert_eq!(h.run(request), "", "it waits for the next leader");
        h.pass(Patience::OF_QUESTION.ms);
        h.outbox(h.session)
    };
    assert!(in_vain("CLUSTER SLOTS").starts_with(&slots(&[node(1, &one), node(2, &two), node(3, &three)])));
    assert!(in_vain("CLUSTER NODES").contains("myself,master,fail"));
    let info = h.run("CLUSTER INFO");
    assert!(info.contains("cluster_state:fail") && info.contains("cluster_slots_ok:0"));
    h.become_one(Role::NoQuorum);
    for request in ["CLUSTER SLOTS", "CLUSTER SHARDS"] {
        assert_eq!(h.run(request), "-CLUSTERDOWN The cluster is down");
    }
    h.script(&[("ROLE", "*5 $5 slave $0  :0 $7 connect :99")]);
    let mut h = Harness::replicated(Role::Follower { leader: None }, true);
    let down = "-CLUSTERDOWN The cluster is down";
    h.script(&[("CLUSTER SLOTS", down), ("CLUSTER SHARDS", down)]);
}

#[test]
fn a_follower_campaigns_on_demand() {
    let mut h = Harness::replicated(Role::Leader, true);
    h.script(&[("CLUSTER FAILOVER", "-ERR You should send CLUSTER FAILOVER to a replica")]);
    h.become_one(Role::Follower { leader: Some(2) });
    h.script(&[("CLUSTER FAILOVER now", "-ERR syntax error"), ("CLUSTER FAILOVER", "+OK")]);
    assert_eq!(h.engine.take_actions(), [Action::HandOver { to: Some(1) }]);
    h.become_one(Role::Follower { leader: None });
    h.script(&[
        ("CLUSTER FAILOVER", "-ERR Master is down or failed, please use CLUSTER FAILOVER FORCE"),
        ("CLUSTER FAILOVER FORCE", "+OK"),
    ]);
    assert_eq!(h.engine.take_actions(), [Action::HandOver { to: Some(1) }]);
}
