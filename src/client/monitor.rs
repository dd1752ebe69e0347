//! `MONITOR`: receives the commands that a server executes, in order, on a connection of its own.

use bytes::Bytes;
use tokio::time::timeout;

use crate::client::command::Command;
use crate::client::connection::stream::Connector;
use crate::client::connection::wire::Wire;
use crate::client::error::{Error, Result};
use crate::client::options::Options;
use crate::client::value::Value;

/// A connection that receives every command that the server executes.
pub(crate) struct Monitor {
    wire: Wire,
}

impl Monitor {
    /// Connects. When this returns, the server sends every command that it executes from then on.
    ///
    /// # Errors
    /// If connecting fails or takes too long, or the server refuses.
    pub async fn open(options: &Options) -> Result<Monitor> {
        let opened = async {
            let mut wire = Wire::open(&Connector::new(options)?, options, options.connect_timeout).await?;
            wire.send(Command::new("MONITOR").wire()).await?;
            wire.receive().await?.into_result()?;
            Ok(Monitor { wire })
        };
        let after = options.connect_timeout;
        timeout(after, opened).await.unwrap_or(Err(Error::Timeout { maybe_applied: false, after }))
    }

    /// The next command, as the server writes it: `1700000000.123456 [0 127.0.0.1:50000] "SET" "key" "value"`. The future may be
    /// dropped without losing a command.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn next(&mut self) -> Result<Bytes> {
        loop {
            if let Value::Status(line) = self.wire.receive().await? {
                return Ok(line);
            }
        }
    }
}
