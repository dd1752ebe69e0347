//! CLUSTER, READONLY, READWRITE, ASKING: what a cluster of one node tells its clients, with `cluster-enabled`; without it, Redis's
//! refusal, by which they know.

use crate::commands::help;
use crate::engine::cluster::{SLOTS, key_slot};
use crate::engine::command::{Categories, Command, Flags, Group};
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::number::parse_i64;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const ADMIN: Flags = Flags::ADMIN.union(Flags::STALE);
const CHANGE: Flags = ADMIN.union(Flags::NO_ASYNC_LOADING);

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// What all rows here have in common.
const ROW: Command = Command { flags: Flags::STALE, group: Group::Cluster, since: "3.0.0", handler: refuse, ..Command::DEFAULT };

/// A subcommand that asks something.
const fn ask(name: &'static str, arity: i32, syntax: &'static str, summary: &'static str, handler: Handler) -> Command {
    Command { name, arity, syntax, summary, handler, ..ROW }
}

/// A subcommand that would change the cluster.
const fn change(name: &'static str, arity: i32, syntax: &'static str, summary: &'static str) -> Command {
    Command { name, arity, flags: CHANGE, syntax, summary, handler: refuse, ..ROW }
}

type Handler = crate::engine::command::Handler;

const OF_NODES: &str = "O(N) where N is the total number of Cluster nodes";
const OF_KEYS: &str = "O(N) where N is the number of keys: there is no index by slot";

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "cluster",
        arity: -2,
        summary: "Tells of the cluster, which is this server alone.",
        complexity: "Depends on subcommand.",
        flags: Flags::empty(),
        subcommands: &[
            Command {
                complexity: "O(N) where N is the total number of hash slot arguments",
                ..change("addslots", -3, "slot:integer [slot:integer ...]", "Refused: all slots are assigned.")
            },
            Command {
                since: "7.0.0",
                complexity: "O(N) where N is the total number of the slots between the start slot and end slot arguments.",
                ..change(
                    "addslotsrange",
                    -4,
                    "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                    "Refused: all slots are assigned.",
                )
            },
            Command {
                tips: NONDETERMINISTIC,
                handler: |cx, _| when_on(cx, |cx| cx.reply.simple("STILL 1")),
                ..change("bumpepoch", 2, "", "Leaves the configuration epoch as it is, as nobody has a higher one.")
            },
            Command {
                flags: ADMIN,
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of failure reports",
                ..ask(
                    "count-failure-reports",
                    3,
                    "node-id",
                    "Counts those who say that a node has failed: nobody.",
                    count_failure_reports,
                )
            },
            Command {
                complexity: OF_KEYS,
                ..ask("countkeysinslot", 3, "slot:integer", "Counts the keys of a slot.", count_keys_in_slot)
            },
            Command {
                complexity: "O(N) where N is the total number of hash slot arguments",
                ..change("delslots", -3, "slot:integer [slot:integer ...]", "Refused: all slots stay here.")
            },
            Command {
                since: "7.0.0",
                complexity: "O(N) where N is the total number of the slots between the start slot and end slot arguments.",
                ..change(
                    "delslotsrange",
                    -4,
                    "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                    "Refused: all slots stay here.",
                )
            },
            Command { handler: failover, ..change("failover", -2, "[FORCE | TAKEOVER]", "Refused: only a replica takes over.") },
            change("flushslots", 2, "", "Refused: all slots stay here."),
            Command { handler: forget, ..change("forget", 3, "node-id", "Refused: there is no other node.") },
            Command {
                tips: NONDETERMINISTIC,
                complexity: OF_KEYS,
                ..ask("getkeysinslot", 4, "slot:integer count", "Lists keys of a slot.", get_keys_in_slot)
            },
            Command {
                flags: ANY_TIME,
                since: "5.0.0",
                ..ask("help", 2, "", "Lists the subcommands.", |cx, args| {
                    if cx.engine.in_cluster() { help::from_rows(cx, args) } else { Err(Error::NO_CLUSTER) }
                })
            },
            Command { tips: NONDETERMINISTIC, ..ask("info", 2, "", "Tells how the cluster is.", info) },
            Command {
                complexity: "O(N) where N is the number of bytes in the key.",
                ..ask("keyslot", 3, "key:string", "Gives the slot of a key.", key_slot_of)
            },
            Command {
                since: "7.0.0",
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                ..ask("links", 2, "", "Lists the connections to other nodes: none.", |cx, _| when_on(cx, |cx| cx.reply.array(0)))
            },
            change("meet", -4, "ip port:integer [cluster-bus-port:integer]", "Refused: the cluster is this node alone."),
            ask("myid", 2, "", "Gives the node's name.", |cx, _| {
                when_on(cx, |cx| cx.reply.bulk(cx.engine.run_id.clone().as_bytes()))
            }),
            Command {
                since: "7.2.0",
                tips: NONDETERMINISTIC,
                ..ask("myshardid", 2, "", "Gives the name of the node's shard.", |cx, _| {
                    when_on(cx, |cx| cx.reply.bulk(shard_id(&cx.engine.run_id).as_bytes()))
                })
            },
            Command { tips: NONDETERMINISTIC, complexity: OF_NODES, ..ask("nodes", 2, "", "Lists the nodes.", nodes) },
            Command {
                flags: ADMIN,
                since: "5.0.0",
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of replicas.",
                ..ask("replicas", 3, "node-id", "Lists the replicas of a node: none.", replicas)
            },
            Command {
                handler: replicate,
                ..change("replicate", 3, "node-id", "Refused: there is no other node to be a replica of.")
            },
            Command {
                flags: ADMIN.union(Flags::NOSCRIPT),
                complexity: "O(N) where N is the number of known nodes. The command may execute a FLUSHALL as a side effect.",
                ..change("reset", -2, "[HARD | SOFT]", "Refused: the cluster stays as it is.")
            },
            change("saveconfig", 2, "", "Refused: there is no file of nodes, as there is nothing to remember."),
            change("set-config-epoch", 3, "config-epoch:integer", "Refused: the node has its epoch."),
            change(
                "setslot",
                -4,
                "slot:integer <IMPORTING importing | MIGRATING migrating | NODE node | STABLE>",
                "Refused: all slots stay here.",
            ),
            Command {
                flags: ANY_TIME,
                since: "7.0.0",
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                ..ask("shards", 2, "", "Lists the slots by shard.", shards)
            },
            Command {
                flags: ADMIN,
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of replicas.",
                ..ask("slaves", 3, "node-id", "Lists the replicas of a node: none.", replicas)
            },
            Command {
                flags: ANY_TIME,
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                ..ask("slots", 2, "", "Lists the slots by node.", slots)
            },
        ],
        ..ROW
    },
    Command {
        name: "readonly",
        flags: Flags::FAST.union(ANY_TIME),
        categories: Categories::CONNECTION,
        summary: "Lets this connection read from a replica; there is none, so it changes nothing.",
        handler: accept,
        ..ROW
    },
    Command {
        name: "readwrite",
        flags: Flags::FAST.union(ANY_TIME),
        categories: Categories::CONNECTION,
        summary: "Ends what READONLY began.",
        handler: accept,
        ..ROW
    },
    Command {
        name: "asking",
        flags: Flags::FAST,
        categories: Categories::CONNECTION,
        summary: "Says that a redirection is followed; there are none, so it changes nothing.",
        handler: accept,
        ..ROW
    },
];

