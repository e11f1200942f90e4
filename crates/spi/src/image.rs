//! The file that holds a chip's array, and the state file beside it.
//!
//! # Promises
//! - The image is the array, byte by byte, without a header: programmers and other emulators can use it.
//! - One server at a time: the image is locked (flock) as long as it is open. Links in its path are followed once, when it is opened.
//! - A file that was replaced or removed since it was opened is not written, nor is the state file beside its path: [`ImageFile::sync`]
//!   fails.
//! - A new image is never given the state file of an older one.
//! - What the chip programmed or erased is in the files within [`WRITE_INTERVAL`] and the time that writing takes, and durable then.
//!   [`ImageFile::sync`] and a clean stop write everything.
//! - After a kill or a crash of the machine the image is a fuzzy copy: changes of the last interval may be there in part and in any
//!   order. The state file is replaced as a whole (rename), and older than the image by at most one interval.
//!
//! # State file
//! `IMAGE.state` is JSON, version 1: `format` ("siltstone spi chip state"), `version`, `chip` (name), and `non_volatile`: `registers` (values
//! in the order of the chip file), `security` (bytes of the security registers), `unique_id`, `erase_counts` (per sector of the smallest erase),
//! `stuck` (address: mask of bits that no longer erase), `marginal` (address: `mask` of unstable bits, `ones`, probability of a 1 in 1/256).
//! Without it the chip has its factory state.

use crate::board::Board;
use block::{Data, Durability, Error, Payload, Result};
use runtime::file::{File, OpenOptions};
use runtime::sync::Semaphore;
use serde::{Deserialize, Serialize};
use spinor::{Chip, Description, NonVolatile};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time between two writes of what changed.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time between two attempts of writing that fail.
pub const LONGEST_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of one write to the image.
const PIECE: usize = 1 << 20;
/// Largest state file in bytes.
const LARGEST_STATE: u64 = 256 << 20;

const FORMAT: &str = "siltstone spi chip state";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFile {
    format: String,
    version: u32,
    chip: String,
    non_volatile: NonVolatile,
}

/// What every version of the state file begins with.
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
    /// One writer at a time.
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

