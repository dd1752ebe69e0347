//! Values: strings, lists, sets, hashes, sorted sets, streams and HyperLogLogs, each with a compact form for small values. Start
//! with [`value`].

pub mod hash;
pub mod hyperloglog;
pub mod ints;
pub mod list;
pub mod members;
pub mod packed;
pub mod set;
pub mod stream;
pub mod value;
pub mod zset;
