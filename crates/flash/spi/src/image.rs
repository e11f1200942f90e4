//! The file with a chip's array, and the state file beside it.
//!
//! # Promises
//! - The image is the array, byte by byte, without a header: programmers and other emulators can use it.
//! - One server at a time: the image is locked (flock) while it is open. Links in its path are followed once,
//!   when it is opened.
//! - A file that was replaced or removed after it was opened is not written, nor is the state file beside its
//!   path: [`ImageFile::sync`] fails.
//! - A new image never gets the state file of an older one. It gets its name when it is complete and durable,
//!   where the file system has unnamed files (O_TMPFILE); an empty file is filled in place.
//! - Programmed and erased bytes are written to the files within [`WRITE_INTERVAL`] plus the time of writing,
//!   and are then durable. [`ImageFile::sync`] and a clean stop write everything.
//! - After a kill or a crash of the machine the image is a fuzzy copy: any part of the changes of the last
//!   interval may be in it, in any order. The state file is replaced as a whole (rename), and older than the
//!   image by at most one interval.
//!
//! # State file
//! `IMAGE.state` is JSON, version 1: `format` ("siltstone spi chip state"), `version`, `chip` (name),
//! `image_crc32c` (CRC32C of the image, after an orderly end only), and `non_volatile`: `registers` (values
//! in the order of the chip file), `security` (bytes of the security registers), `unique_id`, `erase_counts`
//! (per sector of the smallest erase), `stuck` (address: mask of bits that no longer erase), `marginal`
//! (address: `mask` of unstable bits, `ones`, probability of a 1 in 1/256). Without it the chip has its
//! factory state.

use crate::board::Board;
use block::{Data, Durability, Error, Payload, Result};
use runtime::file::{File, OpenOptions};
use runtime::sync::Semaphore;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use spinor::{Chip, Description, NonVolatile};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time between two writes of changes.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time between two failing attempts to write.
pub const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of one write to the image.
const PIECE: usize = 1 << 20;
/// Largest state file in bytes.
const MAX_STATE: u64 = 256 << 20;

const FORMAT: &str = "siltstone spi chip state";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFile {
    format: String,
    version: u32,
    chip: String,
    /// CRC32C of the image, written at an orderly end. While the image changes, the state file has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image_crc32c: Option<u32>,
    non_volatile: NonVolatile,
}

/// Fields of every version of the state file.
#[derive(Deserialize)]
struct Heading {
    format: String,
    version: u32,
}

/// Open image of a chip.
pub struct ImageFile {
    file: File,
    path: PathBuf,
    state_path: PathBuf,
    /// State file as last written.
    saved: RefCell<Option<NonVolatile>>,
    /// Checksum in the state file as last written.
    saved_checksum: Cell<Option<u32>>,
    /// Whether another program had changed the image before it was opened.
    is_changed: bool,
    /// Held by the writer; one at a time.
    writing: Rc<Semaphore>,
    failure: RefCell<Option<Error>>,
}

fn state_path(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".state");
    PathBuf::from(name)
}

fn named(path: &Path, problem: impl std::fmt::Display) -> String {
    format!("image \"{}\": {problem}", path.display())
}

/// File of an image, and whether its contents are new.
struct Opened {
    /// Path without links.
    path: PathBuf,
    file: File,
    is_new: bool,
}

/// Opens and locks the file of an image. With `create`, a missing or empty one is created.
async fn open_file(path: &Path, description: &Description, create: bool) -> Result<Opened> {
    let failed = |error: std::io::Error| Error::from_io(&error, &named(path, "opening"));
    match std::fs::canonicalize(path) {
        Ok(path) => open_existing(path, description, create).await,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => {
            let path = std::path::absolute(path).map_err(failed)?;
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(failed(error));
            };
            let folder = std::fs::canonicalize(folder).map_err(failed)?;
            let path = folder.join(name);
            let file = create_file(&folder, &path, description).await?;
            Ok(Opened { path, file, is_new: true })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::not_found(named(
            path,
            format_args!(
                "no such file; expected {} bytes for chip \"{}\"; add --create to create it",
                description.size, description.name
            ),
        ))),
        Err(error) => Err(failed(error)),
    }
}

