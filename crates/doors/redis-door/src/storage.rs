//! Storage of a store in a stack: settings and zones from the keys of the kind, checked before anything is
//! opened.

use block::{
    Buffer, DeviceGeometry, EraseGuarantee, Error, Result, ZoneGeometry, ZoneIndex, ZoneState, ZonesPart,
};
use kv::sizes::{MIN_BUFFER, MIN_TABLE, default_buffer_bytes, default_level_bytes, default_table_bytes};
use kv::{
    Acknowledge, Compression, DeletePersistence, Goal, MAX_SHARDS, Settings, Store, TableOptions,
    check_zones, default_policies, default_shards,
};
use stack::{Arguments, Contract, DurationOrCount};
use std::sync::Arc;
use zones::on_device::defaults;

const MAX_TABLE: u64 = 1 << 30;

pub(crate) fn refuse<T>(arguments: &Arguments, key: &'static str, text: String) -> Result<T> {
    Err(arguments.refuse(key, text))
}

/// Settings for zones of this geometry; `None` assumes zones that are large enough.
pub(crate) fn settings(arguments: &Arguments, geometry: Option<&ZoneGeometry>) -> Result<Settings> {
    let defaults = Settings::default();
    let size = |key, usual: u64, of_zones: &dyn Fn(&ZoneGeometry) -> u64| -> Result<u64> {
        Ok(arguments.optional_size(key)?.unwrap_or_else(|| geometry.map_or(usual, of_zones)))
    };
    let shards = arguments.optional_integer("shards")?.map(|shards| shards as u16);
    let usual = match geometry {
        Some(geometry) => default_shards(arguments.shards(), geometry),
        None => arguments.shards().min(usize::from(MAX_SHARDS)) as u16,
    };
    let count = u64::from(shards.unwrap_or(usual));
    let buffer_bytes = size("buffer", defaults.buffer_bytes, &|zones| default_buffer_bytes(zones, count))?;
    let table_bytes = size("table_size", defaults.table_bytes, &default_table_bytes)?;
    let level_bytes = size("level_size", defaults.level_bytes.max(table_bytes), &|zones| {
        default_level_bytes(zones, table_bytes)
    })?;
    let (acknowledge, compression) = (arguments.choice("acknowledge")?, arguments.choice("compression")?);
    let (delete_persistence, erase) = promise(arguments, geometry)?;
    let usual = default_policies(delete_persistence.is_some());
    let compaction = arguments.optional_choice("compaction")?.unwrap_or(usual.0);
    let placement = arguments.optional_choice("placement")?.unwrap_or(usual.1);
    let settings = Settings {
        shards,
        acknowledge: match acknowledge {
            "buffered" => Acknowledge::Buffered,
            "flushed" => Acknowledge::Flushed,
            _ => Acknowledge::Written,
        },
        buffer_bytes,
        cache_bytes: arguments.size("cache")?,
        table_bytes,
        table: TableOptions {
            compression: if compression == "none" { Compression::None } else { Compression::Lz4 },
            ..defaults.table
        },
        compaction: compaction.to_owned(),
        placement: placement.to_owned(),
        level_bytes,
        multiplier: arguments.integer("multiplier")?,
        delete_persistence,
        erase,
        goal: if arguments.salvage()? { Goal::Salvage } else { Goal::Serve },
        ..defaults
    };
    check_sizes(arguments, &settings, count)?;
    settings.check_compaction().map_err(|error| match delete_persistence {
        Some(_) => arguments.refuse("delete_persistence", error.detail().to_owned()),
        None => arguments.refuse("compaction", error.detail().to_owned()),
    })?;
    Ok(settings)
}

