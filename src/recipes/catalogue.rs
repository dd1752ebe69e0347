//! All algorithms, by name.

use crate::recipes::algorithm::{Algorithm, Facts};
use crate::recipes::broken::{self, Broken};
use crate::recipes::compare_and_delete::{self, CompareAndDelete};
use crate::recipes::fair::{self, Fair};
use crate::recipes::list_token::{self, ListToken};
use crate::recipes::memcached::{self, MemcachedAdd};
use crate::recipes::multi::{self, Multi};
use crate::recipes::native::{self, Native};
use crate::recipes::nodes::{self, Nodes};
use crate::recipes::permits::{self, Permits};
use crate::recipes::read_write::{self, ReadWrite};
use crate::recipes::redlock::{self, RedLock};
use crate::recipes::reentrant::{self, Reentrant};
use crate::recipes::row::{self, UniqueRow};
use crate::recipes::semaphore::{self, Semaphore};
use crate::recipes::setnx::{self, SetNx, SetNxExpire};
use crate::recipes::time_stamp::{self, TimeStamp};
use crate::recipes::token::{self, Token};
use crate::recipes::watchdog::Guarded;
use crate::recipes::world::World;
use crate::recipes::{latch, rates};

/// Creates an algorithm with its default settings.
pub type Make<W> = fn() -> Box<dyn Algorithm<W>>;

/// An algorithm and its constructor.
pub struct Recipe<W> {
    /// Facts about the algorithm.
    pub facts: &'static Facts,
    /// Creates it with its default settings; `None` for algorithms that are not locks and have interfaces of their own.
    pub make: Option<Make<W>>,
}

impl<W> Clone for Recipe<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Recipe<W> {}

/// All algorithms, by number. Number 0 is deliberately broken, to test tests.
pub fn all<W: World>() -> Vec<Recipe<W>> {
    fn lock<W>(facts: &'static Facts, make: Make<W>) -> Recipe<W> {
        Recipe { facts, make: Some(make) }
    }
    vec![
        lock(&broken::FACTS, || Box::new(Broken)),
        lock(&setnx::SETNX, || Box::new(SetNx)),
        lock(&setnx::SETNX_EXPIRE, || Box::new(SetNxExpire)),
        lock(&time_stamp::GETSET, || Box::new(TimeStamp::default())),
        lock(&time_stamp::NAIVE, || Box::new(TimeStamp::naive())),
        lock(&token::COMPARED, || Box::new(Token::default())),
        lock(&token::UNCHECKED, || Box::new(Token::unchecked())),
        lock(&token::RACING, || Box::new(Token::racing())),
        lock(&compare_and_delete::FACTS, || Box::new(CompareAndDelete::default())),
        lock(&reentrant::FACTS, || Box::new(Reentrant)),
        lock(&reentrant::WATCHDOG, || {
            Box::new(Guarded::new(Box::new(Reentrant) as Box<dyn Algorithm<W>>).named(&reentrant::WATCHDOG))
        }),
        lock(&fair::FACTS, || Box::new(Fair::default())),
        lock(&read_write::FACTS, || Box::new(ReadWrite)),
        lock(&multi::FACTS, || Box::new(Multi::new(Reentrant))),
        lock(&multi::UNORDERED, || Box::new(Multi::new(Reentrant).unordered())),
        lock(&redlock::FACTS, || Box::new(RedLock::default())),
        lock(&semaphore::FACTS, || Box::new(Semaphore::default())),
        lock(&permits::FACTS, || Box::new(Permits::default())),
        Recipe { facts: &latch::FACTS, make: None },
        Recipe { facts: &rates::BUCKET, make: None },
        Recipe { facts: &rates::WINDOW, make: None },
        lock(&nodes::FACTS, || Box::new(Nodes)),
        lock(&memcached::FACTS, || Box::new(MemcachedAdd)),
        lock(&row::FACTS, || Box::new(UniqueRow::default())),
        lock(&list_token::FACTS, || Box::new(ListToken)),
        lock(&native::FACTS, || Box::new(Native)),
    ]
}

/// The lock algorithm with this name, with its default settings. The suffix `+watchdog`, as in `set-nx-px+watchdog`, adds a
/// watchdog to an algorithm that can renew.
pub fn by_name<W: World>(name: &str) -> Option<Box<dyn Algorithm<W>>> {
    let (name, watched) = name.strip_suffix("+watchdog").map_or((name, false), |name| (name, true));
    let recipe = all::<W>().into_iter().find(|recipe| recipe.facts.name == name)?;
    let algorithm = recipe.make?();
    match watched {
        false => Some(algorithm),
        true if recipe.facts.renews => Some(Box::new(Guarded::new(algorithm))),
        true => None,
    }
}

/// A page in Markdown about all algorithms: what each one is, its guarantees and its failures.
pub fn markdown_page() -> String {
    let mut page = String::from("# The recipes\n\nWritten by a test from the facts that the code has of itself.\n");
    let yes = |is: bool, what: &'static str| is.then_some(what);
    for facts in all::<crate::recipes::Live>().into_iter().map(|recipe| recipe.facts) {
        let number = if facts.number == 0 { "–".to_owned() } else { facts.number.to_string() };
        let flawed = if facts.flawed { ", **flawed**: here to show how it fails, not to be used" } else { "" };
        page.push_str(&format!("\n## {number}: `{}`{flawed}\n\n{}.\n\n", facts.name, capital(facts.summary)));
        let can = [
            yes(facts.expires, "expires"),
            yes(facts.renews, "renews"),
            yes(facts.reentrant, "reentrant"),
            yes(facts.shared, "shared"),
            yes(facts.fenced, "fencing tokens"),
            yes(facts.native, "needs this crate's server"),
        ];
        let can: Vec<&str> = can.into_iter().flatten().collect();
        if !can.is_empty() {
            page.push_str(&format!("*{}*\n\n", can.join(", ")));
        }
        for (title, items) in [("Promises", facts.guarantees), ("Fails", facts.failures)] {
            if !items.is_empty() {
                page.push_str(&format!("{title}:\n\n"));
                items.iter().for_each(|item| page.push_str(&format!("- {item}\n")));
                page.push('\n');
            }
        }
        page.push_str(&format!("From: {}.\n", facts.source));
    }
    page
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Facts about the recipe with this name, whether it is a lock or not.
pub fn facts(name: &str) -> Option<&'static Facts> {
    all::<crate::recipes::Live>().into_iter().map(|recipe| recipe.facts).find(|facts| facts.name == name)
}
