//! Kind `kv` of a stack: a key-value store on a device or on zones, served to redis clients if it has an
//! address.

use crate::policy::{COMPACTIONS, placement, saturation, zap};
use crate::recovery::{check_new, default_shards};
use crate::redis::server::{Server, ServerConfig, check_address};
use crate::settings::{Acknowledge, DeletePersistence, Settings};
use crate::store::Store;
use crate::table::Compression;
use block::{
    Buffer, Call, DeviceGeometry, DevicePart, EraseGuarantee, Error, Part, Result, Status, ZoneGeometry,
    ZoneIndex, ZoneState, ZonesPart,
};
use logkit::recovery::Goal;
use runtime::net::Address;
use serde_json::json;
use stack::{Arguments, Built, Contract, Door, DurationOrCount, Key, Kind, Shape, ValueKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zones::on_device;

/// Maximum append to zones on a device, in bytes.
const MAX_APPEND: u64 = 2 << 20;
const MIN_ZONE: u64 = 128 << 10;
const MAX_ZONE: u64 = 64 << 20;
/// Minimum size of a shard's write buffer, in bytes.
const MIN_BUFFER: u64 = 64 << 10;
const MIN_TABLE: u64 = 16 << 10;
const MAX_TABLE: u64 = 1 << 30;

/// `kv(zns-emulator(drive.zns), listen=unix:kv.sock)`.
pub const KIND: Kind = Kind {
    name: "kv",
    contract: Contract::Door,
    summary: "a key-value store, served to redis clients",
    keys: &[
        Key::required(
            "on",
            ValueKind::DeviceOrZones,
            "the storage of the store: a device, which it divides into zones, or zones, which it uses as they are",
        )
        .positional()
        .holds_contents(),
        Key::optional(
            "listen",
            ValueKind::Text,
            "address for redis clients: unix:PATH or IP:PORT; default: none, and siltstone kv opens the store itself",
        ),
        Key::optional(
            "allow_remote",
            ValueKind::Bool,
            "permit an address that other machines can reach, without authentication",
        )
        .or("false"),
        Key::optional(
            "shards",
            ValueKind::Integer { min: 1, max: crate::manifest::MAX_SHARDS as u64 },
            "number of shards of a new store, by hash of the key; default: those of the stack, limited by the numbers of zones and of open zones",
        ),
        Key::optional(
            "acknowledge",
            ValueKind::Choice(&["buffered", "written", "flushed"]),
            "answer a write when it is in memory, in the log, or durable (redis: appendfsync always)",
        )
        .or("written"),
        Key::optional(
            "buffer",
            ValueKind::Size,
            "memory of the write buffers of all shards; default: 64MiB, at most 1/32 of the zones",
        )
        .known_as(&["write_buffer_size", "memtable"]),
        Key::optional("cache", ValueKind::Size, "memory of the block cache").or("64MiB").known_as(&["block_cache"]),
        Key::optional(
            "table_size",
            ValueKind::Size,
            "size at which a table is completed; default: 32MiB, at most half a zone and 1/64 of all zones",
        )
        .known_as(&["target_file_size_base"]),
        Key::optional("level_size", ValueKind::Size, "size of level 1; default: 256MiB, at most 1/16 of the zones")
            .known_as(&["max_bytes_for_level_base"]),
        Key::optional("multiplier", ValueKind::Integer { min: 2, max: 100 }, "ratio of the sizes of a level and the one before")
            .or("10")
            .known_as(&["max_bytes_for_level_multiplier"]),
        Key::optional("compression", ValueKind::Choice(&["none", "lz4"]), "compression of blocks of new tables").or("lz4"),
        Key::optional(
            "compaction",
            ValueKind::Choice(&COMPACTIONS),
            "policy that chooses the tables to compact; default: saturation, with delete_persistence: zap",
        ),
        Key::optional(
            "placement",
            ValueKind::Choice(&placement::NAMES),
            "policy that chooses zones for tables; default: lifetime, with delete_persistence: zap",
        ),
        Key::optional(
            "delete_persistence",
            ValueKind::DurationOrCount,
            "time, such as 10m, or number of writes, within which every copy of a deleted or expired key is erased from the zones; default: no promise",
        ),
        Key::optional(
            "erase",
            ValueKind::Choice(&["none", "deallocated", "erased", "key"]),
            "guarantee of a reset, with delete_persistence; default: the strongest that the zones give",
        ),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "the size of a zone, for a store on a device; default: 1/256 of a new one, 128KiB to 64MiB",
        ),
        Key::optional(
            "salvage",
            ValueKind::Bool,
            "open a damaged store to copy what can be read: nothing is written to its storage, and writes are refused",
        )
        .or("false"),
    ],
    messages: &[],
    shareable: false,
    example: "kv(zns-emulator(zones=32, zone_size=4MiB), listen=\"unix:kv.sock\")",
    plan,
    build: |arguments| Call::new(async move { build(&arguments).await }),
};

