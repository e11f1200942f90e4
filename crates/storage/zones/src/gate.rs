//! Waiting for a state of a zone that another shard may cause.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Waiters for a change of one zone, on any shard. The lock is held for a push or a swap, never over an
/// await, and is taken only by tasks that have to wait.
#[derive(Debug, Default)]
pub struct Gate {
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Wakes all waiters, which check their condition again. Called after the state has changed.
    pub fn open(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until the condition holds. The task that makes it true calls [`open`](Self::open) afterwards.
    pub async fn wait_until(&self, condition: impl Fn() -> bool) {
        poll_fn(|context| {
            if condition() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            drop(waiting);
            // The change may have come between the first look and the push, and its `open` before the push.
            if condition() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
