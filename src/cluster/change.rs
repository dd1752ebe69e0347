//! `portcullis cluster add`, `remove` and `handover`.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::{Command, Value};
use crate::cluster::survey::{Survey, survey};

/// Time within which another node must lead after a hand-over.
const HAND_OVER_TIME: Duration = Duration::from_secs(10);
/// Interval between looks.
const LOOK: Duration = Duration::from_millis(50);

/// Sends a command to the leader. One that adds a node takes as long as the node takes to catch up.
async fn order(survey: &Survey, words: &[&str]) -> Result<Value, String> {
    let leader = survey.leader().ok_or_else(|| "no node leads".to_owned())?;
    let command = words.iter().fold(Command::new("NODE"), |command, word| command.arg(*word));
    leader.client.run(command.waits(None)).await.map_err(|error| error.to_string())
}

/// Adds a node. Returns what was done.
///
/// # Errors
/// In words.
pub async fn add(urls: &str, node: u64, addr: &str) -> Result<String, String> {
    order(&survey(urls).await?, &["ADD", &node.to_string(), addr]).await?;
    Ok(format!("node {node} at {addr} is a member and votes"))
}

/// Removes a node, which hands its leadership over first if it has it. Returns what was done.
///
/// # Errors
/// In words.
pub async fn remove(urls: &str, node: u64) -> Result<String, String> {
    let mut found = survey(urls).await?;
    if found.leader().is_some_and(|leader| leader.status.node == node) {
        found = handed_over(urls, &found, None).await?;
    }
    order(&found, &["REMOVE", &node.to_string()]).await?;
    Ok(format!("node {node} is no member any more; its process can be ended, and its folder removed"))
}

/// Hands the leadership over, and waits until the new leader leads. Returns what was done.
///
/// # Errors
/// In words.
pub async fn hand_over(urls: &str, to: Option<u64>) -> Result<String, String> {
    let found = handed_over(urls, &survey(urls).await?, to).await?;
    let leader = found.leader().map_or(0, |leader| leader.status.node);
    Ok(format!("node {leader} leads"))
}

async fn handed_over(urls: &str, before: &Survey, to: Option<u64>) -> Result<Survey, String> {
    let old = before.leader().map_or(0, |leader| leader.status.node);
    let to = to.map(|to| to.to_string());
    let words: Vec<&str> = ["HANDOVER"].into_iter().chain(to.as_deref()).collect();
    order(before, &words).await?;
    let began = Instant::now();
    loop {
        // A node whose connections were closed may not answer the first time.
        if let Ok(found) = survey(urls).await
            && found.leader().is_some_and(|leader| leader.status.node != old)
        {
            return Ok(found);
        }
        fail_if!(began.elapsed() > HAND_OVER_TIME, format!("node {old} still leads, or no other node does"));
        sleep(LOOK).await;
    }
}
