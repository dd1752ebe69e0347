//! What a change of leaders means for each kind of client, as `guide/replication.md` promises it: a leader hands over, and another one
//! is killed.

use std::net::SocketAddr;

use crate::nodes::{Cluster, ask};
use crate::session::Session;

/// Clients of a leader, which lose it.
struct Clients {
    subscriber: Session,
    events: Session,
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
            tracker,
            blocked,
            queue,
            watcher: open("WATCH tracked"),
        }
    }

    /// All but the subscriber must look for the next leader.
    fn have_lost_their_leader(&mut self) {
        assert!(self.events.closes(), "nobody would publish keyspace events to it");
        assert!(self.tracker.closes(), "nobody would tell it of changes");
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

const LIBRARY: &str = "#!lua name=lib\nredis.register_function('answer', function() return 42 end)";

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
        client.send_words(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
        assert_eq!(client.next().unwrap(), "lib");
        assert_eq!(client.ask("MULTI"), "+OK");
        assert_eq!(client.ask("SET whole:a 1"), "+QUEUED");
        assert_eq!(client.ask("SET whole:b 1"), "+QUEUED");
        assert_eq!(client.ask("EXEC"), "+OK +OK");
        Before { token: client.ask(&acquire(round)), session_token, digest: client.ask(&format!("SCRIPT LOAD return{{{round}}}")), in_session }
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
        assert_eq!(client.ask("FCALL answer 0"), ":42");
        assert!(client.ask(&format!("EVALSHA {} 0", self.digest)).starts_with("-NOSCRIPT"), "the script cache is each node's own");
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
        assert_eq!([subscriber.next().unwrap(), subscriber.next().unwrap()], ["message news 1", "message news 2"]);
    }

    // A leader that hands over.
    let before = Before::at(at_first, "1");
    let port = at_second.port().to_string();
    assert_eq!(ask(at_first, &["FAILOVER", "TO", "127.0.0.1", &port]).unwrap(), "+OK");
    cluster.wait("the second leader", |cluster| (cluster.leader() == second).then_some(()));
    clients.have_lost_their_leader();
    before.holds_at(at_second, "1");
    cluster.until_follows(first);
    assert_eq!(ask(at_second, &["PUBLISH", "news", "3"]).unwrap(), ":0");
    assert_eq!(clients.subscriber.next().unwrap(), "message news 3", "it hears what the next leader publishes");
    assert_eq!(followers.next().unwrap(), "message news 3");

    // A leader that is killed.
    let mut clients = Clients::of(at_second);
    let before = Before::at(at_second, "2");
    cluster.kill(second);
    clients.have_lost_their_leader();
    assert!(clients.subscriber.closes());
    let leader = cluster.leader();
    before.holds_at(cluster.clients[leader], "2");
    let other = if leader == third { at_first } else { at_third };
    ask(other, &["PUBLISH", "news", "4"]).unwrap();
    assert_eq!(followers.next().unwrap(), "message news 4");
}
