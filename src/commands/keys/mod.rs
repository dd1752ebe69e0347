//! Commands for keys of every type: DEL, EXPIRE, SCAN, SORT, DUMP, and for whole databases.

pub mod databases;
pub mod deadline;
pub mod expiry;
pub mod names;
pub mod scan;
pub mod serialization;
pub mod sort;
