//! Native records.

use super::*;

const BOOT: BootClock = BootClock { id: [9; 16], now_ms: 500_000 };

fn moment() -> Moment {
    Moment { now: Now::new(4_000_000_000, 1_750_000_000_000), boot: BOOT }
}

/// The only record of a file with these bytes.
fn arguments(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (units, ending) = read(bytes);
    assert_eq!((units.len(), ending), (1, Ok(Ending::Whole)));
    units[0][0].clone()
}

fn decoded(args: &[Vec<u8>], reader: &Moment, check: impl FnOnce(Native<'_>)) {
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    check(native::read(&args, reader).unwrap());
}

fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..10_000_000, 4_000_000u64..5_000_000]
}

fn any_grant() -> impl Strategy<Value = Grant> {
    let bound = prop_oneof![
        Just(Bound::Lease),
        Just(Bound::Connection),
        (1u64..1 << 53).prop_map(|number| Bound::Session(SessionNumber::new(number)))
    ];
    (
        prop::collection::vec(any::<u8>(), 0..50),
        (1u32.., any::<bool>(), 1u32..1000),
        (any_time(), any_time(), prop_oneof![Just(0), any_time()], any::<u32>()),
        bound,
    )
        .prop_map(|(owner, (holds, shared, permits), (granted_ms, end_ms, max_end_ms, delay_ms), bound)| Grant {
            owner: Owner::from_slice(&owner),
            token: 0,
            holds,
            mode: if shared { Mode::Shared } else { Mode::Exclusive },
            permits,
            renewed: 0,
            granted_ms,
            end_ms,
            max_end_ms,
            delay_ms,
            bound,
            client: Client::default(),
        })
}

/// A lock as operations make it: exclusive, shared, or a semaphore with this many free permits.
fn made(grants: Vec<Grant>, shared: bool, free: Option<u32>, held_back_ms: u64) -> Lock {
    let mut lock = Lock { held_back_ms, ..Lock::default() };
    for (grant, token) in grants.into_iter().zip((1u64 << 40..).step_by(3)) {
        let has_room = shared || free.is_some() || lock.holders.is_empty();
        if has_room && lock.holders.get(&grant.owner).is_none() {
            let (mode, permits) = match free {
                Some(_) => (grant.mode, grant.permits),
                None => (if shared { Mode::Shared } else { Mode::Exclusive }, 1),
            };
            lock.holders.insert(Grant { token, mode, permits, ..grant });
        }
    }
    lock.limit = free.map_or(0, |free| free + lock.holders.permits() as u32);
    if lock.is_free() {
        lock.held_back_ms = 1;
    }
    lock
}

proptest! {
    #[test]
    fn a_lock_is_read_as_it_was(
        grants in prop::collection::vec(any_grant(), 0..40),
        shared in any::<bool>(),
        free in prop::option::of(1u32..100),
        held_back_ms in prop_oneof![Just(0), any_time()],
        name in prop::collection::vec(any::<u8>(), 0..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let lock = made(grants, shared, free, held_back_ms);
        let mut bytes = Vec::new();
        native::put_lock(&mut bytes, &moment(), &name, &lock);
        let args = arguments(&bytes);
        // Read in the same moment: nothing is rounded, as the clocks are on a whole millisecond.
        decoded(&args, &moment(), |native| match native {
            Native::Lock { name: read_name, lock: read } => {
                assert_eq!(read_name, name);
                assert_eq!((read.limit, read.held_back_ms), (lock.limit, lock.held_back_ms));
                assert!(read.holders.iter().eq(lock.holders.iter()));
                read.holders.check_invariants();
            }
            other => panic!("{other:?}"),
        });
        // Any other payload is read or refused.
        for (at, byte) in flips {
            let mut payload = args[1].clone();
            let at = at.index(payload.len());
            payload[at] = byte;
            for payload in [&payload[..], &payload[..at]] {
                if let Ok(Native::Lock { lock, .. }) = native::read(&[b"PORTCULLIS.LOCK", payload], &moment()) {
                    lock.holders.check_invariants();
                }
            }
        }
    }

    #[test]
    fn payloads_of_any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let payload = [&[1][..], &bytes].concat();
        for name in ["LOCK", "LATCH", "GUARD", "SESSION", "REQUESTS", "TOKEN"] {
            let _ = native::read(&[format!("PORTCULLIS.{name}").as_bytes(), &payload], &moment());
        }
    }
}

