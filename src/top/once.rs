//! `portcullis top --once`: one look, printed.

use crate::client::Options;
use crate::top::ask::{Asker, Question, explained};
use crate::top::facts::{Absence, Facts};
use crate::top::json::json;
use crate::top::rows;
use crate::top::text::text;

/// Looks once. Returns the text, or JSON. With `all`, it lists all locks, and not only those with waiters.
///
/// # Errors
/// In words: the server cannot be reached, or refuses.
pub async fn once(options: Options, at: String, all: bool, as_json: bool) -> Result<String, String> {
    let words = |error: crate::client::Error| format!("{at}: {}", explained(&error));
    let mut asker = Asker::connect(options, at.clone()).await.map_err(words)?;
    let replies =
        asker.look(&Question { longest_waits: !all, whole: as_json, all, ..Question::default() }).await.map_err(words)?;
    if let Err(absence @ Absence::Refused(_)) = &replies.list {
        return Err(format!("{at}: {}", rows::absent("LOCK.LIST", absence)));
    }
    Ok(if as_json { format!("{:#}\n", json(&replies)) } else { text(&Facts::of(&replies)) })
}
