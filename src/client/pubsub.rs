//! Subscriptions to channels.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout_at;

use crate::client::client::Client;
use crate::client::command::{Argument, Command};
use crate::client::core::{Backoff, Core};
use crate::client::error::{Error, Result};
use crate::client::value::Value;
use crate::client::wire::Wire;

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
/// Messages that the caller does not take wait in the socket and then on the server. The server closes the connection when they
/// are too many (its `client-output-buffer-limit pubsub`).
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
    /// Messages that arrived before the server confirmed the last channel.
    early: VecDeque<Message>,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    /// Subscribes to channels. When this returns, the server has confirmed all of them.
    ///
    /// # Errors
    /// If there is no connection, or the server refuses.
    pub async fn subscribe(&self, channels: &[impl Argument]) -> Result<Subscription> {
        self.listen(owned(channels), BTreeSet::new()).await
    }

    /// Subscribes to all channels whose names match these patterns.
    ///
    /// # Errors
    /// If there is no connection, or the server refuses.
    pub async fn psubscribe(&self, patterns: &[impl Argument]) -> Result<Subscription> {
        self.listen(BTreeSet::new(), owned(patterns)).await
    }

    async fn listen(&self, channels: BTreeSet<Vec<u8>>, patterns: BTreeSet<Vec<u8>>) -> Result<Subscription> {
        if channels.is_empty() && patterns.is_empty() {
            return Err(Error::Invalid("a subscription to nothing".to_owned()));
        }
        let core = Arc::clone(&self.core);
        let permit = core.permit(core.deadline(Duration::ZERO)).await?;
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

fn owned(names: &[impl Argument]) -> BTreeSet<Vec<u8>> {
    let mut owned = BTreeSet::new();
    for name in names {
        name.with_bytes(&mut |bytes| {
            owned.insert(bytes.to_vec());
        });
    }
    owned
}

impl Subscription {
    /// The next message. The future may be dropped without losing a message.
    ///
    /// # Errors
    /// [`Error::Disconnected`] once when the connection breaks: messages that are published before it is restored are missed. The
    /// next call reconnects, subscribes to all channels again and waits for messages. It fails with [`Error::Connect`] if that
    /// takes longer than the response time-out.
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
                    if let Some(message) = message(value) {
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

    /// Replaces the subscribed channels by these, on the same connection. When this returns, the server has confirmed it.
    /// Patterns stay as they are.
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
        let wanted = owned(channels);
        let (gone, new): (Vec<_>, Vec<_>) =
            (self.channels.difference(&wanted).cloned().collect(), wanted.difference(&self.channels).cloned().collect());
        self.channels = wanted;
        let Some(mut wire) = self.wire.take() else { return Ok(()) };
        let mut out = Vec::new();
        for (name, of) in [("SUBSCRIBE", &new), ("UNSUBSCRIBE", &gone)] {
            if !of.is_empty() {
                out.extend_from_slice(Command::new(name).args(of).wire());
            }
        }
        let noted = async {
            wire.send(&out).await?;
            confirmed(&mut wire, new.len() + gone.len()).await
        };
        match timeout_at(self.core.deadline(Duration::ZERO), noted).await {
            Ok(early) => self.early.extend(early?),
            Err(_) => return Err(Error::Timeout { maybe_applied: true, after: self.core.options.response_timeout }),
        }
        self.early.retain(|message| message.pattern.is_some() || self.channels.contains(&message.channel[..]));
        self.wire = Some(wire);
        Ok(())
    }

    /// Whether the connection is not known to be broken.
    pub(crate) fn is_connected(&self) -> bool {
        self.wire.is_some()
    }

    async fn connect(&mut self) -> Result {
        let deadline = self.core.deadline(Duration::ZERO);
        let mut wire = self.core.open_by(deadline, &mut self.backoff).await?;
        let mut out = Vec::new();
        for (name, of) in [("SUBSCRIBE", &self.channels), ("PSUBSCRIBE", &self.patterns)] {
            if !of.is_empty() {
                out.extend_from_slice(Command::new(name).args(of).wire());
            }
        }
        let left = self.channels.len() + self.patterns.len();
        let noted = async {
            wire.send(&out).await?;
            confirmed(&mut wire, left).await
        };
        match timeout_at(deadline, noted).await {
            Ok(outcome) => self.early = outcome?,
            Err(_) => return Err(Error::Timeout { maybe_applied: true, after: self.core.options.response_timeout }),
        }
        self.wire = Some(wire);
        Ok(())
    }
}

/// Waits until this many channels are confirmed. Returns the messages that arrived before that.
async fn confirmed(wire: &mut Wire, mut left: usize) -> Result<VecDeque<Message>> {
    let mut early = VecDeque::new();
    while left > 0 {
        let value = wire.receive().await?.into_result()?;
        let kind = value.as_array().and_then(|items| items.first()?.as_str());
        if matches!(kind, Some("subscribe" | "psubscribe" | "unsubscribe")) {
            left -= 1;
        } else {
            early.extend(message(value));
        }
    }
    Ok(early)
}

/// Parses a message: `message channel payload`, or `pmessage pattern channel payload`. Returns `None` for anything else.
fn message(value: Value) -> Option<Message> {
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
