//! Health, for whoever starts and restarts servers. It needs no credentials and tells nothing but the health.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;

use crate::http::api::App;
use crate::http::trouble::Trouble;

/// Time within which a healthy executor answers.
const TIME: Duration = Duration::from_secs(1);

/// Whether the executor answers at all: an error, such as `LOADING`, is an answer.
pub async fn alive(State(app): State<Arc<App>>) -> Result<&'static str, Trouble> {
    app.link.ping(TIME).await.map(|()| "ok\n")
}

/// Whether the server can serve its clients.
pub async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Trouble> {
    let state = app.link.state(TIME).await?;
    fail_if!(state.loading, Trouble::unavailable("loading: the server is reading its files"));
    fail_if!(state.leaderless, Trouble::unavailable("no leader: this node reaches no majority, or an election is in progress"));
    Ok("ok\n")
}
