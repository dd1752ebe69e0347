//! What has happened lately to locks that matters to whoever watches them: broken, expired and abandoned grants, and deadlocks.
//!
//! The server tells the events of a name. The names are those of all locks that were held or contended when the endpoint looked
//! around, and of those that its users asked for. So a lock that came and went between two looks is missed. What a user is shown is
//! asked again as that user, who sees no other names than by `LOCK.WHY`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use serde_json::{Value as Reply, json};

use crate::client::{Command, Value};
use crate::http::api::{App, now_ms};
use crate::http::credentials::{DEFAULT, Who};
use crate::http::figures::lines;
use crate::http::json;
use crate::http::link::accepted;
use crate::http::trouble::Trouble;

/// Maximum number of keys of a database in which locks without waiters are looked for.
const WALKED_MAX: u64 = 2_000;
/// The kinds of events that are shown.
const KINDS: [&str; 4] = ["broken", "deadlock", "expired", "session-ended"];
/// Maximum number of events in an answer.
const EVENTS_MAX: usize = 200;
/// Maximum number of names that are remembered, and of those that a user's answer is made of.
const NAMES_MAX: usize = 1024;
const ASKED_MAX: usize = 200;
/// Maximum number of locks that are looked at in each database, and of databases.
const LOOK: u64 = 200;
const DATABASES_MAX: usize = 16;

/// A database and a name in it.
type Place = (u32, Vec<u8>);

/// The names of locks that something may have happened to.
#[derive(Default)]
pub struct Seen {
    names: HashMap<Place, Mark>,
    count: u64,
}

/// What is known of a name.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// When it was seen last: its number among all sights.
    seen: u64,
    /// When the last event that is shown happened, in Unix milliseconds; 0 if none is known.
    notable_ms: u64,
}

impl Seen {
    /// Remembers a name. Those that were not seen for longest are forgotten beyond the maximum.
    pub fn note(&mut self, db: u32, name: &[u8]) {
        self.count += 1;
        self.names.entry((db, name.to_vec())).or_default().seen = self.count;
        if self.names.len() > NAMES_MAX * 2 {
            let mut seen: Vec<u64> = self.names.values().map(|mark| mark.seen).collect();
            seen.sort_unstable_by(|a, b| b.cmp(a));
            let oldest = seen[NAMES_MAX - 1];
            self.names.retain(|_, mark| mark.seen >= oldest);
        }
    }

    /// Notes that an event has just happened to a name.
    pub fn note_event(&mut self, db: u32, name: &[u8], at_ms: u64) {
        self.note(db, name);
        self.names.entry((db, name.to_vec())).or_default().notable_ms = at_ms;
    }

    /// The names by their databases.
    fn all(&self) -> BTreeMap<u32, Vec<Vec<u8>>> {
        by_database(self.names.keys().cloned())
    }

    /// The names with events that are shown, of most the ones with the latest.
    fn notable(&self) -> BTreeMap<u32, Vec<Vec<u8>>> {
        let mut notable: Vec<_> = self.names.iter().filter(|(_, mark)| mark.notable_ms > 0).collect();
        notable.sort_unstable_by(|(a, one), (b, other)| other.notable_ms.cmp(&one.notable_ms).then_with(|| a.cmp(b)));
        by_database(notable.into_iter().take(ASKED_MAX).map(|(place, _)| place.clone()))
    }
}

fn by_database(places: impl Iterator<Item = Place>) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let mut all: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    places.for_each(|(db, name)| all.entry(db).or_default().push(name));
    all
}

/// Remembers the names of `LOCK.LIST`.
pub fn note(app: &App, db: u32, list: &Value) {
    let mut seen = app.seen.lock().unwrap_or_else(PoisonError::into_inner);
    let names = list.as_array().unwrap_or_default().iter().filter_map(|lock| lock.field("name").and_then(Value::as_bytes));
    names.for_each(|name| seen.note(db, name));
}

fn why(names: &[Vec<u8>]) -> Vec<Command> {
    names.iter().map(|name| Command::new("LOCK.WHY").arg(name)).collect()
}

/// Looks at the locks of all databases, and at what has happened to those that were seen before.
pub async fn look_around(app: &App) {
    let info = app.link.ask_trusted(0, &[Command::new("INFO").arg("keyspace").arg("locks")]).await.unwrap_or_default();
    let info = String::from_utf8_lossy(info.first().and_then(Value::as_bytes).unwrap_or_default()).into_owned();
    let databases = lines(&info).filter_map(|(name, value)| {
        let keys = value.strip_prefix("keys=")?.split(',').next()?.parse::<u64>().ok()?;
        Some((name.strip_prefix("db")?.parse::<u32>().ok()?, keys))
    });
    for (db, keys) in databases.take(DATABASES_MAX) {
        let list = |command: Command| command.arg("COUNT").arg(LOOK);
        let mut commands = vec![list(Command::new("LOCK.LIST").arg("CONTENDED"))];
        // Locks that nobody waits for are found by a walk through the keys, for which all clients wait.
        if keys <= WALKED_MAX {
            commands.push(list(Command::new("LOCK.LIST")));
        }
        let replies = app.link.ask_trusted(db, &commands).await.unwrap_or_default();
        replies.iter().for_each(|reply| note(app, db, reply));
    }
    let all = app.seen.lock().unwrap_or_else(PoisonError::into_inner).all();
    for (db, names) in all {
        let replies = app.link.ask_trusted(db, &why(&names)).await.unwrap_or_default();
        let now = now_ms();
        let mut seen = app.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, reply) in names.into_iter().zip(&replies) {
            let last_ms = events_of(db, &name, reply, now).map(|(at, _)| at).max();
            if let Some(mark) = seen.names.get_mut(&(db, name)) {
                mark.notable_ms = last_ms.unwrap_or(0);
            }
        }
    }
}

