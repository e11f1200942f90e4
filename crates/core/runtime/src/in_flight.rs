//! Operations that a task waits for.

use crate::operation::Operation;
use crate::shard::{self, Discarded};
use crate::slots::Key;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// An operation in flight. Awaiting returns its result and its data; dropping abandons it.
pub(crate) struct InFlight {
    key: Option<Key>,
}

impl InFlight {
    /// Key for a cancellation; `None` once the result was taken.
    #[inline]
    pub(crate) fn key(&self) -> Option<Key> {
        self.key
    }
}

/// Starts an operation on the current shard.
#[inline]
pub(crate) fn submit(operation: Operation) -> InFlight {
    shard::with_current(|shard| {
        let mut slots = shard.slots.borrow_mut();
        let key = slots.insert(operation);
        let immediate = shard.start(key, slots.slot(key.index));
        if let Some(result) = immediate {
            let _no_waker = slots.complete(key, result);
        }
        InFlight { key: Some(key) }
    })
}

impl Future for InFlight {
    type Output = (i32, Operation);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(i32, Operation)> {
        let key = self.key.expect("an operation is not polled again after its end");
        let polled = shard::with_current(|shard| shard.slots.borrow_mut().poll(key, context));
        if polled.is_ready() {
            self.key = None;
        }
        polled
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let left = shard::try_with_current(|shard| abandon(shard, key));
        // Drops buffers and descriptors while no state is borrowed.
        drop(left);
    }
}

fn abandon(shard: &Rc<shard::Shard>, key: Key) -> (Option<Waker>, Option<Discarded>) {
    let mut slots = shard.slots.borrow_mut();
    let (running, waker, ended) = slots.abandon(key);
    if running && slots.slot(key.index).operation.as_ref().is_some_and(Operation::waits_for_a_peer) {
        shard.cancel(key);
    }
    (waker, ended.map(|(result, operation)| shard.discarded(operation, result)))
}
