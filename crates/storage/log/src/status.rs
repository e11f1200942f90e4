//! Status of a log.

use crate::core::Core;
use crate::map::Map;
use block::Status;
use logkit::Owner;
use serde_json::json;
use std::sync::atomic::Ordering;

/// Returns counters and the state of the zones; `volume` is the map of the volume with the parts of all
/// shards.
pub fn status(core: &Core, volume: &dyn Map) -> Status {
    let mut status = Status::new();
    let kit = core.kit();
    let counters = &kit.counters;
    let value = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (user, moved) = (value(&counters.user_blocks), value(&counters.moved_blocks));
    let overhead = value(&counters.overhead_blocks);
    let factor = |blocks: u64| if user == 0 { 0.0 } else { blocks as f64 / user as f64 };
    let capacity = core.capacity(0);
    status.insert("uuid".into(), kit.identity.uuid.to_string().into());
    status.insert("capacity_blocks".into(), capacity.into());
    status.insert("live_blocks".into(), kit.pool.live_data().into());
    status.insert("full".into(), (kit.pool.live_data() as f64 / capacity.max(1) as f64).into());
    status.insert("space".into(), if core.is_full() { "full" } else { "ok" }.into());
    status.insert(
        "zones".into(),
        json!({
            "total": core.layout.zones,
            "free": kit.pool.free(),
            "dead": kit.pool.dead(),
            "size": u64::from(core.layout.zone_blocks) << core.layout.block_size.shift(),
            "damaged": kit.pool.damaged(),
        }),
    );
    status.insert(
        "write_amplification".into(),
        json!({
            "data": factor(user + moved),
            "user": 1.0,
            "cleaner": factor(moved),
            "metadata": factor(overhead),
            "metadata_share_of_data": if user == 0 { 0.0 } else { overhead as f64 / (user + moved) as f64 },
        }),
    );
    let (low, high) = logkit::pace::watermarks(core);
    status.insert(
        "cleaning".into(),
        json!({
            "low_watermark": low,
            "high_watermark": high,
            "moves_per_write": logkit::pace::moves_per_write(core),
            "zone_waits": value(&counters.zone_waits),
        }),
    );
    status.insert("user_blocks".into(), user.into());
    status.insert("moved_blocks".into(), moved.into());
    status.insert("metadata_blocks".into(), overhead.into());
    status.insert("checkpoint_blocks".into(), value(&counters.checkpoint_blocks).into());
    status.insert("user_records".into(), value(&counters.user_records).into());
    status.insert("cleaned_zones".into(), value(&counters.cleaned_zones).into());
    status.insert("reset_zones".into(), value(&counters.reset_zones).into());
    status.insert("checkpoints".into(), value(&counters.checkpoints).into());
    status.insert("checkpoint_lag_blocks".into(), kit.since_checkpoint().into());
    status.insert("dirty_pages".into(), core.dirty_pages().into());
    let bytes = match core.peers.is_alone() {
        true => core.versions.borrow().list.last().map_or(0, |version| version.map.bytes()),
        false => volume.bytes(),
    };
    status.insert("map_bytes".into(), bytes.into());
    status.insert("shards".into(), core.layout.stripes.shards().into());
    if let Some(home) = &core.home {
        status.insert("map_home".into(), home.status());
    }
    if let Some(lost) = &core.lost {
        status.insert("lost".into(), json!(lost.lines()));
        status.insert("lost_count".into(), lost.count().into());
    }
    if let Some(error) = kit.space.error() {
        status.insert("no_space".into(), error.detail().into());
    }
    if let Some(error) = kit.failure() {
        status.insert("failed".into(), error.detail().into());
    }
    status
}
