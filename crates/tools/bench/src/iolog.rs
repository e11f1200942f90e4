//! fio's iologs: requests to a device, line by line, to be replayed on another one.
//!
//! The format is fio's, versions 2 and 3 ([fio's manual, "Trace file format"], and the behaviour of fio 3.33
//! where it differs: version 3 counts microseconds, and `wait` waits until the given number of milliseconds
//! after the start). A log may be larger than memory: [`parser`] parses it piece by piece, [`survey`] reads
//! it once before any run and keeps a summary, [`reader`] returns its requests during a run, [`writer`]
//! writes a new one.
//!
//! A job has one device, so all requests go there, for all files of a log. Errors in a log are reported with
//! their line. The engine decides when requests are executed.
//!
//! [fio's manual, "Trace file format"]: https://fio.readthedocs.io/en/latest/fio_doc.html#trace-file-format

pub mod parser;
pub mod reader;
pub mod survey;
pub mod writer;

pub use survey::Survey;

use std::path::PathBuf;

/// Type of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `read`.
    Read,
    /// `write`.
    Write,
    /// `trim`: a discard.
    Trim,
    /// `sync`: a flush.
    Sync,
    /// `datasync`: also a flush.
    Datasync,
}

impl Action {
    /// All actions, by fio's name.
    pub const NAMES: [(&'static str, Action); 5] = [
        ("read", Action::Read),
        ("write", Action::Write),
        ("trim", Action::Trim),
        ("sync", Action::Sync),
        ("datasync", Action::Datasync),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, action)| *action == self).map_or("", |(name, _)| *name)
    }

    /// Whether it is a flush, which has no offset.
    pub fn is_flush(self) -> bool {
        matches!(self, Action::Sync | Action::Datasync)
    }
}

/// A request of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Submission time: microseconds since the log's first line; in version 2, the end of the waits before
    /// this line.
    pub time: u64,
    /// Type of the request.
    pub action: Action,
    /// Offset in the device, in bytes; 0 for flushes.
    pub offset: u64,
    /// Length in bytes; 0 for flushes.
    pub length: u64,
    /// Line in the log, from 1.
    pub line: u64,
}

/// Settings of a replay, as fio's `replay_…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether requests follow each other as fast as possible (`replay_no_stall`); else at their times.
    pub no_stall: bool,
    /// Rate in percent of the log's own (`replay_time_scale`): 200 is twice as fast. At least 1.
    pub time_scale: u32,
    /// Power of two to which offsets are rounded down (`replay_align`); 0 and 1 have no effect.
    pub align: u64,
    /// Divisor of offsets (`replay_scale`); 0 and 1 have no effect.
    pub scale: u64,
    /// File that replaces all files of the log (`replay_redirect`).
    pub redirect: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { no_stall: false, time_scale: 100, align: 0, scale: 0, redirect: None }
    }
}

/// A log that was surveyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Name as given by the user.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Summary of the log's requests.
    pub survey: Survey,
}
