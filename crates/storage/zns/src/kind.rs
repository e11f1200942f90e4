//! Declaration of the kind for stacks.

use crate::drive::Faults;
use crate::format::Superblock;
use crate::part::{Settings, Shape, Zns, geometry, lock_file};
use block::{Call, Error, Result};
use runtime::file::{File, OpenOptions, SharedFile};
use stack::{Arguments, Built, Contract, Key, Kind, LockedFile, Metric, ValueKind, messages};
use std::path::PathBuf;
use std::sync::Arc;

const COUNT: ValueKind = ValueKind::Integer { min: 0, max: u32::MAX as u64 };
const PROBABILITY: ValueKind = ValueKind::Float { min: 0.0, max: 1.0 };

/// `zns-emulator(drive.zns, profile=zn540, zones=64, zone_size=16MiB)`.
pub const KIND: Kind = Kind {
    name: "zns-emulator",
    contract: Contract::Zones,
    summary: "an emulated ZNS drive: zones over flash that takes time, wears and fails",
    keys: &[
        Key::optional(
            "path",
            ValueKind::Path,
            "file of the drive, created if it doesn't exist; default: memory",
        )
        .positional(),
        Key::optional(
            "profile",
            ValueKind::Text,
            "times and geometry: zn540, femu-slc, femu-tlc, femu-qlc, confzns, unprotected; default of a new drive: zn540",
        ),
        Key::optional(
            "zones",
            ValueKind::Integer { min: 1, max: 1 << 20 },
            "number of zones; default of a new drive: 64",
        ),
        Key::optional("zone_size", ValueKind::Size, "distance between zones; default of a new drive: 16MiB"),
        Key::optional(
            "zone_capacity",
            ValueKind::Size,
            "writable bytes of a zone; default of a new drive: zone_size",
        ),
        Key::optional(
            "encrypted",
            ValueKind::Bool,
            "encrypt each zone with its own key, which a reset can destroy; default of a new drive: false",
        ),
        Key::optional(
            "seed",
            ValueKind::Integer { min: 0, max: u64::MAX },
            "seed of failures and bit errors; default: drawn for a new drive",
        ),
        Key::optional(
            "endurance",
            ValueKind::Integer { min: 1, max: u32::MAX as u64 },
            "erases that each block endures; default of a new drive: that of the profile",
        ),
        Key::optional("max_open", COUNT, "limit of open zones; 0 is no limit").or("14"),
        Key::optional("max_active", COUNT, "limit of active zones (begun and not finished); 0 is no limit")
            .or("14"),
        Key::optional("max_append", ValueKind::Size, "largest append").or("256KiB"),
        Key::optional(
            "time",
            ValueKind::Choice(&["real", "none"]),
            "take the profile's time for each operation, or none",
        )
        .or("real"),
        Key::optional(
            "bit_errors",
            ValueKind::Bool,
            "give reads bit errors; a read with more than the limit of correction fails",
        )
        .or("false"),
        Key::optional(
            "program_failures",
            PROBABILITY,
            "probability that a program fails, which makes the zone read-only",
        )
        .or("0"),
        Key::optional(
            "erase_failures",
            PROBABILITY,
            "probability that a block's erase fails, which makes the zone offline",
        )
        .or("0"),
    ],
    messages: <ZnsMessage as stack::Message>::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "zns-emulator(profile=zn540, zones=16, zone_size=4MiB)",
    plan,
    build: |arguments| Call::new(async move { Ok(Built::Zones(Arc::new(build(&arguments).await?))) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("zone_size", "zone_bytes", "Size of a zone"),
    Metric::gauge("zones", "zones", "Zones of the part"),
    Metric::gauge("empty", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "empty"),
    Metric::gauge("implicitly_open", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "implicitly_open"),
    Metric::gauge("explicitly_open", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "explicitly_open"),
    Metric::gauge("closed", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "closed"),
    Metric::gauge("full", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "full"),
    Metric::gauge("read_only", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "read_only"),
    Metric::gauge("offline", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "offline"),
    Metric::gauge("interrupted", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "interrupted"),
    Metric::gauge("stale", "zones_in_state", "Zones in a state of their life cycle")
        .with_label("state", "stale"),
    Metric::gauge("most_erases", "zns_most_erases", "Erases of the most worn block"),
    Metric::gauge("endurance", "zns_endurance_erases", "Erases that a block endures"),
    Metric::counter("appends", "zns_appends", "Appends"),
    Metric::counter("appended_bytes", "zns_appended_bytes", "Bytes that were appended"),
    Metric::counter("reads", "zns_reads", "Reads"),
    Metric::counter("resets", "zns_resets", "Resets of zones"),
    Metric::counter("programs", "zns_programs", "Programs of flash pages"),
    Metric::counter("block_erases", "zns_block_erases", "Erases of flash blocks"),
    Metric::counter("corrected_bits", "zns_bit_corrections", "Bits that were corrected"),
    Metric::counter("uncorrectable_reads", "zns_uncorrectable_reads", "Reads that couldn't be corrected"),
    Metric::counter("power_cuts", "zns_power_cuts", "Power cuts"),
];

messages! {
    /// Messages to an emulated drive.
    ZnsMessage;
    "power-off" => PowerOff, "cut the power: calls in flight fail, handles become unusable";
    "power-on" => PowerOn, "switch the power on again";
    "age HOURS" => Age(u64), "let the charge of the cells leak for HOURS hours";
    "read-only ZONE" => ReadOnly(u32), "make a zone read-only, as a failed program does";
    "offline ZONE" => Offline(u32), "make a zone offline, as a failed erase does";
    "zones" => Zones, "list the zones, as JSON";
    "wear" => Wear, "list erases, reads and bit error rates of the blocks, as JSON";
}

fn shape(arguments: &Arguments) -> Result<Shape> {
    let usual = Shape::default();
    let zone_size = arguments.optional_size("zone_size")?.unwrap_or(usual.zone_size);
    let small = |key| -> Result<Option<u32>> {
        Ok(arguments.optional_integer(key)?.map(|value| value.min(u64::from(u32::MAX)) as u32))
    };
    Ok(Shape {
        profile: arguments.optional_text("profile")?.unwrap_or(usual.profile),
        zones: small("zones")?.unwrap_or(usual.zones),
        zone_size,
        zone_capacity: arguments.optional_size("zone_capacity")?.unwrap_or(zone_size),
        encrypted: arguments.optional_boolean("encrypted")?.unwrap_or(false),
        seed: arguments.optional_integer("seed")?,
        endurance: small("endurance")?,
    })
}

fn settings(arguments: &Arguments) -> Result<Settings> {
    Ok(Settings {
        max_open: arguments.integer("max_open")? as u32,
        max_active: arguments.integer("max_active")? as u32,
        max_append: arguments.size("max_append")?,
        timed: arguments.choice("time")? == "real",
        faults: Faults {
            program: arguments.float("program_failures")?,
            erase: arguments.float("erase_failures")?,
            bits: arguments.boolean("bit_errors")?,
        },
    })
}

/// Plans a shape. The geometry of an existing drive is only in its file.
fn plan(arguments: &Arguments) -> Result<stack::Shape> {
    let (path, settings) = (arguments.optional_path("path")?, settings(arguments)?);
    let profile = arguments.optional_text("profile")?;
    if let Some(name) = &profile {
        let known = crate::profile::Profile::named(name);
        known.map_err(|error| arguments.refuse("profile", error.detail().to_owned()))?;
    }
    let exists = match &path {
        None => false,
        Some(path) => {
            arguments.claim("path", path, true, lock_for_stack);
            match runtime::file::metadata(path) {
                Ok(found) if !found.is_file => {
                    return Err(arguments.refuse("path", format!("{}: not a regular file", path.display())));
                }
                Ok(found) => found.length > 0,
                Err(Error::NotFound(_)) => false,
                Err(error) => return Err(error),
            }
        }
    };
    if exists && !arguments.format() {
        return Ok(stack::Shape::default());
    }
    let superblock = Shape { seed: Some(0), ..shape(arguments)? };
    let superblock =
        planned(&superblock).map_err(|error| arguments.refuse("zone_capacity", error.detail().to_owned()))?;
    geometry(&superblock, &settings, path.is_none())
        .map(stack::Shape::of_zones)
        .map_err(|error| arguments.refuse("max_append", error.detail().to_owned()))
}

/// Superblock of a shape, with a nil UUID, because a plan runs outside of a shard.
fn planned(shape: &Shape) -> Result<Superblock> {
    shape.superblock_with(uuid::Uuid::nil())
}

fn lock_for_stack(path: PathBuf, _: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::new(async move {
        let Some(file) = lock_file(&path).await? else { return Ok(None) };
        Ok(Some(Box::new(file.share()?) as LockedFile))
    })
}

async fn build(arguments: &Arguments) -> Result<Zns> {
    let (shape, settings) = (shape(arguments)?, settings(arguments)?);
    let Some(path) = arguments.optional_path("path")? else {
        return Zns::in_memory(&shape, settings);
    };
    let file = match arguments.locked::<SharedFile>("path") {
        Some(locked) => locked.here()?,
        None if arguments.must_exist() => {
            return Err(Error::not_found(format!(
                "{}: no such file; expected the drive with the contents of the part above; check the path, or create everything from \
                 scratch (--format)",
                path.display()
            )));
        }
        None => {
            let options = OpenOptions { create: true, ..OpenOptions::read_write() };
            let file = File::open(&path, options).await?;
            file.lock(true)?;
            // The file's name must also survive a crash.
            runtime::file::sync_directory(path.parent().unwrap_or(&path)).await?;
            file
        }
    };
    if arguments.format() || file.length()? == 0 {
        Zns::format(&file, &shape).await?;
    }
    let zns = Zns::open_file(&file, settings).await?;
    check_given(arguments, &shape, &zns.superblock())?;
    Ok(zns)
}

/// Refuses keys that contradict an existing drive.
fn check_given(arguments: &Arguments, shape: &Shape, found: &Superblock) -> Result<()> {
    let both = [
        ("profile", shape.profile.clone(), found.profile.clone()),
        ("zones", shape.zones.to_string(), found.zones.to_string()),
        ("zone_size", shape.zone_size.to_string(), found.zone_size.to_string()),
        ("zone_capacity", shape.zone_capacity.to_string(), found.zone_capacity.to_string()),
        ("encrypted", shape.encrypted.to_string(), found.encrypted.to_string()),
        ("seed", shape.seed.unwrap_or_default().to_string(), found.seed.to_string()),
        ("endurance", shape.endurance.unwrap_or_default().to_string(), found.endurance.to_string()),
    ];
    for (key, asked, there) in both {
        if arguments.given(key) && asked != there {
            return Err(arguments.refuse(
                key,
                format!(
                    "{key} {asked}: the drive was made with {there}; leave the key out, or format the drive"
                ),
            ));
        }
    }
    Ok(())
}