/// Checks the sizes of a store with `count` shards.
fn check_sizes(arguments: &Arguments, settings: &Settings, count: u64) -> Result<()> {
    let Settings { buffer_bytes, table_bytes, level_bytes, .. } = *settings;
    let [buffer, least, each, table, level, min, max] =
        [buffer_bytes, count * MIN_BUFFER, MIN_BUFFER, table_bytes, level_bytes, MIN_TABLE, MAX_TABLE]
            .map(stack::format_size);
    if buffer_bytes < count * MIN_BUFFER {
        let text = format!("buffer {buffer}: expected at least {least}, {each} for each of {count} shards");
        return refuse(arguments, "buffer", text);
    }
    if !(MIN_TABLE..=MAX_TABLE).contains(&table_bytes) {
        let text = format!("table_size {table}: expected {min} to {max}");
        return refuse(arguments, "table_size", text);
    }
    if level_bytes < table_bytes {
        let text = format!("level_size {level}: expected at least table_size, {table}");
        return refuse(arguments, "level_size", text);
    }
    Ok(())
}

/// Promise of persistent deletes, and guarantee of resets.
fn promise(
    arguments: &Arguments,
    geometry: Option<&ZoneGeometry>,
) -> Result<(Option<DeletePersistence>, EraseGuarantee)> {
    let persistence = arguments.optional_duration_or_count("delete_persistence")?.map(|given| match given {
        DurationOrCount::Duration(time) => DeletePersistence::Time(time),
        DurationOrCount::Count(count) => DeletePersistence::Operations(count),
    });
    let asked = arguments.optional_choice("erase")?.map(|word| match word {
        "none" => EraseGuarantee::None,
        "deallocated" => EraseGuarantee::Deallocated,
        "erased" => EraseGuarantee::Erased,
        _ => EraseGuarantee::Key,
    });
    if asked.is_some() && persistence.is_none() {
        let text = "erase without delete_persistence has no effect; expected both, or none of them";
        return refuse(arguments, "erase", text.to_owned());
    }
    let Some(geometry) = geometry else { return Ok((persistence, asked.unwrap_or(EraseGuarantee::None))) };
    if let Some(asked) = asked
        && asked > geometry.erase
    {
        let text = format!("erase \"{asked}\": a reset of these zones gives at most \"{}\"", geometry.erase);
        return refuse(arguments, "erase", text);
    }
    if persistence.is_some() && asked.is_none() && geometry.erase == EraseGuarantee::None {
        let text = "delete_persistence: a reset of these zones gives no guarantee that data is erased; expected zones that do, or \
                    erase = \"none\" for a promise that only ends with the reset";
        return refuse(arguments, "delete_persistence", text.to_owned());
    }
    Ok((persistence, asked.unwrap_or(geometry.erase)))
}

/// Geometry of the store's zones; `None` if it is known only after opening: the geometry of a formatted
/// device is on the device.
pub(crate) fn zones_to_be(arguments: &Arguments) -> Result<Option<ZoneGeometry>> {
    let shape = arguments.shape("on")?;
    if arguments.contract("on")? == Some(Contract::Zones) {
        return Ok(shape.zones);
    }
    let (true, Some(device)) = (arguments.format(), shape.device()?) else { return Ok(None) };
    new_zones(arguments, &device).map(Some)
}

/// Settings of a new store on zones of this geometry.
///
/// # Errors
/// [`Error::Invalid`] with the numbers, if settings are out of range or the zones don't fit.
pub(crate) fn settings_of_new(arguments: &Arguments, geometry: &ZoneGeometry) -> Result<Settings> {
    let settings = settings(arguments, Some(geometry))?;
    let shards = settings.shards.unwrap_or_else(|| default_shards(arguments.shards(), geometry));
    check_zones(geometry, shards).map_err(|error| arguments.refuse("on", error.detail().to_owned()))?;
    Ok(settings)
}

/// Geometry of new zones on a device.
fn new_zones(arguments: &Arguments, device: &DeviceGeometry) -> Result<ZoneGeometry> {
    let zones = defaults::new_zones(device, arguments.optional_size("zone_size")?, defaults::MIN_ZONE_SIZE);
    // A device that is too small for any zones is also refused with the numbers.
    zones.map_err(|error| arguments.refuse("on", error.detail().to_owned()))
}

