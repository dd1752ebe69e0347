//! Requests as lines of words, and replies as lines of text in which blanks stand for line ends.

use std::time::{Duration, Instant};

use super::wire::Wire;

/// Sends a request and checks the reply.
#[track_caller]
pub fn call(wire: &mut Wire, request: &str) -> String {
    send(wire, request);
    told(wire)
}

/// Sends a request without reading the reply.
#[track_caller]
pub fn send(wire: &mut Wire, request: &str) {
    wire.queue(&request.split_whitespace().collect::<Vec<_>>());
    wire.flush().expect("the server takes it");
}

/// Sends requests at once: the server finds them in one turn, and nothing that takes time ends between them.
#[track_caller]
pub fn send_at_once(wire: &mut Wire, requests: &[&str]) {
    requests.iter().for_each(|request| wire.queue(&request.split_whitespace().collect::<Vec<_>>()));
    wire.flush().expect("the server takes them");
}

/// Reads the next reply and checks it.
#[track_caller]
pub fn told(wire: &mut Wire) -> String {
    String::from_utf8_lossy(&wire.reply().expect("a reply").raw).trim_end().replace("\r\n", " ")
}

/// Sends requests, and checks the reply to each.
#[track_caller]
pub fn play(wire: &mut Wire, steps: &[(&str, &str)]) {
    for (request, reply) in steps {
        assert_eq!(call(wire, request), *reply, "{request}");
    }
}

/// Sends a request and returns the fencing token in its reply.
#[track_caller]
pub fn token(wire: &mut Wire, request: &str) -> i64 {
    let reply = call(wire, request);
    reply.strip_prefix(':').and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{request}: no token but {reply}"))
}

/// Waits until this number of clients is blocked in the server.
#[track_caller]
pub fn until_blocked(wire: &mut Wire, count: usize) {
    until(wire, "INFO clients", &format!("blocked_clients:{count} "));
}

/// Repeats a request until the reply contains a text.
#[track_caller]
pub fn until(wire: &mut Wire, request: &str, contains: &str) {
    let begin = Instant::now();
    loop {
        let reply = call(wire, request);
        if reply.contains(contains) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{request}: {contains} does not come, but {reply}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