/// The events of `LOCK.WHY` that are shown, with their times.
fn events_of<'a>(db: u32, name: &'a [u8], reply: &'a Value, now: u64) -> impl Iterator<Item = (u64, Reply)> {
    let is_shown = |event: &&Value| event.field("event").and_then(Value::as_str).is_some_and(|kind| KINDS.contains(&kind));
    let events = reply.as_array().unwrap_or_default().iter().filter(is_shown);
    events.map(move |event| {
        let field = |name: &str| event.field(name).map(json::of).unwrap_or_default();
        let ago = event.field("ago").and_then(Value::as_integer).and_then(|ago| u64::try_from(ago).ok());
        let at = now.saturating_sub(ago.unwrap_or(0));
        // The one who did it: the user, or, of the user that everybody is, the connection by its name or its number.
        let named = |name: &str| Some(field(name)).filter(|by| !by.is_null() && by.as_str() != Some(""));
        let user = named("by-user").filter(|user| user.as_str() != Some(DEFAULT));
        let by = user.or_else(|| named("by-name")).or_else(|| named("by-user")).or_else(|| named("by"));
        let shown = json!({
            "at": at,
            "kind": field("event"),
            "db": db,
            "name": json::text(name),
            "owner": field("owner"),
            "by": by,
            "reason": field("reason"),
            "token": field("token"),
        });
        (at, shown)
    })
}

/// The latest events that a user may see, the newest first.
///
/// # Errors
/// The user may not use `LOCK.WHY` at all.
pub async fn latest(app: &App, who: &Who) -> Result<Reply, Trouble> {
    let notable = app.seen.lock().unwrap_or_else(PoisonError::into_inner).notable();
    let mut events: Vec<(u64, Reply)> = Vec::new();
    if notable.is_empty() {
        app.link.ask(who, 0, &[]).await?;
    }
    let (mut shown, mut refused) = (false, None);
    for (db, names) in notable {
        let replies = app.link.ask(who, db, &why(&names)).await?;
        let now = now_ms();
        for (name, reply) in names.iter().zip(replies) {
            match accepted(reply) {
                Ok(reply) => {
                    shown = true;
                    events.extend(events_of(db, name, &reply, now));
                }
                Err(trouble) => refused = Some(trouble),
            }
        }
    }
    if let (false, Some(trouble)) = (shown, refused) {
        return Err(trouble);
    }
    events.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one["name"].as_str().cmp(&other["name"].as_str())));
    Ok(events.into_iter().take(EVENTS_MAX).map(|(_, event)| event).collect())
}

/// Handles `/api/recent`.
pub async fn recent(State(app): State<Arc<App>>, who: Who) -> Result<Json<Reply>, Trouble> {
    let events = latest(&app, &who).await?;
    Ok(Json(json!({ "now": now_ms(), "events": events })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_were_not_seen_for_longest_are_forgotten() {
        let mut seen = Seen::default();
        for number in 0..5000 {
            seen.note(0, b"always");
            seen.note(number % 3, format!("{number}").as_bytes());
        }
        assert!((NAMES_MAX..=2 * NAMES_MAX).contains(&seen.names.len()), "{}", seen.names.len());
        assert!(seen.names.contains_key(&(0, b"always".to_vec())));
        assert!(!seen.names.contains_key(&(0, b"0".to_vec())));
        seen.note_event(1, b"a", 5);
        assert_eq!(seen.notable(), BTreeMap::from([(1, vec![b"a".to_vec()])]));
    }

    #[test]
    fn events_have_their_time_and_who_did_it() {
        let pair = |name: &'static str, value: Value| (Value::Status(name.into()), value);
        let text = |text: &'static str| Value::Status(text.into());
        let broken = Value::Map(vec![
            pair("event", text("broken")),
            pair("owner", text("o")),
            pair("ago", Value::Integer(40)),
            pair("by", Value::Integer(7)),
            pair("by-name", text("")),
            pair("by-user", text("alice")),
        ]);
        let granted = Value::Map(vec![pair("event", text("granted"))]);
        let reply = Value::Array(vec![granted, broken]);
        let events: Vec<_> = events_of(2, b"a", &reply, 1000).collect();
        let shown = json!({
            "at": 960, "kind": "broken", "db": 2, "name": "a", "owner": "o", "by": "alice", "reason": null, "token": null,
        });
        assert_eq!(events, [(960, shown)]);
    }
}
