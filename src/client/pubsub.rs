//! Subscriptions to channels.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::client::client::Client;
use crate::client::command::{Argument, Command, argument_bytes};
use crate::client::connection::backoff::Backoff;
use crate::client::connection::wire::Wire;
use crate::client::core::Core;
use crate::client::error::{Error, Result};
use crate::client::value::Value;

/// A published message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The channel that the message was published on.
    pub channel: Bytes,
    /// The pattern that matched, if the message came by a pattern.
    pub pattern: Option<Bytes>,
    /// The payload.
    pub payload: Bytes,
}

/// A subscription to channels and patterns, on a connection of its own.
///
/// Messages that the caller does not take wait in the socket, and then on the server. The server closes the connection when too
/// many wait (its `client-output-buffer-limit pubsub`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// let mut news = client.subscribe(&["unlocked:door"]).await?;
/// client.command(&["PUBLISH", "unlocked:door", "1"]).await?;
/// assert_eq!(news.next().await?.payload, "1");
/// # Ok(()) }
/// ```
pub struct Subscription {
    core: Arc<Core>,
    wire: Option<Wire>,
    backoff: Backoff,
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    /// Messages that arrived before the server confirmed the last subscription.
    early: VecDeque<Message>,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    /// Subscribes to channels. When this returns, the server has confirmed all of them.
    ///
    /// # Errors
    /// If no connection can be opened in time, or the server refuses.
    pub async fn subscribe(&self, channels: &[impl Argument]) -> Result<Subscription> {
        self.subscribe_to(set(channels), BTreeSet::new()).await
    }

    /// Subscribes to all channels whose names match these patterns.
    ///
    /// # Errors
    /// If no connection can be opened in time, or the server refuses.
    pub async fn psubscribe(&self, patterns: &[impl Argument]) -> Result<Subscription> {
        self.subscribe_to(BTreeSet::new(), set(patterns)).await
    }

    async fn subscribe_to(&self, channels: BTreeSet<Vec<u8>>, patterns: BTreeSet<Vec<u8>>) -> Result<Subscription> {
        if channels.is_empty() && patterns.is_empty() {
            return Err(Error::Invalid("a subscription needs at least one channel or pattern".to_owned()));
        }
        let core = Arc::clone(&self.core);
        let permit = core.permit(core.deadline()).await?;
        let mut subscription = Subscription {
            core,
            wire: None,
            backoff: Backoff::new(),
            channels,
            patterns,
            early: VecDeque::new(),
            _permit: permit,
        };
        subscription.connect().await?;
        Ok(subscription)
    }
}

fn set(names: &[impl Argument]) -> BTreeSet<Vec<u8>> {
    names.iter().map(argument_bytes).collect()
}

impl Subscription {
    /// The next message. The future may be dropped without losing a message.
    ///
    /// # Errors
    /// [`Error::Disconnected`], once, when the connection breaks. The next call reconnects, subscribes to all channels again and
    /// waits for messages. Messages that were published in between are missed. That call fails with [`Error::Connect`] if
    /// reconnecting takes longer than the response time-out.
    pub async fn next(&mut self) -> Result<Message> {
        if let Some(message) = self.early.pop_front() {
            return Ok(message);
        }
        loop {
            if self.wire.is_none() {
                self.connect().await?;
                if let Some(message) = self.early.pop_front() {
                    return Ok(message);
                }
            }
            let Some(wire) = &mut self.wire else { continue };
            match wire.receive().await {
                Ok(value) => {
                    if let Some(message) = parse_message(value) {
                        return Ok(message);
                    }
                }
                Err(error) => {
                    self.wire = None;
                    return Err(error);
                }
            }
        }
    }

