//! What the page about locks is told.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Answer, Talk, builder, get, send, start};

/// Whether the server has a command.
fn has(talk: &mut Talk, command: &str) -> bool {
    talk.say(&format!("COMMAND INFO {command}")).starts_with("*1 *")
}

fn break_grant(addr: SocketAddr, body: &Value) -> Answer {
    let own = format!("Origin: http://{addr}");
    send(addr, "POST /api/break", &[&own, "X-Portcullis: 1", "Content-Type: application/json"], &body.to_string())
}

#[test]
fn locks_are_listed_with_their_first_waiters() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    talk.token("LOCK.ACQUIRE door alice 60000");
    talk.token("LOCK.ACQUIRE idle bob 60000");
    let mut waiting: Vec<Talk> = (0..25).map(|_| Talk::to(server.addr())).collect();
    for (number, waiter) in waiting.iter_mut().enumerate() {
        waiter.begin(&format!("LOCK.ACQUIRE door waiter-{number} 60000 WAIT 60000"));
    }
    talk.until("LOCK.INFO door", "waiter-24");
    let answer = get(addr, "/api/locks?contended=1&count=5").json();
    assert!(answer["now"].as_u64().is_some_and(|now| now > 1_600_000_000_000), "{answer}");
    let locks = answer["locks"].as_array().unwrap();
    assert_eq!(locks.len(), 1, "{answer}");
    let door = &locks[0];
    assert_eq!((&door["name"], &door["waiting"]), (&json!("door"), &json!(25)));
    assert_eq!(door["waiters"].as_array().map(Vec::len), Some(20));
    assert_eq!(door["holders"][0]["owner"], "alice");
    assert_eq!(get(addr, "/api/locks").json()["locks"].as_array().map(Vec::len), Some(2));
    let names = |path: &str| get(addr, path).json()["locks"].as_array().map(|locks| locks.len());
    assert_eq!(
        (names("/api/locks?match=i*"), names("/api/locks?contended=0"), names("/api/locks?db=1")),
        (Some(1), Some(2), Some(0))
    );
}

#[test]
fn a_lock_is_shown_with_its_history_and_names_survive() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let token = talk.token("LOCK.ACQUIRE a\\b alice 60000");
    let answer = get(addr, "/api/lock?name=a%5Cx5cb").json();
    assert_eq!(answer["lock"]["holders"][0]["token"], token, "{answer}");
    assert_eq!(
        answer["events"].as_array().and_then(|events| events.last()).map(|event| &event["event"]),
        Some(&json!("granted"))
    );
    assert_eq!(get(addr, "/api/locks").json()["locks"][0]["name"], "a\\x5cb");
    // A backslash that begins no escape stands for itself.
    assert_eq!(get(addr, "/api/lock?name=a%5Cb").json()["lock"]["holders"][0]["owner"], "alice");
    let none = get(addr, "/api/lock?name=nosuch").json();
    assert_eq!((&none["lock"], &none["events"]), (&Value::Null, &json!([])));
}

#[test]
fn figures_are_those_of_the_server() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    talk.token("LOCK.ACQUIRE a alice 60000");
    assert_eq!(talk.say("SET key value"), "+OK");
    let answer = get(addr, "/api/figures").json();
    let figures = &answer["figures"];
    assert_eq!((&figures["grants"], &figures["waiting"], &figures["keys"]), (&json!(1), &json!(0), &json!(2)), "{answer}");
    for name in ["clients", "memory", "ops", "turn-max-us", "wait-us-p50", "wait-us-p99", "expiries", "timeouts"] {
        assert!(figures[name].is_u64(), "{name}: {answer}");
    }
    let server_told = &answer["server"];
    assert_eq!(
        (&server_told["port"], &server_told["role"], &server_told["user"]),
        (&json!(server.port()), &json!("master"), &json!("default"))
    );
    assert_eq!((&server_told["node-id"], &answer["cluster"]), (&Value::Null, &Value::Null));
    assert!(server_told["version"].is_string() && server_told["pid"].is_u64() && server_told["uptime"].is_u64(), "{answer}");
    // The first point of the history is made at once.
    let history = || get(addr, "/api/figures").json()["history"].clone();
    let begin = std::time::Instant::now();
    while history()["ops"].as_array().unwrap().is_empty() {
        assert!(begin.elapsed() < crate::client::PATIENCE, "there is no history");
    }
    let history = history();
    assert_eq!(history["every"], 5);
    for curve in ["waiting", "oldest-wait-ms", "ops", "p99-us"] {
        assert_eq!(history[curve].as_array().map(Vec::len), history["ops"].as_array().map(Vec::len), "{history}");
    }
    assert_eq!(history["waiting"][0], 0, "{history}");
}

#[test]
fn grants_are_broken_by_their_tokens() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let token = talk.token("LOCK.ACQUIRE a alice 60000");
    if !has(&mut talk, "lock.break") {
        let answer = break_grant(addr, &json!({ "name": "a", "token": token }));
        assert!(answer.status == 501 && answer.error().starts_with("ERR unknown command 'LOCK.BREAK'"), "{answer:?}");
        return;
    }
    let answer = break_grant(addr, &json!({ "name": "a", "token": token + 1 }));
    assert!(answer.status == 409 && answer.error().starts_with("NOTHELD"), "{answer:?}");
    let answer = break_grant(addr, &json!({ "db": 0, "name": "a", "token": token, "reason": "stuck since lunch" }));
    assert_eq!((answer.status, answer.json()), (200, json!({ "broken": true })));
    assert!(!talk.say("LOCK.INFO a").contains("alice"));
    let recent = get(addr, "/api/recent").json();
    let event = &recent["events"][0];
    assert_eq!((&event["kind"], &event["name"], &event["owner"]), (&json!("broken"), &json!("a"), &json!("alice")), "{recent}");
    assert_eq!(
        (&event["reason"], &event["token"], event["by"].as_str().is_some_and(|by| by.starts_with("http at 127.0.0.1:"))),
        (&json!("stuck since lunch"), &json!(token), true),
        "{recent}"
    );
    assert!(talk.say("LOCK.WHY a").contains("127.0.0.1:"), "the address of the one who broke it");
    let token = talk.token("LOCK.ACQUIRE a bob 60000");
    let answer = break_grant(addr, &json!({ "name": "a", "token": token, "reason": "x".repeat(300) }));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(get(addr, "/api/recent").json()["events"][0]["reason"], json!("x".repeat(128)));
}

#[test]
fn graphs_are_shown_or_unknown() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let answer = get(addr, "/api/graph?count=10");
    if has(&mut talk, "lock.graph") {
        assert_eq!((answer.status, &answer.json()["nodes"]), (200, &json!([])));
    } else {
        assert!(answer.status == 501 && answer.error().starts_with("ERR unknown command 'LOCK.GRAPH'"), "{answer:?}");
    }
}

#[test]
fn what_ended_badly_is_remembered_in_every_database() {
    let (server, addr) = start(builder().frozen(true));
    let mut talk = Talk::to(server.addr());
    talk.say("SELECT 3");
    talk.token("LOCK.ACQUIRE lease alice 1000");
    server.clock().advance(std::time::Duration::from_secs(2));
    let recent = get(addr, "/api/recent").json();
    let event = &recent["events"][0];
    assert_eq!((&event["kind"], &event["name"], &event["owner"]), (&json!("expired"), &json!("lease"), &json!("alice")));
    assert_eq!((&event["db"], &recent["events"][1]), (&json!(3), &json!(null)));
}
