//! What a user with `~a:*` learns of other locks: nothing, at any path.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portcullis::TestServer;
use serde_json::Value;

use crate::client::{Talk, builder, send, start};
use crate::events::Stream;

const USER: &str = "Authorization: Basic dWE6eA=="; // ua:x

/// How foreign names, owners and values begin, in two stores that differ in nothing else.
const FOREIGN: [&str; 2] = ["v:zinc", "w:neon"];

/// What is asked at each path, with the names of the first store.
const QUERIES: [(&str, &[&str]); 9] = [
    ("/", &[""]),
    ("/metrics", &[""]),
    ("/healthz", &[""]),
    ("/readyz", &[""]),
    ("/api/locks", &["", "?contended=1", "?match=v:zinc*", "?owner=v:zincown1", "?kind=semaphore", "?waiting=0", "?held=0"]),
    ("/api/lock", &["", "?name=a:1", "?name=v:zinc1", "?name=v:zincstr"]),
    ("/api/graph", &["", "?name=a:1", "?name=v:zinc1", "?name=v:none"]),
    ("/api/figures", &[""]),
    ("/api/recent", &[""]),
];

struct Store {
    _server: TestServer,
    addr: SocketAddr,
    /// What `CLIENT ID` answers to each client.
    clients: Vec<String>,
    _talks: Vec<Talk>,
}

impl Store {
    fn new(word: &str) -> Store {
        let (server, addr) = start(builder().frozen(true));
        // The server's own connections have numbers, too, at any time; here one store surely has had more.
        let others: Vec<Talk> = (0..usize::from(word == FOREIGN[1])).map(|_| Talk::to(server.addr())).collect();
        others.into_iter().for_each(|mut other| _ = other.say("PING"));
        let mut talks: Vec<Talk> = (0..6).map(|_| Talk::to(server.addr())).collect();
        let clients = talks.iter_mut().map(|talk| talk.say("CLIENT ID").trim_start_matches(':').to_owned()).collect();
        let said = |request: &str| request.replace('%', word);
        for request in [
            "ACL SETUSER ua on >x ~a:* &* +@all",
            "CONFIG SET lock-slowlog-log-slower-than 0",
            "LOCK.ACQUIRE a:1 ann 60000",
            "LOCK.ACQUIRE a:2 bob 60000",
            "LOCK.ACQUIRE %1 %own1 60000",
            "LOCK.ACQUIRE %2 %own2 60000",
            "SEM.ACQUIRE %sem %own1 60000 LIMIT 2",
            "SET %str %val",
            "SET %lock %val PX 60000",
            "LOCK.ACQUIRE %3 carl 60000",
            "LOCK.ACQUIRE %6 %own5 60000",
        ] {
            let reply = talks[0].say(&said(request));
            assert!(!reply.starts_with('-'), "{request}: {reply}");
        }
        let token = talks[0].token(&said("LOCK.ACQUIRE %4 %own4 60000"));
        assert_eq!(talks[0].say(&said(&format!("LOCK.BREAK %4 TOKEN {token} REASON %why"))), ":1");
        let waits = ["LOCK.ACQUIRE %1 bob", "LOCK.ACQUIRE a:1 carl", "LOCK.ACQUIRE %2 %own5"];
        for (at, request) in waits.map(|request| format!("{request} 60000 WAIT 0")).iter().enumerate() {
            talks[at + 1].begin(&said(request));
            talks[0].until("LOCK.STATS", &format!("waiting :{}", at + 1));
        }
        assert!(talks[0].say(&said("LOCK.ACQUIRE %6 %own2 60000 WAIT 9")).starts_with("-DEADLOCK"));
        Store { _server: server, addr, clients, _talks: talks }
    }

    /// The status and the body of an answer.
    fn get(&self, path: &str) -> (u16, String) {
        let answer = send(self.addr, &format!("GET {path}"), &[USER], "");
        (answer.status, answer.body)
    }

    /// What an answer says of locks, without times of the wall clock and figures of the process.
    fn of_locks(&self, body: &str) -> Option<Vec<Value>> {
        let body: Value = serde_json::from_str(body).ok()?;
        Some(["locks", "lock", "events", "nodes", "graph", "recent", "error"].map(|part| self.lasting(&body[part])).to_vec())
    }

    /// A value without what every server has of its own: ports of clients, times of the wall clock, and tokens, which follow from it.
    /// Clients are told by their places among the store's.
    fn lasting(&self, value: &Value) -> Value {
        let is_own = |name: &String| ["addr", "at", "token", "fence"].contains(&name.as_str());
        let of_field = |name: &String, value: &Value| {
            let text = value.to_string();
            match self.clients.iter().position(|client| *client == text) {
                Some(at) if name == "client" => Value::from(format!("client {at}")),
                _ => self.lasting(value),
            }
        };
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(name, _)| !is_own(name));
                kept.map(|(name, value)| (name.clone(), of_field(name, value))).collect()
            }
            Value::Array(all) => all.iter().map(|value| self.lasting(value)).collect(),
            other => other.clone(),
        }
    }
}

#[test]
fn nothing_of_other_locks_is_told_at_any_path() {
    let stores = FOREIGN.map(Store::new);
    // All paths are asked.
    let source = include_str!("../../src/http/api.rs");
    let routes: BTreeSet<&str> = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let mut asked: BTreeSet<&str> = QUERIES.iter().map(|(path, _)| *path).collect();
    asked.extend(["/api/break", "/api/events"]);
    assert_eq!(routes, asked, "a path is not asked");

    for (path, queries) in QUERIES {
        for query in queries {
            let [one, other] = [0, 1].map(|at| stores[at].get(&format!("{path}{query}")));
            assert_eq!(one.0, other.0, "{path}{query}");
            assert!(!one.1.contains("zinc") && !other.1.contains("neon"), "{path}{query}: {one:?} {other:?}");
            assert_eq!(stores[0].of_locks(&one.1), stores[1].of_locks(&other.1), "{path}{query}");
        }
    }
    let ticks = [0, 1].map(|at| Stream::open(stores[at].addr, "/api/events", &[USER]).next().unwrap().1.to_string());
    assert!(!ticks[0].contains("zinc") && !ticks[1].contains("neon"), "{ticks:?}");
    assert_eq!(stores[0].of_locks(&ticks[0]), stores[1].of_locks(&ticks[1]));
    // What is the user's own is there.
    assert!(ticks[0].contains("a:1") && ticks[0].contains("\"via\""), "{}", ticks[0]);
    for name in ["v:zinc1", "v:none"] {
        let body = format!(r#"{{"name":"{name}","token":1}}"#);
        let answers = [0, 1].map(|at| {
            let headers = [USER, "X-Portcullis: 1", "Content-Type: application/json"];
            let answer = send(stores[at].addr, "POST /api/break", &headers, &body);
            (answer.status, answer.body)
        });
        assert_eq!(answers[0], (403, "{\"error\":\"NOPERM No permissions to access a key\"}".to_owned()), "{name}");
        assert_eq!(answers[0], answers[1]);
    }
}
