//! Commands, and what the client has to know about them: which ones block, and which ones change the state of a connection.

use std::time::Duration;

use crate::client::error::{Error, Result};

/// Number of bytes that are reserved for the line with the number of arguments.
const HEADER: usize = 16;
/// Maximum number of bytes that the protocol adds to an argument. A length has at most twenty digits.
const FRAME: usize = 25;

/// A command and its arguments. Each argument is any sequence of bytes.
///
/// ```
/// use portcullis::client::Command;
///
/// let set = Command::new("SET").arg("lock:door").arg("alice").arg("NX").arg("PX").arg(30_000);
/// assert_eq!(set.wire(), b"*6\r\n$3\r\nSET\r\n$9\r\nlock:door\r\n$5\r\nalice\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n");
/// ```
#[derive(Clone, Debug)]
pub struct Command {
    /// [`HEADER`] reserved bytes, then the encoded arguments.
    wire: Vec<u8>,
    /// Offset of the line with the number of arguments, which ends where the reserved bytes end.
    start: usize,
    count: usize,
    idempotent: bool,
    /// As [`Command::waits`] declares it.
    blocking: Blocking,
}

/// How long a command may block on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// The server replies at once.
    No,
    /// The server replies within this time.
    For(Duration),
    /// There is no limit.
    Forever,
}

/// Types that can be an argument of a [`Command`].
pub trait Argument {
    /// Calls `give` with the argument's bytes.
    fn with_bytes(&self, give: &mut dyn FnMut(&[u8]));
}

macro_rules! bytes_arguments {
    ($($argument:ty),*) => {$(
        impl Argument for $argument {
            fn with_bytes(&self, give: &mut dyn FnMut(&[u8])) {
                give(self.as_ref());
            }
        }
    )*};
}
bytes_arguments!(str, String, [u8], Vec<u8>, bytes::Bytes);

impl<const N: usize> Argument for [u8; N] {
    fn with_bytes(&self, give: &mut dyn FnMut(&[u8])) {
        give(self);
    }
}

impl<T: Argument + ?Sized> Argument for &T {
    fn with_bytes(&self, give: &mut dyn FnMut(&[u8])) {
        (**self).with_bytes(give);
    }
}

macro_rules! number_arguments {
    ($($number:ty),*) => {$(
        impl Argument for $number {
            fn with_bytes(&self, give: &mut dyn FnMut(&[u8])) {
                give(itoa::Buffer::new().format(*self).as_bytes());
            }
        }
    )*};
}
number_arguments!(i32, u32, i64, u64, usize);

impl Argument for f64 {
    fn with_bytes(&self, give: &mut dyn FnMut(&[u8])) {
        give(self.to_string().as_bytes());
    }
}

