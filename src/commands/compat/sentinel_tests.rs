//! SENTINEL, as clients use it.

use crate::commands;
use crate::engine::Action;
use crate::engine::harness::Harness;
use crate::engine::replication::Role;
use crate::engine::session::Peer;

const FOLLOWER: Role = Role::Follower { leader: Some(2) };
const LEADERLESS: Role = Role::Follower { leader: None };

#[test]
fn a_server_alone_knows_no_sentinel() {
    let mut h = Harness::new();
    for args in ["", " MASTERS", " MASTER", " NOSUCH", " HELP", " GET-MASTER-ADDR-BY-NAME mymaster", " RESET *"] {
        let request = format!("SENTINEL{args}");
        let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        let reply = String::from_utf8_lossy(&h.args(&words)).into_owned();
        let named: String = words[1..].iter().map(|word| format!("'{}' ", String::from_utf8_lossy(word))).collect();
        let expected = format!("-ERR unknown command 'SENTINEL', with args beginning with: {named}");
        assert_eq!(reply.trim_end_matches("\r\n"), expected.trim_end_matches("\r\n"));
    }
    let subs = commands::lookup(b"sentinel").into_iter().flat_map(|row| row.subcommands);
    for row in subs {
        let args = " 1".repeat(row.arity.unsigned_abs() as usize - 2);
        assert!(h.run(&format!("SENTINEL {}{args}", row.name)).starts_with("-ERR unknown command 'SENTINEL'"), "{}", row.name);
    }
    assert_eq!(h.run("INFO sentinel"), "$0");
    h.script(&[
        ("MULTI", "+OK"),
        ("SENTINEL MASTERS", "-ERR unknown command 'SENTINEL', with args beginning with: 'MASTERS'"),
        ("DISCARD", "+OK"),
    ]);
}

