//! A regular file or a block device as a device.
//!
//! Reads and writes go around the page cache (O_DIRECT) where the file system has that; `flush` is fdatasync,
//! FUA is `RWF_DSYNC`, discard punches a hole. After a failed flush the device takes no more flushes: the
//! kernel reports lost writes once, and a later success would acknowledge what isn't so.
//!
//! The file is locked as long as the part lives (flock), so that two stacks don't write to one disk; a stack that has it twice
//! is refused before anything is opened.

mod handle;

use crate::{SECTOR, size};
use block::{BlockSize, Call, Device, DeviceGeometry, DevicePart, Error, Part, Result, Status};
use runtime::file::{File, Metadata, OpenOptions, metadata};
use stack::{Arguments, Built, Contract, Key, Kind, Shape, ValueKind, format_size};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// `file(disk.img, size=4GiB)`.
pub const KIND: Kind = Kind {
    name: "file",
    contract: Contract::Device,
    summary: "a regular file or a block device",
    keys: &[
        Key::required("path", ValueKind::Path, "the file; made, with a hole of `size`, if it isn't there")
            .positional(),
        Key::optional("size", ValueKind::Size, "the capacity; the file's length if left out"),
        size::BLOCK_SIZE,
        Key::optional(
            "direct",
            ValueKind::Choice(&["auto", "on", "off"]),
            "around the page cache (O_DIRECT)",
        )
        .or("auto"),
        Key::optional("read_only", ValueKind::Bool, "refuse every write").or("false"),
    ],
    shareable: false,
    example: "file(disk.img, size=4GiB)",
    plan: |arguments| {
        let settings = Settings::new(arguments)?;
        arguments.claim("path", &settings.path, !settings.read_only);
        let block_size = settings.block_size.bytes() as u32;
        Ok(Shape { bytes: settings.planned_bytes(arguments)?, block_size: Some(block_size), zones: None })
    },
    build: |arguments| {
        Call::new(async move {
            let settings = Settings::new(&arguments)?;
            Ok(Built::Device(Arc::new(FilePart::build(settings, &arguments).await?)))
        })
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direct {
    Auto,
    On,
    Off,
}

/// What the stack says.
#[derive(Debug, Clone)]
struct Settings {
    path: PathBuf,
    size: Option<u64>,
    block_size: BlockSize,
    direct: Direct,
    read_only: bool,
}

/// What a name stands for, if for anything.
fn existing(path: &Path) -> Result<Option<Metadata>> {
    match metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Settings {
    fn new(arguments: &Arguments) -> Result<Self> {
        let direct = match arguments.choice("direct")? {
            "on" => Direct::On,
            "off" => Direct::Off,
            _ => Direct::Auto,
        };
        Ok(Settings {
            path: arguments.path("path")?,
            size: arguments.optional_size("size")?,
            block_size: size::block_size(arguments)?,
            direct,
            read_only: arguments.boolean("read_only")?,
        })
    }

    /// The capacity, as far as it can be told without opening; refuses what can't fit.
    fn planned_bytes(&self, arguments: &Arguments) -> Result<Option<u64>> {
        if let Some(size) = self.size {
            size::blocks(arguments, "size", "size", size, self.block_size)?;
        }
        let Some(found) = existing(&self.path)? else { return Ok(self.size) };
        if found.is_directory || !(found.is_file || found.is_block_device) {
            let text = format!("{} is neither a regular file nor a block device", self.path.display());
            return Err(arguments.refuse("path", text));
        }
        let Some(size) = self.size else {
            let what = format!("the length of {}", self.path.display());
            size::blocks(arguments, "path", &what, found.length, self.block_size)?;
            return Ok(Some(found.length));
        };
        let fits = match found.is_block_device {
            true => size <= found.length,
            false => size == found.length || found.length == 0 || arguments.format(),
        };
        if fits {
            return Ok(Some(size));
        }
        let advice = match found.is_block_device {
            true => "a block device can't be made larger",
            false => "leave size out to take the file as it is, or format it (--format), which may cut it",
        };
        let (path, length) = (self.path.display(), format_size(found.length));
        Err(arguments.refuse("size", format!("size is {}, {path} has {length}: {advice}", format_size(size))))
    }
}

/// The part: where the file is and how it is opened.
pub struct FilePart {
    settings: Settings,
    geometry: DeviceGeometry,
    shared: Arc<Shared>,
    /// Holds the lock; none under simulation.
    lock: Option<std::fs::File>,
}

impl Shared {
    fn check_flushable(&self, name: &str) -> Result<()> {
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(Error::io(format!(
                "{name}: an earlier flush failed, so what was written before it may be lost; reopen and check it"
            )));
        }
        Ok(())
    }

    /// Makes everything durable; after the first failure nothing can be.
    async fn sync(&self, file: &File) -> Result<()> {
        self.check_flushable(file.name())?;
        let result = file.sync_data().await;
        if result.is_err() {
            self.flush_failed.store(true, Ordering::Release);
        }
        result
    }
}

/// What the handles of all shards share.
#[derive(Default)]
struct Shared {
    /// A flush has failed: nothing can be called durable any more.
    flush_failed: AtomicBool,
    /// Whether the file was opened around the page cache.
    direct: AtomicBool,
    /// Writes whose memory had to be copied because O_DIRECT couldn't take it.
    copied_writes: AtomicU64,
}

impl FilePart {
    /// Opens, or makes, a file for the device that a stack would call `file(path, size=..)`, with blocks of
    /// 4 KiB.
    pub async fn open_path(path: &Path, size: Option<u64>) -> Result<Self> {
        let settings = Settings {
            path: path.to_path_buf(),
            size,
            block_size: BlockSize::default(),
            direct: Direct::Auto,
            read_only: false,
        };
        Self::prepare(settings, false).await
    }

    async fn build(settings: Settings, arguments: &Arguments) -> Result<Self> {
        settings.planned_bytes(arguments)?;
        Self::prepare(settings, arguments.format()).await
    }

    async fn prepare(settings: Settings, format: bool) -> Result<Self> {
        let path = &settings.path;
        let found = existing(path)?;
        if found.is_none() && (settings.size.is_none() || settings.read_only) {
            return Err(Error::not_found(format!(
                "{}: there is no such file, and it is made only with a size and without read_only",
                path.display()
            )));
        }
        let options =
            OpenOptions { create: found.is_none(), write: !settings.read_only, ..OpenOptions::default() };
        let file = File::open(path, options).await?;
        let locking = async || lock(path, settings.read_only);
        let lock = runtime::retry_while_busy(RESTART_LIMIT, locking).await?;
        let is_file = found.is_none_or(|found| found.is_file);
        let mut length = file.length()?;
        if let Some(size) = settings.size
            && is_file
            && length != size
        {
            if length != 0 && !format {
                return Err(Error::invalid(format!(
                    "{} has {length} bytes, its size is said to be {size}: leave size out, or format it",
                    path.display()
                )));
            }
            file.set_len(size).await?;
            file.sync_all().await?;
            length = size;
        }
        if found.is_none() {
            // What is flushed is worth nothing if the file's name doesn't survive.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            runtime::file::sync_directory(folder.unwrap_or(Path::new("."))).await?;
        }
        let bytes = settings.size.unwrap_or(length).min(length);
        if bytes == 0 || !bytes.is_multiple_of(settings.block_size.bytes()) {
            return Err(Error::invalid(format!(
                "{} has {bytes} bytes: expected a multiple of the block size, {}",
                path.display(),
                settings.block_size
            )));
        }
        let geometry = DeviceGeometry {
            block_size: settings.block_size,
            blocks: block::BlockCount(bytes >> settings.block_size.shift()),
            atomic_write: SECTOR,
            volatile_cache: true,
            read_only: settings.read_only,
        };
        Ok(FilePart { settings, geometry, shared: Arc::default(), lock })
    }

    /// Opens the file around the page cache if that is wanted and possible; says which memory alignment its
    /// transfers need (1 is none).
    async fn open_file(&self) -> Result<(File, u32)> {
        let settings = &self.settings;
        let options = OpenOptions { write: !settings.read_only, ..OpenOptions::default() };
        if settings.direct != Direct::Off {
            match self.open_direct(OpenOptions { direct: true, ..options }).await {
                Ok(opened) => return Ok(opened),
                Err(error) if settings.direct == Direct::On => return Err(error),
                // What `auto` promises, so no more than a note; `status` says it too.
                Err(error) => tracing::debug!("not around the page cache: {error}"),
            }
        }
        self.shared.direct.store(false, Ordering::Relaxed);
        Ok((File::open(&settings.path, options).await?, 1))
    }

    async fn open_direct(&self, options: OpenOptions) -> Result<(File, u32)> {
        let file = File::open(&self.settings.path, options).await?;
        let (memory, offset) = file.direct_alignment();
        // A kernel that doesn't say is taken at the block size.
        let offset = if offset == 0 { self.settings.block_size.bytes() as u32 } else { offset };
        if offset == 0 || !self.settings.block_size.bytes().is_multiple_of(u64::from(offset)) {
            return Err(Error::unsupported(format!(
                "{}: direct I/O needs offsets that are multiples of {offset}; the block size is {}",
                self.settings.path.display(),
                self.settings.block_size
            )));
        }
        self.shared.direct.store(true, Ordering::Relaxed);
        Ok((file, if memory == 0 { block::buffer::ALIGNMENT as u32 } else { memory }))
    }
}

/// How long the lock of a process that was killed may still seem to be held.
const RESTART_LIMIT: Duration = Duration::from_secs(1);

fn lock(path: &Path, shared: bool) -> Result<Option<std::fs::File>> {
    if runtime::is_simulated() {
        return Ok(None);
    }
    let doing = |error: std::io::Error| Error::from_io(&error, &format!("locking {}", path.display()));
    let file = std::fs::File::open(path).map_err(doing)?;
    let locked = if shared { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::busy(format!(
            "{} is in use by another stack, or twice in this one: stop the other one first, or take another file",
            path.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => Err(doing(error)),
    }
}

impl Part for FilePart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Status {
        let mut status = Status::new();
        status.insert("path".into(), self.settings.path.display().to_string().into());
        status.insert("bytes".into(), self.geometry.bytes().into());
        status.insert("direct".into(), self.shared.direct.load(Ordering::Relaxed).into());
        status.insert("flush_failed".into(), self.shared.flush_failed.load(Ordering::Relaxed).into());
        status.insert("copied_writes".into(), self.shared.copied_writes.load(Ordering::Relaxed).into());
        status
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if self.geometry.read_only {
                return Ok(());
            }
            let Some(lock) = &self.lock else {
                let file = File::open(&self.settings.path, OpenOptions::default()).await?;
                return self.shared.sync(&file).await;
            };
            // Any descriptor will do, and this one is of the file that was opened, whatever has become of its name.
            let path = self.settings.path.display().to_string();
            self.shared.check_flushable(&path)?;
            let doing = format!("syncing {path}");
            let file = lock.try_clone().map_err(|error| Error::from_io(&error, &doing))?;
            let synced = runtime::blocking(move || file.sync_data()).await;
            synced.map_err(|error| Error::from_io(&error, &doing))
        })
    }
}

impl DevicePart for FilePart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let (file, alignment) = self.open_file().await?;
            let is_block_device = existing(&self.settings.path)?.is_some_and(|found| found.is_block_device);
            let handle = handle::FileHandle {
                file,
                geometry: self.geometry.clone(),
                memory_alignment: alignment as usize,
                knows_holes: !is_block_device && !runtime::is_simulated(),
                shared: self.shared.clone(),
            };
            Ok(Rc::new(handle) as Rc<dyn Device>)
        })
    }
}
