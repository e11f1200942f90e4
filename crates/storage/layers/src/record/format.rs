//! Encoding of a timeline file, version 3, little-endian. Version 2 has no opens, closes and appends with an
//! offset; version 1 also has no reads. The book's page `formats/timeline.md` describes it; a change here
//! needs a new version and a change there.
//!
//! Decoders refuse unknown values. The order of records is checked by [`timeline`](super::timeline).

use block::{
    BlockCount, BlockSize, DeviceGeometry, Durability, Durable, EraseGuarantee, ZeroMode, ZoneGeometry,
};
use block::{Error, Payload, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::bytes::Reader;
pub use zones::record::sum_of as crc;

/// The first bytes of a timeline.
pub const MAGIC: [u8; 8] = *b"SILTLINE";
/// The version that this program writes.
pub const VERSION: u32 = 3;
/// The oldest version that this program reads.
pub const OLDEST_VERSION: u32 = 1;
/// Length of the file's header, in bytes.
pub const FILE_HEADER: usize = size_of::<RawFileHeader>();
/// Length of a record's header, in bytes.
pub const RECORD_HEADER: usize = size_of::<RawRecordHeader>();
/// The longest body of a record, in bytes.
pub const MAX_BODY: u64 = 1 << 31;
/// Name of the bytes in errors of the reader.
const RECORD: &str = "a record";
/// Granularity in bytes at which zeros are left out of data.
const ZERO_UNIT: usize = 512;
/// Flag of the word before a segment: the segment is zeros and has no bytes.
const ZEROS: u32 = 1 << 31;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFileHeader {
    magic: [u8; 8],
    version: U32,
    length: U32,
    identity: [u8; 16],
    began: U64,
    reserved: [u8; 20],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecordHeader {
    kind: u8,
    reserved: u8,
    device: U16,
    body: U32,
    sequence: U64,
    time: U64,
    body_crc: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSubmission {
    operation: u8,
    durable: u8,
    mode: u8,
    reserved: u8,
    zones: U32,
    place: U64,
    length: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCompletion {
    submitted: U64,
    errno: U32,
    reserved: U32,
    value: U64,
}

/// Header of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// Random; part of every record's checksum, so that records of another timeline never validate.
    pub identity: [u8; 16],
    /// Time at which the recording began, in nanoseconds since 1970.
    pub began: u64,
}

impl FileHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut raw = RawFileHeader {
            magic: MAGIC,
            version: VERSION.into(),
            length: (FILE_HEADER as u32).into(),
            identity: self.identity,
            began: self.began.into(),
            reserved: [0; 20],
            crc: 0.into(),
        };
        raw.crc = crc(&raw.as_bytes()[..FILE_HEADER - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the bytes aren't a timeline, or one of another version; [`Error::Corrupt`] if
    /// the header is damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Ok((raw, _)) = RawFileHeader::ref_from_prefix(bytes) else {
            return Err(Error::protocol(format!(
                "not a timeline: {} bytes; expected at least {FILE_HEADER}",
                bytes.len()
            )));
        };
        if raw.magic != MAGIC {
            return Err(Error::protocol(
                "not a timeline: other magic; expected a file that the record layer wrote",
            ));
        }
        if !(OLDEST_VERSION..=VERSION).contains(&raw.version.get()) {
            return Err(Error::protocol(format!(
                "timeline of version {}; expected {OLDEST_VERSION} to {VERSION}; use the program that wrote it",
                raw.version
            )));
        }
        let sum = crc(&bytes[..FILE_HEADER - 4]);
        if raw.crc.get() != sum || raw.length.get() as usize != FILE_HEADER {
            return Err(Error::corrupt(
                "header of the timeline: wrong checksum or length: the file is damaged",
            ));
        }
        Ok(FileHeader { identity: raw.identity, began: raw.began.get() })
    }
}

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordType {
    /// A device or a set of zones joins the timeline.
    Device = 1,
    /// An operation is submitted to the inner part.
    Submit = 2,
    /// An operation has ended.
    Complete = 3,
    /// The recording ended cleanly.
    End = 4,
}

/// Header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of record.
    pub kind: RecordType,
    /// Number of the device.
    pub device: u16,
    /// Length of the body in bytes.
    pub body: u32,
    /// Number of the event in the total order.
    pub sequence: u64,
    /// Time in nanoseconds since the recording began.
    pub time: u64,
    /// Checksum of the body.
    pub body_crc: u32,
}

/// Computes the checksum of a record's header, over the timeline's identity and the header.
fn header_crc(identity: &[u8; 16], header: &[u8]) -> u32 {
    let mut bytes = [0; 16 + 28];
    bytes[..16].copy_from_slice(identity);
    bytes[16..].copy_from_slice(&header[..28]);
    crc(&bytes)
}

impl RecordHeader {
    /// Encodes the header.
    pub fn encode(&self, identity: &[u8; 16]) -> [u8; RECORD_HEADER] {
        let mut raw = RawRecordHeader {
            kind: self.kind as u8,
            reserved: 0,
            device: self.device.into(),
            body: self.body.into(),
            sequence: self.sequence.into(),
            time: self.time.into(),
            body_crc: self.body_crc.into(),
            crc: 0.into(),
        };
        raw.crc = header_crc(identity, raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes aren't a valid header.
    pub fn decode(identity: &[u8; 16], bytes: &[u8]) -> Result<Self> {
        let Ok((raw, _)) = RawRecordHeader::ref_from_prefix(bytes) else {
            return Err(Error::corrupt(format!(
                "record cut short: {} bytes; expected at least {RECORD_HEADER}",
                bytes.len()
            )));
        };
        if header_crc(identity, raw.as_bytes()) != raw.crc.get() {
            return Err(Error::corrupt("header of a record: wrong checksum"));
        }
        let kind = match raw.kind {
            1 => RecordType::Device,
            2 => RecordType::Submit,
            3 => RecordType::Complete,
            4 => RecordType::End,
            other => return Err(Error::corrupt(format!("unknown record type {other}"))),
        };
        Ok(RecordHeader {
            kind,
            device: raw.device.get(),
            body: raw.body.get(),
            sequence: raw.sequence.get(),
            time: raw.time.get(),
            body_crc: raw.body_crc.get(),
        })
    }
}

/// Position of a recorder in a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// At the bottom: submitted data may be on the disk after a power cut.
    Disk = 0,
    /// At the top: completions are acknowledgements to a client.
    Client = 1,
}

/// Geometry of a recorded part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A device.
    Device(DeviceGeometry),
    /// Zones.
    Zones(ZoneGeometry),
}

/// An entry of the timeline's table of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Name in the stack.
    pub name: String,
    /// Position in the stack.
    pub role: Role,
    /// Geometry.
    pub shape: Shape,
}

