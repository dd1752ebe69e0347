//! What a change of leaders means for each kind of client, as `guide/replication.md` promises it: a leader hands over, and another one
//! is killed.

use std::net::SocketAddr;
use std::time::Duration;

use crate::nodes::{Cluster, ask, ask_briefly};
use crate::session::Session;

/// Clients of a leader, which lose it.
struct Clients {
    subscriber: Session,
    events: Session,
    losses: Session,
    tracker: Session,
    blocked: Session,
    queue: Session,
    watcher: Session,
}

impl Clients {
    fn of(leader: SocketAddr) -> Clients {
        let open = |request: &str| {
            let mut session = Session::open(leader);
            let reply = session.ask(request);
            assert!(!reply.starts_with('-'), "{request}: {reply}");
            session
        };
        let mut tracker = open("HELLO 3");
        assert_eq!(tracker.ask("CLIENT TRACKING ON"), "+OK");
        assert_eq!(tracker.ask("SET tracked 1"), "+OK");
        assert_eq!(tracker.ask("GET tracked"), "1");
        assert_eq!(ask(leader, &["SET", "tracked", "2"]).unwrap(), "+OK");
        assert_eq!(tracker.next().unwrap(), "invalidate tracked");
        let mut queue = open("MULTI");
        assert_eq!(queue.ask("SET half 1"), "+QUEUED");
        let mut blocked = Session::open(leader);
        blocked.send("BLPOP empty 0");
        Clients {
            subscriber: open("SUBSCRIBE news"),
            events: open("PSUBSCRIBE __keyspace@0__:*"),
            losses: open("SUBSCRIBE __portcullis__:lock-lost:1"),
            tracker,
            blocked,
            queue,
            watcher: open("WATCH tracked"),
        }
    }

    /// All but the subscriber must look for the next leader.
    fn have_lost_their_leader(&mut self) {
        assert!(self.events.closes(), "no node publishes keyspace events to it any more");
        assert!(self.losses.closes(), "no node tells it of lost locks any more");
        assert!(self.tracker.closes(), "no node tells it of changes any more");
        assert!(self.blocked.closes() && self.queue.closes() && self.watcher.closes());
    }
}

/// What is at the leader before it is lost.
struct Before {
    token: String,
    session_token: String,
    digest: String,
    in_session: Session,
}

/// A library with one function.
fn library(round: &str) -> String {
    format!("#!lua name=lib{round}\nredis.register_function('answer', function() return {round} end)")
}

/// A request with an id, which may be repeated.
fn acquire(round: &str) -> String {
    format!("LOCK.ACQUIRE lock me 600000 REQUEST {round}")
}

impl Before {
    fn at(leader: SocketAddr, round: &str) -> Before {
        let mut client = Session::open(leader);
        let mut in_session = Session::open(leader);
        assert!(!in_session.ask("LOCK.SESSION worker GRACE 60000").starts_with('-'));
        let session_token = in_session.ask(&format!("LOCK.ACQUIRE bound:{round} me 600000 SESSION"));
        assert!(session_token.starts_with(':'), "{session_token}");
        assert_eq!(client.ask("FUNCTION FLUSH"), "+OK");
        client.send_words(&["FUNCTION", "LOAD", &library(round)]);
        assert_eq!(client.next().unwrap(), format!("lib{round}"));
        assert_eq!(client.ask("MULTI"), "+OK");
        assert_eq!(client.ask("SET whole:a 1"), "+QUEUED");
        assert_eq!(client.ask("SET whole:b 1"), "+QUEUED");
        assert_eq!(client.ask("EXEC"), "+OK +OK");
        Before {
            token: client.ask(&acquire(round)),
            session_token,
            digest: client.ask(&format!("SCRIPT LOAD return{{{round}}}")),
            in_session,
        }
    }

    /// Looks at the next leader.
    fn holds_at(self, leader: SocketAddr, round: &str) {
        let mut client = Session::open(leader);
        assert_eq!(client.ask(&acquire(round)), self.token, "a request that is repeated has the answer that it had");
        assert_eq!(client.ask("LOCK.RELEASE lock me"), ":0", "there was one hold and not two");
        let next = client.ask("LOCK.ACQUIRE lock me 600000");
        let number = |token: &str| token.trim_start_matches(':').parse::<u64>().unwrap();
        assert!(number(&next) > number(&self.token), "{next} is not behind {}", self.token);
        assert_eq!(client.ask("LOCK.RELEASE lock me"), ":0");
        drop(self.in_session);
        let bound = format!("bound:{round}");
        assert_eq!(client.ask(&format!("LOCK.CHECK {bound} {}", &self.session_token[1..])), ":1", "the session has its grace");
        let mut resumed = Session::open(leader);
        assert!(!resumed.ask("LOCK.SESSION worker GRACE 60000").starts_with('-'));
        assert_eq!(resumed.ask(&format!("LOCK.RELEASE {bound} me")), ":0");
        assert_eq!(client.ask("MGET whole:a whole:b half"), "1 1 $-1", "a transaction is there wholly or not at all");
        assert_eq!(client.ask("FCALL answer 0"), format!(":{round}"));
        assert!(!client.ask("FUNCTION LIST").contains("lib0"), "what another leader has deleted does not come back");
        assert!(
            client.ask(&format!("EVALSHA {} 0", self.digest)).starts_with("-NOSCRIPT"),
            "the script cache is each node's own"
        );
        assert_eq!(client.ask(&format!("EVAL return{{{round}}} 0")), format!(":{round}"));
        client.send("BLPOP empty 0");
        assert_eq!(ask(leader, &["RPUSH", "empty", "1"]).unwrap(), ":1");
        assert_eq!(client.next().unwrap(), "empty 1");
    }
}

