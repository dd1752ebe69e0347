//! Streams of server-sent events.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::client::{Talk, builder, connect, get, send, start, text};

/// An open stream.
pub struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Opens it. The answer must be one of events.
    #[track_caller]
    pub fn open(addr: SocketAddr, path: &str, headers: &[&str]) -> Stream {
        let mut stream = connect(addr);
        stream.write_all(text(addr, &format!("GET {path}"), headers, "").as_bytes()).unwrap();
        let mut stream = Stream(BufReader::new(stream));
        assert_eq!(stream.line(), "HTTP/1.1 200 OK");
        let head: Vec<String> = std::iter::from_fn(|| Some(stream.line()).filter(|line| !line.is_empty())).collect();
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next event: its name, and its data. `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            // Sizes of chunks and blank lines are between.
            if let Some(text) = line.trim_end().strip_prefix("event: ") {
                name = text.to_owned();
            } else if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }
}

/// The number of calls of a command.
fn calls(talk: &mut Talk, command: &str) -> u64 {
    let stats = talk.say("INFO commandstats");
    let line = stats.split(' ').find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()).and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn a_stream_ticks_and_shows_changes() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let mut stream = Stream::open(addr, "/api/events?contended=0&count=10", &[]);
    let (name, tick) = stream.next().unwrap();
    assert_eq!(name, "tick");
    assert_eq!(tick["locks"], serde_json::json!([]), "{tick}");
    assert!(tick["figures"]["grants"].is_u64() && tick["recent"].is_array() && tick["now"].is_u64(), "{tick}");
    talk.token("LOCK.ACQUIRE a alice 60000");
    let shown = std::iter::from_fn(|| stream.next()).take(3).find(|(_, tick)| tick["locks"][0]["name"] == "a");
    assert_eq!(shown.map(|(name, _)| name).as_deref(), Some("tick"));
}

#[test]
fn streams_of_the_same_query_share_what_is_asked() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let mut streams: Vec<Stream> = (0..10).map(|_| Stream::open(addr, "/api/events?count=77&contended=1", &[])).collect();
    for stream in &mut streams {
        assert!(stream.next().is_some());
    }
    let (before, began) = (calls(&mut talk, "lock.stats"), std::time::Instant::now());
    // Three ticks of each.
    for stream in &mut streams {
        (0..3).for_each(|_| assert_eq!(stream.next().map(|(name, _)| name).as_deref(), Some("tick")));
    }
    let asked = calls(&mut talk, "lock.stats") - before;
    // Each second one for the tick of all streams, and one for the history. Ten streams by themselves would ask for thirty ticks.
    let most = 2 * (began.elapsed().as_secs() + 2);
    assert!((2..=most).contains(&asked), "{asked} for ten streams, of at most {most}");
    drop(streams);
    // Nobody listens any more: after the next tick nothing is asked.
    let begin = std::time::Instant::now();
    let mut last = (calls(&mut talk, "lock.graph") + calls(&mut talk, "lock.list"), begin);
    while last.1.elapsed() < std::time::Duration::from_millis(2500) {
        let now = calls(&mut talk, "lock.graph") + calls(&mut talk, "lock.list");
        if now != last.0 {
            last = (now, std::time::Instant::now());
        }
        assert!(begin.elapsed() < crate::client::PATIENCE, "it goes on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_user_that_is_refused_gets_no_more() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("ACL SETUSER alice on >wonder +@all ~*"), "+OK");
    let alice = "Authorization: Basic YWxpY2U6d29uZGVy";
    let mut stream = Stream::open(addr, "/api/events", &[alice]);
    assert_eq!(stream.next().map(|(name, _)| name).as_deref(), Some("tick"));
    assert_eq!(talk.say("ACL SETUSER alice resetpass >other"), "+OK");
    let rest: Vec<_> = std::iter::from_fn(|| stream.next()).collect();
    let (name, data) = rest.last().unwrap();
    assert_eq!(name, "trouble", "{rest:?}");
    assert!(data["error"].as_str().unwrap().starts_with("WRONGPASS"), "{data}");
    assert_eq!(send(addr, "GET /api/events", &[alice], "").status, 401);
}

#[test]
fn streams_leave_room_for_other_requests() {
    let (_server, addr) = start(builder());
    let streams: Vec<Stream> = (0..48).map(|_| Stream::open(addr, "/api/events", &[])).collect();
    let answer = get(addr, "/api/events");
    assert_eq!((answer.status, answer.error().as_str()), (503, "48 streams are open already"));
    assert_eq!(get(addr, "/healthz").status, 200);
    drop(streams);
}
