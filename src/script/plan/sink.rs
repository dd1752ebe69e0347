//! The reply to a call in a plan.

use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::{Protocol, Sink};
use crate::script::plan::values::{Arena, Text, Value};

/// Receives the reply to one call. The values are those that Lua gets in RESP2; see
/// [`LuaSink`](crate::script::conversion::to_lua::LuaSink).
pub(super) struct CallSink<'c, 'r> {
    pub arena: &'c mut Arena<'r>,
    /// The number of the call in the run.
    pub call: u32,
    /// The reply, unless it is in `overflow`.
    pub value: Value<'r>,
    pub overflow: Option<Overflow>,
}

/// A reply that does not fit in the arena, or an error.
pub(super) enum Overflow {
    Text(Vec<u8>),
    Status(Vec<u8>),
    Error(Vec<u8>),
}

impl CallSink<'_, '_> {
    /// Commands that a plan calls never reply with an aggregate.
    #[cold]
    fn aggregate(&mut self) {
        debug_assert!(false, "an aggregate");
        self.error(b"ERR a script's command replied with an aggregate");
    }

    #[cold]
    fn overflow(&mut self, text: &[u8], kind: fn(Vec<u8>) -> Overflow) {
        self.overflow = Some(kind(text.to_vec()));
    }
}

impl Sink for CallSink<'_, '_> {
    fn protocol(&self) -> Protocol {
        Protocol::Resp2
    }

    fn simple(&mut self, text: &str) {
        match self.arena.copy(text.as_bytes()) {
            Some(text) => self.value = Value::Status(self.call, Text::Borrowed(text)),
            None => self.overflow(text.as_bytes(), Overflow::Status),
        }
    }

    fn error(&mut self, text: &[u8]) {
        self.overflow(text, Overflow::Error);
    }

    fn integer(&mut self, n: i64) {
        self.value = Value::Number(n as f64);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        match self.arena.copy(bytes) {
            Some(text) => self.value = Value::Text(Text::Borrowed(text)),
            None => self.overflow(bytes, Overflow::Text),
        }
    }

    fn null(&mut self) {
        self.value = Value::Boolean(false);
    }

    fn null_array(&mut self) {
        self.null();
    }

    fn array(&mut self, _: usize) {
        self.aggregate();
    }

    fn map(&mut self, _: usize) {
        self.aggregate();
    }

    fn set(&mut self, _: usize) {
        self.aggregate();
    }

    fn push(&mut self, _: usize) {
        self.aggregate();
    }

    fn double(&mut self, value: f64) {
        let mut text = [0; DOUBLE_MAX];
        self.bulk(format_double(value, &mut text));
    }

    fn boolean(&mut self, value: bool) {
        self.integer(value.into());
    }

    fn big_number(&mut self, decimal: &str) {
        self.bulk(decimal.as_bytes());
    }

    fn verbatim(&mut self, _: &str, text: &[u8]) {
        self.bulk(text);
    }
}
