//! What the reader refuses, and that both files have the same bytes. `append::tests` reads back what is written.

use super::*;
use crate::base::time::Now;
use crate::lock::grant::{Owner, SessionNumber};
use crate::lock::requests::{ANSWERS, Answer, Answered, ID_MAX};
use crate::lock::{Bound, Client, Grant, Mode, UserKey};
use crate::persist::natives::clock::BootClock;

fn moment() -> Moment {
    Moment { now: Now::new(4_000_000_000, 1_750_000_000_000), boot: BootClock { id: [9; 16], now_ms: 500_000 } }
}

fn read_payload<'a>(name: &'static [u8], payload: &'a [u8]) -> Result<Native<'a>, Refusal> {
    read(&[name, payload], &moment())
}

fn grant(owner: &str, token: u64, mode: Mode, permits: u32) -> Grant {
    let owner = Owner::from_slice(owner.as_bytes());
    let (bound, client) = (Bound::Lease, Client { id: 7, slot: 3, user: UserKey(9) });
    Grant {
        owner,
        token,
        holds: 1,
        mode,
        permits,
        renewed: 0,
        granted_ms: 1,
        end_ms: 9_000_000,
        max_end_ms: 0,
        delay_ms: 0,
        bound,
        client,
    }
}

/// The lock with these parts as it is read back, though it may be one that no operation makes.
fn read_lock(limit: u32, grants: &[Grant]) -> Result<Lock, Refusal> {
    let mut written = Lock { limit, ..Lock::default() };
    // Owners and tokens are not checked here.
    written.holders = crate::lock::Holders::Few(grants.iter().cloned().collect());
    match read_payload(name::LOCK, &lock(&moment(), b"l", &written))? {
        Native::Lock { lock, .. } => Ok(lock),
        other => panic!("{other:?}"),
    }
}

fn is_refused(limit: u32, grants: &[Grant]) -> bool {
    matches!(read_lock(limit, grants), Err(Refusal::Malformed))
}

#[test]
fn only_locks_that_operations_make_are_read() {
    use Mode::{Exclusive, Shared};
    let (a, b) = (grant("a", 5, Exclusive, 1), grant("b", 6, Exclusive, 1));
    let (sharing, also) = (grant("a", 5, Shared, 1), grant("b", 6, Shared, 1));
    let (two, three) = (grant("a", 5, Shared, 2), grant("b", 6, Shared, 3));
    assert!(read_lock(0, std::slice::from_ref(&a)).is_ok());
    assert!(read_lock(0, &[sharing.clone(), also.clone()]).is_ok());
    assert!(read_lock(5, &[two.clone(), three.clone()]).is_ok());

    assert!(is_refused(0, &[]), "it is free");
    assert!(is_refused(4, &[]), "it is free");
    assert!(is_refused(0, &[a.clone(), b.clone()]), "two are exclusive");
    assert!(is_refused(0, &[sharing.clone(), b]), "one is exclusive");
    assert!(is_refused(0, std::slice::from_ref(&two)), "a lock has one permit a holder");
    assert!(is_refused(4, &[two, three]), "more permits than there are");
    assert!(is_refused(0, &[also.clone(), sharing.clone()]), "tokens do not grow");
    assert!(is_refused(0, &[sharing.clone(), Grant { token: 5, ..also.clone() }]), "one token twice");
    assert!(is_refused(0, &[sharing, Grant { token: 7, ..grant("a", 5, Shared, 1) }]), "one owner twice");
    assert!(is_refused(0, &[Grant { holds: 0, ..a.clone() }]));
    assert!(is_refused(1, &[Grant { permits: 0, ..a.clone() }]));
    assert!(read_lock(0, &[Grant { token: TOKEN_END - 1, ..a.clone() }]).is_ok());
    for token in [TOKEN_END, u64::MAX] {
        assert!(is_refused(0, &[Grant { token, ..a.clone() }]), "a token is too large");
    }
    let session = |number| Grant { bound: Bound::Session(SessionNumber::new(number)), ..a.clone() };
    assert!(read_lock(0, &[session(TOKEN_END - 1)]).is_ok());
    assert!(is_refused(0, &[session(TOKEN_END)]), "the number of a session is too large");
}

#[test]
fn a_grant_has_its_user_and_no_connection_after_a_restart() {
    let lock = read_lock(0, &[Grant { bound: Bound::Connection, ..grant("a", 5, Mode::Exclusive, 1) }]).unwrap();
    let read = lock.holders.only().unwrap();
    assert_eq!((read.bound, read.client), (Bound::Connection, Client::default().as_user(UserKey(9))));
}

#[test]
fn tokens_and_numbers_of_sessions_are_bounded() {
    assert!(matches!(read_payload(name::TOKEN, &token(TOKEN_END - 1)), Ok(Native::Token(_))));
    assert!(matches!(read_payload(name::TOKEN, &token(TOKEN_END)), Err(Refusal::Malformed)));
    let named = |id: &[u8]| Session {
        id: id.into(),
        user: b"u"[..].into(),
        grace_ms: u64::MAX,
        client: Some(Client::default()),
        end_ms: 0,
        grants: 0,
    };
    let is_read = |number, id: &[u8]| read_payload(name::SESSION, &session(&moment(), number, &named(id))).is_ok();
    assert!(is_read(TOKEN_END - 1, b"id") && is_read(1, &[b'x'; 64]));
    assert!(!is_read(TOKEN_END, b"id") && !is_read(1, &[b'x'; 65]));
}

#[test]
fn remembered_requests_are_few_and_their_ids_short() {
    let is_read = |answers: &[(usize, Answer)]| {
        let answers = answers.iter().map(|&(len, answer)| Answered { id: vec![b'r'; len].into(), answer }).collect();
        let remembered = Remembered { answers, forget_ms: 0 };
        read_payload(name::REQUESTS, &requests(&moment(), b"l", b"o", &remembered)).is_ok()
    };
    let released = Answer::Released(0);
    assert!(is_read(&[(0, released)]) && is_read(&[(ID_MAX, Answer::Granted(TOKEN_END - 1)); ANSWERS]));
    assert!(!is_read(&[]) && !is_read(&[(1, released); ANSWERS + 1]));
    assert!(!is_read(&[(ID_MAX + 1, released)]) && !is_read(&[(1, Answer::Granted(TOKEN_END))]));
}

#[test]
fn numbers_are_leb128_and_signed_ones_zigzag() {
    for (number, bytes) in
        [(0, &b"\x00"[..]), (127, b"\x7f"), (300, b"\xac\x02"), (u64::MAX, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")]
    {
        let mut payload = Payload::begin();
        payload.number(number);
        let payload = payload.end();
        assert_eq!(&payload[1..], bytes);
        assert_eq!(Fields::open(&payload).unwrap().number(), Some(number));
    }
    for (number, byte) in [(0, 0), (-1, 1), (1, 2), (-64, 127)] {
        let mut payload = Payload::begin();
        payload.signed(number);
        let payload = payload.end();
        assert_eq!(payload[1..], [byte]);
        assert_eq!(Fields::open(&payload).unwrap().signed(), Some(number));
    }
    // A number of 65 bits, and one without an end.
    assert_eq!(Fields::open(b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02").unwrap().number(), None);
    assert_eq!(Fields::open(b"\x01\x80").unwrap().number(), None);
}