/// Opens and locks an existing file. With `create`, an empty one is filled.
async fn open_existing(path: PathBuf, description: &Description, create: bool) -> Result<Opened> {
    let file = File::open(&path, OpenOptions::read_write()).await;
    let file = file.map_err(|error| error.in_context(named(&path, "opening")))?;
    if !file.metadata()?.is_file {
        return Err(Error::invalid(named(&path, "not a regular file; expected one; choose another path")));
    }
    file.lock_patiently(true).await?;
    let is_new = create && file.length()? == 0;
    if is_new {
        refuse_old_state(&path)?;
        fill(&file, description).await?;
    }
    Ok(Opened { path, file, is_new })
}

/// Creates a locked file with an erased array. It gets its name when it is complete and durable, so that a
/// killed process leaves no file.
///
/// On file systems without unnamed files (O_TMPFILE) it is filled under its name, and a killed process can
/// leave a part of it.
async fn create_file(folder: &Path, path: &Path, description: &Description) -> Result<File> {
    refuse_old_state(path)?;
    let taken = |error: Error| match error {
        Error::AlreadyExists(_) => Error::already_exists(named(
            path,
            "a link to a missing file, or created by another process meanwhile; expected a free name; remove the link, or try again",
        )),
        other => other.in_context(named(path, "creating")),
    };
    let Some(descriptor) =
        open_unnamed(folder).map_err(|error| taken(Error::from_io(&error, "O_TMPFILE")))?
    else {
        let options = OpenOptions { create_new: true, ..OpenOptions::read_write() };
        let file = File::open(path, options).await.map_err(taken)?;
        let filled = match file.lock_patiently(true).await {
            Ok(()) => fill(&file, description).await,
            Err(error) => Err(error),
        };
        if let Err(error) = filled {
            // A partial image is useless. The first error is returned.
            let _ = runtime::file::unlink(path).await;
            return Err(error);
        }
        runtime::file::sync_directory(folder).await?;
        return Ok(file);
    };
    // Uses a path to the descriptor: linking the descriptor itself needs privileges.
    let unnamed = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let file = File::from_descriptor(descriptor, &path.display().to_string());
    file.lock_patiently(true).await?;
    fill(&file, description).await?;
    refuse_old_state(path)?;
    rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)
        .map_err(|error| taken(Error::from_io(&error.into(), "link")))?;
    runtime::file::sync_directory(folder).await?;
    Ok(file)
}

/// Opens an unnamed file in a folder; `None` if its file system doesn't support that.
fn open_unnamed(folder: &Path) -> std::io::Result<Option<OwnedFd>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
        Ok(descriptor) => Ok(Some(descriptor)),
        // File systems that don't support the flag return EISDIR.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to create an image beside the state file of an older one, which the first write would replace.
fn refuse_old_state(image: &Path) -> Result<()> {
    let path = state_path(image);
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::from_io(&error, &format!("state file \"{}\"", path.display()))),
        Ok(_) => Err(Error::already_exists(format!(
            "state file \"{}\": left of an older image, while \"{}\" is to be created; expected none; move it away, or put its image \
             back",
            path.display(),
            image.display()
        ))),
    }
}

/// Writes an erased array, durably.
async fn fill(file: &File, description: &Description) -> Result<()> {
    let value = if description.writes_in_place { 0x00 } else { 0xFF };
    write_all(file, 0, &vec![value; description.size as usize]).await?;
    file.sync_all().await
}

/// Returns the time until the next attempt to write: [`WRITE_INTERVAL`], doubled after each failure.
pub(crate) fn next_interval(interval: Duration, has_failed: bool) -> Duration {
    match has_failed {
        true => (interval * 2).min(MAX_RETRY_INTERVAL),
        false => WRITE_INTERVAL,
    }
}

