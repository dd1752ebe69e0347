//! The wire: requests in, replies out, in RESP2 and RESP3.
//!
//! [`request`] finds the arguments of a request in a read buffer without copying them; [`reply`] writes replies. Neither
//! knows what a command is. Decoding replies is the client's side and is left to the `redis-protocol` crate.

pub mod double;
pub mod element;
pub mod reply;
pub mod request;
