//! For unit tests of commands: the keyspace events that a request publishes.

use crate::base::ids::SessionId;
use crate::engine::harness::Harness;
use crate::engine::session::Peer;

/// A client that is subscribed to the keyspace events of all databases.
pub struct Listener(SessionId);

impl Listener {
    /// Subscribes to events of these classes, in the notation of `notify-keyspace-events` without `K`.
    pub fn new(h: &mut Harness, classes: &str) -> Self {
        let listener = h.engine.connect(h.now, Peer::default());
        h.engine.execute(h.now, listener, &[b"PSUBSCRIBE", b"__keyspace*"]);
        h.run(&format!("CONFIG SET notify-keyspace-events K{classes}"));
        Listener(listener)
    }

    /// Runs a request. Returns its events in order: `key event`, in front of which stands `database:` unless that is 0.
    pub fn events_of(&self, h: &mut Harness, request: &str) -> Vec<String> {
        h.engine.sessions_mut()[self.0].out.clear();
        h.run(request);
        let out = std::mem::take(&mut h.engine.sessions_mut()[self.0].out);
        let out = String::from_utf8(out).expect("names of keys and events are text");
        let lines: Vec<&str> = out.split("\r\n").collect();
        // A message has nine lines: the seventh is the channel, the ninth the event.
        let messages = lines.chunks_exact(9).map(|lines| {
            let key = lines[6].trim_start_matches("__keyspace@").replacen("__", "", 1);
            format!("{} {}", key.trim_start_matches("0:"), lines[8])
        });
        messages.collect()
    }

    /// Runs requests on an empty server, and checks the events of the last one.
    #[track_caller]
    pub fn check(&self, h: &mut Harness, requests: &[&str], events: &[&str]) {
        h.run("FLUSHALL");
        let (last, before) = requests.split_last().expect("a request");
        before.iter().for_each(|request| drop(h.run(request)));
        assert_eq!(self.events_of(h, last), events, "{last}");
    }
}