#[test]
fn each_kind_of_client_finds_what_the_guide_promises() {
    let mut cluster = Cluster::start();
    for node in &cluster.clients {
        assert_eq!(ask(*node, &["CONFIG", "SET", "notify-keyspace-events", "KEA"]).unwrap(), "+OK");
    }
    let first = cluster.leader();
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    [second, third].into_iter().for_each(|node| cluster.until_follows(node));
    let [at_first, at_second, at_third] = [first, second, third].map(|node| cluster.clients[node]);

    // Subscribers of each node hear what is published at any, once.
    let mut followers = Session::open(at_third);
    assert_eq!(followers.ask("SUBSCRIBE news"), "subscribe news :1");
    assert!(Session::open(at_third).ask("PSUBSCRIBE __keyevent@0__:*").starts_with("-READONLY"));
    assert!(Session::open(at_third).ask("SUBSCRIBE news __keyspace@0__:a").starts_with("-READONLY"));
    let mut clients = Clients::of(at_first);
    let mut publisher = Session::open(at_first);
    assert_eq!(publisher.ask("MULTI"), "+OK");
    assert_eq!(publisher.ask("SET a 1"), "+QUEUED");
    assert_eq!(publisher.ask("PUBLISH news 1"), "+QUEUED");
    assert_eq!(publisher.ask("EXEC"), "+OK :1");
    assert_eq!(ask(at_second, &["PUBLISH", "news", "2"]).unwrap(), ":0", "it counts the receivers of its node, as Redis does");
    assert_eq!(clients.events.next().unwrap(), "pmessage __keyspace@0__:* __keyspace@0__:a set");
    for subscriber in [&mut clients.subscriber, &mut followers] {
        // They come from two nodes, and so in any order.
        let mut heard = [subscriber.next().unwrap(), subscriber.next().unwrap()];
        heard.sort();
        assert_eq!(heard, ["message news 1", "message news 2"]);
    }

    // A leader that hands over.
    ask(at_first, &["FUNCTION", "LOAD", &library("0")]).unwrap();
    let before = Before::at(at_first, "1");
    hand_over(&mut cluster, first, second);
    clients.have_lost_their_leader();
    before.holds_at(at_second, "1");
    assert_eq!(ask(at_second, &["PUBLISH", "news", "3"]).unwrap(), ":0");
    assert_eq!(clients.subscriber.next().unwrap(), "message news 3", "it hears what the next leader publishes");
    assert_eq!(followers.next().unwrap(), "message news 3");
    let before = Before::at(at_second, "2");
    hand_over(&mut cluster, second, first);
    before.holds_at(at_first, "2");

    // A leader that is killed.
    let mut clients = Clients::of(at_first);
    let before = Before::at(at_first, "3");
    cluster.kill(first);
    clients.have_lost_their_leader();
    assert!(clients.subscriber.closes());
    let leader = cluster.leader();
    before.holds_at(cluster.clients[leader], "3");
    let other = if leader == third { at_second } else { at_third };
    ask(other, &["PUBLISH", "news", "4"]).unwrap();
    assert_eq!(followers.next().unwrap(), "message news 4");
}

fn hand_over(cluster: &mut Cluster, from: usize, to: usize) {
    let port = cluster.clients[to].port().to_string();
    cluster.wait("the next leader", |cluster| {
        let leader = cluster.leader();
        if leader != to {
            // At the beginning of a cluster the first leader may lose its connections, and another one leads.
            let _ = ask_briefly(cluster.clients[leader], &["FAILOVER", "TO", "127.0.0.1", &port]);
        }
        (leader == to).then_some(())
    });
    cluster.until_follows(from);
}

/// A process that has run for longer than the cluster sets its clock back when it leads.
#[test]
fn the_clock_of_a_new_leader_does_not_disturb_its_connections() {
    let mut cluster = Cluster::prepare();
    cluster.start_node(0);
    let addr = cluster.clients[0];
    let mut client = Session::open(addr);
    // The cluster's clock begins with the first leader, and this node's own began before.
    for _ in 0..15 {
        assert_eq!(client.ask("PING"), "+PONG");
        std::thread::sleep(Duration::from_millis(100));
    }
    (1..3).for_each(|node| cluster.start_node(node));
    let leader = cluster.leader();
    if leader != 0 {
        cluster.until_follows(0);
        hand_over(&mut cluster, leader, 0);
    }
    assert_eq!(client.ask("SET a 1"), "+OK");
    let line = client.ask("CLIENT LIST");
    let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok()).unwrap();
    assert!(field("idle=") <= 1 && field("age=") < 30, "{line}");
}