/// Replies in a cluster, and refuses elsewhere.
fn when_on(cx: &mut Context<'_>, reply: impl FnOnce(&mut Context<'_>)) -> Result {
    if !cx.engine.in_cluster() {
        return Err(Error::NO_CLUSTER);
    }
    reply(cx);
    Ok(())
}

fn accept(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    when_on(cx, |cx| cx.reply.ok())
}

/// Of what would change the cluster, nothing is possible.
fn refuse(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(if cx.engine.in_cluster() { Error::ONE_NODE } else { Error::NO_CLUSTER })
}

fn shard_id(node_id: &str) -> String {
    node_id.chars().rev().collect()
}

/// Where the caller reaches this node: as configured, or else as it did.
fn endpoint(cx: &mut Context<'_>) -> (String, u16) {
    let config = &cx.engine.config;
    let (announced, announced_port) = (config.cluster_announce_ip.clone(), config.cluster_announce_port);
    let tcp_port = cx.engine.environment.tcp_port;
    let peer = &cx.session().peer;
    let reached = if peer.unix { None } else { peer.laddr.rsplit_once(':') };
    let (ip, port) = reached.map_or(("", tcp_port), |(ip, port)| (ip, port.parse().unwrap_or(tcp_port)));
    let ip = if announced.is_empty() { ip.trim_matches(['[', ']']).to_owned() } else { announced };
    (ip, if announced_port == 0 { port } else { announced_port })
}

