//! Channels, patterns and their subscribers.
//!
//! There are three registries of the same kind: channels, patterns, and shard channels. A subscription is one node in two lists:
//! its topic's, in which messages are delivered in the order of subscribing, and its session's, so that removing a session costs
//! only its own subscriptions. If those are many, [`subscriptions::PubSub::free_some`] removes them in steps.
//!
//! ```text
//!   PUBLISH, keyspace events ─▶ topic of the channel ─▶ its subscriptions, oldest first ─▶ outboxes
//!                           └─▶ patterns that match, oldest first ─▶ theirs
//! ```
//!
//! `subscribe.rs` begins and ends subscriptions, of which `subscriptions.rs` has all and `registry.rs` those of one kind. `deliver.rs` publishes messages, `events.rs` those
//! of keyspace events, `lock_expiry.rs` those for clients that wait for a library's lock, and `lock_lost.rs` those for clients that
//! have lost a native lock. `relay.rs` and `relayed.rs` have messages for other nodes.

mod deliver;
mod events;
pub mod lock_expiry;
mod lock_lost;
mod registry;
pub mod relay;
pub mod relayed;
mod subscribe;
pub mod subscriptions;

pub use self::deliver::publish;
pub(super) use self::deliver::push_to;
pub use self::events::publish_pending;
pub(in crate::engine) use self::lock_lost::publish_lost;
pub use self::relay::publish_to_all;
pub use self::subscriptions::Kind;
