//! What clients do with plain keys and with libraries of functions, to see whether their commands are linearizable: they read,
//! write, count, compare and set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::{Command, Error, Value};
use crate::recipes::World as _;
use crate::torture::check::linear::{self, Call, Operation, Reply};
use crate::torture::plan::{Plan, Settings};
use crate::torture::sim;
use crate::torture::sim::Registers;
use crate::torture::sim::world::SimWorld;
use crate::torture::traced_world::TracedWorld;

/// Number of keys: enough for clients to find one that a leader which was cut off has not changed in vain.
const KEYS: u64 = 16;
/// Number of libraries. Each has a function that returns its number.
const LIBRARIES: u64 = 2;
/// Maximum pause between two commands of a client that only reads, and of another one, in microseconds.
const PAUSE_MAX_US: (u64, u64) = (200_000, 500_000);
/// Sets a number to another one, if it is the expected one.
const SWAP: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";

/// The operations of all clients. One that was refused, and thus not carried out, is `None`.
pub type Noted = Arc<Mutex<Vec<Option<Operation>>>>;

fn with<T>(noted: &Noted, act: impl FnOnce(&mut Vec<Option<Operation>>) -> T) -> T {
    act(&mut noted.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The command for a key, or for a library behind them.
fn command(key: u32, call: Call) -> Command {
    if u64::from(key) >= KEYS {
        let name = format!("register_{key}");
        return match call {
            Call::Set(number) => {
                let code = format!("#!lua name={name}\nredis.register_function('{name}', function() return {number} end)");
                Command::new("FUNCTION").arg("LOAD").arg("REPLACE").arg(code)
            }
            Call::Delete => Command::new("FUNCTION").arg("DELETE").arg(name),
            // The key lets a node that does not lead refuse it.
            _ => Command::new("FCALL").arg(name.clone()).arg(1).arg(name),
        };
    }
    let name = format!("register:{key}");
    match call {
        Call::Delete => Command::new("DEL").arg(name),
        Call::Get => Command::new("GET").arg(name),
        Call::Set(number) => Command::new("SET").arg(name).arg(number),
        Call::Increment => Command::new("INCR").arg(name),
        Call::Swap(from, to) => Command::new("EVAL").arg(SWAP).arg(1).arg(name).arg(from).arg(to),
    }
}

/// The reply of a server. `None` if it is none that a key can have.
fn read(call: Call, value: &Value) -> Option<Reply> {
    match (call, value) {
        (Call::Set(_) | Call::Delete, _) => Some(Reply::Done),
        (_, Value::Null) => Some(Reply::Number(None)),
        (_, Value::Integer(number)) => Some(Reply::Number(Some(*number))),
        (_, value) => Some(Reply::Number(Some(value.as_str()?.parse().ok()?))),
    }
}

/// Runs a client until a time, or until it crashes.
pub async fn run_client(world: SimWorld, client: u32, until_us: u64, noted: Noted) {
    let mut written = i64::from(client) * 1_000_000_000;
    let mut seen = 0;
    // Half of the clients only read: they stay with a leader that was cut off. The others, whose commands would hang there, ask
    // any node, and so find the next leader before the old one knows of it.
    let reads = client % 2 == 1;
    let pause_max_us = if reads { PAUSE_MAX_US.0 } else { PAUSE_MAX_US.1 };
    while world.true_us() < until_us {
        world.sleep(Duration::from_micros(world.random() % pause_max_us)).await;
        // A third is about libraries, since a leader must lead twice to show what it has kept of them.
        let is_library = world.random().is_multiple_of(3);
        let key = (world.random() % if is_library { LIBRARIES } else { KEYS } + if is_library { KEYS } else { 0 }) as u32;
        written += 1_000;
        let call = match world.random() % 11 {
            _ if reads => Call::Get,
            0..3 => Call::Get,
            6..10 if is_library => Call::Delete,
            3..6 => Call::Set(written),
            6..9 => Call::Increment,
            9 => Call::Swap(seen, written),
            _ => Call::Delete,
        };
        if !reads {
            world.forget_leader();
        }
        let operation = Operation { key, call, called_us: world.true_us(), answer: None };
        let at = with(&noted, |noted| {
            noted.push(Some(operation));
            noted.len() - 1
        });
        match world.call(0, command(key, call)).await {
            Ok(value) => {
                let answer = read(call, &value).map(|reply| (world.true_us(), reply));
                with(&noted, |noted| noted[at] = Some(Operation { answer, ..operation }));
                if let Some((_, Reply::Number(Some(number)))) = answer {
                    seen = number;
                }
            }
            Err(Error::Reply(error)) if call == Call::Get && error.text().contains("Function not found") => {
                let answer = Some((world.true_us(), Reply::Number(None)));
                with(&noted, |noted| noted[at] = Some(Operation { answer, ..operation }));
            }
            // It was not carried out.
            Err(Error::Reply(_)) => with(&noted, |noted| noted[at] = None),
            Err(error) if !error.maybe_applied() => with(&noted, |noted| noted[at] = None),
            Err(_) => {}
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Number of episodes.
    pub episodes: u64,
    /// Number of commands.
    pub commands: u64,
    /// Simulated time of the episodes.
    pub simulated_us: u64,
    /// The greatest number of bytes that waited to be stored.
    pub waited_max: u64,
    /// The first episode in which commands were not linearizable, and their key.
    pub violation: Option<(u64, u32)>,
}

/// Runs episodes from number `from` on, until `simulated_us` have passed in them, and at least one, or until commands are not
/// linearizable. `seen` is told the simulated time after each episode.
pub fn run(settings: &Settings, from: u64, simulated_us: u64, mut seen: impl FnMut(u64)) -> Outcome {
    let mut outcome = Outcome::default();
    for episode in from.. {
        let plan = Plan::draw(settings, episode);
        let Registers { operations, waited_max, .. } = sim::run_registers(&plan);
        outcome.waited_max = outcome.waited_max.max(waited_max);
        outcome.episodes += 1;
        outcome.commands += operations.len() as u64;
        outcome.simulated_us += plan.end_us;
        outcome.violation = linear::violation(&operations).map(|key| (episode, key));
        seen(outcome.simulated_us);
        if outcome.violation.is_some() || outcome.simulated_us >= simulated_us {
            break;
        }
    }
    outcome
}
