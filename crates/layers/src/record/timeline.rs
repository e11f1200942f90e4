//! Reading a timeline back.
//!
//! Promises: no bytes make it panic or use more memory than a few times their length; an event is only given
//! if its checksums are right, its number follows the one before, and it makes sense for its device. The
//! first record for which that isn't so ends the timeline: [`Ending`] says why, and whether valid records
//! follow, which is rot and not the torn tail of a recording that was cut off.

use super::format::{
    Completion, DeviceEntry, FILE_HEADER, FileHeader, LONGEST_BODY, RECORD_HEADER, RecordHeader, RecordType,
    Shape, Submission, crc,
};
use block::{Buffer, DeviceGeometry, Error, Result};
use runtime::file::{File, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// How much of a file is read at once, in bytes.
const CHUNK: u64 = 1 << 20;

/// What was recorded, in order.
#[derive(Debug)]
pub struct Timeline {
    /// What it says about itself.
    pub header: FileHeader,
    /// The devices and zones, by number.
    pub devices: Vec<DeviceEntry>,
    /// All events, by sequence.
    pub events: Vec<Event>,
    /// How the file ends.
    pub ending: Ending,
}

/// One event.
#[derive(Debug)]
pub struct Event {
    /// When, in nanoseconds since the recording began.
    pub time: u64,
    /// The number of the device.
    pub device: u16,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Debug)]
pub enum What {
    /// A device joined.
    Joined,
    /// An operation was submitted.
    Submitted(Submission),
    /// The operation that was submitted in this event ended.
    Completed(Completion),
    /// The recording ended in order.
    Ended,
}

/// How a timeline ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// In order.
    Clean,
    /// Behind a whole record, without an end: the recording was cut off, or still goes on.
    Unfinished,
    /// In the middle of a record, or with one that isn't valid.
    Torn {
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong there.
        reason: String,
        /// Where the next valid record begins, if there is one: then the file has rotted in the middle.
        valid_again: Option<u64>,
    },
}

impl Timeline {
    /// Reads a timeline's file.
    ///
    /// # Errors
    /// Those of reading, and those of [`parse`](Self::parse).
    pub async fn read(path: &Path) -> Result<Self> {
        let file = File::open(path, OpenOptions::default()).await?;
        let mut bytes = Vec::new();
        loop {
            let buffer = Buffer::new(CHUNK as usize);
            let (result, buffer) = file.read_at(bytes.len() as u64, buffer).await;
            if result? == 0 {
                break;
            }
            bytes.extend_from_slice(buffer.filled());
        }
        Timeline::parse(bytes).map_err(|error| error.in_context(path.display()))
    }

    /// Parses a timeline's bytes.
    ///
    /// # Errors
    /// [`Error::Protocol`] or [`Error::Corrupt`] if the header isn't that of a timeline that this program
    /// reads. Everything behind it is reported by [`Ending`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        let header = FileHeader::decode(&bytes)?;
        let bytes = Arc::new(bytes);
        let timeline =
            Timeline { header, devices: Vec::new(), events: Vec::new(), ending: Ending::Unfinished };
        let mut parser = Parser { timeline, bytes, at: FILE_HEADER, open: Vec::new() };
        while parser.timeline.ending == Ending::Unfinished && parser.at < parser.bytes.len() {
            if let Err(error) = parser.record() {
                parser.timeline.ending = Ending::Torn {
                    offset: parser.at as u64,
                    reason: error.detail().to_owned(),
                    valid_again: parser.search(),
                };
            }
        }
        Ok(parser.timeline)
    }

    /// The geometry of a device.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such device, [`Error::Invalid`] if these are zones.
    pub fn device_geometry(&self, device: u16) -> Result<&DeviceGeometry> {
        match self.devices.get(usize::from(device)).map(|entry| &entry.shape) {
            Some(Shape::Device(geometry)) => Ok(geometry),
            Some(Shape::Zones(_)) => {
                Err(Error::invalid(format!("device {device} of the timeline is a set of zones")))
            }
            None => {
                let count = self.devices.len();
                Err(Error::not_found(format!("device {device}: the timeline has {count} devices, from 0 on")))
            }
        }
    }
}

struct Parser {
    timeline: Timeline,
    bytes: Arc<Vec<u8>>,
    at: usize,
    /// By sequence: the device of a submission that hasn't completed.
    open: Vec<Option<u16>>,
}

