//! `portcullis torture`: whether a lock algorithm keeps its promises when things go wrong.
pub mod arena;
pub mod check;
pub mod cli;
pub mod history;
pub mod known;
pub mod live;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod shrink;
pub mod sim;
pub mod subject;
pub mod table;
pub mod timeline;
pub mod workload;
