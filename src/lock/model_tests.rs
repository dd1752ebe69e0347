//! Locks against a naive reference: random operations by random owners over a few names, with leases that end, waits that time out,
//! requests that are sent again, connections that close, named sessions that outlive them or are taken over, restarts, changes of the
//! leader, and owners that come back after those.
//!
//! ```text
//!   operations ─▶ world ─┬─▶ the locks        what they say is compared at once,
//!                        └─▶ the reference    and after each step what they hold and remember
//! ```

mod reference;
mod world;

use crate::base::scaled;
use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;
use world::World;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const OWNERS: [&str; 5] = ["v", "w", "x", "y", "z"];
/// The last name is a semaphore.
const LIMIT: u32 = 3;
const SESSIONS: [&str; 2] = ["s", "t"];
const IDS: [&str; 4] = ["q", "r", "u", "p"];
/// Milliseconds for which answers are kept, and for which a session waits at least after a restart.
const KEPT_MS: u64 = 25;
const GRACE_MIN_MS: u64 = 7;

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        name: usize,
        owner: usize,
        shared: bool,
        session: bool,
        extra: u64,
        max_hold: u64,
        with: With,
    },
    AcquireAll {
        first: usize,
        count: usize,
        owner: usize,
        with: With,
    },
    Semaphore {
        owner: usize,
        permits: u32,
        with: With,
    },
    Release {
        name: usize,
        owner: usize,
        all: bool,
        token: Token,
        request: Option<usize>,
    },
    Renew {
        name: usize,
        owner: usize,
        lease: u64,
        token: Token,
    },
    NameSession {
        client: u64,
        session: usize,
        grace: Option<u64>,
    },
    EndSession {
        session: usize,
    },
    Restart,
    Break {
        name: usize,
        owner: usize,
        token: Token,
    },
    Delete {
        name: usize,
    },
    Plain {
        name: usize,
    },
    Close {
        client: u64,
    },
    /// The connection is closed, and nobody knows whether its client works on.
    LoseSight {
        client: u64,
    },
    /// Another server leads.
    TakeOver,
    ComeBack {
        name: usize,
        owner: usize,
        client: u64,
        other_user: bool,
    },
    Leave {
        client: u64,
    },
    Flush,
    Pass {
        ms: u64,
    },
}

/// The parameters of all acquisitions.
#[derive(Clone, Debug)]
struct With {
    client: u64,
    lease: u64,
    wait: Option<u64>,
    request: Option<usize>,
}

/// The token of a request.
#[derive(Clone, Copy, Debug)]
enum Token {
    None,
    /// The token of the owner's grant.
    Current,
    /// An earlier token.
    Old,
}

fn op() -> impl Strategy<Value = Op> {
    let (name, owner, client) = (0..3usize, 0..5usize, 1..9u64);
    let lease = prop_oneof![3 => 1..30u64, 1 => 100..200u64];
    let wait = prop_oneof![1 => Just(None), 2 => (1..40u64).prop_map(Some), 2 => Just(Some(0))];
    let request = prop_oneof![2 => Just(None), 1 => (0..IDS.len()).prop_map(Some)];
    let token = prop_oneof![4 => Just(Token::None), 2 => Just(Token::Current), 1 => Just(Token::Old)];
    let with = (client.clone(), lease.clone(), wait, request.clone()).prop_map(|(client, lease, wait, request)| With {
        client,
        lease,
        wait,
        request,
    });
    let max_hold = prop_oneof![4 => Just(0), 1 => 1..60u64];
    let acquire = (name.clone(), owner.clone(), any::<bool>(), any::<bool>(), 0..12u64, max_hold, with.clone());
    prop_oneof![
        12 => acquire.prop_map(|(name, owner, shared, session, extra, max_hold, with)| Op::Acquire {
            name, owner, shared, session, extra, max_hold, with }),
        3 => (0..3usize, 1..4usize, owner.clone(), with.clone()).prop_map(
            |(first, count, owner, with)| Op::AcquireAll { first, count, owner, with }),
        3 => (owner.clone(), 1..=LIMIT, with).prop_map(|(owner, permits, with)| Op::Semaphore { owner, permits, with }),
        8 => (0..4usize, owner.clone(), any::<bool>(), token.clone(), request).prop_map(
            |(name, owner, all, token, request)| Op::Release { name, owner, all, token, request }),
        2 => (0..4usize, owner.clone(), lease, token.clone()).prop_map(
            |(name, owner, lease, token)| Op::Renew { name, owner, lease, token }),
        1 => (0..4usize, owner, token).prop_map(|(name, owner, token)| Op::Break { name, owner, token }),
        2 => (client.clone(), 0..2usize, prop_oneof![Just(None), (0..20u64).prop_map(Some)]).prop_map(
            |(client, session, grace)| Op::NameSession { client, session, grace }),
        1 => prop_oneof![(0..2usize).prop_map(|session| Op::EndSession { session }), Just(Op::Restart)],
        1 => (0..4usize).prop_map(|name| Op::Delete { name }),
        1 => name.prop_map(|name| Op::Plain { name }),
        1 => client.clone().prop_map(|client| Op::Close { client }),
        1 => prop_oneof![3 => client.clone().prop_map(|client| Op::LoseSight { client }), 1 => Just(Op::TakeOver)],
        2 => (0..4usize, 0..5usize, client.clone(), any::<bool>()).prop_map(
            |(name, owner, client, other_user)| Op::ComeBack { name, owner, client, other_user }),
        1 => client.prop_map(|client| Op::Leave { client }),
        1 => prop_oneof![9 => Just(Op::Pass { ms: 1 }), 1 => Just(Op::Flush)],
        6 => (1..15u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// Number of rounds. Together they do 200,000 steps (half of their maximum, on average), enough not to miss what goes wrong once in
/// thousands, and a million steps in an optimized build. `fuzz/long` does hundreds of millions.
const CASES: u32 = if cfg!(debug_assertions) { 2_000 } else { 10_500 };
/// The number of rounds that the environment sets, as `fuzz/long` does.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}
const STEPS_MAX: usize = scaled(200, 60);

proptest! {
    // This generator is cheap without optimization: the other one took a third of the time.
    #![proptest_config(ProptestConfig { cases: cases(), rng_algorithm: RngAlgorithm::XorShift, ..ProptestConfig::default() })]

    #[test]
    fn locks_do_what_a_naive_reference_does(ops in proptest::collection::vec(op(), 1..=STEPS_MAX)) {
        let mut world = World::new();
        for op in ops {
            world.step(op)?;
        }
    }
}

/// A connection that has ended loses its grants some at a time. Between two of those times a waiter of the same owner was granted
/// what was about to end, and lost it.
#[test]
fn what_is_about_to_end_with_its_connection_is_not_held_by_another() {
    let with = |client, wait| With { client, lease: 1, wait, request: None };
    let acquire = |name, owner, client| Op::Acquire {
        name,
        owner,
        shared: false,
        session: true,
        extra: 0,
        max_hold: 0,
        with: with(client, None),
    };
    let mut world = World::new();
    for op in [
        acquire(0, 1, 2),
        acquire(2, 1, 2),
        acquire(1, 0, 2),
        Op::AcquireAll { first: 0, count: 2, owner: 0, with: with(3, Some(1)) },
        Op::Close { client: 2 },
    ] {
        world.step(op).unwrap_or_else(|error| panic!("{error}"));
    }
}
