//! Streams of server-sent events: one tick a second with all that the page shows. Streams of the same user and query share what the
//! server is asked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::client::Value;
use crate::http::api::{App, Parameters, graph_command, list_command};
use crate::http::credentials::Who;
use crate::http::figures;
use crate::http::json;
use crate::http::link::accepted;
use crate::http::recent;
use crate::http::trouble::Trouble;

/// Time between two ticks.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of streams, so that there are connections left for everything else.
const STREAMS_MAX: usize = 48;

/// A user and the parameters of a query.
type Key = (Who, Vec<(String, String)>);
/// The name and the data of an event; `None` before the first.
type Tick = Option<(&'static str, Arc<str>)>;

/// The queries that streams are open for.
#[derive(Default)]
pub struct Hub {
    queries: HashMap<Key, watch::Sender<Tick>>,
}

impl Hub {
    /// Number of open streams.
    fn streams(&self) -> usize {
        self.queries.values().map(watch::Sender::receiver_count).sum()
    }
}

/// Handles `/api/events`. The first answer is asked for at once, so that a refusal has its status.
pub async fn events(
    State(app): State<Arc<App>>,
    who: Who,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Response, Trouble> {
    let asked = Parameters::new(asked);
    let key = (who, asked.sorted());
    let first = answer(&app, &key.0, &asked).await?;
    let mut hub = app.hub.lock().unwrap_or_else(PoisonError::into_inner);
    fail_if!(hub.streams() >= STREAMS_MAX, Trouble::unavailable(format!("{STREAMS_MAX} streams are open already")));
    let ticks = match hub.queries.get(&key) {
        Some(sender) => sender.subscribe(),
        None => {
            let (sender, ticks) = watch::channel(Some(("tick", first)));
            hub.queries.insert(key.clone(), sender.clone());
            tokio::spawn(tick(Arc::clone(&app), key, asked, sender));
            ticks
        }
    };
    drop(hub);
    // `true`: the present value is new to this stream.
    let stream = futures_util::stream::unfold((ticks, true), async |(mut ticks, is_first)| {
        if !is_first {
            ticks.changed().await.ok()?;
        }
        let (name, data) = ticks.borrow_and_update().clone()?;
        Some((Ok::<_, Infallible>(Event::default().event(name).data(&*data)), (ticks, false)))
    });
    Ok(Sse::new(stream).into_response())
}

/// Asks once a second until nobody listens, or the user is refused.
async fn tick(app: Arc<App>, key: Key, asked: Parameters, sender: watch::Sender<Tick>) {
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every.tick().await;
    loop {
        every.tick().await;
        {
            let mut hub = app.hub.lock().unwrap_or_else(PoisonError::into_inner);
            if sender.receiver_count() == 0 {
                hub.queries.remove(&key);
                return;
            }
        }
        match answer(&app, &key.0, &asked).await {
            Ok(data) => _ = sender.send_replace(Some(("tick", data))),
            Err(Trouble { status, text }) => {
                let told = json!({ "error": text }).to_string();
                sender.send_replace(Some(("trouble", told.into())));
                // A user that is refused stays so; a server that is late may answer again.
                if status.is_client_error() {
                    app.hub.lock().unwrap_or_else(PoisonError::into_inner).queries.remove(&key);
                    return;
                }
            }
        }
    }
}

/// The data of a tick.
async fn answer(app: &App, who: &Who, asked: &Parameters) -> Result<Arc<str>, Trouble> {
    let db = asked.db()?;
    let commands = [list_command(asked)?, graph_command(asked)?];
    let mut replies = app.link.ask(who, db, &commands).await?.into_iter();
    let figures = figures::answer(app, who).await?;
    let mut next = || accepted(replies.next().unwrap_or(Value::Null));
    // A node that does not lead has no locks, and says so.
    let (locks, graph) = (next(), next());
    let show = |reply: Result<Value, Trouble>| match reply {
        Ok(reply) => json::of(&reply),
        Err(trouble) => json!({ "error": trouble.text }),
    };
    let recent = recent::latest(app, who).await.unwrap_or_else(|trouble| json!({ "error": trouble.text }));
    let tick = json!({
        "now": figures["now"],
        "figures": figures["figures"],
        "server": figures["server"],
        "cluster": figures["cluster"],
        "locks": show(locks),
        "graph": show(graph),
        "recent": recent,
    });
    Ok(tick.to_string().into())
}