impl DeviceEntry {
    /// Appends the body of the entry's record.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match &self.shape {
            Shape::Device(geometry) => {
                let flags = u8::from(geometry.volatile_cache) | u8::from(geometry.read_only) << 1;
                bytes.extend([0, self.role as u8, flags, 0]);
                bytes.extend(geometry.atomic_write.to_le_bytes());
                bytes.extend(geometry.block_size.bytes().to_le_bytes());
                bytes.extend(geometry.blocks.0.to_le_bytes());
            }
            Shape::Zones(geometry) => {
                bytes.extend([1, self.role as u8, geometry.durable as u8, geometry.erase as u8]);
                bytes.extend(geometry.zones.to_le_bytes());
                bytes.extend(geometry.zone_size.to_le_bytes());
                bytes.extend(geometry.zone_capacity.to_le_bytes());
                bytes.extend(geometry.max_append.to_le_bytes());
                bytes.extend(geometry.append_granularity.to_le_bytes());
                bytes.extend(geometry.read_granularity.to_le_bytes());
                bytes.extend(geometry.max_open.to_le_bytes());
                bytes.extend(geometry.max_active.to_le_bytes());
            }
        }
        let name = &self.name.as_bytes()[..self.name.len().min(usize::from(u16::MAX))];
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
    }

    /// Decodes the body of the entry's record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for anything that [`encode`](Self::encode) doesn't write.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(body, RECORD);
        let contract = reader.u8()?;
        let role = match reader.u8()? {
            0 => Role::Disk,
            1 => Role::Client,
            other => return Err(Error::corrupt(format!("unknown role {other}"))),
        };
        let shape = match contract {
            0 => Shape::Device(decode_device(&mut reader)?),
            1 => Shape::Zones(decode_zones(&mut reader)?),
            other => return Err(Error::corrupt(format!("unknown contract {other}"))),
        };
        let length = reader.take::<U16>()?.get();
        let name = String::from_utf8_lossy(reader.bytes(usize::from(length))?).into_owned();
        reader.end()?;
        Ok(DeviceEntry { name, role, shape })
    }
}

