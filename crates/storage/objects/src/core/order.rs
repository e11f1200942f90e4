//! The order of changes. If it is kept, each is added to the manifests after all that began before it, so
//! that the bucket never has one without those. Their uploads run at the same time. Without it a slow upload
//! delays its own zone alone.
//!
//! A finish and a reset take their turn once they have locked their zone, and a flush locks none. So no turn
//! waits for a zone, and none for a later turn.

use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Changes that have begun and aren't in a batch of the manifests yet.
#[derive(Debug, Default)]
pub(super) struct Order {
    is_kept: Cell<bool>,
    begun: Cell<u64>,
    waiting: RefCell<BTreeSet<u64>>,
    ended: Notify,
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
        self.waiting.borrow_mut().insert(number);
        Turn { order: self, number }
    }
}

impl Turn<'_> {
    /// Waits until all earlier changes are in a batch, or have failed, if the order is kept.
    pub async fn wait(&self) {
        while self.order.is_kept.get() && self.order.waiting.borrow().first() != Some(&self.number) {
            self.order.ended.notified().await;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.order.waiting.borrow_mut();
        let was_first = waiting.first() == Some(&self.number);
        waiting.remove(&self.number);
        if was_first {
            self.order.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(order.waiting.borrow().is_empty());
        };
        runtime::simulate(runtime::Simulation::new(1), test).expect("it ends");
    }
}
