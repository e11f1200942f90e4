//! Opening of a data file: options, and the parts below the store.

use crate::recovery::default_shards;
use crate::settings::{Acknowledge, Settings};
use crate::sizes::{self, MAX_APPEND};
use crate::store::Store;
use crate::table::Compression;
use block::{DevicePart, Error, Part, Result, ZoneGeometry, ZonesPart};
use disks::file::{FilePart, creation};
use std::path::Path;
use std::sync::Arc;
use zones::OnDevice;
use zones::on_device;

/// Options of opening a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether a missing file is created.
    pub create: bool,
    /// Size of a new file in bytes, a multiple of 4 KiB and at least 16 MiB: the limit of the store. The file
    /// is sparse; it takes space as the store fills.
    pub size: u64,
    /// Number of threads that run the store, 1 to 256. A new store is divided into that number of shards, at
    /// most 16 and as far as its size permits; an existing store keeps its number.
    pub shards: usize,
    /// State in which writes are acknowledged.
    pub acknowledge: Acknowledge,
    /// Memory of the block cache, in bytes. Filters and indexes of tables take up to half of it in addition.
    pub cache_bytes: u64,
    /// Memory of the write buffers, in bytes; `None` is 64 MiB, at most 1/32 of the store.
    pub buffer_bytes: Option<u64>,
    /// Compression of new tables.
    pub compression: Compression,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        Options {
            create: true,
            size: 16 << 30,
            shards: 1,
            acknowledge: settings.acknowledge,
            cache_bytes: settings.cache_bytes,
            buffer_bytes: None,
            compression: Compression::Lz4,
        }
    }
}

impl Options {
    fn settings(&self, zones: &ZoneGeometry) -> Settings {
        let defaults = Settings::default();
        let shards = u64::from(default_shards(self.shards, zones));
        let table_bytes = sizes::default_table_bytes(zones);
        Settings {
            acknowledge: self.acknowledge,
            buffer_bytes: self.buffer_bytes.unwrap_or_else(|| sizes::default_buffer_bytes(zones, shards)),
            cache_bytes: self.cache_bytes,
            table_bytes,
            table: crate::table::Options { compression: self.compression, ..defaults.table },
            level_bytes: sizes::default_level_bytes(zones, table_bytes),
            ..defaults
        }
    }
}

/// A store with the file below it.
pub(super) struct Opened {
    pub(super) store: Store,
    file: Arc<FilePart>,
}

impl Opened {
    /// Opens the store of a file; creates it if it doesn't exist.
    ///
    /// # Errors
    /// As [`Store::open`](super::Store::open).
    pub(super) async fn open(path: &Path, options: &Options) -> Result<Opened> {
        let opened = Self::open_path(path, options).await;
        opened.map_err(|error| match error.detail().contains(&*path.to_string_lossy()) {
            true => error,
            false => error.in_context(path.display()),
        })
    }

    async fn open_path(path: &Path, options: &Options) -> Result<Opened> {
        if creation::is_absent(path)? {
            if !options.create {
                return Err(Error::not_found(
                    "no such store; expected the file of one; check the path, or set `create`",
                ));
            }
            creation::create(path, options.size, async |device| format(device, options).await).await?;
        }
        let file = Arc::new(FilePart::open_path(path, None).await?);
        let zones = zones_on(file.clone(), None).await.map_err(without_store)?;
        let settings = options.settings(zones.geometry());
        let store = Store::open(zones, &settings).await.map_err(without_store)?;
        Ok(Opened { store, file })
    }

    /// Closes the store and the file.
    ///
    /// # Errors
    /// Errors of [`Store::close`] and of flushing the file.
    pub(super) async fn close(&self) -> Result<()> {
        let closed = self.store.close().await;
        closed.and(self.file.close().await)
    }
}

fn without_store(error: Error) -> Error {
    match error {
        Error::Protocol(detail) => Error::protocol(format!(
            "it holds no key-value store ({detail}); expected the file of one, or a path without a file"
        )),
        other => other,
    }
}

/// Formats a new file.
async fn format(device: Arc<dyn DevicePart>, options: &Options) -> Result<()> {
    let zone_size = sizes::default_zone_size(device.geometry().bytes());
    let zones = zones_on(device, Some(zone_size)).await?;
    let settings = options.settings(zones.geometry());
    Store::format(zones, &settings).await?.close().await
}

/// Opens the zones on a device; with a size of zones, creates them first.
async fn zones_on(device: Arc<dyn DevicePart>, zone_size: Option<u64>) -> Result<Arc<dyn ZonesPart>> {
    let options = on_device::Options {
        format: zone_size.is_some(),
        zone_size,
        max_append: Some(MAX_APPEND),
        ..on_device::Options::default()
    };
    Ok(Arc::new(OnDevice::open(device, options).await?))
}
