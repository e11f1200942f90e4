//! Opening of an image: options, and the parts below the file system.

use crate::core::Settings;
use crate::file_system::FileSystem;
use crate::format::Properties;
use crate::sizes::{default_memory, zones_on};
use block::{Part, Result};
use disks::file::{FilePart, creation};
use std::path::Path;
use std::sync::Arc;

/// Options of opening a file system.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether a missing image is created.
    pub create: bool,
    /// Size of a new image in bytes, a multiple of 4 KiB and at least 16 MiB: the limit of the file system.
    /// The image is sparse; it takes space as files are written.
    pub size: u64,
    /// Number of threads that run the file system, 1 to 256.
    pub shards: usize,
    /// Limit of the memory for metadata, in bytes; `None` is half of the machine's memory.
    pub metadata_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options { create: true, size: 16 << 30, shards: 1, metadata_bytes: None }
    }
}

impl Options {
    fn settings(&self) -> Settings {
        let metadata_bytes = self.metadata_bytes.unwrap_or_else(default_memory);
        Settings { metadata_bytes, ..Settings::default() }
    }
}

/// A file system with the file below it.
pub(super) struct Opened {
    pub(super) files: FileSystem,
    image: Arc<FilePart>,
}

impl Opened {
    /// Opens the file system of an image; creates it if it doesn't exist.
    ///
    /// # Errors
    /// As [`FileSystem::open`](super::FileSystem::open).
    pub(super) async fn open(path: &Path, options: &Options) -> Result<Opened> {
        let settings = options.settings();
        let new_size = options.create.then_some(options.size);
        let format = async |device| {
            let zones = zones_on(device, true, None).await?;
            FileSystem::format(zones, Properties::default(), &settings).await?.close().await
        };
        let open = async |device| FileSystem::open(zones_on(device, false, None).await?, &settings).await;
        let (files, image) = creation::open_or_create(path, "file system", new_size, format, open).await?;
        Ok(Opened { files, image })
    }

    /// Closes the file system and the image.
    ///
    /// # Errors
    /// Errors of [`FileSystem::close`] and of flushing the image.
    pub(super) async fn close(&self) -> Result<()> {
        let closed = self.files.close().await;
        closed.and(self.image.close().await)
    }
}