/// Opens the zones on the device. Formats them first if the stack is being formatted and the store fits.
async fn zones_on(arguments: &Arguments) -> Result<Arc<dyn ZonesPart>> {
    let device = arguments.device("on")?;
    if arguments.format() {
        settings_of_new(arguments, &new_zones(arguments, device.geometry())?)?;
    }
    defaults::open(device, arguments.format(), arguments.optional_size("zone_size")?, defaults::MIN_ZONE_SIZE)
        .await
}

/// Opens the zones of the store read-only.
///
/// # Errors
/// Errors of [`zones::OnDevice::open`].
pub async fn zones_to_read(arguments: &Arguments) -> Result<Arc<dyn ZonesPart>> {
    if arguments.contract("on")? == Some(Contract::Zones) {
        return arguments.zones("on");
    }
    Ok(Arc::new(zones::OnDevice::open_read_only(arguments.device("on")?, None).await?))
}

/// Number of bytes at the start of a device that must be zeros for it to be empty: superblocks of other
/// formats are there.
const BLANK_BYTES: u64 = 1 << 20;

/// Description of existing contents of a store's storage; `None` if it is empty.
///
/// # Errors
/// Errors of reading the storage.
pub async fn contents(arguments: &Arguments) -> Result<Option<String>> {
    let zones = match zones_to_read(arguments).await {
        Ok(zones) => zones.open().await?,
        Err(Error::Protocol(_)) => {
            let device = arguments.device("on")?.open().await?;
            let size = device.geometry().block_size;
            let count = (BLANK_BYTES >> size.shift()).clamp(1, device.geometry().blocks.0);
            let (outcome, first) =
                device.read(block::BlockIndex(0), Buffer::new((count << size.shift()) as usize)).await;
            outcome?;
            let is_empty = first.filled().iter().all(|byte| *byte == 0);
            return Ok((!is_empty).then(|| zones::sector::describe(first.filled()).to_owned()));
        }
        Err(error) => return Err(error),
    };
    let reports = zones.report(ZoneIndex(0), zones.geometry().zones).await?;
    let used = reports.iter().find(|report| report.state != ZoneState::Empty);
    Ok(used.map(|report| format!("zones that aren't empty (zone {})", report.zone)))
}

/// Opens the store of a stack without serving it; creates it if the stack is being formatted.
///
/// # Errors
/// [`Error::Protocol`] for storage without a store; [`Error::Invalid`] for settings that don't fit; errors of
/// [`Store::open`].
pub async fn open(arguments: &Arguments) -> Result<Store> {
    let format = arguments.format();
    let is_lent = arguments.contract("on")? == Some(Contract::Zones);
    let none = |error: Error| match error {
        // The rest of the detail is advice for zones.
        Error::Protocol(detail) => Error::protocol(format!(
            "it holds no key-value store ({}); expected one; siltstone kv serve STACK --format makes a new one",
            detail.split("; ").next().unwrap_or(&detail)
        )),
        other => other,
    };
    let is_salvage = arguments.salvage()?;
    let (zones, is_lent) = match is_lent {
        true => block::zones_of_store(arguments.zones("on")?, is_salvage).await?,
        false if is_salvage => (zones_to_read(arguments).await.map_err(none)?, false),
        false => (zones_on(arguments).await.map_err(none)?, false),
    };
    let settings = settings(arguments, Some(zones.geometry()))?;
    let opened = match format {
        true => Store::format(zones.clone(), &settings).await,
        false => Store::open(zones.clone(), &settings).await.map_err(none),
    };
    let store = match opened {
        Ok(store) if is_lent => store.on_lent_zones(),
        Ok(store) => store,
        Err(error) => {
            if !is_lent {
                // The caller gets the first error.
                let _ = zones.close().await;
            }
            return Err(error);
        }
    };
    if let Some(asked) = settings.shards
        && usize::from(asked) != store.shards()
    {
        let found = store.shards();
        store.close().await?;
        let text =
            format!("shards {asked}: the existing store has {found}; leave the key out, or format the store");
        return refuse(arguments, "shards", text);
    }
    Ok(store)
}