    /// Replaces the subscribed channels by these, on the same connection. When this returns, the server has confirmed the change.
    /// The patterns stay as they are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
    /// # let server = portcullis::TestServer::start();
    /// # let client = portcullis::client::Client::connect(&server.url()).await?;
    /// let mut news = client.subscribe(&["a", "b"]).await?;
    /// news.listen_to(&["b", "c"]).await?;
    /// for channel in ["a", "b", "c"] {
    ///     client.command(&["PUBLISH", channel, "1"]).await?;
    /// }
    /// assert_eq!(news.next().await?.channel, "b");
    /// assert_eq!(news.next().await?.channel, "c");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the server refuses or the connection breaks; the next call of [`Subscription::next`] then subscribes to the new
    /// channels.
    pub async fn listen_to(&mut self, channels: &[impl Argument]) -> Result {
        let wanted = set(channels);
        let added: Vec<_> = wanted.difference(&self.channels).cloned().collect();
        let removed: Vec<_> = self.channels.difference(&wanted).cloned().collect();
        self.channels = wanted;
        let Some(mut wire) = self.wire.take() else { return Ok(()) };
        let deadline = self.core.deadline();
        let early = self.change(&mut wire, [("SUBSCRIBE", added), ("UNSUBSCRIBE", removed)], deadline).await?;
        self.early.extend(early);
        self.early.retain(|message| message.pattern.is_some() || self.channels.contains(&message.channel[..]));
        self.wire = Some(wire);
        Ok(())
    }

    /// Whether the connection is not known to be broken.
    pub(crate) fn is_connected(&self) -> bool {
        self.wire.is_some()
    }

    /// Opens a connection and subscribes to all channels and patterns.
    async fn connect(&mut self) -> Result {
        let deadline = self.core.deadline();
        let mut wire = self.core.open(deadline, &mut self.backoff).await?;
        let (channels, patterns) = (self.channels.iter().cloned().collect(), self.patterns.iter().cloned().collect());
        self.early = self.change(&mut wire, [("SUBSCRIBE", channels), ("PSUBSCRIBE", patterns)], deadline).await?;
        self.wire = Some(wire);
        Ok(())
    }

    /// Sends commands that change the subscription, each with its channels or patterns, and waits until the server has confirmed
    /// them. Returns the messages that arrived before that.
    async fn change(&self, wire: &mut Wire, commands: [(&str, Vec<Vec<u8>>); 2], deadline: Instant) -> Result<VecDeque<Message>> {
        let mut out = Vec::new();
        for (name, names) in commands.iter().filter(|(_, names)| !names.is_empty()) {
            out.extend_from_slice(Command::new(*name).args(names).wire());
        }
        let count = commands.iter().map(|(_, names)| names.len()).sum();
        let changed = async {
            wire.send(&out).await?;
            confirmed(wire, count).await
        };
        timeout_at(deadline, changed).await.unwrap_or_else(|_| Err(self.core.timeout(true)))
    }
}

/// Waits until the server has confirmed this many channels or patterns. Returns the messages that arrived before that.
async fn confirmed(wire: &mut Wire, mut missing: usize) -> Result<VecDeque<Message>> {
    let mut early = VecDeque::new();
    while missing > 0 {
        let value = wire.receive().await?.into_result()?;
        let kind = value.as_array().and_then(|items| items.first()?.as_str());
        if matches!(kind, Some("subscribe" | "psubscribe" | "unsubscribe")) {
            missing -= 1;
        } else {
            early.extend(parse_message(value));
        }
    }
    Ok(early)
}

/// Parses a message: `message channel payload`, or `pmessage pattern channel payload`. Returns `None` for anything else.
fn parse_message(value: Value) -> Option<Message> {
    let (Value::Array(items) | Value::Push(items)) = value else { return None };
    let kind = items.first()?.as_str()?.to_owned();
    let mut rest = items.into_iter().skip(1).map(|item| match item {
        Value::Bytes(bytes) | Value::Status(bytes) => Some(bytes),
        _ => None,
    });
    let pattern = match kind.as_str() {
        "message" => None,
        "pmessage" => Some(rest.next()??),
        _ => return None,
    };
    Some(Message { channel: rest.next()??, pattern, payload: rest.next()?? })
}
