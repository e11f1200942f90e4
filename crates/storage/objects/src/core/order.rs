//! Order of changes: flushes, finishes and resets.
//!
//! # Promises
//! - If the order is kept, each change is added to the manifests after all that began before it, so the
//!   bucket never has one without those. Their uploads run at the same time. Without it a slow upload delays
//!   its own zone alone.
//! - The end of a turn wakes the change whose turn it is then, and no other.
//! - Finishes and resets take their turn once all their zones are locked, and flushes lock none. So no turn
//!   waits for a zone, and none for a later turn.
//!
//! Left to others: uploads before the turn, the manifest after it (`commit`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Changes that have begun and aren't in a batch of the manifests yet.
#[derive(Debug, Default)]
pub(super) struct Order {
    is_kept: Cell<bool>,
    begun: Cell<u64>,
    /// By their numbers, with the wakers of those that wait for their turn.
    changes: RefCell<BTreeMap<u64, Option<Waker>>>,
}

/// Place of a change among those that have begun, until it is dropped.
pub(super) struct Turn<'c> {
    order: &'c Order,
    number: u64,
}

impl Order {
    /// Keeps the order from now on.
    pub fn keep(&self) {
        self.is_kept.set(true);
    }

    /// Notes that a change begins.
    pub fn begin(&self) -> Turn<'_> {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        self.changes.borrow_mut().insert(number, None);
        Turn { order: self, number }
    }

    fn is_first(&self, number: u64) -> bool {
        self.changes.borrow().first_key_value().is_some_and(|(first, _)| *first == number)
    }
}

impl Turn<'_> {
    /// Waits until all earlier changes are in a batch, or have failed, if the order is kept.
    pub async fn wait(&self) {
        poll_fn(|context| self.poll(context)).await;
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if !self.order.is_kept.get() || self.order.is_first(self.number) {
            return Poll::Ready(());
        }
        let mut changes = self.order.changes.borrow_mut();
        match changes.entry(self.number).or_default() {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let was_first = self.order.is_first(self.number);
        let mut changes = self.order.changes.borrow_mut();
        changes.remove(&self.number);
        let next = changes.first_entry().filter(|_| was_first).and_then(|mut next| next.get_mut().take());
        drop(changes);
        // One that doesn't wait yet finds that it is the first.
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn changes_go_on_in_the_order_in_which_they_began() {
        let test = || async {
            let (order, ended) = (Order::default(), RefCell::new(Vec::new()));
            order.keep();
            let change = |number: u64| {
                let (turn, ended) = (order.begin(), &ended);
                async move {
                    // The first ones take longest; one fails before its turn comes.
                    runtime::sleep(std::time::Duration::from_millis(10 - number)).await;
                    if number != 1 {
                        turn.wait().await;
                        ended.borrow_mut().push(number);
                    }
                }
            };
            runtime::join_all((0..4).map(change).collect::<Vec<_>>()).await;
            assert_eq!(*ended.borrow(), [0, 2, 3]);
            assert!(order.changes.borrow().is_empty());
        };
        runtime::simulate(runtime::Simulation::new(1), test).expect("it ends");
    }

    /// Each change is polled twice: when it begins to wait, and in its turn.
    #[test]
    fn the_end_of_a_turn_wakes_the_next_change_alone() {
        let test = || async {
            const CHANGES: usize = 200;
            let (order, polls) = (Rc::new(Order::default()), Rc::new(Cell::new(0)));
            order.keep();
            let first = order.begin();
            let change = |_| {
                let (order, polls) = (order.clone(), polls.clone());
                runtime::spawn(async move {
                    let turn = order.begin();
                    poll_fn(|context| {
                        polls.set(polls.get() + 1);
                        turn.poll(context)
                    })
                    .await;
                })
            };
            let changes: Vec<_> = (0..CHANGES).map(change).collect();
            runtime::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(polls.get(), CHANGES, "all of them wait");
            drop(first);
            runtime::join_all(changes).await;
            assert_eq!(polls.get(), 2 * CHANGES);
        };
        runtime::simulate(runtime::Simulation::new(1), test).expect("it ends");
    }
}
