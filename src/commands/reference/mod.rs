//! Documentation generated from the rows: the syntax notation, the tables of the guide and the replies to `HELP`; and requests in
//! all forms, for tests.

#[cfg(any(test, feature = "internals"))]
pub mod forms;
pub mod help;
#[cfg(any(test, feature = "internals"))]
pub mod markdown;
#[cfg(any(test, feature = "internals"))]
pub mod missing;
pub mod syntax;
