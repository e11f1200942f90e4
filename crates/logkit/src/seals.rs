//! Requests to seal open zones: how a task that can open no other zone reaches all that hold one, on every
//! shard.
//!
//! A task asks where it finds no permit, or where the drive refuses to open another zone although there is a
//! permit. A request is a number that all shards count
//! ([`Budget::requests`](crate::pool::budget::Budget::requests)), and it concerns the zones that were opened
//! before it: within the budget, or on the drive. So a task never seals a zone that its own requests have
//! opened.
//!
//! Every holder of zones answers, and none may wait for another task without doing so:
//! - lanes, the cleaner, and records that wait for space look between their steps;
//! - a holder that waits for what another task does, such as a checkpoint, looks meanwhile;
//! - a task of each shard seals what no task holds at the moment: the filler, the zone of checkpoints, and
//!   the owner's idle movers. It wakes the others.
//!
//! The zone of checkpoints is sealed for a drive only: the budget always leaves a permit to checkpoints.

use crate::checkpoint;
use crate::kit::Kit;
use crate::owner::Owner;
use crate::space::seal_filler;
use crate::zone_writer::ZoneWriter;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Starts to answer requests on this shard, until its owner is dropped.
pub(crate) fn start<O: Owner>(owner: &Rc<O>) {
    let (weak, budget) = (Rc::downgrade(owner), owner.kit().budget().clone());
    let mut seen = budget.requests();
    let answers = async move {
        loop {
            seen = budget.wanted(seen).await;
            let Some(owner) = weak.upgrade() else { break };
            let kit = owner.kit();
            wake(kit);
            seal_filler(kit).await;
            checkpoint::seal_for_drive(kit).await;
        }
    };
    runtime::spawn(answers).detach();
    // A task of its own: it may have to wait for one that appends, and that for others.
    let (weak, budget) = (Rc::downgrade(owner), owner.kit().budget().clone());
    let mut seen = budget.requests();
    let movers = async move {
        loop {
            seen = budget.wanted(seen).await;
            let Some(owner) = weak.upgrade() else { break };
            owner.seal_idle_movers().await;
        }
    };
    runtime::spawn(movers).detach();
}

/// Wakes the holders of zones on this shard, which look for requests then.
pub(crate) fn wake(kit: &Kit) {
    kit.events.work.notify_all();
    kit.events.cleaner.here.notify_all();
    kit.events.seals.notify_all();
}

/// Seals those of a task's zones that a request concerns, also a request that is made meanwhile.
pub(crate) async fn answer(kit: &Kit, held: &mut [Option<ZoneWriter>]) {
    loop {
        let requests = kit.seals_asked();
        let is_asked = |zone: &mut ZoneWriter| zone.is_asked_for(requests);
        let Some(zone) = held.iter_mut().find_map(|zone| zone.take_if(is_asked)) else { break };
        kit.seal_now(zone).await;
    }
}

/// Waits for an event, for a task that holds zones: it answers requests meanwhile.
pub(crate) async fn park<T>(kit: &Kit, held: &mut [Option<ZoneWriter>], event: impl Future<Output = T>) -> T {
    let mut event = pin!(event);
    loop {
        let mut asked = pin!(kit.events.seals.notified());
        answer(kit, held).await;
        let ended = std::future::poll_fn(|context| match event.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => asked.as_mut().poll(context).map(|()| None),
        });
        if let Some(value) = ended.await {
            return value;
        }
    }
}
