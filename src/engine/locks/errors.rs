//! The error replies of requests for locks.

use crate::base::error::Error;
use crate::lock::Refusal;
use crate::lock::graph::{self, Step};
use crate::lock::locks::Cause;

/// Converts a refusal to an error reply; `wanted` is the requested limit.
pub(crate) fn refusal_error(refusal: &Refusal, name: &[u8], owner: &[u8], wanted: u32) -> Error {
    match refusal {
        Refusal::WrongType => Error::WRONG_TYPE,
        Refusal::Limit { has } => Error::quoting("LIMIT semaphore '", name, &format!("' has limit {has}, not {wanted}")),
        Refusal::HeldTooLong { for_ms, at_most_ms } => {
            let held = Error::quoting(&format!("ERR MAXHOLD {at_most_ms} is over: '"), owner, "' has held lock '");
            Error::quoting(&held.to_string(), name, &format!("' for {for_ms} ms"))
        }
        // Only a request is refused so, and says what its user may see.
        Refusal::Deadlock(cycle) => deadlock_error(cycle, |_| false),
        Refusal::Ended(name, cause) => refusal_error(&Refusal::NotHeld(cause.clone()), name, owner, wanted),
        Refusal::NotHeld(cause) => {
            let held = Error::quoting("NOTHELD lock '", name, "' is not held by '");
            let held = Error::quoting(&held.to_string(), owner, "': ");
            Error::quoting(&held.to_string(), described(cause, owner).as_bytes(), "")
        }
        Refusal::NoGrant { token, owner, cause } => {
            let none = Error::quoting("NOTHELD lock '", name, &format!("' has no grant with token {token}: "));
            Error::quoting(&none.to_string(), described(cause, owner).as_bytes(), "")
        }
    }
}

/// The error of a wait that would close a cycle, with the names that its user may see.
pub(crate) fn deadlock_error(cycle: &[Step], sees: impl Fn(&[u8]) -> bool) -> Error {
    Error::quoting("DEADLOCK ", &graph::describe(cycle, sees), "")
}

/// A cause in words. `owner` is the one that it is about.
fn described(cause: &Cause, owner: &[u8]) -> String {
    match cause {
        Cause::OtherToken { token, for_ms } => {
            Error::quoting("held by '", owner, &format!("' for {for_ms} ms with token {token}")).to_string()
        }
        Cause::Never => "never held".to_owned(),
        Cause::LeaseEnded { ago_ms } => format!("its lease ended {ago_ms} ms ago"),
        Cause::Released { ago_ms } => format!("released {ago_ms} ms ago"),
        Cause::Deleted { client, ago_ms } => format!("deleted by client {client} {ago_ms} ms ago"),
        Cause::Broken { client, ago_ms, why } => {
            let colon = if why.is_empty() { "" } else { ": " };
            Error::quoting(&format!("broken by client {client} {ago_ms} ms ago{colon}"), why, "").to_string()
        }
        Cause::SessionEnded { ago_ms } => format!("its connection was closed {ago_ms} ms ago"),
        Cause::HeldBy { owner, for_ms } => Error::quoting("held by '", owner, &format!("' for {for_ms} ms")).to_string(),
    }
}
