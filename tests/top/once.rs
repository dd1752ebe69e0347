//! `portcullis top --once`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use portcullis::TestServer;
use serde_json::Value;

use crate::common::talk::{call, play};
use crate::common::wire::Wire;
use crate::jam::Jam;

fn top(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portcullis")).arg("top").args(args).env_remove("REDISCLI_AUTH").output().expect("it runs")
}

fn printed(args: &[&str]) -> String {
    let output = top(args);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line that says why it failed.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = top(args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn json_names_the_root() {
    let jam = Jam::start();
    let found: Value = serde_json::from_str(&printed(&["--once", "--json", &jam.url()])).unwrap();
    let root = &found["graph"][0];
    assert_eq!(
        (&root["name"], &root["depth"], &root["blocked"], &root["waiters"]),
        (&"order:42".into(), &0.into(), &8.into(), &5.into())
    );
    assert_eq!((&found["graph"][1]["name"], &found["graph"][1]["via"]), (&"item:7".into(), &"web-0".into()));
    let holder = &root["holders"][0];
    assert_eq!((&holder["owner"], &holder["token"], &holder["held"]), (&"worker-7".into(), &jam.token.into(), &185_000.into()));
    assert_eq!((&holder["client-name"], holder["gone"].is_number()), (&"billing".into(), true));
    let lock = found["locks"].as_array().unwrap().iter().find(|lock| lock["name"] == "order:42").unwrap();
    assert_eq!((&lock["kind"], &lock["oldest-wait"]), (&"lock".into(), &185_000.into()));
    assert_eq!(lock["waiters"].as_array().unwrap().len(), 5);
    assert_eq!(found["stats"]["waiting"], 8);
    assert_eq!(found["server"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(found["server"]["missing"], serde_json::json!([]));
}

#[test]
fn text_begins_with_the_root_and_its_holder() {
    let jam = Jam::start();
    let text = printed(&["--once", &jam.url()]);
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("8 clients wait for order:42 (5 directly), held for 3 min by worker-7 (billing, 127.0.0.1:"),
        "{text}"
    );
    assert!(first.contains(", connection gone for 3 min)"), "{text}");
    for part in ["order:42  lock", "└ item:7  3 wait (oldest 3m00s); web-0 holds it for 3m05s and waits above", "waiting 8"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let quiet = TestServer::start();
    assert!(printed(&["--once", &quiet.url()]).starts_with("Nobody waits for a lock.\n"));
    let mut holder = Wire::connect(quiet.addr()).unwrap();
    call(&mut holder, "LOCK.ACQUIRE order:42 worker-7 60000");
    let hint = "\n\nNo lock has waiters. 1 lock is held in all databases; --all lists those of this one.\n";
    assert!(printed(&["--once", &quiet.url()]).ends_with(hint));
    let all = printed(&["--once", "--all", &quiet.url()]);
    assert!(all.lines().any(|line| line.starts_with("order:42  lock  ") && line.contains("worker-7")), "{all}");
    let json: Value = serde_json::from_str(&printed(&["--once", "--all", "--json", &quiet.url()])).unwrap();
    assert_eq!(json["locks"][0]["name"], "order:42");
}

#[test]
fn both_protocols_give_the_same_json() {
    let jam = Jam::start();
    let json = |query: &str| -> Value {
        let mut found: Value =
            serde_json::from_str(&printed(&["--once", "--json", &format!("{}?protocol={query}", jam.url())])).unwrap();
        // RESP2 has no booleans.
        for holder in found["locks"].as_array_mut().unwrap().iter_mut().flat_map(|lock| lock["holders"].as_array_mut().unwrap()) {
            holder["session"] = Value::Null;
        }
        for node in found["graph"].as_array_mut().unwrap() {
            (node["cut"], node["partial"]) = (Value::Null, Value::Null);
            node["holders"].as_array_mut().unwrap().iter_mut().for_each(|holder| holder["session"] = Value::Null);
        }
        found["server"]["at"] = Value::Null;
        found
    };
    assert_eq!(json("resp2"), json("resp3"));
}

#[test]
fn names_are_escaped() {
    let server = TestServer::start();
    let mut holder = Wire::connect(server.addr()).unwrap();
    let evil = b"a\x1b]0;pwned\x07\xff\r\n".as_slice();
    holder.call(&[b"LOCK.ACQUIRE".as_slice(), evil, b"\x1b[2J", b"60000"]).unwrap();
    let mut waiter = Wire::connect(server.addr()).unwrap();
    waiter.queue(&[b"LOCK.ACQUIRE".as_slice(), evil, b"x", b"60000", b"WAIT", b"0"]);
    waiter.flush().unwrap();
    crate::common::talk::until_blocked(&mut holder, 1);
    let text = printed(&["--once", &server.url()]);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.starts_with("1 client waits for a\\x1b]0;pwned\\x07\\xff\\x0d\\x0a, held for "), "{text}");
    let json: Value = serde_json::from_str(&printed(&["--once", "--json", &server.url()])).unwrap();
    assert_eq!(json["locks"][0]["name"], "a\u{1b}]0;pwned\u{7}\\xff\r\n");
}

#[test]
fn a_server_that_cannot_be_reached_or_refuses_is_one_line_and_exit_code_1() {
    let free = SocketAddr::from(([127, 0, 0, 1], crate::common::ports::free()));
    let line = refused(&["--once", &format!("redis://{free}")]);
    assert!(line.starts_with(&format!("portcullis: {free}: no connection: ")), "{line}");
    let server = TestServer::builder().config("requirepass", "secret").start();
    let line = refused(&["--once", &server.url()]);
    assert!(line.contains("NOAUTH the server needs a password: set REDISCLI_AUTH, or give redis://:PASSWORD@HOST"), "{line}");
    let with = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["top", "--once", &server.addr().to_string()]).env("REDISCLI_AUTH", variable).output().unwrap()
    };
    assert!(with("secret").status.success(), "the password is in the environment, and the scheme is left out");
    assert!(String::from_utf8(with("wrong").stderr).unwrap().contains("WRONGPASS"));
    let wrong = format!("redis://:wrong@{}", server.addr());
    let line = refused(&["--once", "--json", &wrong]);
    assert!(line.contains("WRONGPASS") && !line.contains("wrong@"), "{line}");
    printed(&["--once", &format!("redis://:secret@{}", server.addr())]);
    let mut root = Wire::connect(server.addr()).unwrap();
    play(&mut root, &[("AUTH secret", "+OK"), ("ACL SETUSER ann on >pw ~* +@all -lock.list", "+OK")]);
    let line = refused(&["--once", &format!("redis://ann:pw@{}", server.addr())]);
    assert!(line.contains("The server refuses LOCK.LIST: NOPERM"), "{line}");
    assert!(refused(&["--once", "http://127.0.0.1"]).contains("invalid server URL"));
    assert!(refused(&[&server.url()]).contains("standard output is not a terminal"));
}

#[test]
fn a_port_of_another_kind_is_said() {
    let server = TestServer::start();
    let line = refused(&["--once", &format!("rediss://{}", server.addr())]);
    assert!(line.contains("the server does not speak TLS here"), "{line}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]).unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    let line = refused(&["--once", &url]);
    assert!(line.contains("this looks like an HTTP port: give the port for clients"), "{line}");
}

#[test]
fn a_user_without_some_commands_sees_the_rest() {
    let jam = Jam::start();
    let mut root = Wire::connect(jam.server.addr()).unwrap();
    assert_eq!(call(&mut root, "ACL SETUSER ann on >pw ~* +@all -lock.graph -info -command"), "+OK");
    let text = printed(&["--once", &format!("redis://ann:pw@{}", jam.server.addr())]);
    assert!(text.starts_with("5 clients wait for order:42, held for 3 min by worker-7"), "{text}");
    assert!(text.contains("The server refuses LOCK.GRAPH: NOPERM"), "{text}");
}

/// Answers as a server of another kind, which has no command for locks.
fn other_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut out = stream.unwrap();
            let mut requests = BufReader::new(out.try_clone().unwrap());
            let mut line = String::new();
            while requests.read_line(&mut line).unwrap_or(0) > 0 {
                let mut words = Vec::new();
                for _ in 0..line.trim()[1..].parse::<usize>().unwrap() {
                    line.clear();
                    requests.read_line(&mut line).unwrap();
                    let mut word = vec![0; line.trim()[1..].parse::<usize>().unwrap() + 2];
                    requests.read_exact(&mut word).unwrap();
                    words.push(String::from_utf8(word).unwrap().trim().to_owned());
                }
                line.clear();
                let info = "# Server\r\nredis_version:7.2.4\r\nblocked_clients:2\r\nconnected_clients:5\r\n";
                let reply = match words[0].as_str() {
                    "CLIENT" => "+OK\r\n".to_owned(),
                    "COMMAND" => "*5\r\n*-1\r\n*-1\r\n*-1\r\n*-1\r\n*-1\r\n".to_owned(),
                    "INFO" => format!("${}\r\n{info}\r\n", info.len()),
                    name => format!("-ERR unknown command '{name}', with args beginning with: \r\n"),
                };
                out.write_all(reply.as_bytes()).unwrap();
            }
        }
    });
    addr
}

#[test]
fn a_server_without_commands_for_locks_is_told_as_such() {
    let url = format!("redis://{}", other_server());
    let text = printed(&["--once", &url]);
    assert!(text.starts_with("This server (redis 7.2.4) has no LOCK commands"), "{text}");
    assert!(text.contains("2 clients wait in some blocking command.") && text.contains("clients 5"), "{text}");
    let json: Value = serde_json::from_str(&printed(&["--once", "--json", &url])).unwrap();
    assert_eq!((&json["locks"], &json["graph"], &json["stats"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(
        json["server"]["missing"],
        serde_json::json!(["LOCK.LIST", "LOCK.GRAPH", "LOCK.STATS", "LOCK.RECENT", "LOCK.BREAK"])
    );
}
