//! What is measured: an algorithm of the recipes, or a plain command.

use std::sync::Arc;
use std::time::Duration;

use crate::bench::world::Counted;
use crate::client::{Command, Result};
use crate::recipes::{Algorithm, Facts, Latch, SlidingWindow, TokenBucket, World, by_name, facts};
use crate::resp::request::split_words;

/// What clients do over and over again.
#[derive(Clone)]
pub enum Work {
    /// They take a lock and give it back.
    Lock(Arc<dyn Algorithm<Counted>>, String),
    /// They do something that is no lock.
    Other(Other, &'static Facts),
    /// They send a command.
    Plain(Plain),
}

/// Recipes that are no locks.
#[derive(Clone, Copy, Debug)]
pub enum Other {
    /// A latch is set, counted down and waited for.
    Latch,
    /// A token is asked for.
    Bucket,
    /// A request asks to be let in.
    Window,
}

/// A plain command.
#[derive(Clone, Debug)]
pub struct Plain {
    text: String,
    words: Vec<Vec<u8>>,
}

impl Work {
    /// A recipe by its name.
    ///
    /// # Errors
    /// Where there is none of that name, in words for people.
    pub fn recipe(name: &str) -> std::result::Result<Work, String> {
        if let Some(algorithm) = by_name::<Counted>(name) {
            return Ok(Work::Lock(algorithm.into(), name.to_owned()));
        }
        let facts = facts(name).ok_or_else(|| format!("there is no recipe '{name}': see portcullis bench --list"))?;
        match name {
            "latch" => Ok(Work::Other(Other::Latch, facts)),
            "token-bucket" => Ok(Work::Other(Other::Bucket, facts)),
            "sliding-window" => Ok(Work::Other(Other::Window, facts)),
            _ => Err(format!("the recipe '{name}' cannot be measured")),
        }
    }

    /// A command by its text, in which `{key}` is a lock's name and `{client}` the client's number.
    ///
    /// # Errors
    /// Where it is none, in words for people.
    pub fn plain(text: &str) -> std::result::Result<Work, String> {
        match split_words(text.as_bytes()) {
            Ok(words) if !words.is_empty() => Ok(Work::Plain(Plain { text: text.to_owned(), words })),
            _ => Err(format!("'{text}' is no command")),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        match self {
            Work::Lock(_, name) => name,
            Work::Other(_, facts) => facts.name,
            Work::Plain(plain) => &plain.text,
        }
    }

    /// Whether it is for several servers at once.
    pub fn wants_several(&self) -> bool {
        matches!(self, Work::Lock(algorithm, _) if algorithm.facts().name == "redlock")
    }

    /// What is to be known of it, where it is a recipe.
    pub fn facts(&self) -> Option<&'static Facts> {
        match self {
            Work::Lock(algorithm, _) => Some(algorithm.facts()),
            Work::Other(_, facts) => Some(facts),
            Work::Plain(_) => None,
        }
    }
}

impl Other {
    /// Does it once. Many share what is named; the latch of each is its own.
    ///
    /// # Errors
    /// Where the server failed it.
    pub async fn once(self, world: &Counted, key: &[u8], client: usize) -> Result<()> {
        match self {
            Other::Latch => {
                let latch = Latch::new(world, [key, format!(":{client}").as_bytes()].concat());
                latch.set(1).await?;
                latch.down(1).await?;
                latch.wait(Duration::from_secs(1)).await.map(drop)
            }
            Other::Bucket => TokenBucket::new(1000, Duration::from_secs(1)).take(world, key, 1).await.map(drop),
            Other::Window => SlidingWindow::new(100, Duration::from_millis(100)).enter(world, key, 1).await.map(drop),
        }
    }
}

impl Plain {
    /// The command of a client for a key.
    pub fn command(&self, key: &[u8], client: usize) -> Command {
        let client = client.to_string();
        let fill = |word: &[u8]| replace(&replace(word, b"{key}", key), b"{client}", client.as_bytes());
        let mut words = self.words.iter().map(|word| fill(word));
        Command::new(words.next().unwrap_or_default()).args(words)
    }

    /// Sends it once.
    ///
    /// # Errors
    /// As [`World::call`].
    pub async fn once(&self, world: &Counted, key: &[u8], client: usize) -> Result<()> {
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
    fn places_in_a_command_are_filled() {
        let Work::Plain(plain) = Work::plain("SET {key}:{key} 'a {client}' PX 5").unwrap() else { panic!("no command") };
        let wire = b"*5\r\n$3\r\nSET\r\n$3\r\nk:k\r\n$4\r\na 12\r\n$2\r\nPX\r\n$1\r\n5\r\n";
        assert_eq!(plain.command(b"k", 12).wire(), wire);
        assert!(Work::plain(" ").is_err() && Work::plain("SET 'a").is_err());
    }

    #[test]
    fn every_recipe_can_be_measured() {
        for recipe in crate::recipes::all::<Counted>() {
            assert_eq!(Work::recipe(recipe.facts.name).unwrap().name(), recipe.facts.name);
        }
        assert!(Work::recipe("set-nx-px+watchdog").is_ok());
        assert!(Work::recipe("setnx+watchdog").is_err() && Work::recipe("nosuch").is_err());
    }
}
