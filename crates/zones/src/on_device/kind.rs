//! How a stack names zones on a device.

use super::layout::Layout;
use super::{OnDevice, Options};
use crate::ram::{MAX_ACTIVE, MAX_OPEN, small};
use block::{BlockCount, BlockSize, Call, DeviceGeometry, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Shape, ValueKind};
use std::sync::Arc;

/// `zones(file(disk.img, size=4GiB), zone_size=64MiB)`.
pub const KIND: Kind = Kind {
    name: "zones",
    contract: Contract::Zones,
    summary: "append-only zones on a device",
    keys: &[
        Key::required("on", ValueKind::Device, "the device that is cut into zones").positional(),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "the distance between zones; 64MiB where none are there yet",
        ),
        Key::optional(
            "max_append",
            ValueKind::Size,
            "the largest append; 1MiB, or a zone where that is smaller",
        ),
        MAX_OPEN,
        MAX_ACTIVE,
    ],
    shareable: false,
    example: "zones(ram(256MiB), zone_size=16MiB)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let options = options(&arguments)?;
            Ok(Built::Zones(Arc::new(OnDevice::open(arguments.device("on")?, options).await?)))
        })
    },
};

fn options(arguments: &Arguments) -> Result<Options> {
    Ok(Options {
        format: arguments.format(),
        zone_size: arguments.optional_size("zone_size")?,
        max_open: small(arguments, "max_open")?,
        max_active: small(arguments, "max_active")?,
        max_append: arguments.optional_size("max_append")?,
        read_only: false,
    })
}

/// Without a size only the medium knows how many bytes the zones take.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let device = arguments.shape("on")?;
    let (Some(bytes), Some(block_size), Some(zone_size)) =
        (device.bytes, device.block_size, arguments.optional_size("zone_size")?)
    else {
        return Ok(Shape::default());
    };
    let block_size = BlockSize::new(u64::from(block_size))?;
    let geometry = DeviceGeometry {
        block_size,
        blocks: BlockCount(bytes >> block_size.shift()),
        atomic_write: block_size.bytes() as u32,
        volatile_cache: false,
        read_only: false,
    };
    let layout = Layout::for_device(&geometry, zone_size)
        .map_err(|error| arguments.refuse("zone_size", error.detail().to_owned()))?;
    Ok(Shape { bytes: Some(u64::from(layout.zones) * layout.capacity()), block_size: None })
}
