//! Storage of a map's home: [`Medium`], and its implementation on a file.
//!
//! The home's code decides the writes and the order in which they become durable; a medium carries them out.
//! The same code therefore runs on a file with direct access, on any other file, and on the tests' medium,
//! which is cut at every line.

use super::format::{LINE, Line};
use crate::recovery::FileUse;
use block::{Buffer, Call, Durability, Error, Payload, Result};
use runtime::file::{File, OpenOptions, SharedFile, metadata};
use runtime::mapping::{PrivateWords, SharedLines};
use stack::LockedFile;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Persistent bytes. Offsets of lines are multiples of 64.
pub trait Medium {
    /// Name of the medium for operators.
    fn name(&self) -> &str;

    /// Operation that makes stores durable: `flush` or `sync`.
    fn durable_by(&self) -> &'static str;

    /// Returns the length in bytes.
    ///
    /// # Errors
    /// Errors of the query.
    fn length(&self) -> Result<u64>;

    /// Returns words that begin with the contents at byte `offset`, a multiple of 4096; their changes stay
    /// private. Making more words usable extends the medium.
    ///
    /// # Errors
    /// Errors of mapping.
    fn words(&self, offset: u64, most: usize) -> Result<PrivateWords>;

    /// Reads bytes.
    ///
    /// # Errors
    /// Errors of reading, also if the medium ends before the range does.
    fn read(&self, offset: u64, length: usize) -> Call<'_, Result<Vec<u8>>>;

    /// Allocates space for these bytes, so that storing to them can't fail.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none.
    fn allocate(&self, offset: u64, length: u64) -> Call<'_, Result<()>>;

    /// Writes whole lines, and returns when they are durable.
    ///
    /// # Errors
    /// The error of the write. The contents of the range are then unknown, and every later `write` and
    /// `persist` fails.
    fn write(&self, offset: u64, bytes: Vec<u8>) -> Call<'_, Result<()>>;

    /// Loads the contents of these lines, whose space is allocated.
    fn load(&self, offset: u64, lines: &mut [Line]);

    /// Stores a line whose space is allocated. Each of its words becomes durable atomically at any later
    /// time, at the latest with [`persist`](Self::persist).
    fn store(&self, offset: u64, line: &Line);

    /// Makes all earlier stores durable.
    ///
    /// # Errors
    /// The error of the sync. Any store since the last `persist` may then be lost, and every later `write`
    /// and `persist` fails.
    fn persist(&self) -> Call<'_, Result<()>>;
}

/// Most bytes of a file that can be mapped: those of the largest map, and the parts before it.
const MAX: usize = 2 << 40;

/// A memory-mapped file, locked while this value exists.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    /// Shared mapping; `None` for a file that is opened read-only.
    lines: Option<SharedLines>,
    /// Whether a durable write or a sync has failed, was dropped before its end, or is in flight. Linux
    /// discards data whose write-back failed, and reports the error once per open file description (errseq).
    /// A later successful sync therefore doesn't prove that this data is durable, and none is tried.
    is_unusable: Cell<bool>,
}

