//! Opening of a data file: options, and the parts below the store.

use crate::recovery::default_shards;
use crate::settings::{Acknowledge, Settings};
use crate::sizes;
use crate::store::Store;
use crate::table::Compression;
use block::{DevicePart, Part, Result, ZoneGeometry};
use disks::file::{FilePart, creation};
use std::path::Path;
use std::sync::Arc;
use zones::on_device::defaults;

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
        let new_size = options.create.then_some(options.size);
        let format = async |device| format(device, options).await;
        let open = async |device| {
            let zones = defaults::open(device, false, None, defaults::MIN_ZONE_SIZE).await?;
            Store::open(zones.clone(), &options.settings(zones.geometry())).await
        };
        let (store, file) = creation::open_or_create(path, "key-value store", new_size, format, open).await?;
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

/// Formats a new file.
async fn format(device: Arc<dyn DevicePart>, options: &Options) -> Result<()> {
    let zones = defaults::open(device, true, None, defaults::MIN_ZONE_SIZE).await?;
    let settings = options.settings(zones.geometry());
    Store::format(zones, &settings).await?.close().await
}