fn info(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    when_on(cx, |cx| {
        let lines = [
            ("cluster_slots_assigned", SLOTS),
            ("cluster_slots_ok", SLOTS),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", 0),
            ("cluster_known_nodes", 1),
            ("cluster_size", 1),
            ("cluster_current_epoch", 1),
            ("cluster_my_epoch", 1),
            ("cluster_stats_messages_sent", 0),
            ("cluster_stats_messages_received", 0),
            ("total_cluster_links_buffer_limit_exceeded", 0),
        ];
        let lines: String = lines.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
        cx.reply.verbatim("txt", format!("cluster_state:ok\r\n{lines}").as_bytes());
    })
}

/// The line of this node; there is no bus, so its port is 0.
fn node_line(cx: &mut Context<'_>) -> String {
    let (ip, port) = endpoint(cx);
    format!("{} {ip}:{port}@0 myself,master - 0 0 1 connected 0-{}\n", cx.engine.run_id, SLOTS - 1)
}

fn nodes(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    when_on(cx, |cx| {
        let line = node_line(cx);
        cx.reply.verbatim("txt", line.as_bytes());
    })
}

fn slots(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    when_on(cx, |cx| {
        let (ip, port) = endpoint(cx);
        cx.reply.array(1);
        cx.reply.array(3);
        cx.reply.integer(0);
        cx.reply.integer(i64::from(SLOTS) - 1);
        cx.reply.array(4);
        cx.reply.bulk(ip.as_bytes());
        cx.reply.integer(i64::from(port));
        cx.reply.bulk(cx.engine.run_id.as_bytes());
        cx.reply.array(0);
    })
}

