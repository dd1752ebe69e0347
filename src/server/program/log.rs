//! Logs: to standard error or a file, as text or JSON.

use std::fs::OpenOptions;
use std::io;
use std::sync::{Mutex, OnceLock};

use tracing::Metadata;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

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
        BoxMakeWriter::new(Mutex::new(OpenOptions::new().create(true).append(true).open(file)?))
    };
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).with_ansi(false);
    let lines = match format {
        Format::Text => lines.boxed(),
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
