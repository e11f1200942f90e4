//! Making appends durable: callers that ask at the same time share one flush of the zones.

use crate::owner::Owner;
use crate::stream::{StreamId, Streams};
use block::{Durable, Error, Result, ZoneIndex, Zones};
use runtime::TaskGroup;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Flushes the zones to which one shard has appended, and raises the durable watermark of the streams that it writes.
pub struct Flusher {
    zones: Rc<dyn Zones>,
    streams: Arc<Streams>,
    /// Its number in `streams`.
    number: u64,
    own: Vec<StreamId>,
    tasks: TaskGroup,
    /// Zones with appends that may not be durable.
    unflushed: RefCell<Vec<ZoneIndex>>,
    /// Number of flushes that have begun, have ended, and are wanted.
    begun: Cell<u64>,
    ended: Cell<u64>,
    wanted: Cell<u64>,
    is_running: Cell<bool>,
    /// Number and error of the last flush that failed.
    failure: RefCell<Option<(u64, Error)>>,
    changed: Notify,
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Flusher({} of {} flushes ended)", self.ended.get(), self.begun.get())
    }
}

impl Flusher {
    /// Flusher of a shard that writes the streams `own` through `zones`.
    pub fn new(zones: Rc<dyn Zones>, streams: Arc<Streams>, own: &[StreamId], tasks: TaskGroup) -> Rc<Self> {
        Rc::new(Flusher {
            zones,
            number: streams.add_flusher(),
            streams,
            own: own.to_vec(),
            tasks,
            unflushed: RefCell::default(),
            begun: Cell::new(0),
            ended: Cell::new(0),
            wanted: Cell::new(0),
            is_running: Cell::new(false),
            failure: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Whether an append is durable once it has completed.
    pub fn is_needless(&self) -> bool {
        self.zones.geometry().durable == Durable::OnAppend
    }

    /// Notes that an append to this zone has ended, well or not.
    pub fn appended(&self, zone: u32) {
        let mut unflushed = self.unflushed.borrow_mut();
        if !unflushed.contains(&ZoneIndex(zone)) {
            unflushed.push(ZoneIndex(zone));
        }
    }

    /// Notes that a record has committed.
    pub fn committed(&self, stream: StreamId) {
        if self.is_needless() {
            self.streams.set_durable(stream, self.streams.committed(stream));
        }
    }

    /// Whether records of this shard that have committed depend on some that other shards have to flush.
    pub fn waits_for_others(&self) -> bool {
        !self.is_needless() && self.streams.waits_for_others(&self.own)
    }

    /// Makes durable what this shard has appended by now; not what waits to be appended, which may wait for the caller.
    ///
    /// # Errors
    /// What flushing the zones returns. Zones whose flush failed are flushed again by the next call.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        if self.is_needless() {
            return Ok(());
        }
        // A flush that has begun may have passed what was appended a moment ago.
        let ticket = self.begun.get() + 1;
        self.wanted.set(self.wanted.get().max(ticket));
        if !self.is_running.replace(true) {
            self.tasks.spawn(self.clone().run()).detach();
        }
        while self.ended.get() < ticket {
            self.changed.notified().await;
        }
        match &*self.failure.borrow() {
            Some((failed, error)) if *failed >= ticket => Err(error.clone()),
            _ => Ok(()),
        }
    }

    async fn run(self: Rc<Self>) {
        while self.ended.get() < self.wanted.get() {
            let number = self.begun.get() + 1;
            self.begun.set(number);
            let zones = std::mem::take(&mut *self.unflushed.borrow_mut());
            let closed = self.streams.all_closed();
            match self.zones.flush(&zones).await {
                Ok(()) => self.streams.flushed(self.number, closed, &self.own),
                Err(error) => {
                    zones.iter().for_each(|zone| self.appended(zone.0));
                    *self.failure.borrow_mut() = Some((number, error));
                }
            }
            self.ended.set(number);
            self.changed.notify_all();
        }
        self.is_running.set(false);
    }
}

/// Makes durable what this shard has appended by now, and what that depends on: a joint record needs the flushes of other
/// shards.
///
/// # Errors
/// What flushing the zones returns.
pub async fn flush<O: Owner>(owner: &O) -> Result<()> {
    owner.kit().flush().await?;
    match owner.kit().flusher.waits_for_others() {
        true => owner.flush_all().await,
        false => Ok(()),
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.streams.remove_flusher(self.number);
    }
}
