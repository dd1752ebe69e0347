//! An engine that is written to a file and loaded from one.

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;
use portcullis::persist::natives::clock::BootClock;
use portcullis::persist::rdb_file::fault::Fault;
use portcullis::persist::rdb_file::load::{Loader, Options as LoadOptions, Tally};
use portcullis::persist::rdb_file::read::{Event, Reader};
use portcullis::persist::rdb_file::write::{Options, Writer};

/// An engine with one session, at a fixed instant.
pub struct Subject {
    pub engine: Engine,
    pub session: SessionId,
    pub now: Now,
}

impl Subject {
    /// An empty engine at this Unix time in milliseconds.
    pub fn new(unix_ms: i64) -> Subject {
        let now = Now::new(1_000_000_000, unix_ms - 1_000_000);
        let mut engine = Engine::new(Config::default(), 7, now, portcullis::commands::table());
        let session = engine.connect(now, Peer::default());
        Subject { engine, session, now }
    }

    /// Executes a request. Returns its reply.
    pub fn args(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        self.engine.take_pending_writes(&mut Vec::new());
        self.engine.take_actions();
        std::mem::take(&mut self.engine.sessions_mut()[self.session].out)
    }

    /// Executes a request of words.
    pub fn run(&mut self, words: &str) -> Vec<u8> {
        self.args(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// The file of the state.
    pub fn file(&self, libraries: Vec<Box<[u8]>>) -> Vec<u8> {
        let options = Options { checksum: true, is_base: false, used_memory: 1 << 20, boot: BootClock::default(), libraries };
        let mut writer = Writer::new(self.engine.keyspace(), self.now, options);
        let mut file = Vec::new();
        while writer.next_chunk(self.engine.keyspace(), &mut file, 4096).unwrap() {}
        file
    }

    /// Loads a file that arrives in pieces. Returns the numbers of keys, and the sources of libraries.
    pub fn load(&mut self, file: &[u8], piece: usize) -> Result<(Tally, Vec<Vec<u8>>), Fault> {
        let mut reader = Reader::new(Some(file.len() as u64), true, self.now.unix_ms());
        let mut loader = Loader::new(self.now, LoadOptions::default());
        let mut libraries = Vec::new();
        self.engine.keyspace_mut().changes.begin();
        let keyspace = self.engine.keyspace_mut();
        let mut read = || {
            for piece in file.chunks(piece) {
                reader.feed(piece);
                while let Some(event) = reader.next()? {
                    if let Event::Library(source) = &event {
                        libraries.push(source.to_vec());
                    }
                    loader.apply(keyspace, event)?;
                }
            }
            reader.check_end()
        };
        let result = read();
        if result.is_err() {
            loader.give_up(keyspace);
        }
        self.engine.keyspace_mut().changes.end();
        result.map(|()| (loader.tally(), libraries))
    }
}