fn shards(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    when_on(cx, |cx| {
        let (ip, port) = endpoint(cx);
        let id = cx.engine.run_id.clone();
        let reply = &mut *cx.reply;
        reply.array(1);
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(2);
        reply.integer(0);
        reply.integer(i64::from(SLOTS) - 1);
        reply.bulk(b"nodes");
        reply.array(1);
        reply.map(7);
        for (name, text) in [("id", id.as_str()), ("ip", &ip), ("endpoint", &ip), ("role", "master"), ("health", "online")] {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
        for (name, number) in [("port", i64::from(port)), ("replication-offset", 0)] {
            reply.bulk(name.as_bytes());
            reply.integer(number);
        }
    })
}

fn key_slot_of(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    when_on(cx, |cx| cx.reply.integer(i64::from(key_slot(args[2]))))
}

fn count_keys_in_slot(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if !cx.engine.in_cluster() {
        return Err(Error::NO_CLUSTER);
    }
    let slot = parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?;
    if !(0..i64::from(SLOTS)).contains(&slot) {
        return Err(Error::new("ERR Invalid slot"));
    }
    let count = cx.db().slot_len(slot as u16);
    cx.reply.integer(count as i64);
    Ok(())
}

fn get_keys_in_slot(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if !cx.engine.in_cluster() {
        return Err(Error::NO_CLUSTER);
    }
    let slot = parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?;
    let count = parse_i64(args[3]).ok_or(Error::NOT_INTEGER)?;
    if !(0..i64::from(SLOTS)).contains(&slot) || count < 0 {
        return Err(Error::new("ERR Invalid slot or number of keys"));
    }
    let mut keys: Vec<Vec<u8>> = Vec::new();
    if count > 0 {
        cx.db().visit_slot(slot as u16, |entry| {
            keys.push(entry.key().to_vec());
            (keys.len() as i64) < count
        });
    }
    cx.reply.array(keys.len());
    keys.iter().for_each(|key| cx.reply.bulk(key));
    Ok(())
}

/// Errors unless an argument names this node.
fn known(cx: &Context<'_>, name: &[u8]) -> Result {
    if !cx.engine.in_cluster() {
        return Err(Error::NO_CLUSTER);
    }
    if name == cx.engine.run_id.as_bytes() { Ok(()) } else { Err(Error::quoting("ERR Unknown node ", name, "")) }
}

fn count_failure_reports(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    known(cx, args[2])?;
    cx.reply.integer(0);
    Ok(())
}

fn replicas(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    known(cx, args[2])?;
    cx.reply.array(0);
    Ok(())
}

fn forget(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    known(cx, args[2])?;
    Err(Error::new("ERR I tried hard but I can't forget myself..."))
}

fn replicate(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    known(cx, args[2])?;
    Err(Error::new("ERR Can't replicate myself"))
}

fn failover(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if !cx.engine.in_cluster() {
        return Err(Error::NO_CLUSTER);
    }
    match &args[2..] {
        [] => {}
        [word] if word.eq_ignore_ascii_case(b"force") || word.eq_ignore_ascii_case(b"takeover") => {}
        _ => return Err(Error::SYNTAX),
    }
    Err(Error::new("ERR You should send CLUSTER FAILOVER to a replica"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::commands;
    use crate::engine::Engine;
    use crate::engine::config::Config;
    use crate::engine::harness::Harness;
    use crate::engine::session::Peer;

    fn node() -> Harness {
        let mut harness = Harness::new();
        let config = Config { cluster_enabled: true, ..Config::default() };
        harness.engine = Engine::new(config, 7, harness.now);
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
        let id = h.engine.run_id.clone();
        h.script(&[
            ("READONLY", "+OK"),
            ("ASKING", "+OK"),
            ("CLUSTER MYID", &format!("$40 {id}")),
            ("CLUSTER SLOTS", &format!("*1 *3 :0 :16383 *4 $9 127.0.0.1 :7000 $40 {id} *0")),
            ("CLUSTER KEYSLOT foo", ":12182"),
            ("CLUSTER LINKS", "*0"),
            ("CLUSTER REPLICAS x", "-ERR Unknown node x"),
            (&format!("CLUSTER REPLICAS {id}"), "*0"),
            ("CLUSTER MEET 127.0.0.1 1", "-ERR Portcullis is a cluster of one node, which has all slots and keeps them"),
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
            ("COPY {a}1 {a}2 DB 1", "-ERR Copying to another database is not allowed in cluster mode"),
            ("MULTI", "+OK"),
            ("MGET a b", cross),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            ("MULTI", "+OK"),
            ("GET a", "+QUEUED"),
            ("GET b", "+QUEUED"),
            ("EXEC", cross),
            ("EXEC", "-ERR EXEC without MULTI"),
            ("MULTI", "+OK"),
            ("SET {x}a 1", "+QUEUED"),
            ("GET {x}b", "+QUEUED"),
            ("EXEC", "*2 +OK $1 2"),
        ]);
        let keys = h.run("CLUSTER GETKEYSINSLOT 16287 1");
        assert!(keys.starts_with("*1 $4 {x}"), "{keys}");
        assert_eq!(h.run("CLUSTER GETKEYSINSLOT 16287 9").matches("$4 {x}").count(), 2);
        h.script(&[
            ("PEXPIRE {x}a 5", ":1"),
            ("RENAME {x}b {x}c", "+OK"),
            ("CLUSTER GETKEYSINSLOT 16287 9", "*2 $4 {x}a $4 {x}c"),
        ]);
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
        // Without a first line each call may have its own slot; with one all have the first, or that of the keys.
        assert_eq!(run("", of_a_and_b, &[]), "$1\r\n2\r\n");
        assert_eq!(run("", "return redis.call('get','b')", &["a"]), "$1\r\n2\r\n");
        assert!(run("#!lua\n", of_a_and_b, &[]).starts_with(crossed));
        assert!(run("#!lua\n", "return redis.call('get','b')", &["a"]).starts_with(crossed));
        assert!(run("#!lua\n", "return redis.call('spublish','b','x')", &["a"]).starts_with(crossed));
        assert_eq!(run("#!lua\n", "return redis.pcall('get','b').err", &["a"]), format!("$69\r\n{}\r\n", &crossed[1..]));
        assert_eq!(run("#!lua flags=allow-cross-slot-keys\n", of_a_and_b, &["a"]), "$1\r\n2\r\n");
        // No call may have several, and no request.
        for shebang in ["", "#!lua\n", "#!lua flags=allow-cross-slot-keys\n"] {
            assert!(run(shebang, "return redis.call('mget','a','b')", &[]).starts_with(call_crossed));
            let request = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
            assert_eq!(run(shebang, "return 1", &["a", "b"]), request);
        }
        let refused = "-ERR Can not run script on cluster, 'no-cluster' flag is set.\r\n";
        assert_eq!(run("#!lua flags=no-cluster\n", "return 1", &["a"]), refused);
        // A transaction has one slot, and the scripts in it.
        let library = "#!lua name=l\nredis.register_function('g', function() return redis.call('get', 'b') end) \
                       redis.register_function{function_name='f', callback=function() return 1 end, flags={'no-cluster'}}";
        assert_eq!(h.args(&[b"FUNCTION", b"LOAD", library.as_bytes()]), b"$1\r\nl\r\n");
        h.script(&[("FCALL g 0", "$1 2"), ("MULTI", "+OK"), ("GET a", "+QUEUED"), ("FCALL g 0", "+QUEUED")]);
        assert!(h.run("EXEC").starts_with(&format!("*2 $1 1 {crossed} script: g, ")));
        h.script(&[("FCALL g 0", "$1 2"), ("FCALL f 0", refused.trim_end())]);
    }
}
