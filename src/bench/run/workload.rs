//! A workload: a lock algorithm, an algorithm that is no lock, or a plain command.

use std::sync::Arc;
use std::time::Duration;

use crate::bench::run::counting_world::CountingWorld;
use crate::client::{Command, Result};
use crate::recipes::{Algorithm, Facts, Latch, SlidingWindow, TokenBucket, World, by_name, facts};
use crate::resp::request::split_words;

/// What a client does over and over again.
#[derive(Clone)]
pub enum Workload {
    /// Acquires and releases a lock. With the algorithm's name.
    Lock(Arc<dyn Algorithm<CountingWorld>>, String),
    /// Runs an algorithm that is no lock.
    Other(OtherAlgorithm, &'static Facts),
    /// Sends a command.
    Command(PlainCommand),
}

/// An algorithm that is no lock.
#[derive(Clone, Copy, Debug)]
pub enum OtherAlgorithm {
    /// Sets a latch, counts it down and waits for it.
    Latch,
    /// Takes a token from a token bucket.
    TokenBucket,
    /// Enters a sliding window.
    SlidingWindow,
}

/// A command with placeholders for the key and the client's number.
#[derive(Clone, Debug)]
pub struct PlainCommand {
    text: String,
    words: Vec<Vec<u8>>,
}

impl Workload {
    /// The algorithm of a name.
    ///
    /// # Errors
    /// That no algorithm has the name, in words for people.
    pub fn algorithm(name: &str) -> std::result::Result<Workload, String> {
        if let Some(algorithm) = by_name::<CountingWorld>(name) {
            return Ok(Workload::Lock(algorithm.into(), name.to_owned()));
        }
        let facts = facts(name).ok_or_else(|| format!("there is no algorithm '{name}': see portcullis bench --list"))?;
        match name {
            "latch" => Ok(Workload::Other(OtherAlgorithm::Latch, facts)),
            "token-bucket" => Ok(Workload::Other(OtherAlgorithm::TokenBucket, facts)),
            "sliding-window" => Ok(Workload::Other(OtherAlgorithm::SlidingWindow, facts)),
            _ => Err(format!("the algorithm '{name}' cannot be measured")),
        }
    }

    /// A plain command. In its text `{key}` stands for a lock's key and `{client}` for the client's number.
    ///
    /// # Errors
    /// That the text is no command, in words for people.
    pub fn command(text: &str) -> std::result::Result<Workload, String> {
        match split_words(text.as_bytes()) {
            Ok(words) if !words.is_empty() => Ok(Workload::Command(PlainCommand { text: text.to_owned(), words })),
            _ => Err(format!("'{text}' is not a command")),
        }
    }

    /// The workload's name.
    pub fn name(&self) -> &str {
        match self {
            Workload::Lock(_, name) => name,
            Workload::Other(_, facts) => facts.name,
            Workload::Command(command) => &command.text,
        }
    }

    /// Whether the workload uses several servers at once.
    pub fn needs_several_servers(&self) -> bool {
        matches!(self, Workload::Lock(algorithm, _) if algorithm.facts().name == "redlock")
    }

    /// The facts about an algorithm. `None` for a plain command.
    pub fn facts(&self) -> Option<&'static Facts> {
        match self {
            Workload::Lock(algorithm, _) => Some(algorithm.facts()),
            Workload::Other(_, facts) => Some(facts),
            Workload::Command(_) => None,
        }
    }
}

impl OtherAlgorithm {
    /// Runs the algorithm once. Clients share a bucket and a window; each client has its own latch.
    ///
    /// # Errors
    /// Those of the server and the connection.
    pub async fn run_once(self, world: &CountingWorld, key: &[u8], client: usize) -> Result<()> {
        match self {
            OtherAlgorithm::Latch => {
                let latch = Latch::new(world, [key, format!(":{client}").as_bytes()].concat());
                latch.set(1).await?;
                latch.down(1).await?;
                latch.wait(Duration::from_secs(1)).await.map(drop)
            }
            OtherAlgorithm::TokenBucket => TokenBucket::new(1000, Duration::from_secs(1)).take(world, key, 1).await.map(drop),
            OtherAlgorithm::SlidingWindow => {
                SlidingWindow::new(100, Duration::from_millis(100)).enter(world, key, 1).await.map(drop)
            }
        }
    }
}

impl PlainCommand {
    /// The command with its placeholders replaced.
    pub fn command(&self, key: &[u8], client: usize) -> Command {
        let client = client.to_string();
        let fill = |word: &[u8]| replace(&replace(word, b"{key}", key), b"{client}", client.as_bytes());
        let mut words = self.words.iter().map(|word| fill(word));
        Command::new(words.next().unwrap_or_default()).args(words)
    }

    /// Sends the command once.
    ///
    /// # Errors
    /// Those of [`World::call`].
    pub async fn send_once(&self, world: &CountingWorld, key: &[u8], client: usize) -> Result<()> {
        world.call(0, self.command(key, client)).await?.into_result().map(drop)
    }
}

fn replace(word: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len() + by.len());
    let mut rest = word;
    while let Some(at) = memchr::memmem::find(rest, what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(by);
        rest = &rest[at + what.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_in_a_command_are_replaced() {
        let Workload::Command(command) = Workload::command("SET {key}:{key} 'a {client}' PX 5").unwrap() else {
            panic!("no command")
        };
        let wire = b"*5\r\n$3\r\nSET\r\n$3\r\nk:k\r\n$4\r\na 12\r\n$2\r\nPX\r\n$1\r\n5\r\n";
        assert_eq!(command.command(b"k", 12).wire(), wire);
        assert!(Workload::command(" ").is_err() && Workload::command("SET 'a").is_err());
    }

    #[test]
    fn every_algorithm_can_be_measured() {
        for recipe in crate::recipes::all::<CountingWorld>() {
            assert_eq!(Workload::algorithm(recipe.facts.name).unwrap().name(), recipe.facts.name);
        }
        assert!(Workload::algorithm("set-nx-px+watchdog").is_ok());
        assert!(Workload::algorithm("setnx+watchdog").is_err() && Workload::algorithm("nosuch").is_err());
    }
}
