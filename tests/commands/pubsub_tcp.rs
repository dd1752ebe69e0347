//! Publish/subscribe and CLIENT KILL over TCP: who receives messages, and which connections are closed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use portcullis::TestServer;

/// A connection on which every byte is checked.
struct Client(TcpStream);

impl Client {
    fn connect(server: &TestServer) -> Client {
        let socket = TcpStream::connect(server.addr()).expect("connect");
        socket.set_nodelay(true).expect("nodelay");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("time-out");
        Client(socket)
    }

    fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).expect("write");
    }

    /// Expects these bytes, with blanks for line ends.
    #[track_caller]
    fn gets(&mut self, text: &str) {
        let wanted = text.replace(' ', "\r\n") + "\r\n";
        let mut got = vec![0; wanted.len()];
        self.0.read_exact(&mut got).expect("as many bytes as that");
        assert_eq!(String::from_utf8_lossy(&got), wanted);
    }

    #[track_caller]
    fn ask(&mut self, line: &str, reply: &str) {
        self.send(line);
        self.gets(reply);
    }

    /// Expects the end of the connection, without more bytes.
    #[track_caller]
    fn is_closed(&mut self) {
        let mut rest = Vec::new();
        // A reset is also an end.
        let _ = self.0.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
}

#[test]
fn messages_come_without_asking_in_each_ones_protocol() {
    let server = TestServer::start();
    let mut two: Vec<Client> = (0..40).map(|_| Client::connect(&server)).collect();
    let mut three = Client::connect(&server);
    for client in &mut two {
        client.ask("SUBSCRIBE news", "*3 $9 subscribe $4 news :1");
    }
    three.send("HELLO 3");
    three.send("SUBSCRIBE news");
    let mut publisher = Client::connect(&server);
    // Until the last client is subscribed.
    loop {
        publisher.ask("PUBSUB NUMSUB news", "*2 $4 news");
        let mut count = [0; 5];
        publisher.0.read_exact(&mut count).expect("read");
        match &count {
            b":41\r\n" => break,
            other => assert_eq!(other, b":40\r\n"),
        }
    }
    for round in 0..50 {
        publisher.ask(&format!("PUBLISH news {round:03}"), ":41");
    }
    for round in 0..50 {
        for client in &mut two {
            client.gets(&format!("*3 $7 message $4 news $3 {round:03}"));
        }
    }
    let mut got = Vec::new();
    let last = b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\n049\r\n";
    while !got.ends_with(last) {
        let mut some = [0; 4096];
        let read = three.0.read(&mut some).expect("read");
        assert!(read > 0);
        got.extend_from_slice(&some[..read]);
    }
    assert_eq!(String::from_utf8_lossy(&got).matches(">3\r\n$7\r\nmessage").count(), 50);
    server.check_invariants();
}

#[test]
fn what_takes_many_turns_has_the_reply_of_one() {
    let server = TestServer::start();
    let (mut listener, mut other) = (Client::connect(&server), Client::connect(&server));
    let count = 20_000;
    for from in (0..count).step_by(100) {
        let names: String = (from..from + 100).map(|n| format!(" c{n}")).collect();
        listener.send(&format!("SUBSCRIBE{names}"));
        for n in from..from + 100 {
            listener.gets(&format!("*3 $9 subscribe ${} c{n} :{}", format!("c{n}").len(), n + 1));
        }
    }
    let bulk = |n: usize| format!(" ${} c{n}", format!("c{n}").len());
    let all: String = (0..count).map(bulk).collect();
    other.ask("PUBSUB CHANNELS", &format!("*{count}{all}"));
    let some: String = (0..count).filter(|n| n.to_string().ends_with("77")).map(bulk).collect();
    other.ask("PUBSUB CHANNELS c*77", &format!("*{}{some}", count / 100));
    // Requests behind it wait for it.
    listener.send("UNSUBSCRIBE\r\nPING\r\nUNSUBSCRIBE\r\nSUBSCRIBE last");
    for n in 0..count {
        listener.gets(&format!("*3 $11 unsubscribe{} :{}", bulk(n), count - 1 - n));
    }
    listener.gets("+PONG *3 $11 unsubscribe $-1 :0 *3 $9 subscribe $4 last :1");
    other.ask("PUBSUB CHANNELS", "*1 $4 last");
    server.check_invariants();
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_the_others_get_everything() {
    let server = TestServer::builder().config("client-output-buffer-limit", "pubsub 8mb 0 0").start();
    let (mut slow, mut fast, mut publisher) = (Client::connect(&server), Client::connect(&server), Client::connect(&server));
    slow.ask("SUBSCRIBE c", "*3 $9 subscribe $1 c :1");
    fast.ask("SUBSCRIBE c", "*3 $9 subscribe $1 c :1");
    let message = "x".repeat(1 << 20);
    let request = format!("*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n${}\r\n{message}\r\n", message.len());
    let mut alone = 0;
    for _ in 0..64 {
        publisher.0.write_all(request.as_bytes()).expect("write");
        let mut reply = [0; 4];
        publisher.0.read_exact(&mut reply).expect("read");
        fast.gets(&format!("*3 $7 message $1 c ${} {message}", message.len()));
        alone += usize::from(&reply == b":1\r\n");
    }
    assert!(alone > 0, "the slow one is gone in the end");
    publisher.ask("PUBSUB NUMSUB c", "*2 $1 c :1");
    // Data in transit may still arrive before the end.
    let mut rest = Vec::new();
    let _ = slow.0.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20);
    server.check_invariants();
}

#[test]
fn the_end_of_a_key_is_told_when_the_clock_gets_there() {
    let server = TestServer::builder().frozen(true).config("notify-keyspace-events", "KEx").start();
    let mut listener = Client::connect(&server);
    listener.ask("PSUBSCRIBE __key*", "*3 $10 psubscribe $6 __key* :1");
    server.execute(&["SET", "lock", "me", "PX", "250"]);
    server.clock().advance(Duration::from_millis(249));
    assert!(server.exists("lock"));
    server.clock().advance(Duration::from_millis(1));
    listener.gets("*4 $8 pmessage $6 __key* $19 __keyspace@0__:lock $7 expired");
    listener.gets("*4 $8 pmessage $6 __key* $22 __keyevent@0__:expired $4 lock");
}

#[test]
fn killed_connections_are_closed_and_whoever_kills_itself_is_told_first() {
    let server = TestServer::start();
    let (mut killer, mut idle, mut subscriber) = (Client::connect(&server), Client::connect(&server), Client::connect(&server));
    killer.ask("CLIENT ID", ":1");
    idle.ask("CLIENT ID", ":2");
    subscriber.ask("SUBSCRIBE c", "*3 $9 subscribe $1 c :1");
    killer.ask("CLIENT KILL ID 2", ":1");
    idle.is_closed();
    killer.ask("CLIENT KILL TYPE pubsub", ":1");
    subscriber.is_closed();
    let own = killer.0.local_addr().expect("an address");
    killer.send(&format!("CLIENT KILL {own}\r\nPING"));
    killer.gets("+OK");
    killer.is_closed();
    server.check_invariants();
}