impl Command {
    /// A command without arguments. For a two-word command such as `CLIENT ID`, the second word is an argument.
    pub fn new(name: impl Argument) -> Command {
        let mut wire = Vec::with_capacity(128);
        wire.resize(HEADER, 0);
        Command { wire, start: HEADER, count: 0, idempotent: false, blocking: Blocking::No }.arg(name)
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Argument) -> Command {
        self.push(&argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: Argument>(mut self, arguments: impl IntoIterator<Item = A>) -> Command {
        arguments.into_iter().for_each(|argument| self.push(&argument));
        self
    }

    fn push(&mut self, argument: &dyn Argument) {
        let wire = &mut self.wire;
        argument.with_bytes(&mut |bytes| put(wire, bytes));
        self.count += 1;
        if let Some(digit) = digit(self.count) {
            self.start = HEADER - 4;
            return self.wire[HEADER - 4..HEADER].copy_from_slice(&[b'*', digit, b'\r', b'\n']);
        }
        let mut number = itoa::Buffer::new();
        let digits = number.format(self.count).as_bytes();
        self.start = HEADER - digits.len() - 3;
        self.wire[self.start] = b'*';
        self.wire[self.start + 1..HEADER - 2].copy_from_slice(digits);
        self.wire[HEADER - 2..HEADER].copy_from_slice(b"\r\n");
    }

    /// Declares that running the command twice does no harm. If the connection breaks before the reply, the client sends the
    /// command again. Without this declaration the command fails, and its error says whether it may have been carried out.
    pub fn idempotent(mut self) -> Command {
        self.idempotent = true;
        self
    }

    /// Declares that the command blocks on the server, at most this long, or without limit (`None`). Such a command gets a
    /// connection of its own, so that it does not delay others. The blocking commands of Redis and of this server need no
    /// declaration.
    pub fn waits(mut self, at_most: Option<Duration>) -> Command {
        self.blocking = at_most.map_or(Blocking::Forever, Blocking::For);
        self
    }

    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    /// The command's bytes on the wire.
    pub fn wire(&self) -> &[u8] {
        &self.wire[self.start..]
    }

    /// The command's arguments, beginning with its name.
    pub(crate) fn arguments(&self) -> Arguments<'_> {
        Arguments { rest: &self.wire[HEADER..], left: self.count }
    }

    /// Whether the command has one of these names, in any case.
    pub(crate) fn name_is(&self, names: &[&str]) -> bool {
        self.arguments().next().is_some_and(|name| is_one_of(name, names))
    }

    /// How long the command may block on the server.
    pub(crate) fn blocking(&self) -> Blocking {
        if self.blocking != Blocking::No {
            return self.blocking;
        }
        match self.timeout_seconds().map(Duration::try_from_secs_f64) {
            Some(Ok(Duration::ZERO)) => Blocking::Forever,
            Some(Ok(wait)) => Blocking::For(wait),
            // The server refuses a time-out that is not a number, or is negative.
            Some(Err(_)) | None => Blocking::No,
        }
    }

    /// The time-out argument of a known blocking command, in seconds; 0 means no limit.
    fn timeout_seconds(&self) -> Option<f64> {
        let name = self.arguments().next()?;
        // The first letter rules out nearly all commands.
        if !matches!(name.first().map(u8::to_ascii_lowercase), Some(b'b' | b'l' | b's' | b'w' | b'x')) {
            return None;
        }
        let is = |names: &[&str]| is_one_of(name, names);
        let ms = |text: &[u8]| number(text).map(|ms| ms / 1000.0);
        if is(&["blpop", "brpop", "brpoplpush", "blmove", "bzpopmin", "bzpopmax"]) {
            number(self.arguments().last()?)
        } else if is(&["blmpop", "bzmpop"]) {
            number(self.arguments().nth(1)?)
        } else if is(&["wait", "waitaof"]) {
            ms(self.arguments().last()?)
        } else if is(&["xread", "xreadgroup"]) {
            ms(self.option("BLOCK", 1)?)
        // The search for WAIT begins after names and owner, which may be spelled like the option.
        } else if is(&["latch.await"]) {
            ms(self.option("WAIT", 2)?)
        } else if is(&["lock.acquire", "sem.acquire"]) {
            ms(self.option("WAIT", 4)?)
        } else if is(&["lock.acquireall"]) {
            let names = number(self.arguments().nth(1)?)? as usize;
            ms(self.option("WAIT", names.saturating_add(4))?)
        } else {
            None
        }
    }

    /// The argument that follows an option. The search for the option begins with this argument; the command's name is number 0.
    fn option(&self, option: &str, first: usize) -> Option<&[u8]> {
        let mut arguments = self.arguments().skip(first);
        arguments.find(|argument| argument.eq_ignore_ascii_case(option.as_bytes()))?;
        arguments.next()
    }

    /// Refuses commands that would change the shared connection for all its users, or that do not have exactly one reply.
    pub(crate) fn check_shared(&self) -> Result {
        self.check_dedicated()?;
        let changes_connection =
            self.name_is(&["multi", "exec", "discard", "watch", "unwatch", "select", "auth", "asking", "readonly", "readwrite"])
                || self.is_client(&["tracking", "caching", "no-evict", "no-touch", "setname"]);
        match changes_connection {
            false => Ok(()),
            true => Err(Error::Invalid(format!(
                "{} changes the state of a connection, and this connection is shared: use Client::dedicated or Client::transaction",
                self.title()
            ))),
        }
    }

    /// Refuses commands that change the protocol, or that do not have exactly one reply.
    pub(crate) fn check_dedicated(&self) -> Result {
        let subscribes = ["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe"];
        if self.name_is(&subscribes) {
            return Err(Error::Invalid(format!("use Client::subscribe or Client::psubscribe instead of {}", self.title())));
        }
        match self.name_is(&["monitor", "sync", "psync", "hello", "reset", "quit"]) || self.is_client(&["reply"]) {
            false => Ok(()),
            true => Err(Error::Invalid(format!(
                "the client does not support {}, which changes the protocol or does not have exactly one reply",
                self.title()
            ))),
        }
    }

    /// Whether the command is `CLIENT` with one of these subcommands.
    fn is_client(&self, subcommands: &[&str]) -> bool {
        self.name_is(&["client"]) && self.arguments().nth(1).is_some_and(|subcommand| is_one_of(subcommand, subcommands))
    }

    /// The command's name in error messages.
    fn title(&self) -> String {
        String::from_utf8_lossy(self.arguments().next().unwrap_or_default()).to_uppercase()
    }
}

/// Whether an argument is one of these words, in any case.
fn is_one_of(argument: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| argument.eq_ignore_ascii_case(word.as_bytes()))
}

/// The bytes of an argument.
pub(crate) fn argument_bytes(argument: impl Argument) -> Vec<u8> {
    let mut bytes = Vec::new();
    argument.with_bytes(&mut |given| bytes.extend_from_slice(given));
    bytes
}

/// The ASCII digit of a number below ten. This fast path serves nearly all lengths.
fn digit(number: usize) -> Option<u8> {
    u8::try_from(number).ok().filter(|number| *number < 10).map(|number| b'0' + number)
}

