//! A regular file or a block device as a device.
//!
//! Reads and writes bypass the page cache (O_DIRECT) if the file system supports it; `flush` is fdatasync,
//! FUA is `RWF_DSYNC`, discard punches a hole. After a failed flush or FUA write, all later ones fail
//! (`durability`).
//!
//! The file is opened by its path once and locked (`flock`); handles open the locked file again through that
//! descriptor. It is locked while the part exists, so that two stacks don't write to one disk. A block device
//! is also claimed (O_EXCL): opening fails if it is mounted, and mounting fails while it is open. A read-only
//! file is locked together with other readers, or not at all (`lock=false`: beside a writer), and a
//! read-only block device isn't claimed, so a mounted one may be read. A stack locks all its files before it
//! changes the first; a stack with the same file twice is refused before any file is opened.

pub mod creation;
mod durability;
mod handle;

use crate::{SECTOR, size};
use block::{
    BlockSize, Call, Device, DeviceGeometry, DevicePart, Error, GrowingGeometry, Part, Result, Status,
};
use durability::FileDurability;
use runtime::file::{File, Metadata, OpenOptions, SharedFile, metadata};
use serde_json::json;
use stack::{
    Arguments, Built, Contract, Key, Kind, LockedFile, Message, Metric, Shape, Size, Tell, ValueKind,
    format_size, messages,
};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `file(disk.img, size=4GiB)`.
pub const KIND: Kind = Kind {
    name: "file",
    contract: Contract::Device,
    summary: "a regular file or a block device",
    keys: &[
        Key::required(
            "path",
            ValueKind::Path,
            "path of the file; a missing one is created sparse with `size`, unless it has to have contents",
        )
        .positional(),
        Key::optional("size", ValueKind::Size, "capacity; default: the file's length"),
        size::BLOCK_SIZE,
        Key::optional(
            "direct",
            ValueKind::Choice(&["auto", "on", "off"]),
            "bypass the page cache (O_DIRECT)",
        )
        .or("auto"),
        Key::optional("read_only", ValueKind::Bool, "refuse every write").or("false"),
        Key::optional(
            "lock",
            ValueKind::Bool,
            "false, with read_only: don't lock the file, so that it is read while another stack writes it",
        )
        .or("true"),
    ],
    messages: FileMessage::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "file(disk.img, size=4GiB)",
    plan: |arguments| {
        let settings = Settings::new(arguments)?;
        let open = if settings.lock { lock_for_stack } else { open_for_stack };
        arguments.claim("path", &settings.path, !settings.read_only, open);
        let block_size = settings.block_size.bytes() as u32;
        Ok(Shape { bytes: settings.planned_bytes(arguments)?, block_size: Some(block_size), zones: None })
    },
    build: |arguments| {
        Call::new(async move {
            let settings = Settings::new(&arguments)?;
            let locked = arguments.locked::<SharedFile>("path");
            Ok(Built::Device(Arc::new(FilePart::build(settings, locked, &arguments).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge(
        "flush_failed",
        "file_flush_failed",
        "1 after a failed flush: writes before it may be lost",
    ),
    Metric::counter("copied_writes", "file_copied_writes", "Writes that were copied for their alignment"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direct {
    Auto,
    On,
    Off,
}

/// Settings from the stack.
#[derive(Debug, Clone)]
struct Settings {
    path: PathBuf,
    size: Option<u64>,
    block_size: BlockSize,
    direct: Direct,
    read_only: bool,
    lock: bool,
}

/// Type and size of the file at a path; `None` if it doesn't exist.
fn existing(path: &Path) -> Result<Option<Metadata>> {
    match metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Settings {
    /// Settings of a file that is used without a stack.
    fn of_path(path: &Path, size: Option<u64>) -> Self {
        Settings {
            path: path.to_path_buf(),
            size,
            block_size: BlockSize::default(),
            direct: Direct::Auto,
            read_only: false,
            lock: true,
        }
    }

    fn new(arguments: &Arguments) -> Result<Self> {
        let direct = match arguments.choice("direct")? {
            "on" => Direct::On,
            "off" => Direct::Off,
            _ => Direct::Auto,
        };
        let (read_only, lock) = (arguments.boolean("read_only")?, arguments.boolean("lock")?);
        if !lock && !read_only {
            return Err(arguments
                .refuse("lock", "lock=false of a file that is written; expected read_only=true beside it"));
        }
        Ok(Settings {
            path: arguments.path("path")?,
            size: arguments.optional_size("size")?,
            block_size: size::block_size(arguments)?,
            direct,
            read_only,
            lock,
        })
    }

    /// Capacity, if it is known without opening. Refuses a size that can't fit.
    fn planned_bytes(&self, arguments: &Arguments) -> Result<Option<u64>> {
        if let Some(size) = self.size {
            size::blocks(arguments, "size", "size", size, self.block_size)?;
        }
        let Some(found) = existing(&self.path)? else { return Ok(self.size) };
        if found.is_directory || !(found.is_file || found.is_block_device) {
            let text = format!("{}: neither a regular file nor a block device", self.path.display());
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

/// The part: the locked file, and the state for opening handles.
pub struct FilePart {
    settings: Settings,
    is_block_device: bool,
    shared: Arc<Shared>,
    /// Open file description that holds the lock and that is synced.
    locked: SharedFile,
}

messages! {
    /// Messages to a file.
    FileMessage;
    "resize SIZE" => Resize(Size), "grow the device to SIZE at once: extend the file, or use more of a block device";
}

/// State that the handles of all shards share.
struct Shared {
    geometry: GrowingGeometry,
    durability: FileDurability,
    /// Whether the file was opened with O_DIRECT.
    direct: AtomicBool,
    /// Number of writes whose memory was copied because it isn't aligned for O_DIRECT.
    copied_writes: AtomicU64,
}

impl Shared {
    fn new(geometry: DeviceGeometry) -> Self {
        Shared {
            geometry: GrowingGeometry::new(geometry),
            durability: FileDurability::default(),
            direct: AtomicBool::new(false),
            copied_writes: AtomicU64::new(0),
        }
    }
}

impl FilePart {
    /// Opens or creates a file as the device `file(path, size=..)` of a stack, with blocks of 4 KiB.
    pub async fn open_path(path: &Path, size: Option<u64>) -> Result<Self> {
        let locked = lock(path, true, true).await?;
        Self::prepare(Settings::of_path(path, size), locked, false, false).await
    }

    /// Opens a locked file that is being created with the size of the settings. A file that is shorter is
    /// extended; one that is longer keeps its length.
    async fn of_locked(settings: Settings, locked: SharedFile) -> Result<Arc<Self>> {
        let size = settings.size.unwrap_or_default();
        let file = locked.here()?;
        if file.length()? < size {
            file.set_len(size).await?;
            file.sync_all().await?;
        }
        Self::with_bytes(settings, locked, size, false).map(Arc::new)
    }

    async fn build(settings: Settings, locked: Option<SharedFile>, arguments: &Arguments) -> Result<Self> {
        settings.planned_bytes(arguments)?;
        Self::prepare(settings, locked, arguments.format(), arguments.must_exist()).await
    }

    /// Builds the part on a locked file, or on a new one.
    async fn prepare(
        settings: Settings,
        locked: Option<SharedFile>,
        format: bool,
        must_exist: bool,
    ) -> Result<Self> {
        let path = &settings.path;
        if locked.is_none() && must_exist {
            return Err(Error::not_found(format!(
                "{}: no such file; expected the one with the contents of the part above; check the path, or create everything from \
                 scratch (--format)",
                path.display()
            )));
        }
        if locked.is_none() && (settings.size.is_none() || settings.read_only) {
            return Err(Error::not_found(format!(
                "{}: no such file; to create it, give a size and leave read_only out",
                path.display()
            )));
        }
        let is_new = locked.is_none();
        let locked = match locked {
            Some(locked) => locked,
            None => {
                open_locked(path, OpenOptions { create: true, ..OpenOptions::read_write() }, true).await?
            }
        };
        let file = locked.here()?;
        let found = file.metadata()?;
        if !(found.is_file || found.is_block_device) {
            return Err(Error::invalid(format!(
                "{}: neither a regular file nor a block device",
                path.display()
            )));
        }
        let mut length = found.length;
        if let Some(size) = settings.size
            && found.is_file
            && length != size
        {
            if (length != 0 || must_exist) && !format {
                return Err(Error::invalid(format!(
                    "{} has {length} bytes: expected {size}, its size in the stack; leave size out, or format it (--format)",
                    path.display()
                )));
            }
            file.set_len(size).await?;
            file.sync_all().await?;
            length = size;
        }
        if is_new {
            // Flushed data also needs the file's name to survive.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            runtime::file::sync_directory(folder.unwrap_or(Path::new("."))).await?;
        }
        let bytes = settings.size.unwrap_or(length).min(length);
        Self::with_bytes(settings, locked, bytes, found.is_block_device)
    }

    fn with_bytes(settings: Settings, locked: SharedFile, bytes: u64, is_block_device: bool) -> Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(settings.block_size.bytes()) {
            return Err(Error::invalid(format!(
                "{} has {bytes} bytes: expected a multiple of the block size, {}",
                settings.path.display(),
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
        Ok(FilePart { settings, is_block_device, shared: Arc::new(Shared::new(geometry)), locked })
    }

    /// Extends the device to `bytes`. The new blocks are durable before the geometry includes them.
    async fn grow(&self, bytes: u64) -> Result<String> {
        let (settings, geometry) = (&self.settings, &self.shared.geometry);
        let (path, block_size) = (settings.path.display(), settings.block_size);
        if settings.read_only {
            return Err(Error::read_only(format!(
                "{path}: resize of a read-only file; expected read_only = false; change the stack"
            )));
        }
        if let Some(size) = settings.size {
            return Err(Error::invalid(format!(
                "{path}: resize of a file with size = {size} in the stack; expected no size, since the file is opened again by the same \
                 stack after a crash; leave size out and open the stack again"
            )));
        }
        if !bytes.is_multiple_of(block_size.bytes()) {
            let text =
                format!("{path}: new size {bytes}; expected a multiple of the block size, {block_size}");
            return Err(Error::invalid(text));
        }
        let blocks = block::BlockCount(bytes >> block_size.shift());
        let growth = geometry.begin(blocks).map_err(|error| error.in_context(format_args!("{path}")))?;
        let file = self.locked.here()?;
        let length = file.metadata()?.length;
        if self.is_block_device && length < bytes {
            return Err(Error::invalid(format!(
                "{path} has {length} bytes; expected at least {bytes}; make the block device larger first"
            )));
        }
        if !self.is_block_device && length < bytes {
            file.set_len(bytes).await?;
            // A sync of this description, as all others: the kernel reports an error of earlier writes only
            // once.
            self.shared.durability.sync(&file).await?;
        }
        growth.commit();
        let answer = json!({ "bytes": bytes, "takes_effect": "now" });
        Ok(answer.to_string())
    }

    /// Opens the file with O_DIRECT if that is wanted and possible. Returns the memory alignment of its
    /// transfers (1: none).
    async fn open_file(&self) -> Result<(File, u32)> {
        let settings = &self.settings;
        let options = open_options(!settings.read_only);
        if settings.direct != Direct::Off {
            match self.open_direct(OpenOptions { direct: true, ..options }).await {
                Ok(opened) => return Ok(opened),
                Err(error) if settings.direct == Direct::On => return Err(error),
                // `auto` permits this, so it isn't a warning; `status` also reports it.
                Err(error) => tracing::debug!("opening without O_DIRECT: {error}"),
            }
        }
        self.shared.direct.store(false, Ordering::Relaxed);
        Ok((self.locked.reopen(options).await?, 1))
    }

    async fn open_direct(&self, options: OpenOptions) -> Result<(File, u32)> {
        let file = self.locked.reopen(options).await?;
        let (memory, offset) = file.direct_alignment();
        // Without a report by the kernel, the block size is assumed.
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

fn open_options(write: bool) -> OpenOptions {
    OpenOptions { write, ..OpenOptions::default() }
}

/// Opens and locks the file of a part for [`Arguments::locked`].
fn lock_for_stack(path: PathBuf, alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::new(async move { Ok(lock(&path, alone, true).await?.map(|file| Box::new(file) as LockedFile)) })
}

/// Opens the file of a part that reads it beside a writer.
fn open_for_stack(path: PathBuf, alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
    Call::new(async move { Ok(lock(&path, alone, false).await?.map(|file| Box::new(file) as LockedFile)) })
}

/// Opens and locks a file, exclusively for writing, or shared for reading, or not at all; `None` if it
/// doesn't exist.
async fn lock(path: &Path, alone: bool, is_locked: bool) -> Result<Option<SharedFile>> {
    let Some(found) = existing(path)? else { return Ok(None) };
    let exclusive = alone && found.is_block_device;
    match open_locked(path, OpenOptions { exclusive, ..open_options(alone) }, is_locked).await {
        // It was removed meanwhile.
        Err(Error::NotFound(_)) if existing(path)?.is_none() => Ok(None),
        other => other.map(Some),
    }
}

async fn open_locked(path: &Path, options: OpenOptions, is_locked: bool) -> Result<SharedFile> {
    let attempt = async || {
        let file = File::open(path, options).await.map_err(|error| match error {
            Error::Busy(_) => Error::busy(format!(
                "{} is in use: it is mounted, part of another block device, or open in another program; unmount it, or stop \
                 the other one first",
                path.display()
            )),
            other => other,
        })?;
        let locked = if is_locked { file.lock(options.write) } else { Ok(()) };
        locked.map_err(|error| match error {
            Error::Busy(_) => Error::busy(format!(
                "{} is in use by another stack, or twice in this one: stop the other one first, or take another file",
                path.display()
            )),
            other => other,
        })?;
        // The file may have been replaced before it was locked: others would lock the new one.
        match file.is_at(path)? {
            true => file.share(),
            false => Err(Error::busy(format!(
                "{} was replaced while it was opened; wait until the program that does this has ended",
                path.display()
            ))),
        }
    };
    runtime::retry_while_busy(runtime::file::RESTART_LIMIT, attempt).await
}

impl Part for FilePart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        status.insert("path".into(), self.settings.path.display().to_string().into());
        status.insert("bytes".into(), self.shared.geometry.get().bytes().into());
        status.insert("direct".into(), self.shared.direct.load(Ordering::Relaxed).into());
        status.insert("flush_failed".into(), self.shared.durability.has_failed().into());
        status.insert("copied_writes".into(), self.shared.copied_writes.load(Ordering::Relaxed).into());
        Call::ready(status)
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if self.settings.read_only {
                return Ok(());
            }
            self.shared.durability.sync(&self.locked.here()?).await
        })
    }
}

impl Tell for FilePart {
    type Message = FileMessage;

    fn tell(&self, message: FileMessage) -> Call<'_, Result<String>> {
        let FileMessage::Resize(Size(bytes)) = message;
        Call::new(self.grow(bytes))
    }
}

impl DevicePart for FilePart {
    fn geometry(&self) -> &DeviceGeometry {
        self.shared.geometry.get()
    }

    fn keeps_acknowledged(&self) -> bool {
        true
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let (file, alignment) = self.open_file().await?;
            let inner = handle::Inner {
                file,
                syncs: self.locked.here()?,
                memory_alignment: alignment as usize,
                knows_holes: !self.is_block_device && !runtime::is_simulated(),
                direct: self.shared.direct.load(Ordering::Relaxed),
                is_cached: self.settings.direct == Direct::Off,
                shared: self.shared.clone(),
            };
            Ok(Rc::new(handle::FileHandle(Rc::new(inner))) as Rc<dyn Device>)
        })
    }
}
