//! Lock algorithms on the client's side, from `SETNX` to RedLock, over any server that speaks the Redis protocol.
//!
//! Users read of *algorithms*. This module and [`Recipe`] have an older name, which programs import.
//!
//! An [`Algorithm`] is one way to acquire a lock and to release it. It reaches servers, clocks, sleep and randomness only through
//! a [`World`], so that the same code runs over sockets ([`Live`]) and in a simulation on virtual time.
//!
//! Most programs use a [`Lock`], which returns [`Guard`]s. [`by_name`] and [`all`] choose an algorithm at run time, with the
//! [`Facts`] of each: what it guarantees, how it fails, and whether it is here only to show its flaws.
//!
//! | | locks of one holder | locks of several holders | no locks |
//! | --- | --- | --- | --- |
//! | waiters poll | [`Token`], [`CompareAndDelete`], [`RedLock`], [`Multi`], [`UniqueRow`] | | [`TokenBucket`], [`SlidingWindow`] |
//! | messages wake waiters | [`Reentrant`], [`Fair`], [`Nodes`] | [`ReadWrite`], [`Permits`] | [`Latch`] |
//! | waiters wait on the server | [`Native`] | [`Native`] (shared) | |
//! | flawed | [`SetNx`], [`SetNxExpire`], [`TimeStamp`], [`MemcachedAdd`], [`ListToken`], [`Broken`] | [`Semaphore`] | |
//!
//! ```text
//!   Request ─▶ Algorithm ─▶ World ─┬─ Live: clients of servers, tokio
//!     ▲            │               └─ a simulation
//!   Retry        Grant ◀─ Watchdog: renews it while its holder lives
//! ```
//!
//! In the source, `algorithm` is the place to begin. `plain/token` is the simplest algorithm that is fit for use. What algorithms
//! share is in `call` (commands and scripts) and `waiting` (polling, messages, retries). `catalogue` lists all algorithms.
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
//!     let algorithm = by_name(name).expect("an algorithm has this name");
//!     let guard = Lock::of(&world, algorithm.into(), format!("door:{name}")).acquire().await?;
//!     guard.release().await?;
//! }
//! # Ok(()) }
//! ```
#![doc = include_str!("ALGORITHMS.md")]

mod algorithm;
mod call;
mod catalogue;
pub mod counting;
mod facts;
mod live;
mod lock;
pub mod native;
pub mod other_systems;
pub mod plain;
pub mod redisson;
mod waiting;
mod watchdog;
mod world;

pub use algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
pub use catalogue::{Make, Recipe, all, by_name, facts, markdown_page};
pub use counting::latch::Latch;
pub use counting::permits::Permits;
pub use counting::rates::{Clock, Decision, SlidingWindow, TokenBucket};
pub use counting::semaphore::Semaphore;
pub use facts::Facts;
pub use live::{Live, LiveMessages};
pub use lock::{Guard, Lock};
pub use native::{Native, guard};
pub use other_systems::list_token::ListToken;
pub use other_systems::memcached::MemcachedAdd;
pub use other_systems::nodes::Nodes;
pub use other_systems::row::UniqueRow;
pub use plain::broken::Broken;
pub use plain::compare_and_delete::CompareAndDelete;
pub use plain::redlock::RedLock;
pub use plain::setnx::{SetNx, SetNxExpire};
pub use plain::time_stamp::TimeStamp;
pub use plain::token::Token;
pub use redisson::fair::Fair;
pub use redisson::multi::Multi;
pub use redisson::read_write::ReadWrite;
pub use redisson::reentrant::Reentrant;
pub(crate) use waiting::race::timeout;
pub use waiting::retry::Retry;
pub use watchdog::{Watchdog, WithWatchdog};
pub use world::{Messages, World};