/// Appends an encoded argument: its length and its bytes.
fn put(wire: &mut Vec<u8>, bytes: &[u8]) {
    wire.reserve(bytes.len() + FRAME);
    match digit(bytes.len()) {
        Some(digit) => wire.extend_from_slice(&[b'$', digit, b'\r', b'\n']),
        None => {
            wire.push(b'$');
            wire.extend_from_slice(itoa::Buffer::new().format(bytes.len()).as_bytes());
            wire.extend_from_slice(b"\r\n");
        }
    }
    wire.extend_from_slice(bytes);
    wire.extend_from_slice(b"\r\n");
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The arguments of a [`Command`], in order.
pub(crate) struct Arguments<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        // The digits of the length begin after the dollar sign.
        let (mut line, mut len) = (1, 0);
        while let Some(digit @ b'0'..=b'9') = self.rest.get(line) {
            (line, len) = (line + 1, len * 10 + usize::from(digit - b'0'));
        }
        let argument = &self.rest[line + 2..line + 2 + len];
        self.rest = &self.rest[line + 2 + len + 2..];
        Some(argument)
    }
}

/// Converts `&["SET", "k", "v"]` to a command.
pub(crate) fn of_slice<A: AsRef<[u8]>>(words: &[A]) -> Result<Command> {
    let (name, arguments) = words.split_first().ok_or_else(|| Error::Invalid("the command is empty".to_owned()))?;
    Ok(Command::new(name.as_ref()).args(arguments.iter().map(AsRef::as_ref)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn command(text: &str) -> Command {
        of_slice(&text.split(' ').collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn arguments_are_any_bytes() {
        let command = Command::new("SET").arg(b"\r\n$1\r\n".as_slice()).arg("").arg(-5i64).arg(1.5).args([1u64, 2]);
        let wire = b"*7\r\n$3\r\nSET\r\n$6\r\n\r\n$1\r\n\r\n$0\r\n\r\n$2\r\n-5\r\n$3\r\n1.5\r\n$1\r\n1\r\n$1\r\n2\r\n";
        assert_eq!(command.wire(), wire);
        let arguments: Vec<&[u8]> = command.arguments().collect();
        assert_eq!(arguments, [&b"SET"[..], b"\r\n$1\r\n", b"", b"-5", b"1.5", b"1", b"2"]);
        let long = ["123456789", "1234567890", &"x".repeat(100)];
        assert_eq!(Command::new("SET").args(long).arguments().skip(1).collect::<Vec<_>>(), long.map(str::as_bytes));
        let many = Command::new("DEL").args((0..1000).map(|i| i.to_string()));
        assert!(many.wire().starts_with(b"*1001\r\n$3\r\nDEL\r\n$1\r\n0\r\n"));
        assert!(of_slice::<&str>(&[]).is_err());
    }

    #[test]
    fn blocking_commands_and_their_time_outs_are_known() {
        let waits = |ms| Blocking::For(Duration::from_millis(ms));
        for (text, blocking) in [
            ("GET WAIT", Blocking::No),
            ("BLPOP a b 1.5", waits(1500)),
            ("blpop a 0", Blocking::Forever),
            ("BLMPOP 2 1 a LEFT", waits(2000)),
            ("BLMOVE a b LEFT RIGHT 1", waits(1000)),
            ("XREAD COUNT 1 BLOCK 30 STREAMS s $", waits(30)),
            ("WAIT 1 50", waits(50)),
            ("LOCK.ACQUIRE WAIT 5 1000", Blocking::No),
            ("LOCK.ACQUIRE a WAIT 1000 WAIT 0", Blocking::Forever),
            ("LOCK.ACQUIRE a x 1000 SHARED WAIT 70", waits(70)),
            ("LOCK.ACQUIREALL 2 WAIT 7 x 1000", Blocking::No),
            ("LOCK.ACQUIREALL 2 a b x 1000 WAIT 7", waits(7)),
            ("SEM.ACQUIRE s x 1000 LIMIT 3 WAIT 9", waits(9)),
            ("LATCH.AWAIT l WAIT 9", waits(9)),
            ("BLPOP a x", Blocking::No),
            ("BLPOP a -1", Blocking::No),
            ("BLPOP a nan", Blocking::No),
        ] {
            assert_eq!(command(text).blocking(), blocking, "{text}");
        }
        assert_eq!(command("MYMODULE.WAIT").waits(None).blocking(), Blocking::Forever);
    }

    #[test]
    fn commands_that_change_a_connection_are_refused_on_a_shared_one() {
        for text in ["MULTI", "select 1", "WATCH a", "CLIENT TRACKING ON", "AUTH x"] {
            assert!(command(text).check_shared().is_err(), "{text}");
            assert!(command(text).check_dedicated().is_ok(), "{text}");
        }
        for text in ["SUBSCRIBE a", "MONITOR", "CLIENT REPLY OFF", "HELLO 2", "PSYNC ? -1"] {
            assert!(command(text).check_shared().is_err() && command(text).check_dedicated().is_err(), "{text}");
        }
        for text in ["GET MULTI", "CLIENT LIST", "CLIENT ID", "EVAL x 0", "PUBLISH a b"] {
            assert!(command(text).check_shared().is_ok(), "{text}");
        }
    }
}
