//! Sizes of a store by default, from those of its zones and of the device below them; and the zones on a
//! device.

use crate::settings::Settings;
use block::{DevicePart, Result, ZoneGeometry, ZonesPart};
use std::sync::Arc;
use zones::on_device;

/// Maximum append to zones on a device, in bytes.
pub const MAX_APPEND: u64 = 2 << 20;
/// Minimum size of a shard's write buffer, in bytes.
pub const MIN_BUFFER: u64 = 64 << 10;
/// Minimum size of a table, in bytes.
pub const MIN_TABLE: u64 = 16 << 10;

const MIN_ZONE: u64 = 128 << 10;
const MAX_ZONE: u64 = 64 << 20;

/// Default size in bytes of the zones of a new store on a device of `disk` bytes.
pub fn default_zone_size(disk: u64) -> u64 {
    on_device::default_zone_size(disk, MIN_ZONE, MAX_ZONE)
}

/// Opens the zones on a device; with `format`, creates them first.
///
/// # Errors
/// As [`zones::OnDevice::open`].
pub async fn zones_on(
    device: Arc<dyn DevicePart>,
    format: bool,
    zone_size: Option<u64>,
) -> Result<Arc<dyn ZonesPart>> {
    let usual = || default_zone_size(device.geometry().bytes());
    let zone_size = zone_size.or_else(|| format.then(usual));
    let max_append = Some(MAX_APPEND);
    let options = on_device::Options { format, zone_size, max_append, ..on_device::Options::default() };
    Ok(Arc::new(zones::OnDevice::open(device, options).await?))
}

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
