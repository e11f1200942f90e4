//! Summary of a log before its replay: number of requests, their furthest end, their alignment.
//!
//! The log is read once, from start to end, a piece at a time, which blocks. The check against a device names
//! the line that doesn't fit.

use super::parser::Parser;
use super::{Action, Entry, Log, Settings};
use crate::job::PerDirection;
use stack::{Collector, Problem, Problems};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Bytes of one read of a file.
const PIECE: usize = 1 << 18;

/// Number of block sizes of devices: from 512 bytes by powers of two.
const BLOCK_SIZES: usize = 12;

/// Summary of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of requests.
    pub operations: PerDirection<u64>,
    /// Bytes of the requests.
    pub bytes: PerDirection<u64>,
    /// Number of flushes.
    pub flushes: u64,
    /// Longest requests, in bytes.
    pub longest: PerDirection<u64>,
    /// Time of the last request since the first line.
    pub duration: Duration,
    /// Files that the log names.
    pub files: Vec<String>,
    /// Request with the furthest end.
    furthest: Option<Entry>,
    /// For each block size, the first request that isn't made of whole blocks.
    uneven: [Option<Entry>; BLOCK_SIZES],
}

impl Survey {
    /// Surveys a log.
    ///
    /// # Errors
    /// The first problems of the log, or the error of reading it.
    pub fn read(name: &str, path: &Path, settings: &Settings) -> Result<Survey, Problems> {
        let alone = |message: String| Problems::from(Problem::without_place(name, message));
        let unreadable = |error: std::io::Error| alone(format!("reading this log: {error}"));
        let mut file = File::open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(alone("expected a regular file: a log is read twice".into()));
        }
        let mut parser = Parser::new(name, settings);
        let mut survey = Survey::default();
        let mut problems = Collector::default();
        let mut take = |found: Result<Entry, Problem>| match found {
            Ok(entry) => survey.add(&entry),
            Err(problem) => problems.add(|| problem),
        };
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece).map_err(unreadable)? {
                0 => break,
                count => parser.feed(&piece[..count], &mut take),
            }
        }
        parser.end(&mut take);
        survey.files = parser.file_names().collect();
        if survey.is_empty() && problems.count() == 0 {
            return Err(alone("nothing to replay: expected reads, writes or trims".into()));
        }
        problems.finish(survey)
    }

    fn is_empty(&self) -> bool {
        let PerDirection { read, write, trim } = self.operations;
        read + write + trim == 0
    }

    fn add(&mut self, entry: &Entry) {
        self.duration = self.duration.max(Duration::from_micros(entry.time));
        let (operations, bytes, longest) = match entry.action {
            Action::Read => (&mut self.operations.read, &mut self.bytes.read, &mut self.longest.read),
            Action::Write => (&mut self.operations.write, &mut self.bytes.write, &mut self.longest.write),
            Action::Trim => (&mut self.operations.trim, &mut self.bytes.trim, &mut self.longest.trim),
            Action::Sync | Action::Datasync => {
                self.flushes += 1;
                return;
            }
        };
        *operations += 1;
        *bytes = bytes.saturating_add(entry.length);
        *longest = entry.length.max(*longest);
        if self.furthest.is_none_or(|furthest| end(&furthest) < end(entry)) {
            self.furthest = Some(*entry);
        }
        // A request that isn't whole blocks of one size isn't whole blocks of any larger one.
        for uneven in &mut self.uneven[whole_sizes(entry)..] {
            if uneven.is_some() {
                break;
            }
            *uneven = Some(*entry);
        }
    }

    /// End of the furthest request, in bytes of the device.
    pub fn end(&self) -> u64 {
        self.furthest.as_ref().map_or(0, end)
    }

    /// Bytes of all requests.
    pub fn transfer(&self) -> u64 {
        let PerDirection { read, write, trim } = self.bytes;
        read.saturating_add(write).saturating_add(trim)
    }

    /// Whether all requests are whole blocks of this size, a power of two of at least 512 bytes.
    pub fn is_whole(&self, block_size: u64) -> bool {
        self.uneven_request(block_size).is_none()
    }

    fn uneven_request(&self, block_size: u64) -> Option<&Entry> {
        let size = (block_size.max(512).trailing_zeros() - 9) as usize;
        self.uneven[size.min(BLOCK_SIZES - 1)].as_ref()
    }

    /// Checks that the log fits a device; `name` is the log's.
    ///
    /// # Errors
    /// A request beyond `capacity` bytes, or one that isn't whole blocks of `block_size` bytes.
    pub fn check(&self, name: &str, capacity: u64, block_size: u64) -> Result<(), String> {
        if let Some(entry) = self.furthest.as_ref().filter(|entry| end(entry) > capacity) {
            return Err(format!(
                "{name}:{}: {} the device has only {capacity} bytes; take one of {} bytes, or divide the places with \
                 replay_scale",
                entry.line,
                place(entry),
                end(entry)
            ));
        }
        if block_size < 512 {
            return Ok(());
        }
        match self.uneven_request(block_size) {
            None => Ok(()),
            Some(entry) if entry.length.is_multiple_of(block_size) => Err(format!(
                "{name}:{}: {} expected a multiple of the device's block size, {block_size}; \
                 replay_align={block_size} rounds places down",
                entry.line,
                place(entry)
            )),
            Some(entry) => Err(format!(
                "{name}:{}: {} expected whole blocks of the device, of {block_size} bytes each: take a device with \
                 smaller ones (block_size=512), or make the log's requests whole",
                entry.line,
                place(entry)
            )),
        }
    }
}

fn end(entry: &Entry) -> u64 {
    entry.offset.saturating_add(entry.length)
}

/// Number of block sizes for which the request is whole blocks.
#[inline]
fn whole_sizes(entry: &Entry) -> usize {
    let zeros = (entry.offset | entry.length).trailing_zeros() as usize;
    zeros.saturating_sub(8).min(BLOCK_SIZES)
}

fn place(entry: &Entry) -> String {
    format!("{} of {} bytes at byte {}:", entry.action.name(), entry.length, entry.offset)
}

/// Surveys the logs of a job, by the names that the user gave them.
///
/// # Errors
/// The problems of all of them, as text.
pub fn logs(names: &[String], directory: &Path, settings: &Settings) -> Result<Vec<Log>, String> {
    let mut logs = Vec::new();
    let mut wrong = Vec::new();
    for name in names {
        let path = directory.join(name);
        match Survey::read(name, &path, settings) {
            Ok(survey) => logs.push(Log { name: name.clone(), path, survey }),
            Err(problems) => wrong.push(problems.to_string()),
        }
    }
    if wrong.is_empty() { Ok(logs) } else { Err(wrong.join("\n")) }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
