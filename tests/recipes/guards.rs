//! Guards: their state, and that they leave nothing behind.

use portcullis::client::Error;
use portcullis::recipes::{Lock, Reentrant, SetNx, Token, by_name};

use super::*;

async fn until_free(world: &Live, key: &str) {
    while world.client(0).command(&["EXISTS", key]).await.unwrap().as_integer() != Some(0) {
        tokio::time::sleep(ms(1)).await;
    }
}

#[test]
fn a_guard_gives_back_when_it_is_dropped_or_asked() {
    on_both(async |servers| {
        let world = servers.world().await;
        for (facts, algorithm) in locks().into_iter().filter(|(facts, _)| servers.can(facts)) {
            let most = algorithm.holders();
            let door = Lock::of(&world, algorithm.into(), format!("door:{}", facts.name)).wait(ms(5_000));
            for _ in 0..2 {
                let mut guards = Vec::new();
                for _ in 0..most {
                    guards.push(door.acquire().await.unwrap());
                }
                assert!(door.try_acquire().await.unwrap().is_none(), "{}", facts.name);
                assert!(guards.iter().all(|guard| !guard.is_lost() && guard.token().is_some() == facts.fenced), "{}", facts.name);
                drop(guards);
            }
            let guard = door.acquire().await.unwrap();
            guard.release().await.unwrap_or_else(|error| panic!("{}: {error}", facts.name));
            door.acquire().await.unwrap().release().await.unwrap();
        }
    });
}

#[test]
fn a_guard_tells_when_it_is_lost() {
    on_both(async |servers| {
        let world = servers.world().await;
        let mut renewed = Lock::new(&world, Token::default(), "renewed").lease(ms(60_000)).acquire().await.unwrap();
        let left = renewed.renew().await.unwrap();
        assert!(!renewed.is_lost() && left <= ms(60_000), "{left:?}");
        let short = Lock::new(&world, Token::default(), "short").lease(ms(40));
        let mut guard = short.acquire().await.unwrap();
        guard.lost().await;
        assert!(guard.is_lost());
        // The client counts the lease from before its request, so the server may hold the key a little longer.
        while world.client(0).command(&["EXISTS", "short"]).await.unwrap().as_integer() != Some(0) {
            tokio::time::sleep(ms(1)).await;
        }
        assert!(matches!(guard.renew().await, Err(Error::NotHeld(_))));
        assert!(matches!(guard.release().await, Err(Error::NotHeld(_))));

        with_leases_from(ms(90), async |number, lease| {
            let name = format!("watched:{number}");
            let guard = Lock::new(&world, Reentrant, name.as_str()).lease(lease).watchdog().acquire().await.unwrap();
            tokio::time::sleep(lease * 2).await;
            holds(!guard.is_lost(), || format!("it was not renewed within {lease:?}"))?;
            world.client(0).command(&["DEL", &name]).await.unwrap();
            tokio::time::timeout(ms(20_000), guard.lost()).await.unwrap();
            Ok(())
        })
        .await;

        // A guard whose watchdog was stopped is valid for the rest of the last known lease.
        with_leases_from(ms(300), async |number, lease| {
            let stopped =
                Lock::new(&world, Reentrant, format!("stopped:{number}")).lease(lease).watchdog().acquire().await.unwrap();
            stopped.grant().watchdog.as_ref().unwrap().stop();
            let early = tokio::time::timeout(lease / 10, stopped.lost()).await.is_ok();
            holds(!early, || format!("{lease:?} were over"))?;
            tokio::time::timeout(ms(20_000), stopped.lost()).await.unwrap();
            assert!(stopped.is_lost());
            Ok(())
        })
        .await;

        let endless = Lock::new(&world, SetNx, "endless").acquire().await.unwrap();
        assert_eq!(endless.remaining(), Duration::MAX);
    });
}

#[test]
fn who_asks_no_more_leaves_nothing_behind() {
    on_both(async |servers| {
        let world = servers.world().await;
        for name in ["set-nx-px", "delex", "reentrant", "watchdog", "redlock", "fair"] {
            let lock = Lock::of(&world, by_name(name).unwrap().into(), name);
            for polls in 1..6 {
                let mut acquire = Box::pin(lock.acquire());
                for _ in 0..polls {
                    let mut once = std::task::Context::from_waker(std::task::Waker::noop());
                    if let std::task::Poll::Ready(granted) = acquire.as_mut().poll(&mut once) {
                        drop(granted);
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(acquire);
                tokio::time::timeout(ms(5_000), until_free(&world, name)).await.unwrap_or_else(|_| panic!("{name} {polls}"));
            }
        }
    });
}

#[test]
fn a_wait_that_was_too_long_says_so() {
    on_both(async |servers| {
        let world = servers.world().await;
        let door = Lock::new(&world, Token::default(), "door").wait(ms(30)).retry(Retry::BACK_OFF);
        let _held = door.acquire().await.unwrap();
        let error = door.acquire().await.unwrap_err();
        assert!(matches!(&error, Error::NotGranted { name, waited } if name == "door" && *waited >= ms(29)), "{error}");
        let again = Lock::new(&world, Reentrant, "hall").owner("alice");
        let (_first, _second) = (again.acquire().await.unwrap(), again.acquire().await.unwrap());
    });
}
