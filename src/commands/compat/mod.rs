//! Redis commands that have nothing to do with locks: geo, HyperLogLog, LCS, CLUSTER, MODULE.

pub mod cluster;
pub mod geo;
pub mod hyperloglog;
pub mod lcs;
pub mod modules;
