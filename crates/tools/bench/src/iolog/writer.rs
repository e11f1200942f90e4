//! Writer of logs of version 3, with the requests of a clone, as fio's `write_iolog`.
//!
//! Requests are buffered in memory. The task that records the last one of a batch writes it out, and is
//! delayed if the file is slow. An existing log is replaced (fio would append to it, which makes a log that
//! can't be replayed); any other existing file is an error.

use super::{Action, Entry};
use block::{Data, Durability, Error, Result};
use runtime::file::{File, OpenOptions};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Number of requests of a batch.
const MANY: usize = 4096;

/// First line of a log.
pub const HEADER: &str = "fio version 3 iolog\n";

/// First time stamp, which isn't 0: fio waits only after the first nonzero one.
const FIRST_TIME: u64 = 1;

/// File of a log, and the device name in its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Path of the log.
    pub path: PathBuf,
    /// File of the device, if it has one.
    pub device: Option<PathBuf>,
}

impl Target {
    /// Name of the device in requests, without spaces, which fio doesn't accept.
    fn device_name(&self) -> String {
        let name = self.device.as_ref().and_then(|path| path.to_str());
        name.filter(|name| !name.contains(char::is_whitespace)).unwrap_or("device").to_owned()
    }
}

/// Refuses a path of an existing file that isn't a log.
///
/// # Errors
/// Description of the problem.
pub fn check(path: &Path) -> Result<(), String> {
    let Ok(mut file) = std::fs::File::open(path) else { return Ok(()) };
    let mut start = [0; 11];
    let is_log = match file.read(&mut start) {
        Ok(0) => true,
        Ok(count) => start[..count] == b"fio version"[..count],
        Err(_) => false,
    };
    if is_log {
        return Ok(());
    }
    Err(format!("write_iolog={}: the file is no log; choose another name", path.display()))
}

/// Appends a line of a log.
pub fn line(text: &mut String, name: &str, entry: &Entry) {
    let Entry { time, action, offset, length, .. } = entry;
    let _ = writeln!(text, "{time} {name} {} {offset} {length}", action.name());
}

/// Lines before the requests of a device.
pub fn opening(name: &str) -> String {
    format!("{FIRST_TIME} {name} add\n{FIRST_TIME} {name} open\n")
}

/// Log that is being written.
pub struct Writer {
    file: File,
    name: String,
    noted: RefCell<Vec<Entry>>,
    /// Lock of the task that writes.
    turn: Rc<Semaphore>,
    end: Cell<u64>,
    last: Cell<u64>,
}

impl Writer {
    /// Creates the log.
    ///
    /// # Errors
    /// Errors of creating the file, and [`Error::Invalid`] if the path has another file.
    pub async fn create(target: &Target) -> Result<Writer> {
        check(&target.path).map_err(Error::invalid)?;
        let options = OpenOptions { create: true, truncate: true, ..OpenOptions::read_write() };
        let writer = Writer {
            file: File::open(&target.path, options).await?,
            name: target.device_name(),
            noted: RefCell::default(),
            turn: Semaphore::new(1),
            end: Cell::new(0),
            last: Cell::new(FIRST_TIME),
        };
        let text = format!("{HEADER}{}", opening(&writer.name));
        writer.append(text).await?;
        Ok(writer)
    }

    /// Records a request made `nanoseconds` after the start. Returns whether the batch must be written out.
    #[inline]
    pub fn note(&self, nanoseconds: u64, action: Action, offset: u64, length: u64) -> bool {
        let mut noted = self.noted.borrow_mut();
        noted.push(Entry { time: FIRST_TIME + nanoseconds / 1000, action, offset, length, line: 0 });
        noted.len() >= MANY
    }

    /// Writes out the recorded requests.
    ///
    /// # Errors
    /// Errors of writing.
    pub async fn write_out(&self) -> Result<()> {
        let turn = self.turn.acquire(1).await;
        let noted = self.noted.take();
        let mut text = String::with_capacity(noted.len() * (self.name.len() + 40));
        noted.iter().for_each(|entry| line(&mut text, &self.name, entry));
        self.last.set(noted.last().map_or(self.last.get(), |entry| entry.time));
        let written = self.append(text).await;
        drop(turn);
        written
    }

    /// Writes the rest of the log.
    ///
    /// # Errors
    /// Errors of writing.
    pub async fn end(&self) -> Result<()> {
        self.write_out().await?;
        self.append(format!("{} {} close\n", self.last.get(), self.name)).await
    }

    async fn append(&self, text: String) -> Result<()> {
        let at = self.end.get();
        self.end.set(at + text.len() as u64);
        if text.is_empty() {
            return Ok(());
        }
        self.file.write_at(at, Data::copy_of(text.as_bytes()).into(), Durability::Visible).await
    }
}
