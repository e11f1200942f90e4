//! Resetting dead zones. A zone is reset once it has no live block, the records that made it dead are
//! durable, a durable checkpoint covers all its records, and no read of it is in progress.

use crate::kit::count;
use crate::owner::Owner;
use crate::pool::Zone;
use block::{Result, ZoneIndex};
use std::rc::Rc;

/// Resets the dead zones that the durable checkpoint covers. Returns whether any was reset.
///
/// # Errors
/// The failure of the log; errors of flushes.
pub async fn reset_dead<O: Owner>(owner: &Rc<O>) -> Result<bool> {
    let pool = &owner.kit().pool;
    let _running = owner.kit().begin_reset();
    let mut dead = pool.take_dead();
    if dead.is_empty() {
        return Ok(false);
    }
    let outcome = reset_zones(owner, &mut dead).await;
    pool.return_dead(dead);
    outcome
}

/// Whether the durable checkpoint covers any dead zone.
pub(crate) fn has_resettable<O: Owner>(owner: &O) -> bool {
    let covered = owner.kit().streams.all_covered();
    owner.kit().pool.any_dead(|zone| zone.last.is_within(&covered))
}

/// Whether a checkpoint may cover a dead zone that the durable one doesn't.
pub(crate) fn has_coverable<O: Owner>(owner: &O) -> bool {
    let (streams, checkpoints) = (&owner.kit().streams, &owner.kit().checkpoints);
    let (committed, covered) = (streams.all_committed(), streams.all_covered());
    checkpoints.could_cover_more(&committed)
        && owner.kit().pool.any_dead(|zone| zone.last.is_within(&committed) && !zone.last.is_within(&covered))
}

async fn reset_zones<O: Owner>(owner: &Rc<O>, dead: &mut Vec<u32>) -> Result<bool> {
    let kit = owner.kit();
    let pool = &kit.pool;
    // After a failed root it is unknown which root recovery finds: a zone may be dead for one of them only.
    if let Some(failure) = kit.failure() {
        return Err(failure);
    }
    let covered = kit.streams.all_covered();
    let is_covered = |zone: &Zone| zone.last.is_within(&covered);
    // A zone may become full before its last record has committed, if an earlier record took longer: it
    // seemed dead, and has live blocks since. Once all its records are covered, all have committed, and its
    // number of live blocks can only fall.
    for zone in pool.filter(dead, |zone| is_covered(zone) && zone.live > 0) {
        pool.set_full(zone);
        dead.retain(|other| *other != zone);
        pool.end_resetting(1);
    }
    let ready = pool.filter(dead, is_covered);
    if ready.is_empty() {
        return Ok(false);
    }
    // The records that made these zones dead have committed; the flush makes them durable.
    owner.flush_all().await?;
    owner.prepare_reset().await?;
    owner.grace().await?;
    for zone in ready {
        dead.retain(|other| *other != zone);
        match kit.zones.reset(ZoneIndex(zone), owner.erase()).await {
            Ok(generation) => {
                pool.set_reset(zone, generation);
                count(&kit.counters.reset_zones, 1);
            }
            Err(error) => {
                tracing::warn!(
                    "resetting zone {zone}: {error}; it isn't used again before the log is reopened"
                );
                kit.set_damaged(zone);
            }
        }
        pool.end_resetting(1);
    }
    kit.events.freed.notify_all();
    Ok(true)
}

/// Resets dead zones, after a checkpoint if one is needed. Runs on the home shard.
///
/// # Errors
/// Errors of resets and of the checkpoint.
pub async fn free_dead<O: Owner>(owner: &Rc<O>) -> Result<()> {
    // Zones that were cleaned earlier may be waiting for a reset.
    while owner.kit().is_resetting() {
        owner.kit().events.freed.notified().await;
    }
    if !reset_dead(owner).await? {
        owner.take_checkpoint(false).await?;
        reset_dead(owner).await?;
    }
    Ok(())
}
