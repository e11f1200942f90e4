//! The kind `fs` of a stack: a file system on a device or on zones, and its mount.

use super::mounted::{MountConfig, Mounted, STOP_LIMIT};
use crate::classes::BACKGROUND_SHARES;
use crate::classes::fair_queue::MAX_SHARES;
use crate::core::Settings;
use crate::core::geometry::check_new;
use crate::file_system::FileSystem;
use crate::format::{BLOCK, MAX_BLOCK, Properties};
use crate::sizes::{default_memory, new_zones, zones_on, zones_to_read};
use block::{Call, Error, Fullness, Part, Result, Status, ZoneGeometry};
use logkit::recovery::Goal;
use serde_json::json;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the mounts of stacks in `/proc/mounts`; mounts of images have their paths.
pub const SOURCE: &str = "siltstone";

/// Kind of a file system in a stack: `fs(zones(file(disk.img)), /mnt)`.
pub const KIND: Kind = Kind {
    name: "fs",
    contract: Contract::Door,
    summary: "a log-structured file system, mounted through FUSE",
    keys: &[
        Key::required(
            "on",
            ValueKind::DeviceOrZones,
            "the storage of the file system: a device, which it divides into zones, or zones, which it uses as they are",
        )
        .positional()
        .holds_contents(),
        Key::required("mount", ValueKind::Path, "the directory to mount it at").positional(),
        Key::optional(
            "block_size",
            ValueKind::Size,
            "the size of requests that programs are told to prefer, for a new file system: 4KiB to 64KiB; default: 4KiB",
        ),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "the size of a zone, for a file system on a device; default: 1/256 of a new one, 128KiB to 64MiB",
        ),
        Key::optional(
            "memory",
            ValueKind::Size,
            "limit of the memory for metadata: a file system that needs more isn't mounted; default: half of the machine's",
        ),
        Key::optional(
            "background_shares",
            ValueKind::Integer { min: 1, max: MAX_SHARES as u64 },
            "I/O shares of the cleaner, scrub and defragmentation, 1 to 1000; all other I/O has 100; default: 20",
        ),
        Key::optional(
            "allow_other",
            ValueKind::Bool,
            "let users other than the mounting one use it, as permissions allow; default: true if root mounts it, else false",
        ),
        Key::optional(
            "salvage",
            ValueKind::Bool,
            "mount a damaged file system to copy what can be read: nothing is written to its storage, and the mount is read-only",
        )
        .or("false"),
        stack::WARN_AT,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "fs(ram(size=256MiB), mnt)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments).await }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("state", "door_up", "1 while the door is in service").if_word("mounted"),
    Metric::gauge("bytes", "fs_bytes", "Capacity for files"),
    Metric::gauge("free_bytes", "fs_free_bytes", "Free capacity for files"),
    Metric::gauge("files", "fs_files", "Files and directories"),
    Metric::gauge("replayed_records", "fs_replayed_records", "Records that the last open replayed"),
    Metric::counter("classes.*.requests", "fs_class_requests", "Requests of the class")
        .of_each("class", "class"),
    Metric::counter("classes.*.bytes", "fs_class_bytes", "Bytes of the class").of_each("class", "class"),
    Metric::counter("classes.*.waited", "fs_class_waits", "Requests of the class that waited for their turn")
        .of_each("class", "class"),
    Metric::gauge(
        "classes.*.wait_p99_ns",
        "fs_class_wait_p99_seconds",
        "99th percentile of the wait of the class",
    )
    .of_each("class", "class")
    .times(1e-9),
];

/// Default of `allow_other`: true for root.
pub fn allows_other_by_default() -> bool {
    rustix::process::geteuid().is_root()
}

fn properties(arguments: &Arguments) -> Result<Properties> {
    let block_size = arguments.optional_size("block_size")?.unwrap_or(BLOCK);
    let properties = Properties { block_size, ..Properties::default() };
    properties.check().map_err(|error| arguments.refuse("block_size", error.detail().to_owned()))?;
    debug_assert!(block_size <= MAX_BLOCK);
    Ok(properties)
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    properties(arguments)?;
    arguments.salvage()?;
    if arguments.contract("on")? == Some(Contract::Zones) && arguments.given("zone_size") {
        return Err(arguments.refuse(
            "zone_size",
            "the file system is on zones, which have a size; expected no zone_size; leave the key out",
        ));
    }
    if arguments.format()
        && let Some(geometry) = zones_to_be(arguments)?
    {
        check_new(&geometry).map_err(|error| arguments.refuse("on", error.detail().to_owned()))?;
    }
    Ok(Shape::default())
}