fn decode_device(reader: &mut Reader<'_>) -> Result<DeviceGeometry> {
    let flags = reader.u8()?;
    reader.u8()?;
    let atomic_write = reader.u32()?;
    let block_size =
        BlockSize::new(reader.u64()?).map_err(|error| Error::corrupt(error.detail().to_owned()))?;
    let blocks = reader.u64()?;
    let whole = u64::from(atomic_write);
    let fits = blocks.checked_mul(block_size.bytes()).is_some_and(|bytes| bytes <= i64::MAX as u64);
    if flags > 3 || !whole.is_power_of_two() || whole < 512 || !fits {
        return Err(Error::corrupt(format!(
            "geometry of a device out of range: flags={flags}, atomic_write={atomic_write}, blocks={blocks}"
        )));
    }
    Ok(DeviceGeometry {
        block_size,
        blocks: BlockCount(blocks),
        atomic_write,
        volatile_cache: flags & 1 != 0,
        read_only: flags & 2 != 0,
    })
}

fn decode_zones(reader: &mut Reader<'_>) -> Result<ZoneGeometry> {
    let durable = match reader.u8()? {
        0 => Durable::OnAppend,
        1 => Durable::OnFlush,
        2 => Durable::OnFinish,
        other => return Err(Error::corrupt(format!("unknown durability {other}"))),
    };
    let erase = decode_erase(reader.u8()?)?;
    let zones = reader.u32()?;
    let (zone_size, zone_capacity, max_append) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let (append_granularity, read_granularity) = (reader.u32()?, reader.u32()?);
    let (max_open, max_active) = (reader.u32()?, reader.u32()?);
    let fits = u64::from(zones).checked_mul(zone_size).is_some() && zone_capacity <= zone_size;
    if append_granularity == 0 || read_granularity == 0 || !fits {
        return Err(Error::corrupt(format!(
            "geometry of zones out of range: zones={zones}, zone_size={zone_size}, zone_capacity={zone_capacity}, \
             append_granularity={append_granularity}, read_granularity={read_granularity}"
        )));
    }
    Ok(ZoneGeometry {
        zones,
        zone_size,
        zone_capacity,
        append_granularity,
        read_granularity,
        max_append,
        max_open,
        max_active,
        durable,
        erase,
    })
}

fn decode_erase(byte: u8) -> Result<EraseGuarantee> {
    use EraseGuarantee::{Deallocated, Erased, Key, None};
    [None, Deallocated, Erased, Key]
        .get(usize::from(byte))
        .copied()
        .ok_or_else(|| Error::corrupt(format!("unknown erase guarantee {byte}")))
}

/// A submitted operation. Offsets and lengths are bytes.
#[derive(Debug, Clone)]
pub enum Submission {
    /// A write.
    Write {
        /// Offset on the device.
        offset: u64,
        /// Written data.
        content: Content,
        /// With FUA or without.
        durability: Durability,
    },
    /// Writing zeros without a payload.
    WriteZeroes {
        /// Offset on the device.
        offset: u64,
        /// Length.
        length: u64,
        /// Whether space may be deallocated.
        mode: ZeroMode,
        /// With FUA or without.
        durability: Durability,
    },
    /// A discard; the range reads as zeros.
    Discard {
        /// Offset on the device.
        offset: u64,
        /// Length.
        length: u64,
    },
    /// A flush.
    Flush,
    /// A read; only if reads are recorded.
    Read {
        /// Offset on the device.
        offset: u64,
        /// Length.
        length: u64,
    },
    /// An append to a zone.
    Append {
        /// The zone.
        zone: u32,
        /// Required byte offset in the zone; `None` for any.
        at: Option<u64>,
        /// Appended data.
        content: Content,
    },
    /// A flush of zones.
    FlushZones {
        /// The zones.
        zones: Vec<u32>,
    },
    /// An explicit open of a zone.
    Open {
        /// The zone.
        zone: u32,
    },
    /// A close of a zone.
    Close {
        /// The zone.
        zone: u32,
    },
    /// A finish of a zone.
    Finish {
        /// The zone.
        zone: u32,
    },
    /// A reset of a zone.
    Reset {
        /// The zone.
        zone: u32,
        /// Requested erase guarantee.
        erase: EraseGuarantee,
    },
}

