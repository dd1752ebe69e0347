//! Commands for keys of any type, such as DEL, EXPIRE, SCAN, SORT and DUMP, and for whole databases.

pub mod databases;
pub mod deadline;
pub mod expiry;
pub mod names;
pub mod scan;
pub mod serialization;
pub mod sort;
