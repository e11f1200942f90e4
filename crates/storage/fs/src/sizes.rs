//! Sizes of a file system: those of its zones on a device, and of its memory.

use crate::core::geometry::check_new;
use block::{DeviceGeometry, DevicePart, Result, ZoneGeometry, ZonesPart};
use std::sync::Arc;
use zones::on_device;

/// Largest append to the zones on a device in bytes: a record of a write of 1 MiB is one append.
const MAX_APPEND: u64 = 2 << 20;
const MIN_ZONE: u64 = 128 << 10;
const MAX_ZONE: u64 = 64 << 20;

/// Default size of the zones of a new file system on a device of `disk` bytes.
fn default_zone_size(disk: u64) -> u64 {
    zones::on_device::default_zone_size(disk, MIN_ZONE, MAX_ZONE)
}

/// Geometry of new zones on a device.
pub(crate) fn new_zones(device: &DeviceGeometry, zone_size: Option<u64>) -> Result<ZoneGeometry> {
    let zone_size = zone_size.unwrap_or_else(|| default_zone_size(device.bytes()));
    on_device::geometry(device, zone_size, MAX_APPEND)
}

/// Opens the zones on a device; with `format`, creates them first.
///
/// # Errors
/// As [`zones::OnDevice::open`]; for new zones also as [`check_new`], before any write.
pub async fn zones_on(
    device: Arc<dyn DevicePart>,
    format: bool,
    zone_size: Option<u64>,
) -> Result<Arc<dyn ZonesPart>> {
    let zone_size = match (format, zone_size) {
        (true, None) => Some(default_zone_size(device.geometry().bytes())),
        (_, given) => given,
    };
    if format {
        check_new(&new_zones(device.geometry(), zone_size)?)?;
    }
    let max_append = Some(MAX_APPEND);
    let options = on_device::Options { format, zone_size, max_append, ..on_device::Options::default() };
    Ok(Arc::new(zones::OnDevice::open(device, options).await?))
}

/// Opens the zones on a device for reading; nothing is written to them.
///
/// # Errors
/// As [`zones::OnDevice::open`].
pub async fn zones_to_read(device: Arc<dyn DevicePart>) -> Result<Arc<dyn ZonesPart>> {
    let options = on_device::Options { read_only: true, ..on_device::Options::default() };
    Ok(Arc::new(zones::OnDevice::open(device, options).await?))
}

/// Default memory budget for metadata in bytes: half of the machine's memory.
pub fn default_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into()) / 2
}