/// Data of a write: consecutive segments in the timeline, without zeros.
#[derive(Clone)]
pub struct Content {
    file: Arc<Vec<u8>>,
    /// End of each segment, relative to the start of the data, and offset of its bytes in the timeline;
    /// `None` for zeros.
    segments: Vec<(u64, Option<usize>)>,
}

impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Content({} bytes in {} segments)", self.len(), self.segments.len())
    }
}

impl Content {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.segments.last().map_or(0, |(end, _)| *end)
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes that begin at `offset` to `target`, and zeros past the end.
    pub fn copy_to(&self, offset: u64, target: &mut [u8]) {
        let mut index = self.segments.partition_point(|(end, _)| *end <= offset);
        let (mut at, mut filled) = (offset, 0);
        while filled < target.len() {
            let Some((end, data)) = self.segments.get(index) else { break };
            let begin = if index == 0 { 0 } else { self.segments[index - 1].0 };
            let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(target.len() - filled);
            let place = &mut target[filled..filled + count];
            match data {
                Some(start) => {
                    let from = start + (at - begin) as usize;
                    place.copy_from_slice(&self.file[from..from + count]);
                }
                None => place.fill(0),
            }
            (at, filled, index) = (at + count as u64, filled + count, index + 1);
        }
        target[filled..].fill(0);
    }

    fn push(&mut self, length: u64, data: Option<usize>) {
        self.segments.push((self.len() + length, data));
    }
}

/// Fields of a submission's record, as the layer has them.
#[derive(Debug, Clone, Copy)]
pub struct SubmissionFields<'a> {
    /// 1 write, 2 write_zeroes, 3 discard, 4 flush, 5 append, 6 flush of zones, 7 finish, 8 reset, 9 read,
    /// 10 open, 11 close, 12 append with an offset.
    pub operation: u8,
    /// Whether FUA is set.
    pub durable: bool,
    /// Zero mode (1 keeps space allocated) or erase guarantee.
    pub mode: u8,
    /// Byte offset or zone.
    pub place: u64,
    /// Bytes.
    pub length: u64,
    /// Byte offset in the zone of an append with an offset.
    pub offset: Option<u64>,
    /// Zones of a flush.
    pub zones: &'a [block::ZoneIndex],
    /// Written or appended data.
    pub data: Option<&'a Payload>,
    /// Whether zeros are recorded in place of the data.
    pub leaves_out_data: bool,
}

impl SubmissionFields<'_> {
    /// Creates a submission of this operation; all other fields are zero or empty.
    pub fn new(operation: u8, place: u64, length: u64) -> Self {
        SubmissionFields {
            operation,
            durable: false,
            mode: 0,
            place,
            length,
            offset: None,
            zones: &[],
            data: None,
            leaves_out_data: false,
        }
    }

    /// Appends the body.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let raw = RawSubmission {
            operation: self.operation,
            durable: self.durable.into(),
            mode: self.mode,
            reserved: 0,
            zones: (self.zones.len() as u32).into(),
            place: self.place.into(),
            length: self.length.into(),
        };
        bytes.extend(raw.as_bytes());
        self.offset.iter().for_each(|offset| bytes.extend(offset.to_le_bytes()));
        self.zones.iter().for_each(|zone| bytes.extend(zone.0.to_le_bytes()));
        match self.data {
            // The data of a record is shorter than the longest segment.
            Some(payload) if self.leaves_out_data && !payload.is_empty() => {
                bytes.extend((ZEROS | payload.len() as u32).to_le_bytes());
            }
            Some(payload) => encode_payload(payload, bytes),
            None => {}
        }
    }
}

