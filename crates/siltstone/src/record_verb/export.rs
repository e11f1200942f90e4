//! `siltstone record export`: converts the requests to a recorded device to a log of fio, version 3.
//!
//! A request without an equivalent in a log becomes the nearest one. A write with FUA becomes a write, and a
//! `datasync` at its acknowledgement. Zeroing that may deallocate becomes a `trim`; other zeroing becomes
//! writes. Long requests are split. A log has no data. Its times are those of the submissions.

use crate::failure::Failure;
use bench::iolog::parser::MAX_REQUEST;
use bench::iolog::writer::{HEADER, line, opening};
use bench::iolog::{Action, Entry};
use block::{Durability, ZeroMode};
use layers::record::Timeline;
use layers::record::format::{DeviceEntry, Role, Shape, Submission};
use layers::record::timeline::{Event, EventKind};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Longest trim, in bytes: lengths of fio have 32 bits.
const MAX_TRIM: u64 = 1 << 30;

/// Longest write for zeroing, in bytes.
const MAX_ZEROING: u64 = 1 << 20;

/// Writes the log, and returns a summary of one line.
///
/// # Errors
/// An unknown device; an existing log.
pub fn export(timeline: &Timeline, device: Option<u16>, log: &Path) -> Result<String, Failure> {
    let device = device.unwrap_or_else(|| usual_device(timeline));
    timeline.device_geometry(device)?;
    let entry = &timeline.devices[usize::from(device)];
    let name = match entry.name.is_empty() || entry.name.contains(char::is_whitespace) {
        true => "device",
        false => &entry.name,
    };
    let failed = |error: std::io::Error| Failure::World(format!("writing {}: {error}", log.display()));
    let file = OpenOptions::new().write(true).create_new(true).open(log).map_err(failed)?;
    let mut lines = Lines { out: BufWriter::new(file), text: String::new(), name, last: 1, counts: [0; 5] };
    lines.out.write_all(format!("{HEADER}{}", opening(name)).as_bytes()).map_err(failed)?;
    // Time 0 is the first request, not the start of the recording.
    let is_request = |event: &&Event| event.device == device && matches!(event.what, EventKind::Submitted(_));
    let first = timeline.events.iter().find(is_request).map_or(0, |event| event.time);
    let mut durable = BTreeSet::new();
    for (number, event) in timeline.events.iter().enumerate().filter(|(_, event)| event.device == device) {
        // With several shards an earlier event may have a later time.
        lines.last = lines.last.max(1 + event.time.saturating_sub(first) / 1000);
        match &event.what {
            EventKind::Submitted(submission) => {
                if is_durable(submission) {
                    durable.insert(number as u64);
                }
                lines.submission(submission).map_err(failed)?;
            }
            EventKind::Completed(completion) if durable.remove(&completion.submitted) => {
                lines.request(Action::Datasync, 0, 0, 0).map_err(failed)?;
            }
            EventKind::Completed(_) | EventKind::Joined | EventKind::Ended => {}
        }
    }
    let Lines { mut out, last, counts: [reads, writes, trims, syncs, datasyncs], .. } = lines;
    writeln!(out, "{last} {name} close").and_then(|()| out.flush()).map_err(failed)?;
    let without = if reads == 0 { " (a record layer has reads with reads=true)" } else { "" };
    Ok(format!(
        "{}: device {device} \"{}\": {reads} reads{without}, {writes} writes, {trims} trims, {} flushes",
        log.display(),
        entry.name,
        syncs + datasyncs
    ))
}

/// Returns the first device that clients use, else the first device.
fn usual_device(timeline: &Timeline) -> u16 {
    let is_clients = |it: &DeviceEntry| it.role == Role::Client && matches!(it.shape, Shape::Device(_));
    let found = timeline.devices.iter().position(is_clients);
    found.and_then(|number| u16::try_from(number).ok()).unwrap_or(0)
}

fn is_durable(submission: &Submission) -> bool {
    use Submission::{Write, WriteZeroes};
    matches!(submission, Write { durability: Durability::Durable, .. })
        || matches!(submission, WriteZeroes { durability: Durability::Durable, .. })
}

struct Lines<'a, W: Write> {
    out: W,
    text: String,
    name: &'a str,
    /// Time of the last line, in microseconds.
    last: u64,
    counts: [u64; 5],
}

impl<W: Write> Lines<'_, W> {
    fn submission(&mut self, submission: &Submission) -> std::io::Result<()> {
        match submission {
            Submission::Read { offset, length } => self.request(Action::Read, *offset, *length, MAX_REQUEST),
            Submission::Write { offset, content, .. } => {
                self.request(Action::Write, *offset, content.len(), MAX_REQUEST)
            }
            Submission::Discard { offset, length }
            | Submission::WriteZeroes { offset, length, mode: ZeroMode::MayDeallocate, .. } => {
                self.request(Action::Trim, *offset, *length, MAX_TRIM)
            }
            Submission::WriteZeroes { offset, length, .. } => {
                self.request(Action::Write, *offset, *length, MAX_ZEROING)
            }
            Submission::Flush => self.request(Action::Sync, 0, 0, 0),
            // Events of zones; this is a device.
            _ => Ok(()),
        }
    }

    /// Adds a request, split into pieces of at most `longest` bytes.
    fn request(&mut self, action: Action, offset: u64, length: u64, longest: u64) -> std::io::Result<()> {
        let mut done = 0;
        loop {
            let piece = longest.min(length - done);
            let entry = Entry { time: self.last, action, offset: offset + done, length: piece, line: 0 };
            self.text.clear();
            line(&mut self.text, self.name, &entry);
            self.out.write_all(self.text.as_bytes())?;
            self.counts[action as usize] += 1;
            done += piece;
            if done >= length {
                return Ok(());
            }
        }
    }
}
