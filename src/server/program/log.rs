//! Logs: to standard error or a file, as text or JSON.
//!
//! What clients send may be in any message and field. Here alone it is made harmless, for all of them: a line of the log is one event,
//! and ends where the event ends. In JSON the format itself sees to that.

use std::fmt::{self, Debug, Write};
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use tracing::Metadata;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::files;

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging for the whole process, to standard error if `file` is empty.
pub fn start(level: &str, file: &str, format: Format) -> io::Result<()> {
    let writer = if file.is_empty() {
        BoxMakeWriter::new(io::stderr)
    } else {
        BoxMakeWriter::new(Mutex::new(files::append(Path::new(file))?))
    };
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).with_ansi(false);
    let lines = match format {
        Format::Text => lines.fmt_fields(OneLine).boxed(),
        Format::Json => lines.json().boxed(),
    };
    let lines = lines.with_filter(filter_fn(is_for_operators));
    // Lines wrap the filtered registry, so that the level can be changed without losing them.
    Registry::default().with(filter).with(lines).try_init().map_err(io::Error::other)?;
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Leaves out what openraft says of its own steps: what an operator has to know of a cluster, we log ourselves.
fn is_for_operators(event: &Metadata<'_>) -> bool {
    !event.target().starts_with("openraft") || *event.level() <= tracing::Level::ERROR
}

/// Changes the log level, if logging has started.
pub fn set_level(level: &str) {
    if let Some(handle) = LEVEL.get() {
        let _ = handle.modify(|filter_now| *filter_now = filter(level));
    }
}

/// Converts Redis's levels to ours.
fn filter(level: &str) -> LevelFilter {
    match level {
        "debug" => LevelFilter::TRACE,
        "verbose" => LevelFilter::DEBUG,
        "warning" => LevelFilter::WARN,
        "nothing" => LevelFilter::OFF,
        _ => LevelFilter::INFO,
    }
}

/// Writes the fields of an event as text: the message, and `name=value` for each of the others.
struct OneLine;

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = Fields { writer, is_first: true, written: Ok(()) };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct Fields<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    written: fmt::Result,
}

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: &str) {
        let is_message = field.name() == "message";
        let space = if std::mem::take(&mut self.is_first) { "" } else { " " };
        let written = match is_message {
            true => write!(self.writer, "{space}").and_then(|()| escape(&mut self.writer, value, &[])),
            false => write!(self.writer, "{space}{}=", field.name()).and_then(|()| quote(&mut self.writer, value)),
        };
        self.written = self.written.and(written);
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}"));
    }
}

/// Writes a value as it is if it can only be read as one, and otherwise in quotes.
fn quote(into: &mut impl Write, value: &str) -> fmt::Result {
    let is_plain = |c: char| !c.is_whitespace() && !is_hidden(c) && !['"', '\\', '='].contains(&c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return into.write_str(value);
    }
    into.write_char('"')?;
    escape(into, value, &['"', '\\'])?;
    into.write_char('"')
}

/// Writes a text with escapes for what cannot be seen, and with a backslash before some characters.
fn escape(into: &mut impl Write, text: &str, backslashed: &[char]) -> fmt::Result {
    for c in text.chars() {
        match c {
            _ if is_hidden(c) => write!(into, "{}", c.escape_debug())?,
            _ if backslashed.contains(&c) => write!(into, "\\{c}")?,
            _ => into.write_char(c)?,
        }
    }
    Ok(())
}

/// Whether a character ends a line, moves the cursor, changes the direction of writing or is otherwise not to be seen.
fn is_hidden(c: char) -> bool {
    !['"', '\'', '\\'].contains(&c) && c.escape_debug().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(value: &str) -> String {
        let mut text = String::new();
        quote(&mut text, value).expect("a string takes it");
        text
    }

    #[test]
    fn values_are_quoted_if_they_could_be_read_as_more_than_one_and_lines_cannot_be_made() {
        for (value, text) in [
            ("127.0.0.1:6379", "127.0.0.1:6379"),
            ("größe'", "größe'"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a\u{a0}b", "\"a\\u{a0}b\""),
            ("x owner=root", "\"x owner=root\""),
            ("a=b", "\"a=b\""),
            ("say \"hi\" \\n", "\"say \\\"hi\\\" \\\\n\""),
            ("a\r\n2026 INFO b", "\"a\\r\\n2026 INFO b\""),
            ("\u{1b}[2J\u{7f}\u{85}\u{0}", "\"\\u{1b}[2J\\u{7f}\\u{85}\\0\""),
            ("\u{2028}\u{2029}\u{202e}\u{200b}", "\"\\u{2028}\\u{2029}\\u{202e}\\u{200b}\""),
        ] {
            assert_eq!(quoted(value), text);
        }
        let mut text = String::new();
        escape(&mut text, "it's \"so\"\n\\", &[]).expect("a string takes it");
        assert_eq!(text, "it's \"so\"\\n\\");
    }
}
