//! Combinators of futures, without a runtime.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::recipes::world::World;

/// The output of the future that ended first.
pub(crate) enum First<A, B> {
    /// The left future ended first.
    Left(A),
    /// The right future ended first.
    Right(B),
}

/// Runs two futures until one of them ends, and drops the other. Polls the left one first.
pub(crate) async fn race<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> First<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(move |context| {
        if let Poll::Ready(outcome) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(outcome));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}

/// Runs a future for at most this long. Returns `None` if it did not end in time.
pub(crate) async fn timeout<T>(world: &impl World, time: Duration, future: impl Future<Output = T>) -> Option<T> {
    match race(future, world.sleep(time)).await {
        First::Left(outcome) => Some(outcome),
        First::Right(()) => None,
    }
}

/// Runs futures concurrently until all have ended. Returns their outputs in order.
pub(crate) async fn join_all<T, F: Future<Output = T> + Send>(futures: impl IntoIterator<Item = F>) -> Vec<T> {
    let mut futures: Vec<(Pin<Box<F>>, Option<T>)> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut all = true;
        for (future, outcome) in futures.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(ended) => *outcome = Some(ended),
                Poll::Pending => all = false,
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

/// A value that tasks wait for: every change wakes all of them.
pub(crate) struct WatchCell<T> {
    value_and_wakers: Mutex<(T, Vec<Waker>)>,
}

impl<T> WatchCell<T> {
    pub fn new(value: T) -> WatchCell<T> {
        WatchCell { value_and_wakers: Mutex::new((value, Vec::new())) }
    }

    /// Reads the value.
    pub fn get<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value_and_wakers.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Changes the value and wakes all waiters.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        let wakers = {
            let mut guard = self.value_and_wakers.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut guard.0);
            std::mem::take(&mut guard.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `look` finds a result in the value, and returns it.
    pub async fn until<R>(&self, look: impl Fn(&T) -> Option<R>) -> R {
        poll_fn(|context| {
            let mut guard = self.value_and_wakers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = look(&guard.0) {
                return Poll::Ready(found);
            }
            if !guard.1.iter().any(|waker| waker.will_wake(context.waker())) {
                guard.1.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
