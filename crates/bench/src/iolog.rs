//! fio's iologs: what was asked of a device, line by line, to be asked again of another one.
//!
//! The format is fio's, versions 2 and 3 ([fio's manual, "Trace file format"], and what fio 3.33 does where the manual
//! says otherwise: version 3 counts microseconds, and `wait` waits until so many milliseconds after the start). A log may
//! have more lines than memory has room: [`parser`] takes it piece by piece, [`survey`] reads it once before anything
//! runs and keeps what has to be known of it, [`reader`] gives its requests during a run, [`writer`] writes a new one.
//!
//! A job has one device, so all requests go there, whatever file a log names. Everything that is wrong with a log is said
//! with its line. When requests are carried out is left to the engine.
//!
//! [fio's manual, "Trace file format"]: https://fio.readthedocs.io/en/latest/fio_doc.html#trace-file-format

pub mod parser;
pub mod reader;
pub mod survey;
pub mod writer;

pub use survey::Survey;

use std::path::PathBuf;

/// What a line asks for.
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
    /// `datasync`: a flush, too.
    Datasync,
}

impl Action {
    /// All of them, by fio's name.
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

    /// Whether it is a flush, which has no place.
    pub fn is_flush(self) -> bool {
        matches!(self, Action::Sync | Action::Datasync)
    }
}

/// A request of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// When it was made: microseconds since the log's first line; of version 2, until when the lines before it wait.
    pub time: u64,
    /// What is asked for.
    pub action: Action,
    /// Where, in bytes of the device; 0 for flushes.
    pub offset: u64,
    /// How many bytes; 0 for flushes.
    pub length: u64,
    /// Its line, from 1.
    pub line: u64,
}

/// How a log is replayed, as fio's `replay_…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether requests follow each other as fast as they can (`replay_no_stall`); else at their times.
    pub no_stall: bool,
    /// The rate in percent of the log's own (`replay_time_scale`): 200 is twice as fast. At least 1.
    pub time_scale: u32,
    /// To which power of two offsets are rounded down (`replay_align`); 0 or 1: they stay.
    pub align: u64,
    /// By what offsets are divided (`replay_scale`); 0 or 1: they stay.
    pub scale: u64,
    /// The file that stands for all files of the log (`replay_redirect`).
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
    /// As the user named it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What is in it.
    pub survey: Survey,
}