/// Parses the address of the key `listen`; `absolute` resolves the path of a unix socket.
///
/// # Errors
/// [`Error::Invalid`] for any other text; errors of `absolute`.
pub fn parse_listen(text: &str, absolute: impl Fn(&Path) -> Result<PathBuf>) -> Result<Address> {
    let Some(path) = text.strip_prefix("unix:") else { return text.parse() };
    format!("unix:{}", absolute(Path::new(path))?.display()).parse()
}

/// Address for redis clients; `None` if there is no key `listen`.
fn listen(arguments: &Arguments) -> Result<Option<Address>> {
    let Some(text) = arguments.optional_text("listen")? else { return Ok(None) };
    let address = parse_listen(&text, |path| arguments.absolute(path));
    address.map(Some).map_err(|error| arguments.refuse("listen", error.detail().to_owned()))
}

fn refuse<T>(arguments: &Arguments, key: &'static str, text: String) -> Result<T> {
    Err(arguments.refuse(key, text))
}

/// Settings for zones of this geometry; `None` assumes zones that are large enough.
fn settings(arguments: &Arguments, geometry: Option<&ZoneGeometry>) -> Result<Settings> {
    let defaults = Settings::default();
    let size = |key, usual: u64, most: &dyn Fn(&ZoneGeometry) -> u64| -> Result<u64> {
        let usual = geometry.map_or(usual, |geometry| usual.min(most(geometry)));
        Ok(arguments.optional_size(key)?.unwrap_or(usual))
    };
    let small = MIN_TABLE;
    let shards = arguments.optional_integer("shards")?.map(|shards| shards as u16);
    let usual = match geometry {
        Some(geometry) => default_shards(arguments.shards(), geometry),
        None => arguments.shards().min(usize::from(crate::manifest::MAX_SHARDS)) as u16,
    };
    let count = u64::from(shards.unwrap_or(usual));
    let buffer_bytes =
        size("buffer", defaults.buffer_bytes, &|zones| (zones.capacity() / 32).max(count * MIN_BUFFER))?;
    let table_bytes = size("table_size", defaults.table_bytes, &|zones| {
        (zones.zone_capacity / 2).min(zones.capacity() / 64).max(small)
    })?;
    let level_bytes = size("level_size", defaults.level_bytes.max(table_bytes), &|zones| {
        (zones.capacity() / 16).max(table_bytes)
    })?;
    let (acknowledge, compression) = (arguments.choice("acknowledge")?, arguments.choice("compression")?);
    let (delete_persistence, erase) = promise(arguments, geometry)?;
    let usual = if delete_persistence.is_some() {
        (zap::NAME, placement::ZAP)
    } else {
        (saturation::NAME, placement::LIFETIME)
    };
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
        table: crate::table::Options {
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
    let shown = stack::format_size;
    if buffer_bytes < count * MIN_BUFFER {
        let text = format!(
            "buffer {}: expected at least {}, {} for each of {count} shards",
            shown(buffer_bytes),
            shown(count * MIN_BUFFER),
            shown(MIN_BUFFER)
        );
        return refuse(arguments, "buffer", text);
    }
    if !(MIN_TABLE..=MAX_TABLE).contains(&table_bytes) {
        let range = format!("{} to {}", shown(MIN_TABLE), shown(MAX_TABLE));
        return refuse(
            arguments,
            "table_size",
            format!("table_size {}: expected {range}", shown(table_bytes)),
        );
    }
    if level_bytes < table_bytes {
        let text = format!(
            "level_size {}: expected at least table_size, {}",
            shown(level_bytes),
            shown(table_bytes)
        );
        return refuse(arguments, "level_size", text);
    }
    settings.compaction(1, u64::MAX).map_err(|error| match delete_persistence {
        Some(_) => arguments.refuse("delete_persistence", error.detail().to_owned()),
        None => arguments.refuse("compaction", error.detail().to_owned()),
    })?;
    Ok(settings)
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
        let text = "delete_persistence: a reset of these zones gives no guarantee that data is gone; expected zones that do, or \
                    erase = \"none\" for a promise that only ends with the reset";
        return refuse(arguments, "delete_persistence", text.to_owned());
    }
    Ok((persistence, asked.unwrap_or(geometry.erase)))
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let is_on_zones = arguments.contract("on")? == Some(Contract::Zones);
    if is_on_zones && arguments.given("zone_size") {
        let text = "the store is on zones, which have a size; expected no zone_size; leave the key out";
        return refuse(arguments, "zone_size", text.to_owned());
    }
    match listen(arguments)? {
        Some(address) => check_address(&address, arguments.boolean("allow_remote")?)
            .map_err(|error| arguments.refuse("listen", error.detail().to_owned()))?,
        None if arguments.given("allow_remote") => {
            return refuse(
                arguments,
                "allow_remote",
                "allow_remote without listen; expected both".to_owned(),
            );
        }
        None => {}
    }
    match zones_to_be(arguments)? {
        Some(geometry) if arguments.format() => drop(settings_of_new(arguments, &geometry)?),
        geometry => drop(settings(arguments, geometry.as_ref())?),
    }
    Ok(Shape::default())
}

