//! Sizes of a file system: those of its zones on a device, and of its memory.

use crate::core::geometry::check_new;
use block::{DeviceGeometry, DevicePart, Result, ZoneGeometry, ZonesPart};
use std::sync::Arc;
use zones::on_device::defaults;

/// Geometry of new zones on a device.
pub(crate) fn new_zones(device: &DeviceGeometry, zone_size: Option<u64>) -> Result<ZoneGeometry> {
    defaults::new_zones(device, zone_size, defaults::MIN_ZONE_SIZE)
}

/// Opens the zones on a device; with `format`, creates them first.
///
/// # Errors
/// As [`defaults::open`]; for new zones also as [`check_new`], before any write.
pub async fn zones_on(
    device: Arc<dyn DevicePart>,
    format: bool,
    zone_size: Option<u64>,
) -> Result<Arc<dyn ZonesPart>> {
    if format {
        check_new(&new_zones(device.geometry(), zone_size)?)?;
    }
    defaults::open(device, format, zone_size, defaults::MIN_ZONE_SIZE).await
}

/// Opens the zones on a device for reading; nothing is written to them.
///
/// # Errors
/// As [`zones::OnDevice::open`].
pub async fn zones_to_read(device: Arc<dyn DevicePart>) -> Result<Arc<dyn ZonesPart>> {
    Ok(Arc::new(zones::OnDevice::open_read_only(device, None).await?))
}

/// Default memory budget for metadata in bytes: half of the machine's memory.
pub fn default_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into()) / 2
}
