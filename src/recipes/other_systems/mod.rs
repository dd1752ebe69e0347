//! Locks of other systems, rebuilt on Redis commands so that they can be compared with the others.
//!
//! [`nodes`] is ZooKeeper's lock, [`memcached`] is memcached's, [`row`] is that of SQL databases, and [`list_token`] is a message
//! queue with one message.

pub mod list_token;
pub mod memcached;
pub mod nodes;
pub mod row;
