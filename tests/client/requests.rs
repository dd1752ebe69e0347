//! The client with this server, with redis-server if it is installed, and with servers that fail in every way.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::TestServer;
use portcullis::client::{Client, Command, Error, Options, Script, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::clients::{client, options, run, until_blocked};
use crate::common::ports;
use crate::common::servers::{Server, on_path};

fn command(text: &str) -> Command {
    let mut words = text.split(' ');
    Command::new(words.next().expect("a word")).args(words)
}

/// Everything that works with any server of the Redis family.
async fn plain(options: Options) {
    let client = Client::with(options.clone().name("it")).await.expect("a client");
    let protocol = client.protocol().await.expect("connected");
    assert_eq!(client.command(&["SET", "k", "5"]).await, Ok(Value::Status("OK".into())));
    assert_eq!(client.command(&["INCR", "k"]).await, Ok(Value::Integer(6)));
    assert_eq!(client.query::<String>(command("CLIENT GETNAME")).await.as_deref(), Ok("it"));
    assert!(client.query::<bool>(command("SET n 1 NX")).await.expect("a reply"));
    assert!(!client.query::<bool>(command("SET n 1 NX")).await.expect("a reply"));
    client.command(&["HSET", "h", "a", "1", "b", "2"]).await.expect("a reply");
    let map: BTreeMap<String, i64> = client.query(command("HGETALL h")).await.expect("a map");
    assert_eq!(map, BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
    let raw = client.command(&["HGETALL", "h"]).await.expect("a reply");
    assert_eq!(matches!(raw, Value::Map(_)), protocol == 3);
    let error = client.command(&["LPUSH", "k", "1"]).await.expect_err("wrong type");
    assert_eq!((error.code(), error.maybe_applied()), (Some("WRONGTYPE"), false));
    // Large values with arbitrary bytes.
    let large = vec![b'\n'; 3 << 20];
    client.run(Command::new("SET").arg("large").arg(&large)).await.expect("a reply");
    assert_eq!(client.query::<Vec<u8>>(command("GET large")).await, Ok(large));

    let replies = client.pipeline(&[command("INCR k"), command("LPUSH k 1"), command("GET nosuch")]).await.expect("replies");
    assert_eq!((&replies[0], &replies[2]), (&Value::Integer(7), &Value::Null));
    assert!(matches!(&replies[1], Value::Error(error) if error.code() == "WRONGTYPE"));
    let replies = client.transaction(&[command("INCR k"), command("INCR k")]).await.expect("replies");
    assert_eq!(replies, [Value::Integer(8), Value::Integer(9)]);
    let refused = client.transaction(&[command("INCR k"), command("NOSUCHCOMMAND")]).await.expect_err("refused");
    assert!(refused.to_string().contains("unknown command"), "{refused}");
    assert_eq!(client.query::<i64>(command("GET k")).await, Ok(9));

    // Commands that change the state of a connection.
    assert!(matches!(client.command(&["MULTI"]).await, Err(Error::Invalid(_))));
    let mut own = client.dedicated().await.expect("a connection");
    own.command(&["WATCH", "k"]).await.expect("a reply");
    client.command(&["INCR", "k"]).await.expect("a reply");
    own.command(&["MULTI"]).await.expect("a reply");
    own.command(&["SET", "k", "0"]).await.expect("a reply");
    assert_eq!(own.command(&["EXEC"]).await, Ok(Value::Null));
    assert!(own.id() > 0);
    drop(own);

    // Scripts: unknown to the server at first.
    let script = Script::new(format!("-- {}\nreturn {{KEYS[1], ARGV[1] + 1}}", std::process::id()));
    client.command(&["SCRIPT", "FLUSH"]).await.expect("a reply");
    for _ in 0..2 {
        assert_eq!(script.run::<(String, i64)>(&client, &["a"], &[41]).await, Ok(("a".to_owned(), 42)));
    }
    let known: Vec<bool> = client.query(Command::new("SCRIPT").arg("EXISTS").arg(script.sha1())).await.expect("a reply");
    assert_eq!(known, [true]);

    // Blocking commands do not hold up other commands or each other.
    let begin = Instant::now();
    let waits: Vec<_> = (0..5)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move { client.query::<(String, String)>(command(&format!("BLPOP wait{i} 20"))).await })
        })
        .collect();
    until_blocked(&client, 5).await;
    assert_eq!(client.command(&["PING"]).await.expect("a reply").as_str(), Some("PONG"));
    for i in (0..5).rev() {
        client.command(&["LPUSH", &format!("wait{i}"), "x"]).await.expect("a reply");
    }
    for (i, wait) in waits.into_iter().enumerate() {
        assert_eq!(wait.await.expect("a task"), Ok((format!("wait{i}"), "x".to_owned())));
    }
    assert!(begin.elapsed() < Duration::from_secs(15));
    // A dropped command does not wait any more, and takes nothing.
    let dropped = tokio::time::timeout(Duration::from_millis(50), client.command(&["BLPOP", "wait", "0"])).await;
    assert!(dropped.is_err());
    until_blocked(&client, 0).await;
    client.command(&["LPUSH", "wait", "x"]).await.expect("a reply");
    assert_eq!(client.query::<i64>(command("LLEN wait")).await, Ok(1));

    // Channels.
    let mut channels = client.subscribe(&["a", "b"]).await.expect("a subscription");
    let mut patterns = client.psubscribe(&["[ab]"]).await.expect("a subscription");
    for (channel, payload) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4")] {
        client.command(&["PUBLISH", channel, payload]).await.expect("a reply");
    }
    for (channel, payload) in [("a", "1"), ("b", "2"), ("a", "4")] {
        let message = channels.next().await.expect("a message");
        assert_eq!((&message.channel[..], &message.payload[..]), (channel.as_bytes(), payload.as_bytes()));
        assert_eq!(message.pattern, None);
        let message = patterns.next().await.expect("a message");
        assert_eq!((message.pattern.as_deref(), &message.payload[..]), (Some(&b"[ab]"[..]), payload.as_bytes()));
    }

    // Another database.
    let other = Client::with(options.db(3)).await.expect("a client");
    assert_eq!(other.command(&["GET", "k"]).await, Ok(Value::Null));
    other.command(&["SET", "k", "there"]).await.expect("a reply");
    let mut own = other.dedicated().await.expect("a connection");
    assert_eq!(own.query::<String>(command("GET k")).await.as_deref(), Ok("there"));
}

