//! Lock algorithms on the client's side, from `SETNX` to RedLock, over any server that speaks the Redis protocol.
//!
//! An [`Algorithm`] is one way to take a lock and to give it back. It reaches servers, clocks, sleep and chance through a [`World`] only, so
//! that the same code runs over sockets ([`Live`]) and in a simulation on virtual time.
//!
//! ```text
//!   Request ─▶ Algorithm ─▶ World ─┬─ Live: clients of servers, tokio
//!     ▲            │               └─ a simulation
//!   Retry        Grant ◀─ Watch: renews it while its holder lives
//! ```

mod algorithm;
pub mod broken;
mod call;
mod catalogue;
pub mod compare_and_delete;
pub mod list_token;
mod live;
pub mod native;
mod race;
pub mod redlock;
mod retry;
pub mod setnx;
pub mod time_stamp;
pub mod token;
mod watchdog;
mod world;

pub use algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
pub use broken::Broken;
pub use catalogue::{Make, Recipe, all, by_name, facts};
pub use compare_and_delete::CompareAndDelete;
pub use list_token::ListToken;
pub use live::{Listening, Live};
pub use native::{Native, guard};
pub use redlock::RedLock;
pub use retry::Retry;
pub use setnx::{SetNx, SetNxExpire};
pub use time_stamp::TimeStamp;
pub use token::Token;
pub use watchdog::{Guarded, Watch};
pub use world::{Messages, World};
