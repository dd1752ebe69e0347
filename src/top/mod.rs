//! `portcullis top`: a live view of the locks of a server, in a terminal.
//!
//! ```text
//!   live ─┬─ ask: LOCK.LIST, LOCK.GRAPH, LOCK.STATS, … ─▶ facts ─┐
//!         └─ keys ─▶ input ─▶ actions ───────────────────────────┴▶ screen ─▶ view
//!   once ─── ask ─▶ facts ─▶ text, or json
//! ```
//!
//! Only `live`, `once` and `ask` touch a terminal, a clock or a server. `facts` reads replies, `screen` is what the user sees and
//! does, and `view` draws it; they have no side effects. It is a client of the server like any other: every command that it sends
//! can be sent by hand.

mod ask;
pub mod cli;
mod facts;
mod headline;
mod input;
mod json;
mod live;
mod names;
mod once;
mod read;
mod rows;
mod screen;
#[cfg(test)]
mod tests;
mod text;
mod view;
mod words;
