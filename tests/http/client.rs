//! A client of HTTP/1.1 that shows what it gets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::TestServer;
use portcullis::testing::TestServerBuilder;
use serde_json::Value;

use crate::common::talk;
use crate::common::wire::Wire;

/// Time for an answer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The head, without the first line.
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Splits the bytes of an answer.
    pub fn read(bytes: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let (line, head) = head.split_once("\r\n").unwrap_or((head, ""));
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.split("\r\n").filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The text of an error.
    #[track_caller]
    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

/// Opens a connection.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The text of a request. `headers` are whole lines; without a line `Host`, the address is sent.
pub fn text(addr: SocketAddr, line: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{line} HTTP/1.1\r\n");
    let lines = headers.iter().map(|header| format!("{header}\r\n"));
    text.extend(lines);
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        text += &format!("Host: {addr}\r\n");
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    text + "Connection: close\r\n\r\n" + body
}

/// Sends a request, and reads the answer to its end.
#[track_caller]
pub fn send(addr: SocketAddr, line: &str, headers: &[&str], body: &str) -> Answer {
    let mut stream = connect(addr);
    stream.write_all(text(addr, line, headers, body).as_bytes()).unwrap();
    let mut bytes = Vec::new();
    // The server may close a connection whose request it has not read whole.
    let _ = stream.read_to_end(&mut bytes);
    Answer::read(&bytes)
}

#[track_caller]
pub fn get(addr: SocketAddr, path: &str) -> Answer {
    send(addr, &format!("GET {path}"), &[], "")
}

/// A server with an endpoint.
pub fn builder() -> TestServerBuilder {
    TestServer::builder().config("http", "127.0.0.1:0")
}

/// A server with an endpoint, and the endpoint's address.
pub fn start(builder: TestServerBuilder) -> (TestServer, SocketAddr) {
    let server = builder.start();
    let addr = server.http_addr().expect("an endpoint");
    (server, addr)
}

/// A client of the server itself.
pub struct Talk(Wire);

impl Talk {
    pub fn to(addr: SocketAddr) -> Talk {
        Talk(Wire::connect(addr).unwrap())
    }

    /// Sends a request of words, and returns the reply with blanks for line ends.
    #[track_caller]
    pub fn say(&mut self, request: &str) -> String {
        talk::call(&mut self.0, request)
    }

    /// Sends a request without reading the reply.
    #[track_caller]
    pub fn begin(&mut self, request: &str) {
        talk::send(&mut self.0, request);
    }

    /// Acquires a lock, and returns the token.
    #[track_caller]
    pub fn token(&mut self, request: &str) -> i64 {
        talk::token(&mut self.0, request)
    }

    /// Repeats a request until the reply contains a text.
    #[track_caller]
    pub fn until(&mut self, request: &str, contains: &str) {
        talk::until(&mut self.0, request, contains);
    }
}