#[test]
fn every_node_gives_the_address_of_the_leader() {
    let address = "*2 $8 10.0.0.2 $4 6379";
    let mut h = Harness::replicated(FOLLOWER, false);
    h.script(&[
        ("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster", address),
        ("sentinel get-master-addr-by-name MYMASTER", "*-1"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME nosuch", "*-1"),
        ("CONFIG SET cluster-name locks", "+OK"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME locks", address),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster", "*-1"),
        ("SENTINEL MASTER mymaster", "-ERR No such master with that name"),
        ("SENTINEL NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try SENTINEL HELP."),
        ("SENTINEL MASTER", "-ERR wrong number of arguments for 'sentinel|master' command"),
    ]);
    h.become_one(Role::Leader);
    h.script(&[("SENTINEL GET-MASTER-ADDR-BY-NAME locks", "*2 $8 10.0.0.1 $4 6379")]);
    for role in [LEADERLESS, Role::NoQuorum] {
        h.become_one(role);
        h.script(&[("SENTINEL GET-MASTER-ADDR-BY-NAME locks", "*-1")]);
    }
    h.become_one(FOLLOWER);
    h.session = h.engine.connect(h.now, Peer { laddr: "10.0.0.1:6390".into(), ..Peer::default() });
    h.script(&[
        ("SENTINEL GET-MASTER-ADDR-BY-NAME locks", "*2 $8 10.0.0.2 $4 6390"),
        ("HELLO 3 x", "-ERR Syntax error in HELLO option 'x'"),
    ]);
}

/// The strings of a reply, without lengths.
fn words(reply: &str) -> Vec<&str> {
    reply.split(' ').filter(|word| !word.starts_with(['$', '*', '%'])).collect()
}

#[test]
fn nodes_have_all_fields_of_sentinel() {
    let mut h = Harness::replicated(FOLLOWER, false);
    let [one, two, three] = [1, 2, 3].map(|id| h.engine.replication().name_of(id));
    let master = format!(
        "name mymaster ip 10.0.0.2 port 6379 runid {two} flags master link-pending-commands 0 link-refcount 1 last-ping-sent 0 \
         last-ok-ping-reply 1500 last-ping-reply 1500 down-after-milliseconds 1000 info-refresh 1500 role-reported master \
         role-reported-time 1500 config-epoch 4 num-slaves 2 num-other-sentinels 2 quorum 2 failover-timeout 180000 parallel-syncs 1"
    );
    let reply = h.run("SENTINEL MASTERS");
    assert!(reply.starts_with("*1 *40 "));
    assert_eq!(words(&reply).join(" "), master);
    assert_eq!(words(&h.run("SENTINEL MASTER mymaster")).join(" "), master);
    let me = format!(
        "name 10.0.0.1:6379 ip 10.0.0.1 port 6379 runid {one} flags slave link-pending-commands 0 link-refcount 1 last-ping-sent 0 \
         last-ok-ping-reply 0 last-ping-reply 0 down-after-milliseconds 1000 info-refresh 0 role-reported slave role-reported-time 0 \
         master-link-down-time 0 master-link-status ok master-host 10.0.0.2 master-port 6379 slave-priority 100 slave-repl-offset 99 \
         replica-announced 1"
    );
    let reply = h.run("SENTINEL REPLICAS mymaster");
    assert!(reply.starts_with("*2 *42 ") && words(&reply).join(" ").starts_with(&me), "{reply}");
    assert_eq!(h.run("SENTINEL SLAVES mymaster"), reply);
    let other = format!(
        "name {two} ip 10.0.0.2 port 6379 runid {two} flags sentinel link-pending-commands 0 link-refcount 1 last-ping-sent 0 \
         last-ok-ping-reply 1500 last-ping-reply 1500 down-after-milliseconds 1000 last-hello-message 1500 voted-leader ? \
         voted-leader-epoch 0"
    );
    let reply = h.run("SENTINEL SENTINELS mymaster");
    assert!(reply.starts_with("*2 *28 ") && words(&reply).join(" ").starts_with(&other) && reply.contains(&three), "{reply}");
    assert_eq!(h.run("SENTINEL MYID"), format!("$40 {one}"));
    for command in ["REPLICAS", "SLAVES", "SENTINELS", "MASTER", "CKQUORUM", "FAILOVER"] {
        assert_eq!(h.run(&format!("SENTINEL {command} nosuch")), "-ERR No such master with that name");
    }
    h.run("HELLO 3");
    assert!(h.run("SENTINEL MASTERS").starts_with("*1 %20 "));
    assert_eq!(h.run("SENTINEL GET-MASTER-ADDR-BY-NAME nosuch"), "_");
}

#[test]
fn nodes_that_do_not_answer_are_down() {
    let mut state = Harness::three_nodes(FOLLOWER);
    state.nodes[2].link_up = false;
    let mut h = Harness::replicated(FOLLOWER, false);
    h.engine.set_replication(h.now, state);
    let reply = h.run("SENTINEL REPLICAS mymaster");
    assert!(words(&reply).join(" ").contains("flags s_down,slave,disconnected"), "{reply}");
    assert!(words(&reply).join(" ").contains("last-ping-reply 1500 s-down-time 1500 down-after"), "{reply}");
    assert!(words(&h.run("SENTINEL SENTINELS mymaster")).join(" ").contains("flags s_down,sentinel,disconnected"));
    h.script(&[
        ("SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.2 6379 0 *", "*3 :0 $1 * :0"),
        ("SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.2 x 0 *", "-ERR value is not an integer or out of range"),
        ("SENTINEL CKQUORUM mymaster", "+OK 2 usable Sentinels. Quorum and failover authorization can be reached"),
        ("SENTINEL RESET my*", ":1"),
        ("SENTINEL RESET other*", ":0"),
    ]);
    h.become_one(LEADERLESS);
    let reply = h.run("SENTINEL MASTERS");
    let text = words(&reply).join(" ");
    assert!(text.contains("ip 10.0.0.2 port 6379") && text.contains("flags s_down,o_down,master,disconnected"), "{reply}");
    assert!(words(&h.run("SENTINEL REPLICAS mymaster")).join(" ").contains("master-link-status err"));
    h.script(&[
        ("SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.2 6379 0 *", "*3 :1 $1 * :0"),
        ("SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.3 6379 0 *", "*3 :0 $1 * :0"),
    ]);
    h.become_one(Role::NoQuorum);
    assert!(
        h.run("SENTINEL CKQUORUM mymaster").starts_with("-NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach")
    );
    assert!(h.run("INFO sentinel").contains("master0:name=mymaster,status=odown,address=10.0.0.2:6379,slaves=2,sentinels=3"));
    // Before any leader was known.
    let h = &mut Harness::replicated(LEADERLESS, false);
    h.script(&[
        ("SENTINEL MASTERS", "*0"),
        ("SENTINEL MASTER mymaster", "-ERR No such master with that name"),
        ("SENTINEL REPLICAS mymaster", "-ERR No such master with that name"),
        ("SENTINEL GET-MASTER-ADDR-BY-NAME mymaster", "*-1"),
    ]);
}

#[test]
fn a_failover_hands_leadership_over() {
    let mut h = Harness::replicated(Role::Leader, false);
    h.script(&[("SENTINEL FAILOVER mymaster", "+OK")]);
    assert_eq!(h.engine.take_actions(), [Action::HandOver { to: None }]);
    h.become_one(FOLLOWER);
    h.script(&[("SENTINEL FAILOVER mymaster", "+OK")]);
    assert_eq!(h.engine.take_actions(), [Action::HandOver { to: None }]);
    h.become_one(LEADERLESS);
    h.script(&[("SENTINEL FAILOVER mymaster", "-NOGOODSLAVE No suitable replica to promote")]);
    h.become_one(Role::NoQuorum);
    h.script(&[("SENTINEL FAILOVER mymaster", "-NOGOODSLAVE No suitable replica to promote")]);
    let mut state = Harness::three_nodes(Role::Leader);
    state.handing_over = true;
    h.engine.set_replication(h.now, state.clone());
    h.script(&[("SENTINEL FAILOVER mymaster", "-INPROG Failover already in progress")]);
    state.handing_over = false;
    (state.nodes[1].link_up, state.nodes[2].voter) = (false, false);
    h.engine.set_replication(h.now, state);
    h.script(&[("SENTINEL FAILOVER mymaster", "-NOGOODSLAVE No suitable replica to promote")]);
    assert_eq!(h.engine.take_actions(), []);
}
