//! The list of all algorithms.

use crate::recipes::algorithm::Algorithm;
use crate::recipes::counting::permits::{self, Permits};
use crate::recipes::counting::semaphore::{self, Semaphore};
use crate::recipes::counting::{latch, rates};
use crate::recipes::facts::Facts;
use crate::recipes::live::Live;
use crate::recipes::native::{self, Native};
use crate::recipes::other_systems::list_token::{self, ListToken};
use crate::recipes::other_systems::memcached::{self, MemcachedAdd};
use crate::recipes::other_systems::nodes::{self, Nodes};
use crate::recipes::other_systems::row::{self, UniqueRow};
use crate::recipes::plain::broken::{self, Broken};
use crate::recipes::plain::compare_and_delete::{self, CompareAndDelete};
use crate::recipes::plain::redlock::{self, RedLock};
use crate::recipes::plain::setnx::{self, SetNx, SetNxExpire};
use crate::recipes::plain::time_stamp::{self, TimeStamp};
use crate::recipes::plain::token::{self, Token};
use crate::recipes::redisson::fair::{self, Fair};
use crate::recipes::redisson::multi::{self, Multi};
use crate::recipes::redisson::read_write::{self, ReadWrite};
use crate::recipes::redisson::reentrant::{self, Reentrant};
use crate::recipes::watchdog::WithWatchdog;
use crate::recipes::world::World;

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

/// All algorithms, by number. Number 0 is deliberately broken, so that tests can show that they find violations.
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
            Box::new(WithWatchdog::new(Box::new(Reentrant) as Box<dyn Algorithm<W>>).with_facts(&reentrant::WATCHDOG))
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
/// watchdog to an algorithm that can renew. `native+session` and `native+named-session` are the native lock with `SESSION`.
pub fn by_name<W: World>(name: &str) -> Option<Box<dyn Algorithm<W>>> {
    let (name, watched) = name.strip_suffix("+watchdog").map_or((name, false), |name| (name, true));
    let algorithm: Box<dyn Algorithm<W>> = match name {
        "native+session" => Box::new(native::SESSION),
        "native+named-session" => Box::new(native::NAMED_SESSION),
        _ => all::<W>().into_iter().find(|recipe| recipe.facts.name == name)?.make?(),
    };
    match watched {
        false => Some(algorithm),
        true if algorithm.facts().renews => Some(Box::new(WithWatchdog::new(algorithm))),
        true => None,
    }
}

/// A page in Markdown about all algorithms: what each one is, its guarantees and its failures.
pub fn markdown_page() -> String {
    let mut page =
        String::from("# The algorithms\n\nA test generates this page from the facts in the source of each algorithm.\n");
    for facts in all::<Live>().into_iter().map(|recipe| recipe.facts) {
        let number = if facts.number == 0 { "–".to_owned() } else { facts.number.to_string() };
        let flawed = if facts.flawed { ", **flawed**: here to show how it fails, not for use" } else { "" };
        page.push_str(&format!("\n## {number}: `{}`{flawed}\n\n{}.\n\n", facts.name, capitalized(facts.summary)));
        let features = [
            (facts.expires, "expires"),
            (facts.renews, "renews"),
            (facts.reentrant, "reentrant"),
            (facts.shared, "shared"),
            (facts.fenced, "fencing tokens"),
            (facts.native, "needs this crate's server"),
        ];
        let features: Vec<&str> = features.into_iter().filter(|(has, _)| *has).map(|(_, feature)| feature).collect();
        if !features.is_empty() {
            page.push_str(&format!("*{}*\n\n", features.join(", ")));
        }
        for (title, items) in [("Guarantees", facts.guarantees), ("Failures", facts.failures)] {
            if !items.is_empty() {
                page.push_str(&format!("{title}:\n\n"));
                items.iter().for_each(|item| page.push_str(&format!("- {item}\n")));
                page.push('\n');
            }
        }
        page.push_str(&format!("Source: {}.\n", facts.source));
    }
    page
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Facts about the algorithm with this name, also if it is not a lock.
pub fn facts(name: &str) -> Option<&'static Facts> {
    all::<Live>().into_iter().map(|recipe| recipe.facts).find(|facts| facts.name == name)
}
