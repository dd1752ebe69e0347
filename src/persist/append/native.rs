//! Native records as requests of our own that no redis-server knows: their name, and their payload as the only argument.
//!
//! ```text
//!   PORTCULLIS.LOCK payload               PORTCULLIS.SESSION payload
//!   PORTCULLIS.LATCH payload              PORTCULLIS.ENDSESSION id number      the session has ended
//!   PORTCULLIS.GUARD payload              PORTCULLIS.TOKEN payload
//!   PORTCULLIS.REQUESTS payload           PORTCULLIS.FORGET name owner         the remembered requests were forgotten
//! ```
//!
//! [`natives`] has the payloads. A lock that is gone is deleted with `DEL`, as every key. Databases are those that `SELECT` selects;
//! sessions belong to none.

use crate::lock::Lock;
use crate::lock::requests::Remembered;
use crate::lock::sessions::Session;
use crate::persist::append::clock::Moment;
use crate::persist::append::request::put_request;
use crate::persist::natives::{self, name};
pub use crate::persist::natives::{Native, Refusal, is_native, read};

/// Writes a lock.
pub fn put_lock(out: &mut Vec<u8>, moment: &Moment, key: &[u8], lock: &Lock) {
    put_request(out, &[name::LOCK, &natives::lock(moment, key, lock)]);
}

/// Writes a latch. Its deadline is in Unix milliseconds.
pub fn put_latch(out: &mut Vec<u8>, key: &[u8], left: u64, deadline: Option<i64>) {
    put_request(out, &[name::LATCH, &natives::count(key, left, deadline)]);
}

/// Writes a guard. Its deadline is in Unix milliseconds.
pub fn put_guard(out: &mut Vec<u8>, key: &[u8], seen: u64, deadline: Option<i64>) {
    put_request(out, &[name::GUARD, &natives::count(key, seen, deadline)]);
}

/// Writes the remembered requests of an owner.
pub fn put_requests(out: &mut Vec<u8>, moment: &Moment, key: &[u8], owner: &[u8], remembered: &Remembered) {
    put_request(out, &[name::REQUESTS, &natives::requests(moment, key, owner, remembered)]);
}

/// Writes that the remembered requests of an owner were forgotten.
pub fn put_forget(out: &mut Vec<u8>, key: &[u8], owner: &[u8]) {
    put_request(out, &[name::FORGET, key, owner]);
}

/// Writes a named session.
pub fn put_session(out: &mut Vec<u8>, moment: &Moment, number: u64, session: &Session) {
    put_request(out, &[name::SESSION, &natives::session(moment, number, session)]);
}

/// Writes that a named session has ended.
pub fn put_session_end(out: &mut Vec<u8>, id: &[u8], number: u64) {
    put_request(out, &[name::END_SESSION, id, itoa::Buffer::new().format(number).as_bytes()]);
}

/// Writes that no token below this one is given any more.
#[allow(dead_code, reason = "tests use it")]
pub fn put_token(out: &mut Vec<u8>, next: u64) {
    put_request(out, &[name::TOKEN, &natives::token(next)]);
}
