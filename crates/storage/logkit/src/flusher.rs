//! Durability of records that depend on those of other shards.

use crate::owner::Owner;
use block::Result;

/// Makes all earlier appends of this shard durable, with the records that they depend on: a joint record
/// needs the flushes of other shards.
///
/// # Errors
/// Errors of [`Zones::flush`](block::Zones::flush).
pub async fn flush<O: Owner>(owner: &O) -> Result<()> {
    owner.kit().flush().await?;
    match owner.kit().flusher.waits_for_others() {
        true => owner.flush_all().await,
        false => Ok(()),
    }
}
