//! `WAIT`, and clients that ask while no node leads.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::nodes::{Cluster, PATIENCE, ask, info};

/// A connection that stays open.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    /// Sends requests of words at once.
    fn send(&mut self, requests: &[&str]) {
        let text: String = requests.iter().map(|request| format!("{request}\r\n")).collect();
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The next line of a reply; empty if the connection is closed.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.0.read_line(&mut line);
        line.trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.send(&[request]);
        self.line()
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn wait_for_all_followers_ends_when_the_last_one_confirms() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    (0..3).filter(|node| *node != leader).for_each(|node| cluster.until_follows(node));
    let mut client = Client::connect(cluster.clients[leader]);
    let mut rounds = |requests: [&str; 4], replies: &[&str]| {
        let times = (0..30).map(|_| {
            let began = Instant::now();
            client.send(&requests);
            for reply in replies {
                assert_eq!(client.line(), *reply, "{requests:?}");
            }
            began.elapsed()
        });
        median(times.collect())
    };
    // Redisson sends this for each lock. By a tick of 100 ms it took 200.
    let batch = ["MULTI", "EVAL \"return redis.call('incr',KEYS[1])*0\" 1 n", "EXEC", "WAIT 2 5000"];
    let took = rounds(batch, &["+OK", "+QUEUED", "*1", ":0", ":2"]);
    assert!(took < Duration::from_millis(60), "{took:?}");
    let batch = ["SET a 1", "WAITAOF 0 2 5000", "SET a 2", "WAITAOF 1 2 5000"];
    let took = rounds(batch, &["+OK", "*2", ":1", ":2", "+OK", "*2", ":1", ":2"]);
    assert!(took < Duration::from_millis(60), "{took:?}");
}

#[test]
fn wait_counts_the_followers_that_confirm() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let paused = (leader + 1) % 3;
    (0..3).filter(|node| *node != leader).for_each(|node| cluster.until_follows(node));
    let mut client = Client::connect(cluster.clients[leader]);
    assert_eq!([client.ask("SET a 1"), client.ask("WAIT 2 5000")], ["+OK", ":2"]);
    let began = Instant::now();
    assert_eq!(client.ask("WAIT 3 200"), ":2", "there is no third follower");
    assert!(began.elapsed() >= Duration::from_millis(199));
    cluster.pause(paused);
    assert_eq!(client.ask("SET a 2"), "+OK");
    let began = Instant::now();
    assert_eq!(client.ask("WAIT 2 200"), ":1");
    assert!(began.elapsed() >= Duration::from_millis(199));
    // It goes on while somebody waits.
    let mut patient = Client::connect(cluster.clients[leader]);
    patient.send(&["SET a 3", "WAIT 2 20000"]);
    assert_eq!(patient.line(), "+OK");
    cluster.resume(paused);
    assert_eq!(patient.line(), ":2");
    let follower = cluster.clients[(leader + 2) % 3];
    for request in ["WAIT", "WAITAOF"] {
        let arguments: &[&str] = if request == "WAIT" { &["WAIT", "1", "10"] } else { &["WAITAOF", "0", "1", "10"] };
        let reply = ask(follower, arguments).unwrap();
        assert!(reply.starts_with(&format!("-ERR {request} cannot be used with replica instances.")), "{reply}");
    }
    assert_eq!(ask(follower, &["CLIENT", "TRACKING", "ON", "OPTIN"]).unwrap(), "+OK");
}

#[test]
fn a_leader_that_is_killed_ends_the_waits_of_its_clients() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let follower = (leader + 1) % 3;
    let mut client = Client::connect(cluster.clients[leader]);
    cluster.pause(follower);
    client.send(&["SET a 1", "WAIT 2 0"]);
    assert_eq!(client.line(), "+OK");
    cluster.kill(leader);
    assert_eq!(client.line(), "", "it is closed");
    cluster.resume(follower);
    assert_eq!(cluster.ask_leader(&["GET", "a"]), "1");
}

#[test]
fn a_node_that_has_just_started_names_no_leader_without_an_address() {
    let mut cluster = Cluster::prepare();
    cluster.arguments = vec![["--cluster-enabled", "yes"].map(str::to_owned).to_vec(); 3];
    (0..3).for_each(|node| cluster.start_node(node));
    let leader = cluster.leader();
    (0..3).for_each(|node| cluster.until_votes(node));
    (0..3).for_each(|node| cluster.kill(node));
    // It knows from its log who led.
    let node = (leader + 1) % 3;
    cluster.start_node(node);
    let addr = cluster.clients[node];
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        let down = "-CLUSTERDOWN The cluster is down";
        for request in [&["GET", "a"][..], &["CLUSTER", "SLOTS"], &["CLUSTER", "SHARDS"]] {
            assert_eq!(ask(addr, request).unwrap(), down, "{request:?}");
        }
        assert_eq!(ask(addr, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]).unwrap(), "*-1");
        assert_eq!(ask(addr, &["SENTINEL", "MASTERS"]).unwrap(), "*0");
        assert_eq!(info(addr, "master_link_status").unwrap(), "down");
    }
    (0..3).filter(|other| *other != node).for_each(|other| cluster.start_node(other));
    cluster.leader();
    cluster.wait("the slots", |cluster| (ask(cluster.clients[node], &["CLUSTER", "SLOTS"]).unwrap() == "*1").then_some(()));
}

#[test]
fn what_clients_of_a_cluster_ask_during_an_election_names_the_next_leader() {
    let mut cluster = Cluster::prepare();
    cluster.arguments = vec![["--cluster-enabled", "yes"].map(str::to_owned).to_vec(); 3];
    (0..3).for_each(|node| cluster.start_node(node));
    let old = cluster.leader();
    (0..3).for_each(|node| cluster.until_votes(node));
    let others = [(old + 1) % 3, (old + 2) % 3];
    others.into_iter().for_each(|node| cluster.until_follows(node));
    let mut clients: Vec<(Client, Client)> =
        others.map(|node| (Client::connect(cluster.clients[node]), Client::connect(cluster.clients[node]))).into();
    cluster.kill(old);
    // The nodes have noticed the end of their connections.
    std::thread::sleep(Duration::from_millis(50));
    for (asks, subscribes) in &mut clients {
        asks.send(&["CLUSTER SLOTS"]);
        subscribes.send(&["SSUBSCRIBE a"]);
    }
    let old_port = cluster.clients[old].port();
    for (asks, subscribes) in &mut clients {
        // One range: its ends, and the first node with its host and port.
        let slots: Vec<String> = (0..7).map(|_| asks.line()).collect();
        assert_eq!(slots[0], "*1", "{slots:?}");
        let port = asks.line();
        assert_ne!(port, format!(":{old_port}"), "{slots:?}");
        assert!(cluster.clients.iter().any(|addr| port == format!(":{}", addr.port())), "{port} {slots:?}");
        let reply = subscribes.line();
        let moved = reply.starts_with("-MOVED 15495 ") && !reply.ends_with(&format!(":{old_port}"));
        assert!(moved || reply == "*3", "{reply}");
    }
}
