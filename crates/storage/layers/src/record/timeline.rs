//! Parser of timelines.
//!
//! Promises: no bytes make it panic or use more memory than a few times their length. An event is returned
//! only if its checksums are right, its number follows the previous one, and it is valid for its device. The
//! first invalid record ends the timeline: [`Ending`] has the reason, and whether valid records follow, which
//! means damage rather than the torn tail of an interrupted recording.

use super::format::{
    Completion, DeviceEntry, FILE_HEADER, FileHeader, MAX_BODY, RECORD_HEADER, RecordHeader, RecordType,
    Shape, Submission, crc,
};
use block::{Buffer, DeviceGeometry, Error, Result};
use runtime::file::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Size of reads of the file, in bytes.
const CHUNK: u64 = 1 << 20;

/// A recording.
#[derive(Debug)]
pub struct Timeline {
    /// Header.
    pub header: FileHeader,
    /// Devices and zones, by number.
    pub devices: Vec<DeviceEntry>,
    /// Events, by number.
    pub events: Vec<Event>,
    /// End of the file.
    pub ending: Ending,
}

/// One event.
#[derive(Debug)]
pub struct Event {
    /// Time in nanoseconds since the recording began.
    pub time: u64,
    /// Number of the device.
    pub device: u16,
    /// Contents of the event.
    pub what: EventKind,
}

/// Contents of an event.
#[derive(Debug)]
pub enum EventKind {
    /// A device joined.
    Joined,
    /// An operation was submitted.
    Submitted(Submission),
    /// An operation completed.
    Completed(Completion),
    /// The recording ended cleanly.
    Ended,
}

/// End of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With an end record.
    Clean,
    /// After a whole record, without an end record: the recording was interrupted, or still continues.
    Unfinished,
    /// With an incomplete or invalid record.
    Torn {
        /// Offset of the record in the file, in bytes.
        offset: u64,
        /// Problem of the record.
        reason: String,
        /// Offset of the next valid record, if there is one: then the file is damaged in the middle.
        valid_again: Option<u64>,
    },
}

impl Timeline {
    /// Reads a timeline's file.
    ///
    /// # Errors
    /// Errors of reading the file and of [`parse`](Self::parse).
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
    /// [`Error::Protocol`] or [`Error::Corrupt`] for an invalid header or an unknown version. Invalid records
    /// are reported by [`Ending`].
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

    /// Returns the geometry of a device.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown device; [`Error::Invalid`] for zones.
    pub fn device_geometry(&self, device: u16) -> Result<&DeviceGeometry> {
        match self.devices.get(usize::from(device)).map(|entry| &entry.shape) {
            Some(Shape::Device(geometry)) => Ok(geometry),
            Some(Shape::Zones(_)) => {
                Err(Error::invalid(format!("device {device} of the timeline: zones; expected a device")))
            }
            None => {
                let count = self.devices.len();
                Err(Error::not_found(format!("device {device} of the timeline: out of range 0..{count}")))
            }
        }
    }
}

struct Parser {
    timeline: Timeline,
    bytes: Arc<Vec<u8>>,
    at: usize,
    /// Devices of submissions that haven't completed, by event number.
    open: Vec<Option<u16>>,
}

impl Parser {
    /// Returns the range of the next record's body, whose checksum is right.
    fn body_of(&self, header: &RecordHeader) -> Result<Range<usize>> {
        let RecordHeader { sequence, body, .. } = *header;
        let start = self.at + RECORD_HEADER;
        let rest = (self.bytes.len() - start) as u64;
        if u64::from(body) > rest.min(MAX_BODY) {
            return Err(Error::corrupt(format!("record {sequence}: cut short after {rest} of {body} bytes")));
        }
        let range = start..start + body as usize;
        match crc(&self.bytes[range.clone()]) == header.body_crc {
            true => Ok(range),
            false => Err(Error::corrupt(format!("record {sequence}: wrong checksum"))),
        }
    }

    /// Parses the next record. On failure the state is unchanged.
    fn record(&mut self) -> Result<()> {
        let header = RecordHeader::decode(&self.timeline.header.identity, &self.bytes[self.at..])?;
        let expected = self.timeline.events.len() as u64;
        if header.sequence != expected {
            return Err(Error::corrupt(format!(
                "record {}: out of order; expected {expected}",
                header.sequence
            )));
        }
        let range = self.body_of(&header)?;
        let body = &self.bytes[range.clone()];
        let mut open = None;
        let what = match header.kind {
            RecordType::Device => {
                let entry = DeviceEntry::decode(body)?;
                if usize::from(header.device) != self.timeline.devices.len() {
                    return Err(Error::corrupt(format!(
                        "record {expected}: device {} joins out of order",
                        header.device
                    )));
                }
                self.timeline.devices.push(entry);
                EventKind::Joined
            }
            RecordType::Submit => {
                let submission = Submission::decode(&self.bytes, range.clone())?;
                self.check(header.device, &submission)?;
                open = Some(header.device);
                EventKind::Submitted(submission)
            }
            RecordType::Complete => {
                let completion = Completion::decode(body)?;
                let place = usize::try_from(completion.submitted).ok().and_then(|at| self.open.get_mut(at));
                if place.as_ref().is_none_or(|place| **place != Some(header.device)) {
                    let text = format!(
                        "record {expected}: completes event {}, which isn't in flight",
                        completion.submitted
                    );
                    return Err(Error::corrupt(text));
                }
                place.into_iter().for_each(|place| *place = None);
                EventKind::Completed(completion)
            }
            RecordType::End => {
                self.timeline.ending = Ending::Clean;
                EventKind::Ended
            }
        };
        self.at = range.end;
        self.open.push(open);
        self.timeline.events.push(Event { time: header.time, device: header.device, what });
        Ok(())
    }

    /// Checks that a submission is valid for its device.
    fn check(&self, device: u16, submission: &Submission) -> Result<()> {
        let Some(entry) = self.timeline.devices.get(usize::from(device)) else {
            return Err(Error::corrupt(format!("operation of device {device}, which has not joined")));
        };
        let nonsense = || {
            Err(Error::corrupt(format!(
                "operation that is out of range or of the wrong kind for device {device}"
            )))
        };
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

    /// Searches for a valid record after an invalid one.
    fn search(&self) -> Option<u64> {
        let identity = &self.timeline.header.identity;
        let mut places = self.at + 1..self.bytes.len().saturating_sub(RECORD_HEADER - 1);
        let valid = |at: &usize| RecordHeader::decode(identity, &self.bytes[*at..]).is_ok();
        places.find(valid).map(|at| at as u64)
    }
}
