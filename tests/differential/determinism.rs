//! Determinism: the same inputs give the same bytes to every session, and the same changes in the same order.

use std::cell::RefCell;
use std::rc::Rc;

use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::keyspace::change::{Change, ChangeLog};

use crate::catalogue::NEVER;
use crate::common::random::Random;
use crate::generate::{Catalogue, Generator, WAITS_FOR_THE_DRIVER};

/// Keeps changes as text.
struct Journal(Rc<RefCell<Vec<String>>>);

impl ChangeLog for Journal {
    fn record(&mut self, change: &Change<'_>) {
        self.0.borrow_mut().push(format!("{change:?}"));
    }

    fn end_unit(&mut self) {
        self.0.borrow_mut().push("commit".to_owned());
    }
}

/// What a run showed to the outside.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// The output of each step, for each session.
    written: Vec<Vec<u8>>,
    changes: Vec<String>,
}

/// Two sessions send calls, and a third one listens to keyspace events.
fn play(catalogue: &Catalogue, seed: u64) -> Seen {
    let mut random = Random::new(seed);
    let generator = Generator::new(catalogue, &mut random, true);
    let journal = Rc::default();
    let mut now = Now::new(5_000_000, 1_750_000_000_000);
    let mut engine = Engine::new(Config::default(), seed, now, portcullis::commands::table());
    engine.keyspace_mut().changes.log = Some(Box::new(Journal(Rc::clone(&journal))));
    let sessions = [0; 3].map(|_| engine.connect(now, Peer::default()));
    let [listener, ..] = sessions;
    engine.execute(now, listener, &[b"CONFIG", b"SET", b"notify-keyspace-events", b"AKEmn"]);
    engine.execute(now, listener, &[b"PSUBSCRIBE", b"*"]);
    let mut seen = Seen::default();
    for _ in 0..500 {
        let call = generator.call(&mut random);
        let args: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
        let caller = sessions[1 + random.below(2) as usize];
        engine.sessions_mut()[caller].flags |= SessionFlags::AUTHENTICATED;
        engine.execute(now, caller, &args);
        engine.take_actions();
        engine.take_pending_writes(&mut Vec::new());
        // A blocked client waits for a few milliseconds.
        while engine.sessions()[caller].flags.contains(SessionFlags::BLOCKED) {
            now.advance_us(1_000);
            engine.advance(now);
        }
        now.advance_us(random.below(3_000));
        if random.one_in(30) {
            now.advance_us(random.below(4_000_000) * 1_000_000);
        }
        if random.one_in(3) {
            // One turn only: the rest of the work is left for later turns.
            engine.advance(now);
        }
        seen.written.extend(sessions.map(|id| std::mem::take(&mut engine.sessions_mut()[id].out)));
    }
    engine.check_invariants();
    seen.changes = journal.take();
    seen
}

#[test]
fn the_same_inputs_give_the_same_bytes_and_changes() {
    // Lua's memory usage depends on where the allocator puts its strings.
    let catalogue = Catalogue::new(NEVER, false, |line| !["INFO", "MEMORY", WAITS_FOR_THE_DRIVER].contains(&line.name()));
    let (mut bytes, mut changes) = (0, 0);
    for seed in 0..60 {
        let (first, second) = (play(&catalogue, seed), play(&catalogue, seed));
        if let Some(step) = (0..first.written.len()).find(|&at| first.written[at] != second.written[at]) {
            let text = |seen: &Seen| seen.written[step].escape_ascii().to_string();
            panic!("seed {seed}, step {}: {} and {}", step / 3, text(&first), text(&second));
        }
        assert_eq!(first, second, "seed {seed}");
        bytes += first.written.iter().map(Vec::len).sum::<usize>();
        changes += first.changes.len();
    }
    assert!(bytes > 1_000_000 && changes > 5_000, "{bytes} bytes, {changes} changes");
}
