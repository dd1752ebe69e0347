//! Bounds of requests and connections.

use std::io::{Read, Write};

use crate::client::{Answer, builder, connect, get, send, start, text};

#[test]
fn requests_are_bounded() {
    let (_server, addr) = start(builder());
    let break_with = |body: &str| send(addr, "POST /api/break", &["X-Portcullis: 1", "Content-Type: application/json"], body);
    let answer = break_with(&format!(r#"{{"name":"{}","token":1}}"#, "x".repeat(8 << 10)));
    assert_eq!(answer.status, 413, "{answer:?}");
    for body in ["{", "[]", "{}", r#"{"name":1,"token":1}"#, r#"{"name":"a","token":-1}"#, r#"{"name":"a","token":1,"db":"x"}"#] {
        assert_eq!(break_with(body).status, 400, "{body}");
    }
    let head = format!("X-Long: {}", "x".repeat(20 << 10));
    assert_eq!(send(addr, "GET /metrics", &[&head], "").status, 431);
    for (path, status) in [
        ("/nosuch", 404),
        ("/api/lock", 400),
        ("/api/locks?count=x", 400),
        ("/api/locks?db=99", 400),
        ("/api/locks?db=99999999999", 400),
        ("/api/locks?waiting=-1", 400),
    ] {
        let answer = get(addr, path);
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!answer.error().is_empty(), "{path}");
    }
    assert_eq!(send(addr, "DELETE /metrics", &[], "").status, 405);
    let mut stream = connect(addr);
    stream.write_all(b"\x16\x03\x01 nonsense\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert_eq!(Answer::read(&bytes).status, 400);
}

#[test]
fn connections_are_bounded_and_free_again_when_they_end() {
    let (_server, addr) = start(builder());
    let mut open: Vec<_> = (0..64).map(|_| connect(addr)).collect();
    // Each has its place once it is served.
    for stream in &mut open {
        let text = text(addr, "GET /healthz", &[], "").replace("Connection: close\r\n", "");
        stream.write_all(text.as_bytes()).unwrap();
        let mut first = [0; 15];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
    }
    let answer = get(addr, "/metrics");
    assert_eq!((answer.status, answer.error().as_str()), (503, "64 connections are open already"));
    assert_eq!(answer.header("connection"), Some("close"));
    drop(open);
    let begin = std::time::Instant::now();
    loop {
        let mut stream = connect(addr);
        let _ = stream.write_all(text(addr, "GET /metrics", &[], "").as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        if bytes.starts_with(b"HTTP/1.1 200") {
            return;
        }
        assert!(begin.elapsed() < crate::client::PATIENCE, "no place becomes free");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn health_answers_while_slow_clients_take_all_connections() {
    let (_server, addr) = start(builder());
    let mut slow: Vec<_> = (0..64).map(|_| connect(addr)).collect();
    for stream in &mut slow {
        stream.write_all(text(addr, "GET /api/events", &[], "").as_bytes()).unwrap();
        stream.read_exact(&mut [0; 15]).unwrap();
    }
    // More than are reserved. They give way to each other.
    for number in 0..200 {
        slow.push(connect(addr));
        let sent = ["", "GET /healthz HTT", "GET /api/locks HTTP/1.1\r\n"][number % 3];
        let _ = slow[64 + number].write_all(sent.as_bytes());
    }
    for path in ["/healthz", "/readyz", "/healthz"] {
        let answer = get(addr, path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"), "{path}");
        assert_eq!(get(addr, "/metrics").status, 503, "there is no other connection");
    }
    let mut kept = connect(addr);
    kept.write_all(text(addr, "GET /healthz", &[], "").replace("Connection: close\r\n", "").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = kept.read_to_end(&mut bytes);
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "a reserved connection ends with its answer");
    drop(slow);
}