impl FileMedium {
    /// Opens and locks a home for [`Arguments::locked`](stack::Arguments::locked).
    pub fn lock_for_stack(path: PathBuf, _alone: bool) -> Call<'static, Result<Option<LockedFile>>> {
        Call::new(async move {
            Self::check_kind(&path)?;
            match metadata(&path) {
                Err(Error::NotFound(_)) => return Ok(None),
                other => drop(other?),
            }
            let file = Self::open_locked(&path, OpenOptions::read_write()).await?;
            Ok(Some(Box::new(file.share()?) as LockedFile))
        })
    }

    /// Opens the file for this use; `locked` is the file that [`lock_for_stack`](Self::lock_for_stack)
    /// returned.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] for a file to be created that has other contents than a home;
    /// [`Error::NotFound`] if there is no file to open; errors of opening, locking and mapping.
    pub async fn open(path: &Path, file_use: FileUse, locked: Option<&SharedFile>) -> Result<Rc<dyn Medium>> {
        let file = match locked {
            Some(locked) => locked.here()?,
            None => {
                Self::check_kind(path)?;
                let options = match file_use {
                    FileUse::LookOnly => OpenOptions::default(),
                    _ => OpenOptions { create: file_use == FileUse::Create, ..OpenOptions::read_write() },
                };
                Self::open_locked(path, options).await?
            }
        };
        if file_use == FileUse::Create {
            Self::empty(path, &file).await?;
        }
        let lines = match file_use {
            FileUse::LookOnly => None,
            FileUse::Create | FileUse::Open => Some(SharedLines::of_file(&file, MAX)?),
        };
        lines.as_ref().map_or(Ok(()), SharedLines::reach)?;
        Ok(Rc::new(Self::over(file, lines)))
    }

    /// Truncates a file that is empty or a map's home, and makes its directory entry durable.
    async fn empty(path: &Path, file: &File) -> Result<()> {
        if file.length()? > 0 {
            let (outcome, buffer) = file.read_at(0, Buffer::new(8)).await;
            outcome?;
            if !buffer.filled().starts_with(b"SILTHOME") {
                return Err(Error::already_exists(format!(
                    "map_home: {} has other contents than a map's home; choose another name, or remove the file",
                    path.display()
                )));
            }
            file.set_len(0).await?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        runtime::file::sync_directory(folder).await
    }

    fn check_kind(path: &Path) -> Result<()> {
        match metadata(path) {
            Ok(found) if !found.is_file => Err(Error::invalid(format!(
                "map_home: {} is not a regular file; expected a file, best on a file system that is mounted with direct \
                 access (DAX)",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    async fn open_locked(path: &Path, options: OpenOptions) -> Result<File> {
        let missing = |error: Error| match error {
            Error::NotFound(_) => Error::not_found(format!(
                "map_home: {} doesn't exist: this log's map is only in that file; restore it",
                path.display()
            )),
            other => other.in_context("map_home"),
        };
        let file = File::open(path, options).await.map_err(missing)?;
        file.lock_patiently(options.write).await.map_err(|error| error.in_context("map_home"))?;
        Ok(file)
    }

    fn over(file: File, lines: Option<SharedLines>) -> FileMedium {
        FileMedium { file, lines, is_unusable: Cell::new(false) }
    }

    /// Carries out a durable write or a sync, one at a time. Once one has failed or was dropped, every later
    /// one fails.
    async fn durably(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        if self.is_unusable.replace(true) {
            return Err(Error::io(format!(
                "{}: an earlier sync or durable write failed or was cancelled: earlier stores may be lost; reopen the log",
                self.file.name()
            )));
        }
        let outcome = work.await;
        self.is_unusable.set(outcome.is_err());
        outcome
    }

    /// Returns the mapping if flushes and fences make its stores durable; `None` if syncs of the file do.
    fn direct(&self) -> Option<&SharedLines> {
        self.lines.as_ref().filter(|lines| lines.is_direct())
    }

    fn lines(&self) -> &SharedLines {
        self.lines.as_ref().expect("a home that is only looked at is not stored to")
    }
}

impl Medium for FileMedium {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn durable_by(&self) -> &'static str {
        match self.direct() {
            Some(_) => "flush",
            None => "sync",
        }
    }

    fn length(&self) -> Result<u64> {
        self.file.length()
    }

    fn words(&self, offset: u64, most: usize) -> Result<PrivateWords> {
        PrivateWords::of_file(&self.file, offset, most)
    }

    fn read(&self, offset: u64, length: usize) -> Call<'_, Result<Vec<u8>>> {
        /// Bytes per step, which bound the buffer.
        const STEP: usize = 1 << 20;
        Call::new(async move {
            let mut bytes = Vec::with_capacity(length);
            while bytes.len() < length {
                let part = STEP.min(length - bytes.len());
                let (outcome, buffer) =
                    self.file.read_exact_at(offset + bytes.len() as u64, Buffer::new(part)).await;
                outcome?;
                bytes.extend_from_slice(buffer.filled());
            }
            Ok(bytes)
        })
    }

    fn allocate(&self, offset: u64, length: u64) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.file.allocate(offset, length).await?;
            self.lines().reach()
        })
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> Call<'_, Result<()>> {
        /// Bytes per step, which bound the buffer.
        const STEP: usize = 1 << 20;
        if let Some(lines) = self.direct() {
            let (words, _) = bytes.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            lines.store(offset, &words);
            lines.flush(offset, bytes.len());
            lines.fence();
            return Call::ready(Ok(()));
        }
        Call::new(self.durably(async move {
            for (number, part) in bytes.chunks(STEP).enumerate() {
                let at = offset + (number * STEP) as u64;
                let part = Payload::from(Buffer::copy_of(part));
                self.file.write_at(at, part, Durability::Durable).await?;
            }
            Ok(())
        }))
    }

    fn load(&self, offset: u64, lines: &mut [Line]) {
        self.lines().load(offset, lines.as_flattened_mut());
    }

    fn store(&self, offset: u64, line: &Line) {
        let lines = self.lines();
        lines.store(offset, line);
        lines.flush(offset, LINE);
    }

    fn persist(&self) -> Call<'_, Result<()>> {
        if let Some(lines) = self.direct() {
            lines.fence();
            return Call::ready(Ok(()));
        }
        Call::new(self.durably(self.file.sync_data()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{SimulatedFaults, Simulation, simulate};

    /// Stores, durable writes and syncs whose write-back sometimes fails. After a sync that returns `Ok`, a
    /// power cut loses no store.
    #[test]
    fn no_sync_succeeds_after_a_durable_write_has_failed() {
        const PLACES: u64 = 8192;
        let mut failures = 0;
        for seed in 0..60 {
            let faults = SimulatedFaults { sync_error: 0.3, ..SimulatedFaults::default() };
            let files = vec![(PathBuf::from("map.pmem"), vec![0; 16384])];
            let main = move || async move {
                let file = File::open(Path::new("map.pmem"), OpenOptions::read_write()).await.unwrap();
                let medium = FileMedium::over(file, None);
                for round in 1..=4_u8 {
                    // For the kernel, a store to the mapping is a dirty page of the page cache.
                    let store = Payload::from(Buffer::copy_of(&[round; 4096]));
                    medium.file.write_at(PLACES, store, Durability::Visible).await.unwrap();
                    let written = medium.write(0, vec![round; 512]).await;
                    if medium.persist().await.is_err() {
                        return true;
                    }
                    let contents = runtime::power_cut().remove(0).1;
                    let place = &contents[PLACES as usize..][..4096];
                    assert!(
                        place == [round; 4096],
                        "seed {seed}, round {round}: a sync after {written:?} lost a store"
                    );
                }
                false
            };
            let simulation = Simulation::new(seed).with_faults(faults).with_files(files);
            failures += u32::from(simulate(simulation, main).expect("the world runs").value);
        }
        assert!(failures > 20, "{failures} of 60 worlds failed");
    }
}
