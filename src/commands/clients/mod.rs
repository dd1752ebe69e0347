//! Connection commands: HELLO, AUTH, CLIENT, ACL, MULTI and EXEC, and publish/subscribe.

pub mod acl;
pub mod blocking;
pub mod client;
pub mod connection;
pub mod list;
pub mod pubsub;
pub mod tracking;
pub mod transactions;
