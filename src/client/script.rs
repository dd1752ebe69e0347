//! Lua scripts, which the client sends by their digest.

use std::fmt::Write;

use sha1::{Digest, Sha1};

use crate::client::client::Client;
use crate::client::command::{Argument, Command};
use crate::client::error::{Error, Result};
use crate::client::value::FromValue;

/// A Lua script. The client sends it as `EVALSHA`. If the server does not have the script, the client sends it as `EVAL`, and the
/// server caches it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// use portcullis::client::Script;
///
/// let release = Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0");
/// client.command(&["SET", "lock:door", "alice"]).await?;
/// assert!(!release.run::<bool>(&client, &["lock:door"], &["bob"]).await?);
/// assert!(release.run::<bool>(&client, &["lock:door"], &["alice"]).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    code: String,
    sha1: String,
    idempotent: bool,
}

impl Script {
    /// A script with this code.
    pub fn new(code: impl Into<String>) -> Script {
        let code = code.into();
        let digest = Sha1::digest(code.as_bytes());
        let mut sha1 = String::with_capacity(40);
        digest.iter().for_each(|byte| write!(sha1, "{byte:02x}").unwrap_or_default());
        Script { code, sha1, idempotent: false }
    }

    /// Declares that running the script twice does no harm; see [`Command::idempotent`].
    pub fn idempotent(mut self) -> Script {
        self.idempotent = true;
        self
    }

    /// The script's SHA-1 in hexadecimal digits.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }

    /// The script's code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The command that runs the script by its digest, up to the keys; append the arguments. A server without the script answers
    /// `NOSCRIPT`.
    pub fn by_digest(&self, keys: &[impl Argument]) -> Command {
        self.call("EVALSHA", &self.sha1, keys)
    }

    /// The command that runs the script and makes the server cache it, up to the keys; append the arguments.
    pub fn in_full(&self, keys: &[impl Argument]) -> Command {
        self.call("EVAL", &self.code, keys)
    }

    fn call(&self, name: &str, script: &str, keys: &[impl Argument]) -> Command {
        let call = Command::new(name).arg(script).arg(keys.len()).args(keys);
        if self.idempotent { call.idempotent() } else { call }
    }

    /// Runs the script.
    ///
    /// # Errors
    /// As [`Client::query`]. The changes that a script made before it failed stay.
    pub async fn run<T: FromValue>(&self, client: &Client, keys: &[impl Argument], arguments: &[impl Argument]) -> Result<T> {
        match client.query(self.by_digest(keys).args(arguments)).await {
            Err(Error::Reply(reply)) if reply.code() == "NOSCRIPT" => client.query(self.in_full(keys).args(arguments)).await,
            outcome => outcome,
        }
    }
}
