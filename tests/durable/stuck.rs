//! A *stuck* disk is a limit on the size of the process's files: appending fails for as long as the test wants, as on a full disk.

use crate::common::talk::{call, send, told, until};
use crate::common::wire::Wire;
use crate::process::{Folder, Server, figure};

/// A server with some keys, whose disk is stuck.
pub struct Stuck {
    pub folder: Folder,
    pub server: Server,
    /// A connection that reads figures.
    pub observer: Wire,
    /// The last batch that was durable before.
    pub durable: u64,
}

impl Stuck {
    /// Starts a server, executes requests, and stops its disk after so many more bytes.
    pub fn after(args: &[&str], requests: &[&str], bytes: u64) -> Stuck {
        let folder = Folder::new();
        let server = Server::start(&folder, args);
        let mut observer = server.wire();
        for request in requests {
            let reply = call(&mut observer, request);
            assert!(!reply.starts_with('-'), "{request}: {reply}");
        }
        let durable = figure(&mut observer, "log_batch_durable");
        let size = std::fs::metadata(folder.increments().last().unwrap()).unwrap().len();
        server.limit_files(Some(size + bytes));
        Stuck { folder, server, observer, durable }
    }

    /// Waits until the server has noticed that its disk is stuck.
    pub fn until_noticed(&mut self) {
        until(&mut self.observer, "INFO persistence", "aof_last_write_status:err");
    }

    /// Asserts that nothing has come on these connections, and that no batch has become durable.
    #[track_caller]
    pub fn assert_held(&mut self, wires: &mut [Wire]) {
        // A reply that was on its way would have come before this one.
        assert_eq!(call(&mut self.observer, "ECHO barrier"), "$7 barrier");
        assert_eq!(figure(&mut self.observer, "log_batch_durable"), self.durable);
        for (number, wire) in wires.iter_mut().enumerate() {
            assert!(!wire.has_input(), "connection {number}: {}", told(wire));
        }
    }

    /// Lets the disk go on, and waits until the server has noticed.
    pub fn release(&mut self) {
        self.server.limit_files(None);
        until(&mut self.observer, "INFO persistence", "aof_last_write_status:ok");
    }
}

/// Connections that have each sent some requests, of which these many replies were read.
pub fn clients(server: &Server, requests: &[&str]) -> Vec<Wire> {
    let begin = |request: &&str| {
        let mut wire = server.wire();
        send(&mut wire, request);
        wire
    };
    requests.iter().map(begin).collect()
}
