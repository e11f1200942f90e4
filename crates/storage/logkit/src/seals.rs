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
//! A holder that has no records for a zone answers at once, also while it waits. One that has keeps the zone
//! for a [quantum](crate::zone_writer), and answers after each record and at the end of the quantum: two
//! tasks with one permit would otherwise use a zone for each record. A request is ignored once no task waits
//! that the zone would help.
//!
//! The zone of checkpoints is sealed for a drive only: the budget always leaves a permit to checkpoints.

use crate::checkpoint;
use crate::kit::Kit;
use crate::owner::Owner;
use crate::space::answer_with_filler;
use crate::zone_writer::ZoneWriter;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Starts to answer requests on this shard, until its owner is dropped.
pub(crate) fn start<O: Owner>(owner: &Rc<O>) {
    let (weak, budget) = (Rc::downgrade(owner), owner.kit().budget().clone());
    let mut seen = budget.requests();
    let answers = async move {
        loop {
            seen = budget.wanted(seen).await;
            let Some(owner) = weak.upgrade() else { break };
            let kit = owner.kit();
            // A close waits for the seals.
            let _sealing = kit.tasks.enter();
            kit.wake_holders();
            answer_with_filler(kit).await;
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
            let _sealing = owner.kit().tasks.enter();
            owner.seal_idle_movers().await;
        }
    };
    runtime::spawn(movers).detach();
}

/// Time until an open zone has to be sealed because a task asked for it and still waits, or because the owner
/// asked; `None` if neither has. A holder that has records for the zone keeps it for a quantum.
pub(crate) fn time_left(kit: &Kit, zone: &mut ZoneWriter, has_records: bool) -> Option<Duration> {
    if kit.is_to_seal(zone.zone(), zone.generation()) {
        return Some(Duration::ZERO);
    }
    let waiting = zone.waiting(kit.budget().requests());
    (waiting > 0).then(|| if has_records { zone.quantum_left(waiting) } else { Duration::ZERO })
}

/// Seals those of a task's zones that a request concerns, also a request that is made meanwhile. The task has
/// records for zones of the classes for which `has_records` holds. Returns the time until the next of these
/// has to be sealed, by which the task answers again.
pub(crate) async fn answer(
    kit: &Kit,
    held: &mut [Option<ZoneWriter>],
    has_records: impl Fn(u8) -> bool,
) -> Option<Duration> {
    let left = |zone: &mut ZoneWriter| time_left(kit, zone, has_records(zone.class()));
    let is_due = |zone: &mut ZoneWriter| left(zone).is_some_and(|left| left.is_zero());
    if held.iter_mut().flatten().any(is_due) {
        // Lanes of this shard that found the queue empty stop to wait first.
        runtime::yield_now().await;
    }
    while let Some(zone) = held.iter_mut().find_map(|zone| zone.take_if(is_due)) {
        kit.seal_now(zone).await;
    }
    held.iter_mut().flatten().filter_map(left).min()
}

/// Seals those of a task's zones that a request concerns, for a task that has no records for them.
pub(crate) async fn answer_idle(kit: &Kit, held: &mut [Option<ZoneWriter>]) {
    answer(kit, held, |_| false).await;
}

/// Waits for an event, for at most the time for which a zone is kept.
pub(crate) async fn until(kept: Option<Duration>, event: impl Future<Output = ()>) {
    match kept {
        None => event.await,
        Some(left) => drop(runtime::timeout(left, event).await),
    }
}

/// Waits for an event, for a task that holds zones: it answers requests meanwhile.
pub(crate) async fn park<T>(kit: &Kit, held: &mut [Option<ZoneWriter>], event: impl Future<Output = T>) -> T {
    let mut event = pin!(event);
    loop {
        let mut asked = pin!(kit.events.seals.notified());
        answer_idle(kit, held).await;
        let ended = first_of(async { Some(event.as_mut().await) }, async {
            asked.as_mut().await;
            None
        });
        if let Some(value) = ended.await {
            return value;
        }
    }
}

/// Waits for one of two futures; the first is preferred.
pub(crate) async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> T {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(value),
        Poll::Pending => second.as_mut().poll(context),
    })
    .await
}