/// Geometry of the store's zones; `None` if it is known only after opening: the geometry of a formatted
/// device is on the device.
fn zones_to_be(arguments: &Arguments) -> Result<Option<ZoneGeometry>> {
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
fn settings_of_new(arguments: &Arguments, geometry: &ZoneGeometry) -> Result<Settings> {
    let settings = settings(arguments, Some(geometry))?;
    let shards = settings.shards.unwrap_or_else(|| default_shards(arguments.shards(), geometry));
    check_new(geometry, shards).map_err(|error| arguments.refuse("on", error.detail().to_owned()))?;
    Ok(settings)
}

/// Default size in bytes of the zones of a new store on a device of `disk` bytes.
fn default_zone_size(disk: u64) -> u64 {
    let share = disk / 256;
    let power = if share == 0 { 0 } else { 1 << share.ilog2() };
    power.clamp(MIN_ZONE, MAX_ZONE)
}

/// Geometry of new zones on a device.
fn new_zones(arguments: &Arguments, device: &DeviceGeometry) -> Result<ZoneGeometry> {
    let zone_size =
        arguments.optional_size("zone_size")?.unwrap_or_else(|| default_zone_size(device.bytes()));
    let zones = on_device::geometry(device, zone_size, MAX_APPEND);
    // A device that is too small for any zones is also refused with the numbers.
    zones.map_err(|error| arguments.refuse("on", error.detail().to_owned()))
}

/// Opens the zones on a device. Formats them first if the stack is being formatted and the store fits.
async fn zones_on(arguments: &Arguments, device: Arc<dyn DevicePart>) -> Result<Arc<dyn ZonesPart>> {
    let (format, mut zone_size) = (arguments.format(), arguments.optional_size("zone_size")?);
    if format {
        settings_of_new(arguments, &new_zones(arguments, device.geometry())?)?;
        zone_size = zone_size.or_else(|| Some(default_zone_size(device.geometry().bytes())));
    }
    let options = on_device::Options {
        format,
        zone_size,
        max_append: Some(MAX_APPEND),
        ..on_device::Options::default()
    };
    Ok(Arc::new(zones::OnDevice::open(device, options).await?))
}

/// Opens the zones of the store read-only.
///
/// # Errors
/// Errors of [`zones::OnDevice::open`].
pub async fn zones_to_read(arguments: &Arguments) -> Result<Arc<dyn ZonesPart>> {
    if arguments.contract("on")? == Some(Contract::Zones) {
        return arguments.zones("on");
    }
    let options = on_device::Options { read_only: true, ..on_device::Options::default() };
    Ok(Arc::new(zones::OnDevice::open(arguments.device("on")?, options).await?))
}

/// Number of bytes at the start of a device that must be zeros for it to be empty: superblocks of other
/// formats are there.
const LOOKED_AT: u64 = 1 << 20;

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
            let count = (LOOKED_AT >> size.shift()).clamp(1, device.geometry().blocks.0);
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
        Error::Protocol(detail) => Error::protocol(format!(
            "it holds no key-value store ({detail}); siltstone kv serve STACK --format makes a new one"
        )),
        other => other,
    };
    let is_salvage = arguments.salvage()?;
    let zones = match is_lent {
        true => arguments.zones("on")?,
        false if is_salvage => zones_to_read(arguments).await.map_err(none)?,
        false => zones_on(arguments, arguments.device("on")?).await.map_err(none)?,
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

async fn build(arguments: &Arguments) -> Result<Built> {
    let server = match listen(arguments)? {
        Some(address) => {
            let allow_remote = arguments.boolean("allow_remote")?;
            Some(Server::new(ServerConfig { allow_remote, ..ServerConfig::new(address) })?)
        }
        None => None,
    };
    Ok(Built::Door(Arc::new(KvDoor { store: open(arguments).await?, server })))
}

/// The store and its server.
struct KvDoor {
    store: Store,
    server: Option<Server>,
}

impl Part for KvDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::new(async move {
            let mut status = Status::new();
            if let Some(server) = &self.server {
                status.insert("clients".into(), json!(server.status()));
            }
            match self.store.status().await {
                Ok(of_store) => status.extend(of_store),
                Err(error) => {
                    status.insert("error".into(), json!(error.to_string()));
                }
            }
            status
        })
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.store.close())
    }
}

impl Door for KvDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            match &self.server {
                Some(server) => server.start(&self.store).await,
                None => Ok(()),
            }
        })
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            match &self.server {
                Some(server) => server.stop().await,
                None => Ok(()),
            }
        })
    }

    fn addresses(&self) -> Vec<String> {
        // In the form that libraries of redis use.
        let shown = |address: Address| match address {
            Address::Unix(path) => format!("unix://{}", path.display()),
            Address::Tcp(tcp) => format!("redis://{tcp}"),
        };
        self.server.iter().flat_map(Server::addresses).map(shown).collect()
    }
}