#[test]
fn plain_commands_work_in_both_protocols() {
    run(async {
        for resp2 in [false, true] {
            let server = TestServer::start();
            let options = options(server.addr());
            plain(if resp2 { options.resp2() } else { options }).await;
            server.check_invariants();
        }
    });
}

#[test]
fn plain_commands_work_on_redis() {
    let programs = [on_path("redis-server"), std::env::var_os("PORTCULLIS_REDIS8").filter(|it| !it.is_empty()).map(Into::into)];
    if programs.iter().all(Option::is_none) {
        println!("SKIPPED: no redis-server on the PATH");
    }
    for program in programs.iter().flatten() {
        let (server, other) = (Server::redis(program).expect("it starts"), Server::redis(program).expect("it starts"));
        run(async {
            plain(options(server.addr)).await;
            plain(options(other.addr).resp2()).await;
        });
    }
}

/// How many logins a server has refused.
fn refused_logins(addr: std::net::SocketAddr) -> u64 {
    let mut wire = crate::common::wire::Wire::connect(addr).expect("a connection");
    wire.call(&["AUTH", "s:cret"]).expect("a reply");
    let info = String::from_utf8(wire.call(&["INFO", "stats"]).expect("a reply").raw).expect("a text");
    let refused = info.lines().find_map(|line| line.strip_prefix("acl_access_denied_auth:")).expect("the field");
    refused.parse().expect("a number")
}

#[test]
fn unix_sockets_and_passwords() {
    let path = std::env::temp_dir().join(format!("portcullis-client-{}.sock", std::process::id()));
    let path = path.to_str().expect("a path");
    let flags = ["--unixsocket", path, "--requirepass", "s:cret", "--user", "ann on >pw ~* +@all"];
    let Ok(server) = Server::portcullis_with(Path::new(env!("CARGO_BIN_EXE_portcullis")), &flags) else { panic!("no server") };
    run(async {
        for url in [
            format!("unix://{path}?password=s%3Acret"),
            format!("unix://{path}?user=ann&password=pw&protocol=resp2"),
            format!("redis://:s%3Acret@{}", server.addr),
            format!("redis://ann:pw@{}/2", server.addr),
            format!("redis://:s%3Acret@{}?protocol=resp2", server.addr),
        ] {
            let client = Client::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
            let who: String = client.query(command("ACL WHOAMI")).await.expect("a reply");
            assert_eq!(who, if url.contains("ann") { "ann" } else { "default" });
        }
        for url in [format!("redis://ann:no@{}", server.addr), format!("redis://ann:no@{}?protocol=resp2", server.addr)] {
            let refused = refused_logins(server.addr);
            let error = Client::connect(&url).await.err().expect("refused");
            assert_eq!(error.code(), Some("WRONGPASS"), "{error}");
            assert_eq!(refused_logins(server.addr), refused + 1, "a wrong password is not tried again");
        }
        let error = Client::connect(&format!("redis://{}?protocol=resp2", server.addr)).await;
        // The client may connect, but may not run commands.
        let error = match error {
            Ok(client) => client.command(&["GET", "k"]).await.expect_err("refused"),
            Err(error) => error,
        };
        assert_eq!(error.code(), Some("NOAUTH"));
        assert_eq!(
            Client::connect(&format!("redis://{}", server.addr)).await.err().and_then(|e| e.code().map(str::to_owned)).as_deref(),
            Some("NOAUTH")
        );
    });
    drop(server);
    std::fs::remove_file(path).expect("the socket of a killed server");
}