impl ImageFile {
    /// Opens and locks an image, and creates its chip. With `create`, a file that is missing or empty is
    /// created with an erased chip; one with contents is used unchanged.
    ///
    /// # Errors
    /// A missing file, a size other than the chip's, a state file of another chip or version, or beside a new
    /// image; [`Error::Busy`] if another process has locked it; errors of the kernel.
    pub async fn open(
        path: &Path,
        description: Arc<Description>,
        seed: u64,
        create: bool,
    ) -> Result<(ImageFile, Chip)> {
        let size = u64::from(description.size);
        let Opened { path, file, is_new } = open_file(path, &description, create).await?;
        let length = file.length()?;
        if length != size {
            return Err(Error::invalid(named(
                &path,
                format_args!(
                    "wrong size: {length} bytes; expected {size} bytes for chip \"{}\"; choose the chip of this image, or another file",
                    description.name
                ),
            )));
        }
        let memory = read_all(&file, size as usize).await?;
        let mut chip =
            Chip::new(description, memory, seed).map_err(|error| Error::invalid(error.to_string()))?;
        let state_path = state_path(&path);
        let loaded = if is_new { None } else { load_state(&state_path, &mut chip).await? };
        let (saved, checksum) = loaded.map_or((None, None), |(saved, checksum)| (Some(saved), checksum));
        let is_changed = checksum.is_some_and(|checksum| checksum != checksum_of(chip.memory()));
        if is_changed {
            tracing::warn!(
                "{}",
                named(
                    &path,
                    format_args!(
                        "changed by another program since it was last served; unstable and stuck bits and erase counts are those of the \
                         cells before; if that matters, move \"{}\" away, or erase the sectors through the chip",
                        state_path.display()
                    )
                )
            );
        }
        let image = ImageFile {
            file,
            path,
            state_path,
            saved: RefCell::new(saved),
            saved_checksum: Cell::new(checksum),
            is_changed,
            writing: Semaphore::new(1),
            failure: RefCell::new(None),
        };
        Ok((image, chip))
    }

    /// Returns the path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another program had changed the image before it was opened, after the last orderly end of a
    /// server.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Returns the error of the last write; `None` after a successful one.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Writes the changes since the last call, and makes them durable.
    ///
    /// # Errors
    /// Errors of the kernel. The next call writes the remaining changes.
    pub async fn sync(&self, board: &RefCell<Board>) -> Result<()> {
        let _permit = self.writing.acquire(1).await;
        let result = self.write_changes(board).await;
        if let Err(error) = &result
            && self.failure.replace(Some(error.clone())).is_none()
        {
            tracing::error!(
                "{error}; writing is tried again, at intervals that double up to {MAX_RETRY_INTERVAL:?}"
            );
        }
        if result.is_ok() {
            self.failure.replace(None);
        }
        result
    }

    /// Writes the changes, and the checksum of the image, by which the next server detects changes by another
    /// program.
    ///
    /// # Errors
    /// As [`ImageFile::sync`].
    pub async fn close(&self, board: &RefCell<Board>) -> Result<()> {
        self.sync(board).await?;
        let _permit = self.writing.acquire(1).await;
        let (name, non_volatile, checksum) = {
            let mut board = board.borrow_mut();
            let chip = board.chip();
            (chip.description().name.clone(), chip.non_volatile().clone(), checksum_of(chip.memory()))
        };
        match self.saved_checksum.get() == Some(checksum) {
            true => Ok(()),
            false => self.write_state(name, non_volatile, Some(checksum)).await,
        }
    }

    /// Writes the changes before the call, then the state at that time.
    async fn write_changes(&self, board: &RefCell<Board>) -> Result<()> {
        let (ranges, state) = {
            let mut board = board.borrow_mut();
            let chip = board.chip();
            let ranges: Vec<_> = std::iter::from_fn(|| chip.take_changed(PIECE as u32)).collect();
            let is_saved = self.saved.borrow().as_ref() == Some(chip.non_volatile());
            (ranges, (!is_saved).then(|| (chip.description().name.clone(), chip.non_volatile().clone())))
        };
        let mark = |ranges: &[std::ops::Range<u32>]| {
            let mut board = board.borrow_mut();
            ranges.iter().for_each(|range| board.chip().mark_changed(range.clone()));
        };
        if !ranges.is_empty()
            && let Err(error) = self.check_place()
        {
            mark(&ranges);
            return Err(error);
        }
        if !ranges.is_empty()
            && let Err(error) = self.remove_checksum(board).await
        {
            mark(&ranges);
            return Err(error);
        }
        for (index, range) in ranges.iter().enumerate() {
            let bytes = range.start as usize..range.end as usize;
            let data = Data::copy_of(&board.borrow_mut().chip().memory()[bytes]);
            let offset = u64::from(range.start);
            if let Err(error) = self.file.write_at(offset, data.into(), Durability::Visible).await {
                mark(&ranges[index..]);
                return Err(error.in_context(named(&self.path, "writing")));
            }
        }
        if !ranges.is_empty()
            && let Err(error) = self.file.sync_data().await
        {
            // After a failed sync the kernel may have dropped any of the written pages.
            let size = board.borrow_mut().chip().description().size;
            mark(std::slice::from_ref(&(0..size)));
            return Err(error.in_context(named(&self.path, "writing")));
        }
        match state {
            Some((name, non_volatile)) => {
                self.write_state(name, non_volatile, self.saved_checksum.get()).await
            }
            None => Ok(()),
        }
    }

