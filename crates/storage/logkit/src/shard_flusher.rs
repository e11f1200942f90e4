//! Durability of appends: concurrent callers share one flush of the zones.

use crate::record::StreamId;
use crate::stream::Streams;
use block::{Durable, Error, Result, ZoneIndex, Zones};
use runtime::TaskGroup;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Flushes the zones to which one shard has appended, and raises the durable watermark of the streams that it
/// writes.
pub struct Flusher {
    zones: Rc<dyn Zones>,
    streams: Arc<Streams>,
    /// Number of this flusher in `streams`.
    number: u64,
    own: Vec<StreamId>,
    tasks: TaskGroup,
    /// Zones with appends that may not be durable.
    unflushed: RefCell<Vec<ZoneIndex>>,
    /// Number of flushes that have begun, that have ended, and that are requested.
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
    /// Creates the flusher of a shard that writes the streams `own` through `zones`.
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

    /// Whether flushes are unnecessary: an append is durable on completion.
    pub fn is_needless(&self) -> bool {
        self.zones.geometry().durable == Durable::OnAppend
    }

    /// Notes that an append to this zone has ended, with or without success.
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

    /// Whether committed records of this shard depend on records that other shards have to flush.
    pub fn waits_for_others(&self) -> bool {
        !self.is_needless() && self.streams.waits_for_others(&self.own)
    }

    /// Makes all earlier appends of this shard durable. Entries that are still queued aren't waited for: they
    /// may wait for the caller.
    ///
    /// # Errors
    /// Errors of [`Zones::flush`]. Zones whose flush failed are flushed again by the next call.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        if self.is_needless() {
            return Ok(());
        }
        // A flush that is already running may have missed the latest appends.
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

impl Drop for Flusher {
    /// Leaves the log. If appends of this shard may not be durable, no later flush makes joint records after
    /// them durable.
    fn drop(&mut self) {
        // A cancelled flush has already emptied the list of zones.
        let has_flushed = self.unflushed.borrow().is_empty() && !self.is_running.get();
        if has_flushed || self.is_needless() {
            self.streams.remove_flusher(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{CommitQueue, Sequences};
    use block::ZonesPart;
    use zones::ram::{Options, RamZones};

    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(1);

    /// Commits a joint record of two shards, and lets the second shard leave the log. Returns the durable
    /// record of the first shard's stream after its flush.
    fn durable_after_leaving(leave: impl AsyncFn(Rc<Flusher>) + 'static) -> u64 {
        let main = async move || {
            let part = RamZones::new(Options::default())?;
            let streams = Arc::new(Streams::new(&Sequences::new(&[3, 10]), &Sequences::default()));
            let [mut a, mut b] = [A, B].map(|stream| CommitQueue::new(streams.clone(), stream));
            let tasks = TaskGroup::default();
            let here = Flusher::new(part.open().await?, streams.clone(), &[A], tasks.clone());
            let there = Flusher::new(part.open().await?, streams.clone(), &[B], tasks);
            let joint = streams.issue_joint([A, B]);
            a.joint_written(joint.clone(), 'j');
            b.joint_written(joint, 'J');
            there.appended(5);
            let mut decided = false;
            a.commit_next(&mut decided);
            b.commit_next(&mut decided);
            a.commit_next(&mut decided);
            assert_eq!(streams.all_closed(), Sequences::new(&[4, 11]));
            leave(there).await;
            here.flush().await?;
            Ok::<_, Error>(streams.durable(A))
        };
        let world = runtime::Simulation::new(1);
        runtime::simulate(world, main).expect("the world runs").value.expect("zones in memory")
    }

    #[test]
    fn a_shard_that_has_flushed_leaves_what_others_flush_to_them() {
        assert_eq!(durable_after_leaving(async |there| there.flush().await.expect("zones in memory")), 4);
    }

    #[test]
    fn a_shard_that_leaves_with_unflushed_zones_keeps_joint_records_from_being_durable() {
        assert_eq!(durable_after_leaving(async |there| drop(there)), 3);
    }

    #[test]
    fn a_shard_that_leaves_during_a_flush_keeps_joint_records_from_being_durable() {
        let leave = async |there: Rc<Flusher>| {
            // State after a flush that was cancelled with the shard's tasks.
            there.is_running.set(true);
            there.unflushed.borrow_mut().clear();
        };
        assert_eq!(durable_after_leaving(leave), 3);
    }
}
