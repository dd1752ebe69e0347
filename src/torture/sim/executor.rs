//! A deterministic executor: runs futures one at a time on one thread, in the order in which they were woken.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

/// The future of a task.
pub type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The indices of woken tasks, in order.
type Ready = Arc<Mutex<VecDeque<usize>>>;

struct TaskWaker {
    task: usize,
    /// Whether the task is in the queue.
    queued: AtomicBool,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
        }
    }
}

struct Task {
    client: u32,
    future: Run,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

/// The tasks of all clients.
#[derive(Default)]
pub struct Executor {
    tasks: Slab<Task>,
    ready: Ready,
    /// For each paused client: its woken tasks.
    paused: Vec<Option<VecDeque<usize>>>,
}

impl Executor {
    /// An executor for this number of clients.
    pub fn new(clients: usize) -> Executor {
        Executor { paused: vec![None; clients], ..Executor::default() }
    }

    fn take_ready(&self) -> Option<usize> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Spawns a task of a client.
    pub fn spawn(&mut self, client: u32, future: Run) {
        let entry = self.tasks.vacant_entry();
        let task = entry.key();
        let handle = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        let waker = Waker::from(Arc::clone(&handle));
        waker.wake_by_ref();
        entry.insert(Task { client, future, handle, waker });
    }

    /// Runs the next woken task. Returns whether there was one.
    pub fn run_one(&mut self) -> bool {
        let Some(index) = self.take_ready() else { return false };
        self.run(index, |_| ());
        true
    }

    /// Runs each task that is woken now, of whose client `begins` is told, in an order that does not depend on the order in which they
    /// were woken: tokio's `watch` wakes in a random one. Returns whether there was any.
    pub fn run_round(&mut self, mut begins: impl FnMut(u32)) -> bool {
        let mut woken = std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner));
        woken.make_contiguous().sort_unstable();
        let any = !woken.is_empty();
        woken.into_iter().for_each(|index| self.run(index, &mut begins));
        any
    }

    fn run(&mut self, index: usize, begins: impl FnOnce(u32)) {
        // A task may have ended since it was woken.
        let Some(task) = self.tasks.get_mut(index) else { return };
        if let Some(waiting) = &mut self.paused[task.client as usize] {
            return waiting.push_back(index);
        }
        begins(task.client);
        task.handle.queued.store(false, Ordering::Relaxed);
        if let Poll::Ready(()) = task.future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
            // The waker of the removed task must not reach another task at the same index: none is spawned before this returns.
            drop(self.tasks.remove(index));
        }
    }

    /// Pauses a client: none of its tasks run.
    pub fn pause(&mut self, client: u32) {
        self.paused[client as usize].get_or_insert_default();
    }

    /// Resumes a client.
    pub fn resume(&mut self, client: u32) {
        if let Some(waiting) = self.paused[client as usize].take() {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).extend(waiting);
        }
    }

    /// Drops all tasks of a client.
    pub fn crash(&mut self, client: u32) {
        self.paused[client as usize] = None;
        let of_client: Vec<usize> = self.tasks.iter().filter(|(_, task)| task.client == client).map(|(index, _)| index).collect();
        for index in of_client {
            drop(self.tasks.remove(index));
        }
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[test]
    fn tasks_run_in_the_order_in_which_they_were_woken_but_for_those_that_pause() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut executor = Executor::new(3);
        let task = |client: u32| {
            let (seen, mut left) = (Arc::clone(&seen), 2);
            Box::pin(std::future::poll_fn(move |context| {
                seen.lock().unwrap().push(client);
                left -= 1;
                context.waker().wake_by_ref();
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            }))
        };
        (0..3).for_each(|client| executor.spawn(client, task(client)));
        executor.pause(1);
        while executor.run_one() {}
        assert_eq!(*seen.lock().unwrap(), [0, 2, 0, 2]);
        executor.resume(1);
        executor.run_one();
        executor.crash(1);
        while executor.run_one() {}
        assert_eq!(*seen.lock().unwrap(), [0, 2, 0, 2, 1]);
        assert!(executor.is_empty());
    }
}
