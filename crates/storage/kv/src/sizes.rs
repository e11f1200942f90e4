//! Sizes of a store by default, from those of its zones.

use crate::settings::Settings;
use block::ZoneGeometry;

/// Minimum size of a shard's write buffer, in bytes.
pub const MIN_BUFFER: u64 = 64 << 10;
/// Minimum size of a table, in bytes.
pub const MIN_TABLE: u64 = 16 << 10;

/// Default memory of the write buffers of `shards` shards, in bytes.
pub fn default_buffer_bytes(zones: &ZoneGeometry, shards: u64) -> u64 {
    Settings::default().buffer_bytes.min((zones.capacity() / 32).max(shards * MIN_BUFFER))
}

/// Default size at which a table is ended, in bytes.
pub fn default_table_bytes(zones: &ZoneGeometry) -> u64 {
    let most = (zones.zone_capacity / 2).min(zones.capacity() / 64).max(MIN_TABLE);
    Settings::default().table_bytes.min(most)
}

/// Default size of level 1 in bytes, with tables of `table_bytes`.
pub fn default_level_bytes(zones: &ZoneGeometry, table_bytes: u64) -> u64 {
    Settings::default().level_bytes.max(table_bytes).min((zones.capacity() / 16).max(table_bytes))
}
