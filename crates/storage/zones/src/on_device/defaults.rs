//! Zones of a store on the log kit: their sizes by default, and how they are opened on a device.

use super::{DEFAULT_ZONE_SIZE, OnDevice, Options, geometry};
use block::{DeviceGeometry, DevicePart, Result, ZoneGeometry, ZonesPart};
use std::sync::Arc;

/// Largest append in bytes: a record of a write of 1 MiB is one append.
pub const MAX_APPEND: u64 = 2 << 20;
/// Smallest default size of a zone in bytes for a file system or key-value store.
pub const MIN_ZONE_SIZE: u64 = 128 << 10;

/// Default size of new zones on a device of `disk` bytes, in bytes: 1/256 of it, rounded down to a power of
/// two and clamped to `min_zone_size` and [`DEFAULT_ZONE_SIZE`].
pub fn default_zone_size(disk: u64, min_zone_size: u64) -> u64 {
    let share = disk / 256;
    let power = if share == 0 { 0 } else { 1 << share.ilog2() };
    power.clamp(min_zone_size, DEFAULT_ZONE_SIZE)
}

/// Geometry of new zones on a device; by default they have [`default_zone_size`].
///
/// # Errors
/// As [`geometry`].
pub fn new_zones(
    device: &DeviceGeometry,
    zone_size: Option<u64>,
    min_zone_size: u64,
) -> Result<ZoneGeometry> {
    let zone_size = zone_size.unwrap_or_else(|| default_zone_size(device.bytes(), min_zone_size));
    geometry(device, zone_size, MAX_APPEND)
}

/// Opens the zones on a device; with `format`, creates them first, by default with [`default_zone_size`].
///
/// # Errors
/// As [`OnDevice::open`].
pub async fn open(
    device: Arc<dyn DevicePart>,
    format: bool,
    zone_size: Option<u64>,
    min_zone_size: u64,
) -> Result<Arc<dyn ZonesPart>> {
    let usual = || default_zone_size(device.geometry().bytes(), min_zone_size);
    let zone_size = zone_size.or_else(|| format.then(usual));
    let options = Options { format, zone_size, max_append: Some(MAX_APPEND), ..Options::default() };
    Ok(Arc::new(OnDevice::open(device, options).await?))
}
