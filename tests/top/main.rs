//! `portcullis top` from outside: what `--once` prints, and the live view in a terminal.
//!
//! - `jam` makes a server with clients that wait for each other;
//! - `terminal` runs the program in a pseudo terminal, and knows what stands on its screen.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod jam;
mod live;
mod once;
mod terminal;