#[test]
fn all_other_records_are_read_as_they_were() {
    let moment = moment();
    let mut bytes = Vec::new();
    native::put_latch(&mut bytes, b"l", 7, None);
    decoded(&arguments(&bytes), &moment, |native| {
        assert!(matches!(native, Native::Latch { name: b"l", left: 7, deadline: None }), "{native:?}");
    });
    bytes.clear();
    native::put_guard(&mut bytes, b"g", 1 << 60, Some(moment.now.unix_ms() + 5));
    decoded(&arguments(&bytes), &moment, |native| {
        assert!(
            matches!(native, Native::Guard { name: b"g", seen: 0x1000_0000_0000_0000, deadline: Some(4_000_005) }),
            "{native:?}"
        );
    });
    let answers = [
        Answered { id: b"first"[..].into(), answer: Answer::Granted(1 << 50) },
        Answered { id: b""[..].into(), answer: Answer::Released(3) },
    ];
    for forget_ms in [0, 4_000_100] {
        let remembered = Remembered { answers: SmallVec::from_iter(answers.clone()), forget_ms };
        bytes.clear();
        native::put_requests(&mut bytes, &moment, b"name", b"owner", &remembered);
        decoded(&arguments(&bytes), &moment, |native| match native {
            Native::Requests { name: b"name", owner: b"owner", remembered: read } => assert_eq!(read, remembered),
            other => panic!("{other:?}"),
        });
    }
    for (client, end_ms) in [(Some(Client { id: 7, slot: 3, ..Client::default() }), 0), (None, 4_000_100)] {
        let session = Session { id: b"id"[..].into(), user: b"u"[..].into(), grace_ms: 30_000, client, end_ms, grants: 3 };
        bytes.clear();
        native::put_session(&mut bytes, &moment, 12, &session);
        decoded(&arguments(&bytes), &moment, |native| match native {
            Native::Session { number: 12, session: read } => assert_eq!(read, Session { client: None, grants: 0, ..session }),
            other => panic!("{other:?}"),
        });
    }
    bytes.clear();
    native::put_forget(&mut bytes, b"name", b"owner");
    decoded(&arguments(&bytes), &moment, |native| {
        assert!(matches!(native, Native::Forget { name: b"name", owner: b"owner" }), "{native:?}");
    });
    bytes.clear();
    native::put_session_end(&mut bytes, b"id", 12);
    decoded(&arguments(&bytes), &moment, |native| {
        assert!(matches!(native, Native::EndSession { id: b"id", number: 12 }), "{native:?}");
    });
    bytes.clear();
    native::put_token(&mut bytes, (1 << 53) - 1);
    decoded(&arguments(&bytes), &moment, |native| assert!(matches!(native, Native::Token(0x1f_ffff_ffff_ffff)), "{native:?}"));
}

#[test]
fn what_is_not_a_record_is_refused() {
    let moment = moment();
    let refused = |args: &[&[u8]]| native::read(args, &moment).unwrap_err();
    assert_eq!(refused(&[b"SET", b"a", b"b"]), Refusal::Unknown);
    assert_eq!(refused(&[b"PORTCULLIS.DOOR", b"a"]), Refusal::Unknown);
    assert_eq!(refused(&[b"PORTCULLIS.LOCK"]), Refusal::Malformed);
    assert_eq!(refused(&[b"PORTCULLIS.LOCK", b""]), Refusal::Malformed);
    assert_eq!(refused(&[b"PORTCULLIS.LOCK", b"\x00"]), Refusal::Malformed);
    assert_eq!(refused(&[b"PORTCULLIS.LOCK", b"\x03"]), Refusal::Newer(3));
    assert_eq!(refused(&[b"PORTCULLIS.ENDSESSION", b"id", b"-1"]), Refusal::Malformed);
    assert_eq!(refused(&[b"PORTCULLIS.ENDSESSION", b"id", b"9007199254740992"]), Refusal::Malformed);
    assert_eq!(refused(&[b"PORTCULLIS.ENDSESSION", b"id", b"18446744073709551616"]), Refusal::Malformed);
    let mut bytes = Vec::new();
    native::put_latch(&mut bytes, b"a", 1, None);
    let mut payload = arguments(&bytes)[1].clone();
    assert!(native::read(&[b"PORTCULLIS.LATCH", &payload], &moment).is_ok());
    assert_eq!(refused(&[b"PORTCULLIS.LATCH", &payload, b"more"]), Refusal::Malformed);
    payload.push(0);
    assert_eq!(refused(&[b"PORTCULLIS.LATCH", &payload]), Refusal::Malformed);
    // In a file the offset is told.
    let mut file = Vec::new();
    put_unit(&mut file, &vec![vec![b"SET".to_vec(), b"a".to_vec(), b"b".to_vec()], vec![b"portcullis.door".to_vec()]]);
    let mut reader = Reader::new(file.len() as u64);
    reader.feed(&file);
    let Ok(Step::Unit(unit)) = reader.step() else { panic!("a unit") };
    let mut requests = unit.requests(&moment);
    assert!(matches!(requests.next(), Some(Ok(Request::Redis(args))) if args.len() == 3));
    let damage = requests.next().unwrap().unwrap_err();
    assert_eq!((damage.offset, damage.reason), (42, Reason::Refused(Refusal::Unknown)));
}