impl Parser {
    /// Takes the next record. Nothing has changed if it fails.
    fn record(&mut self) -> Result<()> {
        let header = RecordHeader::decode(&self.timeline.header.identity, &self.bytes[self.at..])?;
        let expected = self.timeline.events.len() as u64;
        if header.sequence != expected {
            return Err(Error::corrupt(format!("record {} stands where {expected} should", header.sequence)));
        }
        let start = self.at + RECORD_HEADER;
        let rest = (self.bytes.len() - start) as u64;
        if u64::from(header.body) > rest.min(LONGEST_BODY) {
            let body = header.body;
            return Err(Error::corrupt(format!("record {expected} ends after {rest} of {body} bytes")));
        }
        let range = start..start + header.body as usize;
        let body = &self.bytes[range.clone()];
        if crc(body) != header.body_crc {
            return Err(Error::corrupt(format!("the checksum of record {expected} is wrong")));
        }
        let mut open = None;
        let what = match header.kind {
            RecordType::Device => {
                let entry = DeviceEntry::decode(body)?;
                if usize::from(header.device) != self.timeline.devices.len() {
                    return Err(Error::corrupt(format!("device {} joins out of order", header.device)));
                }
                self.timeline.devices.push(entry);
                What::Joined
            }
            RecordType::Submit => {
                let submission = Submission::decode(&self.bytes, range.clone())?;
                self.check(header.device, &submission)?;
                open = Some(header.device);
                What::Submitted(submission)
            }
            RecordType::Complete => {
                let completion = Completion::decode(body)?;
                let place = usize::try_from(completion.submitted).ok().and_then(|at| self.open.get_mut(at));
                if place.as_ref().is_none_or(|place| **place != Some(header.device)) {
                    let text =
                        format!("event {expected} completes {}, which isn't open", completion.submitted);
                    return Err(Error::corrupt(text));
                }
                place.into_iter().for_each(|place| *place = None);
                What::Completed(completion)
            }
            RecordType::End => {
                self.timeline.ending = Ending::Clean;
                What::Ended
            }
        };
        self.at = range.end;
        self.open.push(open);
        self.timeline.events.push(Event { time: header.time, device: header.device, what });
        Ok(())
    }

    /// Checks that a submission makes sense for its device.
    fn check(&self, device: u16, submission: &Submission) -> Result<()> {
        let Some(entry) = self.timeline.devices.get(usize::from(device)) else {
            return Err(Error::corrupt(format!("device {device} has not joined")));
        };
        let nonsense =
            || Err(Error::corrupt(format!("an operation that makes no sense for device {device}")));
        let (offset, length) = match (submission, &entry.shape) {
            (Submission::Write { offset, content, .. }, Shape::Device(_)) => (*offset, content.len()),
            (Submission::WriteZeroes { offset, length, .. }, Shape::Device(_)) => (*offset, *length),
            (
                Submission::Discard { offset, length } | Submission::Read { offset, length },
                Shape::Device(_),
            ) => (*offset, *length),
            (Submission::Flush, Shape::Device(_)) => (0, 512),
            (Submission::Append { zone, .. }, Shape::Zones(geometry))
            | (Submission::Open { zone }, Shape::Zones(geometry))
            | (Submission::Close { zone }, Shape::Zones(geometry))
            | (Submission::Finish { zone }, Shape::Zones(geometry))
            | (Submission::Reset { zone, .. }, Shape::Zones(geometry)) => {
                return if *zone < geometry.zones { Ok(()) } else { nonsense() };
            }
            (Submission::FlushZones { .. }, Shape::Zones(_)) => return Ok(()),
            _ => return nonsense(),
        };
        let Shape::Device(geometry) = &entry.shape else { return nonsense() };
        let inside = offset.checked_add(length).is_some_and(|end| end <= geometry.bytes().max(512));
        if !inside || length == 0 || (offset | length) % 512 != 0 {
            return nonsense();
        }
        Ok(())
    }

    /// Looks for a valid record behind the one that isn't.
    fn search(&self) -> Option<u64> {
        let identity = &self.timeline.header.identity;
        let mut places = self.at + 1..self.bytes.len().saturating_sub(RECORD_HEADER - 1);
        let valid = |at: &usize| RecordHeader::decode(identity, &self.bytes[*at..]).is_ok();
        places.find(valid).map(|at| at as u64)
    }
}