/// Encodes segments: a word with the length, its top bit set for zeros; then the bytes, unless they are
/// zeros.
fn encode_payload(payload: &Payload, bytes: &mut Vec<u8>) {
    // Position of the current segment's word, and whether the segment is zeros.
    let mut open: Option<(usize, bool)> = None;
    for piece in payload.slices().iter().flat_map(|slice| slice.chunks(ZERO_UNIT)) {
        let zero = piece.iter().all(|byte| *byte == 0);
        let place = match open {
            Some((place, same)) if same == zero => place,
            _ => {
                let place = bytes.len();
                bytes.extend((if zero { ZEROS } else { 0 }).to_le_bytes());
                open = Some((place, zero));
                place
            }
        };
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[place..place + 4]);
        let length = u32::from_le_bytes(word) + piece.len() as u32;
        bytes[place..place + 4].copy_from_slice(&length.to_le_bytes());
        if !zero {
            bytes.extend(piece);
        }
    }
}

impl Submission {
    /// Decodes the body of a submission's record, at `range` of `file`, without copying data.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for anything that isn't a submission.
    pub fn decode(file: &Arc<Vec<u8>>, range: Range<usize>) -> Result<Self> {
        let mut reader = Reader::new(&file[range.clone()], RECORD);
        let raw = reader.take::<RawSubmission>()?;
        let (place, length) = (raw.place.get(), raw.length.get());
        let durability = match raw.durable {
            0 => Durability::Visible,
            1 => Durability::Durable,
            other => return Err(Error::corrupt(format!("unknown durability of an operation: {other}"))),
        };
        let zone = u32::try_from(place).map_err(|_| Error::corrupt(format!("zone {place} is too large")));
        let submission = match raw.operation {
            1 => {
                let content = decode_content(file, range.end, &mut reader, length)?;
                Submission::Write { offset: place, content, durability }
            }
            2 => {
                let mode = if raw.mode == 0 { ZeroMode::MayDeallocate } else { ZeroMode::KeepAllocated };
                Submission::WriteZeroes { offset: place, length, mode, durability }
            }
            3 => Submission::Discard { offset: place, length },
            4 => Submission::Flush,
            5 | 12 => {
                let at = if raw.operation == 12 { Some(reader.u64()?) } else { None };
                let content = decode_content(file, range.end, &mut reader, length)?;
                Submission::Append { zone: zone?, at, content }
            }
            6 => {
                let zones: Result<Vec<u32>> = (0..raw.zones.get()).map(|_| reader.u32()).collect();
                Submission::FlushZones { zones: zones? }
            }
            7 => Submission::Finish { zone: zone? },
            8 => Submission::Reset { zone: zone?, erase: decode_erase(raw.mode)? },
            9 => Submission::Read { offset: place, length },
            10 => Submission::Open { zone: zone? },
            11 => Submission::Close { zone: zone? },
            other => return Err(Error::corrupt(format!("unknown operation {other}"))),
        };
        reader.end()?;
        Ok(submission)
    }
}

fn decode_content(file: &Arc<Vec<u8>>, end: usize, reader: &mut Reader<'_>, length: u64) -> Result<Content> {
    let mut content = Content { file: file.clone(), segments: Vec::new() };
    while content.len() < length {
        let word = reader.u32()?;
        let count = u64::from(word & !ZEROS);
        if count == 0 || count > length - content.len() {
            return Err(Error::corrupt("segment of a write: empty, or longer than the write"));
        }
        let data = if word & ZEROS == 0 {
            let from = end - reader.remaining();
            reader.bytes(count as usize)?;
            Some(from)
        } else {
            None
        };
        content.push(count, data);
    }
    Ok(content)
}

/// Completion of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Event number of the submission.
    pub submitted: u64,
    /// POSIX error number; 0 for success.
    pub errno: u32,
    /// Byte offset in the zone of an append; new generation of a reset; otherwise 0.
    pub value: u64,
}

