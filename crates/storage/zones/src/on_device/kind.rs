//! Declaration of zones on a device for stacks.

use super::layout::Layout;
use super::open::zone_geometry;
use super::{DEFAULT_ZONE_SIZE, OnDevice, Options};
use crate::ram::{MAX_ACTIVE, MAX_OPEN, small};
use block::{BlockCount, BlockSize, Call, DeviceGeometry, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::sync::Arc;

/// `zones(file(disk.img, size=4GiB), zone_size=64MiB)`.
pub const KIND: Kind = Kind {
    name: "zones",
    contract: Contract::Zones,
    summary: "append-only zones on a device",
    keys: &[
        Key::required("on", ValueKind::Device, "device that is divided into zones")
            .positional()
            .holds_contents(),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "distance between zones; default: that of the volume, 64MiB for a new one",
        ),
        Key::optional(
            "max_append",
            ValueKind::Size,
            "largest append; default: 1MiB, or a zone if that is smaller",
        ),
        MAX_OPEN,
        MAX_ACTIVE,
        Key::optional(
            "read_only",
            ValueKind::Bool,
            "refuse every change, so that nothing is written to the device",
        )
        .or("false"),
    ],
    messages: &[],
    metrics: &[METRICS],
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

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("zone_size", "zone_bytes", "Size of a zone"),
    Metric::gauge("zones", "zones", "Zones of the part"),
    Metric::gauge("empty", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "empty"),
    Metric::gauge("open", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "open"),
    Metric::gauge("closed", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "closed"),
    Metric::gauge("interrupted", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "interrupted"),
    Metric::gauge("full", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "full"),
    Metric::gauge("offline", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "offline"),
];

fn options(arguments: &Arguments) -> Result<Options> {
    Ok(Options {
        format: arguments.format(),
        zone_size: arguments.optional_size("zone_size")?,
        staging: None,
        max_open: small(arguments, "max_open")?,
        max_active: small(arguments, "max_active")?,
        max_append: arguments.optional_size("max_append")?,
        read_only: arguments.boolean("read_only")?,
    })
}

/// Plans a shape. Without the key `zone_size`, only the medium knows the size of existing zones.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let options = options(arguments)?;
    if options.format && options.read_only {
        return Err(arguments.refuse(
            "read_only",
            "zones can't be formatted and read-only at the same time: leave one of them out",
        ));
    }
    let device = arguments.shape("on")?;
    let zone_size = options.zone_size.or(options.format.then_some(DEFAULT_ZONE_SIZE));
    let (Some(bytes), Some(block_size), Some(zone_size)) = (device.bytes, device.block_size, zone_size)
    else {
        return Ok(Shape::default());
    };
    let block_size = BlockSize::new(u64::from(block_size))?;
    let geometry = DeviceGeometry {
        block_size,
        blocks: BlockCount(bytes >> block_size.shift()),
        atomic_write: block_size.bytes() as u32,
        // Only opening the device shows whether it has one.
        volatile_cache: true,
        read_only: false,
    };
    let layout = Layout::for_device(&geometry, zone_size, options.staging)
        .map_err(|error| arguments.refuse("zone_size", error.detail().to_owned()))?;
    zone_geometry(&geometry, &layout, &options)
        .map(Shape::of_zones)
        .map_err(|error| arguments.refuse("max_append", error.detail().to_owned()))
}