/// Opens the file of an image, or creates it if it is missing. Returns its path without links, and whether it was created.
async fn open_file(path: &Path, description: &Description, create: bool) -> Result<(PathBuf, File, bool)> {
    let failed = |error: std::io::Error| Error::from_io(&error, &named(path, "opening"));
    match std::fs::canonicalize(path) {
        Ok(path) => {
            let file = File::open(&path, OpenOptions::read_write()).await;
            let file = file.map_err(|error| error.in_context(named(&path, "opening")))?;
            Ok((path, file, false))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => {
            let path = std::path::absolute(path).map_err(failed)?;
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(failed(error));
            };
            let path = std::fs::canonicalize(folder).map_err(failed)?.join(name);
            refuse_old_state(&path)?;
            let options = OpenOptions { create_new: true, ..OpenOptions::read_write() };
            let file = File::open(&path, options).await.map_err(|error| match error {
                Error::AlreadyExists(_) => Error::already_exists(named(
                    &path,
                    "a link to a missing file, or created by another process meanwhile; expected a free name; remove the link, or \
                     try again",
                )),
                other => other.in_context(named(&path, "creating")),
            })?;
            Ok((path, file, true))
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

/// Writes an erased array to a new image, durably.
async fn fill(path: &Path, file: &File, size: u64, value: u8) -> Result<()> {
    refuse_old_state(path)?;
    write_all(file, 0, &vec![value; size as usize]).await?;
    file.sync_all().await?;
    match path.parent() {
        Some(folder) => runtime::file::sync_directory(folder).await,
        None => Ok(()),
    }
}

/// Returns the time until the next attempt of writing: [`WRITE_INTERVAL`], doubled after each failure.
pub(crate) fn next_interval(interval: Duration, has_failed: bool) -> Duration {
    match has_failed {
        true => (interval * 2).min(LONGEST_RETRY_INTERVAL),
        false => WRITE_INTERVAL,
    }
}

impl ImageFile {
    /// Opens and locks an image, and makes the chip that it holds. With `create`, a file that is missing or empty is created with an
    /// erased chip; one with contents is used as it is.
    ///
    /// # Errors
    /// A missing file, another size than the chip's, a state file of another chip or version, or beside a new image;
    /// [`Error::Busy`] if another process has locked it; those of the kernel.
    pub async fn open(
        path: &Path,
        description: Arc<Description>,
        seed: u64,
        create: bool,
    ) -> Result<(ImageFile, Chip)> {
        let size = u64::from(description.size);
        let (path, file, is_created) = open_file(path, &description, create).await?;
        let found = file.metadata()?;
        if !found.is_file {
            return Err(Error::invalid(named(
                &path,
                "not a regular file; expected one; choose another path",
            )));
        }
        file.lock_patiently(true).await?;
        let is_new = create && file.length()? == 0;
        if is_new {
            let value = if description.writes_in_place { 0x00 } else { 0xFF };
            if let Err(error) = fill(&path, &file, size, value).await {
                if is_created {
                    // A part of an image is of no use; the first error is the one to report.
                    let _ = runtime::file::unlink(&path).await;
                }
                return Err(error);
            }
        }
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
        let saved = if is_new { None } else { load_state(&state_path, &mut chip).await? };
        let image = ImageFile {
            file,
            path,
            state_path,
            saved: RefCell::new(saved),
            writing: Semaphore::new(1),
            failure: RefCell::new(None),
        };
        Ok((image, chip))
    }

    /// Returns the path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error of the last write; `None` after a successful one.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Writes what changed since the last call, and makes it durable.
    ///
    /// # Errors
    /// Those of the kernel. What could not be written is written by the next call.
    pub async fn sync(&self, board: &RefCell<Board>) -> Result<()> {
        let _permit = self.writing.acquire(1).await;
        let result = self.write_changes(board).await;
        if let Err(error) = &result
            && self.failure.replace(Some(error.clone())).is_none()
        {
            tracing::error!(
                "{error}; writing is tried again, at intervals that double up to {LONGEST_RETRY_INTERVAL:?}"
            );
        }
        if result.is_ok() {
            self.failure.replace(None);
        }
        result
    }

    /// Writes what had changed when it is called, then the state of that time.
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
            Some((name, non_volatile)) => self.write_state(name, non_volatile).await,
            None => Ok(()),
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

    /// Replaces the state file, on a thread of its own: large chips have a large one.
    async fn write_state(&self, chip: String, non_volatile: NonVolatile) -> Result<()> {
        self.check_place()?;
        let mode = self.file.metadata()?.mode & 0o777;
        let path = self.state_path.clone();
        let state = StateFile { format: FORMAT.to_owned(), version: VERSION, chip, non_volatile };
        let written = runtime::blocking(move || {
            runtime::file::replace(&path, Some(mode), |file| Ok(serde_json::to_writer(file, &state)?))?;
            Ok::<_, Error>(state.non_volatile)
        });
        let non_volatile = written.await.map_err(|error| error.in_context(named(&self.path, "its state")))?;
        self.saved.replace(Some(non_volatile));
        Ok(())
    }
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

/// Loads the state file into the chip; `None` if there is none.
async fn load_state(path: &Path, chip: &mut Chip) -> Result<Option<NonVolatile>> {
    let name = path.display();
    let file = match File::open(path, OpenOptions::default()).await {
        Ok(file) => file,
        Err(Error::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.length()?;
    if length > LARGEST_STATE {
        return Err(Error::corrupt(format!(
            "state file \"{name}\": too large: {length} bytes; expected at most {LARGEST_STATE}; move it away"
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
    Ok(Some(state.non_volatile))
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