/// Geometry of the zones of a new file system; `None` if it is known only after opening.
fn zones_to_be(arguments: &Arguments) -> Result<Option<ZoneGeometry>> {
    let shape = arguments.shape("on")?;
    if arguments.contract("on")? == Some(Contract::Zones) {
        return Ok(shape.zones);
    }
    let Some(device) = shape.device()? else { return Ok(None) };
    let zones = new_zones(&device, arguments.optional_size("zone_size")?);
    // A device that is too small for zones is also refused with the numbers.
    zones.map(Some).map_err(|error| arguments.refuse("on", error.detail().to_owned()))
}

async fn build(arguments: &Arguments) -> Result<Built> {
    let metadata_bytes = arguments.optional_size("memory")?.unwrap_or_else(default_memory);
    let background_shares = arguments.optional_integer("background_shares")?;
    let background_shares = background_shares.map_or(BACKGROUND_SHARES, |shares| shares as u32);
    let format = arguments.format();
    let is_salvage = arguments.salvage()?;
    let goal = if is_salvage { Goal::Salvage } else { Goal::Serve };
    let settings = Settings { metadata_bytes, background_shares, goal, ..Settings::default() };
    let is_lent = arguments.contract("on")? == Some(Contract::Zones);
    let (zones, is_lent) = match is_lent {
        true => block::zones_of_store(arguments.zones("on")?, is_salvage).await?,
        false if is_salvage => (zones_to_read(arguments.device("on")?).await?, false),
        false => {
            let device = arguments.device("on")?;
            (zones_on(device, format, arguments.optional_size("zone_size")?).await?, false)
        }
    };
    let properties = properties(arguments)?;
    let files = match format {
        true => FileSystem::format(zones, properties, &settings).await?,
        false => FileSystem::open(zones, &settings).await?,
    };
    let files = if is_lent { files.on_lent_zones() } else { files };
    let found = files.properties().await?;
    if arguments.given("block_size") && found.block_size != properties.block_size {
        files.close().await?;
        return Err(Error::invalid(format!(
            "block_size {}: the existing file system has another one; expected {}; leave the key out",
            properties.block_size, found.block_size
        )));
    }
    let config = MountConfig {
        path: arguments.path("mount")?,
        source: SOURCE.to_owned(),
        allow_other: arguments.optional_boolean("allow_other")?.unwrap_or_else(allows_other_by_default),
        ..MountConfig::default()
    };
    Ok(Built::Door(Arc::new(FsDoor::new(files, config))))
}

/// File system and its mount.
pub struct FsDoor {
    config: MountConfig,
    files: FileSystem,
    mounted: Mutex<Option<Arc<Mounted>>>,
}

impl FsDoor {
    /// Creates the door of an open file system; [`start`](Door::start) mounts it.
    pub fn new(files: FileSystem, config: MountConfig) -> Self {
        FsDoor { config, files, mounted: Mutex::default() }
    }

    fn mounted(&self) -> MutexGuard<'_, Option<Arc<Mounted>>> {
        // Not poisoned: nothing panics while the lock is held.
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mount point; without symbolic links while it is mounted.
    pub fn path(&self) -> PathBuf {
        self.mounted().as_ref().map_or_else(|| self.config.path.clone(), |it| it.path().to_owned())
    }
}

impl Part for FsDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::new(async move {
            let mounted = self.mounted().clone();
            let state = mounted.as_ref().map_or_else(|| "not mounted".to_owned(), |it| it.state());
            let mut all = Status::new();
            all.insert("mount".into(), json!(self.path()));
            all.insert("state".into(), json!(state));
            all.insert("rings".into(), json!(mounted.is_some_and(|mounted| mounted.uses_rings())));
            match self.files.status().await {
                Ok(status) => all.extend(status),
                Err(error) => {
                    all.insert("error".into(), json!(error.to_string()));
                }
            }
            all
        })
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(self.files.fullness())
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.files.close())
    }
}

impl Door for FsDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let mounted = Mounted::mount(&self.files, self.config.clone()).await?;
            *self.mounted() = Some(Arc::new(mounted));
            Ok(())
        })
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let Some(mounted) = self.mounted().clone() else { return Ok(()) };
            let unmounted = mounted.unmount(STOP_LIMIT).await;
            self.mounted().take();
            unmounted
        })
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.path().display().to_string()]
    }

    fn serves_kernel(&self) -> bool {
        true
    }

    fn is_waiting_for_space(&self) -> bool {
        self.files.is_waiting_for_space()
    }

    fn abort(&self) -> Call<'_, Result<()>> {
        let mounted = self.mounted().clone();
        Call::new(async move {
            match mounted {
                Some(mounted) => mounted.abort().await,
                None => Ok(()),
            }
        })
    }

    fn ended(&self) -> Call<'_, Result<()>> {
        let mounted = self.mounted().clone();
        Call::new(async move {
            match mounted {
                Some(mounted) => mounted.ended().await,
                None => Ok(()),
            }
        })
    }
}
