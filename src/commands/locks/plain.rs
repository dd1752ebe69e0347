//! A plain key, as [`info`](crate::commands::locks::info) shows it: its value, when it was last used, and who wrote it last.

use crate::base::time::Now;
use crate::base::words::{long, pasteable};
use crate::engine::Engine;
use crate::lock::ended_clients::KnownClient;
use crate::resp::reply::Sink;
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::hash::digits;
use crate::store::values::value::Value;

/// Maximum number of bytes of a string, or of a field of a hash, that are shown.
const VALUE_MAX: usize = 256;

/// Maximum number of fields of a hash that are shown.
const FIELDS_MAX: usize = 16;

/// What is shown of a plain key.
pub(super) struct Plain {
    content: Content,
    /// Seconds since it was last used, where they are known.
    idle_s: Option<u32>,
    writer: Option<Writer>,
}

/// What is shown of a plain key's value.
enum Content {
    /// Nothing: it is of another type.
    Other,
    /// The string.
    Text(Vec<u8>),
    /// The first fields and values of a hash, as locks of Redis clients have it.
    Fields(Vec<(Vec<u8>, Vec<u8>)>),
}

/// The client that wrote a plain key last.
struct Writer {
    client: u64,
    known: KnownClient,
    gone_ms: Option<u64>,
}

impl Plain {
    /// What is shown of the entry. Its writer is still to be found.
    pub(super) fn of(entry: EntryRef<'_>, now: Now, idle_s: Option<u32>) -> Plain {
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(VALUE_MAX)].to_vec();
        let content = match entry.value() {
            ValueRef::Boxed(Value::Bytes(bytes)) => Content::Text(cut(bytes)),
            ValueRef::Bytes(bytes) => Content::Text(cut(bytes)),
            ValueRef::Count { field, count } => Content::Fields(vec![(cut(field), digits(count).to_vec())]),
            ValueRef::Boxed(Value::Hash(hash)) => {
                let fields = hash.iter().filter(|field| !field.is_expired(now.ended_ms())).take(FIELDS_MAX);
                Content::Fields(fields.map(|field| (cut(field.name), cut(field.value))).collect())
            }
            _ => Content::Other,
        };
        Plain { content, idle_s, writer: None }
    }

    /// Finds what is known of the client that wrote the key last, by the last 32 bits of its number.
    pub(super) fn find_writer(&mut self, engine: &Engine, now: Now, number: Option<u32>) {
        self.writer = number.map(|number| {
            let (client, known) = engine.known_writer(number);
            let gone_ms = known.ended_ms.map(|ended_ms| now.mono_ms().saturating_sub(ended_ms));
            Writer { client, known, gone_ms }
        });
    }

    /// Whether a value is shown.
    pub(super) fn has_value(&self) -> bool {
        !matches!(self.content, Content::Other)
    }

    /// A sentence about the client that wrote it last, with a space before it; empty if that is not known.
    pub(super) fn writer_in_words(&self) -> String {
        let Some(Writer { client, known: KnownClient { name, addr, .. }, gone_ms }) = &self.writer else { return String::new() };
        let name = if name.is_empty() { String::new() } else { format!(", named {}", pasteable(name)) };
        let state = match gone_ms {
            Some(gone_ms) => format!(" ({addr}{name}), whose connection ended {} ago", long(*gone_ms)),
            None if !addr.is_empty() => format!(" ({addr}{name}), which is connected"),
            None => ", of which nothing else is known".to_owned(),
        };
        format!(" It was last written by client {client}{state}.")
    }

    /// Writes the value, if it is shown, as the field `value` or `fields`; and the field `idle`.
    pub(super) fn write_value(&self, reply: &mut dyn Sink) {
        match &self.content {
            Content::Other => {}
            Content::Text(value) => reply.entry("value", value),
            Content::Fields(fields) => {
                reply.bulk(b"fields");
                reply.map(fields.len());
                fields.iter().for_each(|(field, value)| {
                    reply.bulk(field);
                    reply.bulk(value);
                });
            }
        }
        reply.entry("idle", self.idle_s.map(u64::from));
    }

    /// Writes the field `writer`.
    pub(super) fn write_writer(&self, reply: &mut dyn Sink) {
        reply.bulk(b"writer");
        let Some(Writer { client, known, gone_ms }) = &self.writer else {
            reply.null();
            return;
        };
        reply.map(5);
        reply.entry("client", *client);
        reply.entry("addr", &*known.addr);
        reply.entry("client-name", &known.name);
        reply.entry("gone", *gone_ms);
        reply.entry("user", &known.user);
    }
}
