//! Lock algorithms on the client's side, from `SETNX` to RedLock, over any server that speaks the Redis protocol.
//!
//! An [`Algorithm`] is one way to take a lock and to release it. It reaches servers, clocks, sleep and randomness only through a
//! [`World`], so that the same code runs over sockets ([`Live`]) and in a simulation on virtual time.
//!
//! Most programs use a [`Lock`], which returns [`Guard`]s. [`by_name`] and [`all`] choose an algorithm at run time, with the
//! [`Facts`] of each: what it guarantees, how it fails, and whether it is here only to show its flaws.
//!
//! | | locks | of several holders | no locks |
//! | --- | --- | --- | --- |
//! | polling | [`Token`], [`CompareAndDelete`], [`RedLock`], [`Multi`], [`UniqueRow`] | | [`TokenBucket`], [`SlidingWindow`] |
//! | woken by messages | [`Reentrant`], [`Fair`], [`Nodes`] | [`ReadWrite`], [`Permits`] | [`Latch`] |
//! | waiting on the server | [`Native`] | [`Native`] (shared) | |
//! | flawed | [`SetNx`], [`SetNxExpire`], [`TimeStamp`], [`MemcachedAdd`], [`ListToken`], [`Broken`] | [`Semaphore`] | |
//!
//! ```text
//!   Request ─▶ Algorithm ─▶ World ─┬─ Live: clients of servers, tokio
//!     ▲            │               └─ a simulation
//!   Retry        Grant ◀─ Watch: renews it while its holder lives
//! ```
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
//! # let server = portcullis::TestServer::start();
//! # let url = server.url();
//! use portcullis::client::Client;
//! use portcullis::recipes::{Live, Lock, by_name};
//!
//! let world = Live::new([Client::connect(&url).await?]);
//! for name in ["set-nx-px", "reentrant+watchdog", "nodes"] {
//!     let algorithm = by_name(name).expect("there is one of that name");
//!     let guard = Lock::of(&world, algorithm.into(), format!("door:{name}")).acquire().await?;
//!     guard.release().await?;
//! }
//! # Ok(()) }
//! ```
#![doc = include_str!("RECIPES.md")]

mod algorithm;
pub mod broken;
mod call;
mod catalogue;
pub mod compare_and_delete;
pub mod fair;
mod guard;
pub mod latch;
pub mod list_token;
mod live;
pub mod memcached;
pub mod multi;
pub mod native;
pub mod nodes;
pub mod permits;
mod race;
pub mod rates;
pub mod read_write;
pub mod redlock;
pub mod reentrant;
mod retry;
pub mod row;
pub mod semaphore;
pub mod setnx;
pub mod time_stamp;
pub mod token;
mod wake;
mod watchdog;
mod world;

pub use algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
pub use broken::Broken;
pub use catalogue::{Make, Recipe, all, by_name, facts, markdown_page};
pub use compare_and_delete::CompareAndDelete;
pub use fair::Fair;
pub use guard::{Guard, Lock};
pub use latch::Latch;
pub use list_token::ListToken;
pub use live::{Listening, Live};
pub use memcached::MemcachedAdd;
pub use multi::Multi;
pub use native::{Native, guard};
pub use nodes::Nodes;
pub use permits::Permits;
pub(crate) use race::within;
pub use rates::{Clock, Decision, SlidingWindow, TokenBucket};
pub use read_write::ReadWrite;
pub use redlock::RedLock;
pub use reentrant::Reentrant;
pub use retry::Retry;
pub use row::UniqueRow;
pub use semaphore::Semaphore;
pub use setnx::{SetNx, SetNxExpire};
pub use time_stamp::TimeStamp;
pub use token::Token;
pub use watchdog::{Guarded, Watch};
pub use world::{Messages, World};