impl Completion {
    /// Appends the body.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let (submitted, errno, value) = (self.submitted.into(), self.errno.into(), self.value.into());
        bytes.extend(RawCompletion { submitted, errno, reserved: 0.into(), value }.as_bytes());
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes aren't exactly a completion.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(body, RECORD);
        let raw = reader.take::<RawCompletion>()?;
        reader.end()?;
        Ok(Completion { submitted: raw.submitted.get(), errno: raw.errno.get(), value: raw.value.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Data;
    use proptest::prelude::*;

    fn roundtrip(payload: &Payload) -> Content {
        let mut bytes = Vec::new();
        let mut fields = SubmissionFields::new(1, 4096, payload.len() as u64);
        fields.data = Some(payload);
        fields.encode(&mut bytes);
        let range = 0..bytes.len();
        match Submission::decode(&Arc::new(bytes), range).expect("own bytes are understood") {
            Submission::Write { offset: 4096, content, .. } => content,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zeros_take_no_room() {
        let zeros = Payload::from(Data::copy_of(&vec![0; 1 << 20]));
        let mut bytes = Vec::new();
        encode_payload(&zeros, &mut bytes);
        assert_eq!(bytes.len(), 4);
        assert_eq!(roundtrip(&zeros).len(), 1 << 20);
    }

    /// The bytes on the medium: a change here is a new version of the format.
    #[test]
    fn bytes_are_those_of_the_version() {
        let identity = [7; 16];
        let mut bytes = FileHeader { identity, began: 0x0102_0304_0506_0708 }.encode().to_vec();
        let header = RecordHeader {
            kind: RecordType::Submit,
            device: 0x0203,
            body: 0x0405_0607,
            sequence: 0x0809_0A0B_0C0D_0E0F,
            time: 0x1011_1213_1415_1617,
            body_crc: 0x1819_1A1B,
        };
        assert_eq!(RecordHeader::decode(&identity, &header.encode(&identity)), Ok(header));
        bytes.extend(header.encode(&identity));
        let device = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(1000),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        let zones = ZoneGeometry {
            zones: 3,
            zone_size: 1 << 20,
            zone_capacity: 1 << 19,
            append_granularity: 512,
            read_granularity: 4096,
            max_append: 65536,
            max_open: 5,
            max_active: 6,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::Erased,
        };
        for (role, shape) in [(Role::Client, Shape::Device(device)), (Role::Disk, Shape::Zones(zones))] {
            let entry = DeviceEntry { name: "disk".into(), role, shape };
            let mut body = Vec::new();
            entry.encode(&mut body);
            assert_eq!(DeviceEntry::decode(&body), Ok(entry));
            (0..body.len()).for_each(|length| assert!(DeviceEntry::decode(&body[..length]).is_err()));
            body.push(0);
            assert!(DeviceEntry::decode(&body).is_err());
            body.pop();
            bytes.extend(body);
        }
        let payload = Payload::from(Data::copy_of(&[1, 2, 3]));
        let mut fields = SubmissionFields::new(6, 0x2021_2223_2425_2627, 3);
        fields.zones = &[block::ZoneIndex(8), block::ZoneIndex(9)];
        fields.data = Some(&payload);
        (fields.durable, fields.mode) = (true, 2);
        fields.encode(&mut bytes);
        let completion = Completion { submitted: 77, errno: 5, value: 0x3031_3233 };
        let from = bytes.len();
        completion.encode(&mut bytes);
        assert_eq!(Completion::decode(&bytes[from..]), Ok(completion));
        assert_eq!((bytes.len(), crc(&bytes)), (243, 641_497_445));
    }

    proptest! {
        #[test]
        fn data_comes_back(sectors in prop::collection::vec((any::<u8>(), 0..3_u8), 1..40), cut in any::<usize>(), from in 0..30_000_u64) {
            let whole: Vec<u8> = sectors.iter().flat_map(|(byte, zero)| [if *zero == 0 { *byte } else { 0 }; 512]).collect();
            let cut = cut % whole.len();
            let payload: Payload = [&whole[..cut], &whole[cut..]].iter().map(|part| Data::copy_of(part)).collect();
            let content = roundtrip(&payload);
            prop_assert_eq!(content.len(), whole.len() as u64);
            let mut copy = vec![0xEE; whole.len()];
            content.copy_to(0, &mut copy);
            prop_assert_eq!(&copy, &whole);
            let from = from % whole.len() as u64;
            let mut part = vec![0xEE; 700];
            content.copy_to(from, &mut part);
            for (index, byte) in part.iter().enumerate() {
                prop_assert_eq!(*byte, whole.get(from as usize + index).copied().unwrap_or(0));
            }
        }
    }
}
