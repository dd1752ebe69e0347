//! Watches from outside which node serves: each is asked all the time, on a connection of its own, to count and to read the count.
//!
//! From the answers follow who leads, how long no command succeeded, and whether an acknowledged write was lost: a count that was
//! acknowledged is below every later one, and no later read shows less.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::client::{Client, Command, Options};
use crate::torture::history::{Event, EventKind, History, NO_CLIENT};
use crate::torture::live::world::{Shared, lock};

/// Pause between two questions to a node.
const PAUSE: Duration = Duration::from_millis(10);
/// Time within which a node must answer.
const ANSWER: Duration = Duration::from_millis(250);
/// Longer than this without an answer is a time without a leader, in microseconds.
const LEADERLESS_US: u64 = 300_000;

/// An answer of a node.
#[derive(Clone, Copy, Debug)]
struct Answer {
    server: u32,
    began_us: u64,
    ended_us: u64,
    count: u64,
    reads: bool,
}

/// The watch. It ends when dropped.
pub struct Watch {
    answers: Arc<Mutex<Vec<Answer>>>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Watch {
    /// Watches nodes that clients reach at these ports.
    pub fn start(ports: &[u16], key: &str, shared: &Arc<Shared>) -> Watch {
        let answers = Arc::<Mutex<Vec<Answer>>>::default();
        let task = |(server, port): (u32, &u16)| {
            let url = format!("redis://127.0.0.1:{port}");
            let asking = ask(server, url, key.to_owned(), Arc::clone(shared), Arc::clone(&answers));
            tokio::spawn(asking).abort_handle()
        };
        let tasks = (0..).zip(ports).map(task).collect();
        Watch { answers, tasks }
    }

    /// The node that has served last.
    pub fn leader(&self) -> Option<u32> {
        lock(&self.answers).last().map(|answer| answer.server)
    }

    /// The times from `at_us` until a command succeeded that was sent after it. `None` if none did.
    pub fn gap_us(&self, at_us: u64) -> Option<u64> {
        let answers = lock(&self.answers);
        let later = answers.iter().filter(|answer| answer.began_us >= at_us && !answer.reads);
        later.map(|answer| answer.ended_us - at_us).min()
    }

    /// What was lost, in words, and the number of answers that were checked.
    pub fn lost(&self) -> (Vec<String>, u64) {
        let answers = lock(&self.answers);
        let mut lost = Vec::new();
        // Sorted by their ends: the largest count that was acknowledged before an answer's question.
        let mut largest: Vec<(u64, u64)> = Vec::new();
        for answer in answers.iter() {
            let before = largest.partition_point(|(ended_us, _)| *ended_us < answer.began_us);
            let known = before.checked_sub(1).map_or(0, |at| largest[at].1);
            let (shown, at) = (answer.count, crate::torture::history::Seconds(answer.ended_us));
            if answer.reads && shown < known {
                lost.push(format!("at {at} s server {} showed the count {shown} after {known} was acknowledged", answer.server));
            } else if !answer.reads && shown <= known {
                lost.push(format!("at {at} s server {} counted {shown} after {known} was acknowledged", answer.server));
            }
            let so_far = largest.last().map_or(0, |(_, count)| *count);
            largest.push((answer.ended_us, so_far.max(shown)));
        }
        (lost, answers.len() as u64)
    }

    /// Adds to a history which node served, and when none did.
    pub fn complete(&self, history: &mut History, end_us: u64) {
        let mut events = vec![(0, EventKind::Leaderless)];
        let mut last: Option<Answer> = None;
        for answer in lock(&self.answers).iter().filter(|answer| !answer.reads) {
            if let Some(last) = last
                && answer.ended_us.saturating_sub(last.ended_us) > LEADERLESS_US
            {
                events.push((last.ended_us, EventKind::Leaderless));
            }
            if last.is_none_or(|last| last.server != answer.server || answer.ended_us - last.ended_us > LEADERLESS_US) {
                events.push((answer.ended_us, EventKind::Leads { server: answer.server }));
            }
            last = Some(*answer);
        }
        if let Some(last) = last
            && end_us.saturating_sub(last.ended_us) > LEADERLESS_US
        {
            events.push((last.ended_us, EventKind::Leaderless));
        }
        history.events.extend(events.into_iter().map(|(at_us, kind)| Event { at_us, client: NO_CLIENT, kind }));
        history.events.sort_by_key(|event| event.at_us);
    }
}

async fn ask(server: u32, url: String, key: String, shared: Arc<Shared>, answers: Arc<Mutex<Vec<Answer>>>) {
    let Ok(options) = url.parse::<Options>() else { return };
    let options = options.response_timeout(ANSWER).connect_timeout(ANSWER).backoff(PAUSE, PAUSE);
    let client = loop {
        match Client::with(options.clone()).await {
            Ok(client) => break client,
            Err(_) => sleep(PAUSE).await,
        }
    };
    let mut reads = false;
    loop {
        let command = Command::new(if reads { "GET" } else { "INCR" }).arg(&key);
        let began_us = shared.now_us();
        // A node that does not lead refuses it.
        if let Ok(count) = client.query::<Option<u64>>(command).await {
            let count = count.unwrap_or(0);
            // The time is read under the lock, so that the answers are sorted.
            let mut answers = lock(&answers);
            answers.push(Answer { server, began_us, ended_us: shared.now_us(), count, reads });
        }
        reads = !reads;
        sleep(PAUSE / 2).await;
    }
}
