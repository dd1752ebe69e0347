//! Redis commands that have nothing to do with locks: geo, HyperLogLog, LCS, CLUSTER, SENTINEL, MODULE.

pub mod cluster;
mod cluster_nodes;
pub mod geo;
pub mod hyperloglog;
pub mod lcs;
pub mod modules;
pub mod sentinel;