    /// Removes the checksum from the state file before the image changes, so that a killed server leaves no
    /// stale one.
    async fn remove_checksum(&self, board: &RefCell<Board>) -> Result<()> {
        let saved = self.saved.borrow().clone();
        match saved {
            Some(saved) if self.saved_checksum.get().is_some() => {
                let name = board.borrow_mut().chip().description().name.clone();
                self.write_state(name, saved, None).await
            }
            _ => Ok(()),
        }
    }

    /// Checks that the image's path still leads to the file that was opened.
    fn check_place(&self) -> Result<()> {
        match self.file.is_at(&self.path)? {
            true => Ok(()),
            false => Err(Error::io(named(
                &self.path,
                "replaced or removed since it was opened, so that what the chip changed can't be written; expected the same file; \
                 move it back, or stop the server",
            ))),
        }
    }

    /// Replaces the state file, on a thread of its own: large chips have a large state file.
    async fn write_state(
        &self,
        chip: String,
        non_volatile: NonVolatile,
        image_crc32c: Option<u32>,
    ) -> Result<()> {
        self.check_place()?;
        let mode = self.file.metadata()?.mode & 0o777;
        let path = self.state_path.clone();
        let state =
            StateFile { format: FORMAT.to_owned(), version: VERSION, chip, image_crc32c, non_volatile };
        let written = runtime::blocking(move || {
            runtime::file::replace(&path, Some(mode), |file| Ok(serde_json::to_writer(file, &state)?))?;
            Ok::<_, Error>(state.non_volatile)
        });
        let non_volatile = written.await.map_err(|error| error.in_context(named(&self.path, "its state")))?;
        self.saved.replace(Some(non_volatile));
        self.saved_checksum.set(image_crc32c);
        Ok(())
    }
}

fn checksum_of(memory: &[u8]) -> u32 {
    // This algorithm's values have 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, memory) as u32
}

async fn write_all(file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut at = offset;
    for piece in bytes.chunks(PIECE) {
        file.write_at(at, Payload::from(Data::copy_of(piece)), Durability::Visible).await?;
        at += piece.len() as u64;
    }
    Ok(())
}

async fn read_all(file: &File, size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let buffer = block::Buffer::new(PIECE.min(size - bytes.len()));
        let (result, buffer) = file.read_exact_at(bytes.len() as u64, buffer).await;
        result?;
        bytes.extend_from_slice(buffer.filled());
    }
    Ok(bytes)
}

/// Loads the state file into the chip. Returns its contents and the image's checksum; `None` if there is no
/// state file.
async fn load_state(path: &Path, chip: &mut Chip) -> Result<Option<(NonVolatile, Option<u32>)>> {
    let name = path.display();
    let file = match File::open(path, OpenOptions::default()).await {
        Ok(file) => file,
        Err(Error::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.length()?;
    if length > MAX_STATE {
        return Err(Error::corrupt(format!(
            "state file \"{name}\": too large: {length} bytes; expected at most {MAX_STATE}; move it away"
        )));
    }
    let text = read_all(&file, length as usize).await?;
    let wrong = |problem: &dyn std::fmt::Display| {
        Error::corrupt(format!(
            "state file \"{name}\": {problem}; expected one of this chip, version {VERSION}; move it away to use the chip's \
             factory state"
        ))
    };
    let heading: Heading = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    if heading.format != FORMAT || heading.version != VERSION {
        return Err(wrong(&format_args!("unknown format: {} version {}", heading.format, heading.version)));
    }
    let state: StateFile = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    if state.chip != chip.description().name {
        return Err(wrong(&format_args!("of another chip: {}", state.chip)));
    }
    chip.restore(state.non_volatile.clone()).map_err(|error| wrong(&error))?;
    let times = &chip.description().times;
    let start_up = times.power_up_read.max(times.power_up_write);
    chip.advance(start_up);
    Ok(Some((state.non_volatile, state.image_crc32c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_become_rare_and_success_makes_them_frequent_again() {
        let mut interval = WRITE_INTERVAL;
        let waited: Vec<u128> = (0..7)
            .map(|_| {
                interval = next_interval(interval, true);
                interval.as_millis()
            })
            .collect();
        assert_eq!(waited, [400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(next_interval(interval, false), WRITE_INTERVAL);
    }
}
