//! Appends that wait because the lag is at its limit, in the order of their arrival. They are in flight: a
//! later finish or reset of their zone waits for them.

use block::ZoneIndex;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Waiting appends, by zone and in order of arrival.
#[derive(Debug, Default)]
pub struct WaitingAppends {
    last_ticket: Cell<u64>,
    by_zone: RefCell<BTreeSet<(ZoneIndex, u64)>>,
    by_arrival: RefCell<BTreeSet<u64>>,
}

/// A waiting append, until it is dropped.
pub struct WaitingAppend<'a> {
    all: &'a WaitingAppends,
    zone: ZoneIndex,
    ticket: u64,
    ended: &'a Notify,
}

impl WaitingAppends {
    /// Number of waiting appends.
    pub fn len(&self) -> usize {
        self.by_zone.borrow().len()
    }

    /// Returns a number that is larger than those of all waiting appends, and smaller than those of later
    /// ones.
    pub fn ticket(&self) -> u64 {
        self.last_ticket.set(self.last_ticket.get() + 1);
        self.last_ticket.get()
    }

    /// Adds an append; `ended` is notified when it no longer waits.
    pub fn add<'a>(&'a self, zone: ZoneIndex, ended: &'a Notify) -> WaitingAppend<'a> {
        let ticket = self.ticket();
        self.by_zone.borrow_mut().insert((zone, ticket));
        self.by_arrival.borrow_mut().insert(ticket);
        WaitingAppend { all: self, zone, ticket, ended }
    }

    /// Whether an append to this zone waits that arrived before the ticket was drawn.
    pub fn has_before(&self, zone: ZoneIndex, ticket: u64) -> bool {
        self.by_zone.borrow().range((zone, 0)..(zone, ticket)).next().is_some()
    }
}

impl WaitingAppend<'_> {
    /// Whether no earlier append waits.
    pub fn is_first(&self) -> bool {
        self.all.by_arrival.borrow().first() == Some(&self.ticket)
    }
}

impl Drop for WaitingAppend<'_> {
    fn drop(&mut self) {
        self.all.by_zone.borrow_mut().remove(&(self.zone, self.ticket));
        self.all.by_arrival.borrow_mut().remove(&self.ticket);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_after_the_appends_before_it() {
        let (all, ended) = (WaitingAppends::default(), Notify::new());
        let first = all.add(ZoneIndex(1), &ended);
        let ticket = all.ticket();
        let later = all.add(ZoneIndex(1), &ended);
        assert!(all.has_before(ZoneIndex(1), ticket) && !all.has_before(ZoneIndex(0), ticket));
        let other = all.add(ZoneIndex(0), &ended);
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