/// A listener, for a server that does to its connections what a test says.
async fn listener() -> (TcpListener, Options) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let options = options(listener.local_addr().expect("an address"));
    (listener, options.response_timeout(Duration::from_secs(2)))
}

/// Reads requests until one of them contains this word.
async fn read_until(stream: &mut TcpStream, word: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if text.contains(word) {
            return text;
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => panic!("closed after {text:?}"),
            Ok(count) => seen.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Accepts a client and answers its first requests like a server that knows only `HELLO`.
async fn welcome(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    read_until(&mut stream, "HELLO").await;
    stream.write_all(b"%2\r\n+proto\r\n:3\r\n+id\r\n:77\r\n").await.expect("written");
    read_until(&mut stream, "LIB-VER").await;
    stream.write_all(b"-ERR unknown\r\n-ERR unknown\r\n").await.expect("written");
    stream
}

#[test]
fn a_server_without_resp3_is_spoken_to_in_resp2() {
    run(async {
        for refusal in
            ["-NOPROTO unsupported protocol version\r\n", "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n"]
        {
            let (listener, options) = listener().await;
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                read_until(&mut stream, "HELLO").await;
                stream.write_all(refusal.as_bytes()).await.expect("written");
                let said = read_until(&mut stream, "$2\r\nID\r\n").await;
                for word in ["AUTH\r\n$3\r\nann\r\n$2\r\npw", "SETNAME\r\n$2\r\nit", "SELECT\r\n$1\r\n4"] {
                    assert!(said.contains(word), "{said:?}");
                }
                let replies = "+OK\r\n+OK\r\n+OK\r\n-ERR unknown subcommand\r\n-ERR unknown subcommand\r\n:7\r\n";
                stream.write_all(replies.as_bytes()).await.expect("written");
                read_until(&mut stream, "SMEMBERS").await;
                stream.write_all(b"*1\r\n$1\r\na\r\n").await.expect("written");
                read_until(&mut stream, "nothing more").await;
            });
            let client = Client::with(options.credentials("ann", "pw").name("it").db(4)).await.expect("a client");
            assert_eq!(client.protocol().await, Ok(2));
            assert_eq!(client.query::<Vec<String>>(command("SMEMBERS s")).await, Ok(vec!["a".to_owned()]));
            server.abort();
        }
    });
}

#[test]
fn a_broken_connection_says_what_may_have_been_carried_out() {
    run(async {
        let (listener, options) = listener().await;
        let server = tokio::spawn(async move {
            // The first connection breaks with two requests in flight. On the second one the client resends those that it may.
            let mut stream = welcome(&listener).await;
            read_until(&mut stream, "GET").await;
            drop(stream);
            let mut stream = welcome(&listener).await;
            let said = read_until(&mut stream, "GET").await;
            assert!(!said.contains("INCR"), "{said:?}");
            stream.write_all(b"$1\r\n1\r\n").await.expect("written");
            stream
        });
        let client = Client::with(options).await.expect("a client");
        let (incr, get) = tokio::join!(client.run(command("INCR k")), client.query::<String>(command("GET k").idempotent()));
        let error = incr.expect_err("it broke");
        assert!(error.maybe_applied() && matches!(error, Error::Disconnected { .. }), "{error}");
        assert_eq!(get.as_deref(), Ok("1"));
        drop(server.await);
    });
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    run(async {
        let (listener, options) = listener().await;
        let server = tokio::spawn(async move {
            let first = welcome(&listener).await;
            let mut second = welcome(&listener).await;
            read_until(&mut second, "PING").await;
            second.write_all(b"+PONG\r\n").await.expect("written");
            read_until(&mut second, "never").await;
            drop((first, listener));
        });
        let client = Client::with(options.response_timeout(Duration::from_millis(200))).await.expect("a client");
        let begin = Instant::now();
        let error = client.command(&["INCR", "k"]).await.expect_err("no answer");
        assert!(error.maybe_applied(), "{error}");
        // Without a limit it would wait for as long as the server is silent, which is for ever.
        assert!(begin.elapsed() >= Duration::from_millis(190), "{:?}", begin.elapsed());
        // The client does not use a silent connection any more.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(client.command(&["PING"]).await.expect("a reply").as_str(), Some("PONG"));
        server.abort();
    });
}

