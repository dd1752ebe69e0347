//! A server in which eight clients wait for one lock, directly or not.

use std::time::Duration;

use portcullis::TestServer;

use crate::common::talk::{call, send, token, until_blocked};
use crate::common::wire::Wire;

/// The server, with its clients.
pub struct Jam {
    pub server: TestServer,
    /// Fencing token of the root's grant.
    pub token: i64,
    /// A connection without locks.
    pub root: Wire,
    _clients: Vec<Wire>,
}

impl Jam {
    /// `worker-7` has held `order:42` for three minutes, and its connection is gone. Five clients wait for it, among them
    /// `web-0`, which holds `item:7`, for which three more wait.
    pub fn start() -> Jam {
        Jam::on(TestServer::builder().frozen(true).start())
    }

    /// As [`Jam::start`], on this server, whose clock is frozen.
    pub fn on(server: TestServer) -> Jam {
        let connect = || Wire::connect(server.addr()).unwrap();
        let mut root = connect();
        let mut clients = Vec::new();
        let mut holder = connect();
        call(&mut holder, "CLIENT SETNAME billing");
        let token = token(&mut holder, "LOCK.ACQUIRE order:42 worker-7 600000");
        drop(holder);
        let mut between = connect();
        self::token(&mut between, "LOCK.ACQUIRE item:7 web-0 600000");
        clients.push(between);
        let mut wait = |lock: &str, owners: &str, count: u32| {
            for at in 0..count {
                let mut wire = connect();
                send(&mut wire, &format!("LOCK.ACQUIRE {lock} {owners}-{at} 60000 WAIT 0"));
                clients.push(wire);
            }
        };
        wait("order:42", "web", 5);
        until_blocked(&mut root, 5);
        server.clock().advance(Duration::from_secs(5));
        wait("item:7", "api", 3);
        until_blocked(&mut root, 8);
        server.clock().advance(Duration::from_secs(180));
        Jam { server, token, root, _clients: clients }
    }

    /// The URL.
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.server.addr())
    }
}
