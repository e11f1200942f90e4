//! Appends that wait because the lag is at its limit, in the order of their arrival. They are in flight: a
//! finish or a reset of their zone that comes later waits for them.

use block::ZoneIndex;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Waiting appends, by zone and in order of arrival.
#[derive(Debug, Default)]
pub struct WaitingAppends {
    tickets: Cell<u64>,
    list: RefCell<BTreeSet<(ZoneIndex, u64)>>,
    order: RefCell<BTreeSet<u64>>,
}

/// A waiting append, until it is dropped.
pub struct WaitingAppend<'a> {
    all: &'a WaitingAppends,
    place: (ZoneIndex, u64),
    left: &'a Notify,
}

impl WaitingAppends {
    /// Number of waiting appends.
    pub fn len(&self) -> usize {
        self.list.borrow().len()
    }

    /// Returns a number that is larger than those of all waiting appends, and smaller than those of later
    /// ones.
    pub fn ticket(&self) -> u64 {
        self.tickets.set(self.tickets.get() + 1);
        self.tickets.get()
    }

    /// Adds an append; `left` is notified when it no longer waits.
    pub fn enter<'a>(&'a self, zone: ZoneIndex, left: &'a Notify) -> WaitingAppend<'a> {
        let place = (zone, self.ticket());
        self.list.borrow_mut().insert(place);
        self.order.borrow_mut().insert(place.1);
        WaitingAppend { all: self, place, left }
    }

    /// Whether an append to this zone waits that came before the ticket.
    pub fn has_before(&self, zone: ZoneIndex, ticket: u64) -> bool {
        self.list.borrow().range((zone, 0)..(zone, ticket)).next().is_some()
    }
}

impl WaitingAppend<'_> {
    /// Whether no append waits that came before this one.
    pub fn is_first(&self) -> bool {
        self.all.order.borrow().first() == Some(&self.place.1)
    }
}

impl Drop for WaitingAppend<'_> {
    fn drop(&mut self) {
        self.all.list.borrow_mut().remove(&self.place);
        self.all.order.borrow_mut().remove(&self.place.1);
        self.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_after_the_appends_before_it() {
        let (all, left) = (WaitingAppends::default(), Notify::new());
        let first = all.enter(ZoneIndex(1), &left);
        let ticket = all.ticket();
        let later = all.enter(ZoneIndex(1), &left);
        assert!(all.has_before(ZoneIndex(1), ticket) && !all.has_before(ZoneIndex(0), ticket));
        let other = all.enter(ZoneIndex(0), &left);
        assert!(first.is_first() && !later.is_first() && !other.is_first());
        drop(first);
        assert!(later.is_first() && !other.is_first(), "the zone doesn't matter");
        drop(other);
        assert!(!all.has_before(ZoneIndex(1), ticket));
        assert_eq!(all.len(), 1);
        drop(later);
        assert_eq!(all.len(), 0);
    }
}