#[test]
fn nobody_listening_fails_at_once_and_commands_wait_for_the_server_to_come_back() {
    run(async {
        let port = ports::free();
        let start = || {
            ports::until_free(port);
            TestServer::builder().config("port", &port.to_string()).start()
        };
        let server = start();
        let addr = server.addr();
        let client = Client::with(options(addr).response_timeout(Duration::from_secs(60))).await.expect("a client");
        client.command(&["SET", "k", "1"]).await.expect("a reply");
        let mut news = client.subscribe(&["news"]).await.expect("a subscription");
        drop(server);
        let begin = Instant::now();
        let tried = Client::with(options(addr).response_timeout(Duration::from_secs(60))).await;
        assert!(matches!(tried, Err(Error::Connect(_))));
        assert!(begin.elapsed() < Duration::from_secs(30), "it does not try for as long as a response may take");
        assert!(matches!(news.next().await, Err(Error::Disconnected { .. })));
        let asked = {
            let client = client.clone();
            tokio::spawn(async move { (client.command(&["GET", "k"]).await, client.command(&["PUBLISH", "nobody", "1"]).await) })
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!asked.is_finished());
        let server = start();
        let (get, publish) = asked.await.expect("a task");
        // The client knows whether it had written the request when the connection broke: either it was not written, or the error
        // says so.
        assert!(get.is_ok() || get.as_ref().is_err_and(Error::maybe_applied), "{get:?}");
        assert!(publish.is_ok(), "{publish:?}");
        let (message, _) = tokio::join!(news.next(), async {
            while client.query::<i64>(command("PUBLISH news 1")).await == Ok(0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(message.expect("a message").payload, "1");
        drop(server);
    });
}

#[test]
fn connections_for_those_who_wait_are_bounded() {
    run(async {
        let server = TestServer::start();
        let options = options(server.addr()).connections_max(2).response_timeout(Duration::from_secs(2));
        let client = Client::with(options).await.expect("a client");
        let wait = |name: &str| {
            let (client, command) = (client.clone(), command(&format!("BLPOP {name} 0")));
            tokio::spawn(async move { client.run(command).await })
        };
        let waits = [wait("a"), wait("b")];
        until_blocked(&client, 2).await;
        let begin = Instant::now();
        assert_eq!(client.command(&["BLPOP", "c", "0"]).await, Err(Error::TooManyConnections));
        assert!(begin.elapsed() < Duration::from_secs(5));
        for (name, wait) in ["a", "b"].into_iter().zip(waits) {
            client.command(&["LPUSH", name, "x"]).await.expect("a reply");
            wait.await.expect("a task").expect("a reply");
        }
        // Free connections are used again.
        let before: i64 = client.query(command("CLIENT ID")).await.expect("a reply");
        client.command(&["RPUSH", "c", "1", "2"]).await.expect("a reply");
        for _ in 0..2 {
            client.command(&["BLPOP", "c", "0"]).await.expect("a reply");
        }
        let mut wire = client.dedicated().await.expect("a connection");
        assert!(wire.id() <= before + 2, "no connection was made");
        assert!(wire.command(&["PING"]).await.is_ok());
    });
}

#[test]
fn thousands_of_commands_at_once_share_a_connection() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let tasks: Vec<_> = (0..5000)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move {
                    let key = format!("k{i}");
                    client.command(&["SET", &key, &i.to_string()]).await.expect("a reply");
                    client.query::<i64>(Command::new("GET").arg(&key)).await
                })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.expect("a task"), Ok(i as i64));
        }
        let connected: String = client.query(command("CLIENT LIST")).await.expect("a reply");
        assert_eq!(connected.lines().count(), 1);
    });
}

#[test]
fn what_comes_unasked_is_given_to_those_who_listen() {
    run(async {
        let server = TestServer::start();
        let client = client(&server).await;
        let mut pushes = client.pushes();
        let mut own = client.dedicated().await.expect("a connection");
        own.command(&["CLIENT", "TRACKING", "ON"]).await.expect("a reply");
        own.command(&["GET", "k"]).await.expect("a reply");
        client.command(&["SET", "k", "1"]).await.expect("a reply");
        let push = pushes.recv().await.expect("a push");
        assert_eq!(push[0].as_str(), Some("invalidate"));
        assert_eq!(push[1].as_array().expect("keys")[0].as_str(), Some("k"));
    });
}
