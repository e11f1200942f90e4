//! Timelines made by hand, byte by byte as the format says, for tests that need a certain order of events.

use block::{DeviceGeometry, Payload};
use layers::record::Timeline;
use layers::record::format::{
    Completion, DeviceEntry, FileHeader, RecordHeader, RecordType, Role, Shape, SubmissionFields, crc,
};

pub const IDENTITY: [u8; 16] = *b"one-of-the-tests";

/// A timeline of one device.
pub struct Builder {
    pub bytes: Vec<u8>,
    pub sequence: u64,
    /// Offset of each record.
    pub starts: Vec<usize>,
}

impl Builder {
    pub fn new(geometry: DeviceGeometry) -> Self {
        let header = FileHeader { identity: IDENTITY, began: 1 };
        let mut builder = Builder { bytes: header.encode().to_vec(), sequence: 0, starts: Vec::new() };
        let entry = DeviceEntry { name: "disk".into(), role: Role::Disk, shape: Shape::Device(geometry) };
        let mut body = Vec::new();
        entry.encode(&mut body);
        builder.record(RecordType::Device, &body);
        builder
    }

    pub fn record(&mut self, kind: RecordType, body: &[u8]) -> u64 {
        let sequence = self.sequence;
        let length = body.len() as u32;
        let header =
            RecordHeader { kind, device: 0, body: length, sequence, time: sequence, body_crc: crc(body) };
        self.starts.push(self.bytes.len());
        self.bytes.extend(header.encode(&IDENTITY));
        self.bytes.extend(body);
        self.sequence += 1;
        sequence
    }

    pub fn submit(&mut self, fields: &SubmissionFields<'_>) -> u64 {
        let mut body = Vec::new();
        fields.encode(&mut body);
        self.record(RecordType::Submit, &body)
    }

    pub fn write(&mut self, offset: u64, payload: &Payload, durable: bool) -> u64 {
        let fields = SubmissionFields::new(1, offset, payload.len() as u64);
        self.submit(&SubmissionFields { data: Some(payload), durable, ..fields })
    }

    pub fn flush(&mut self) -> u64 {
        self.submit(&SubmissionFields::new(4, 0, 0))
    }

    pub fn complete(&mut self, submitted: u64, errno: u32) -> u64 {
        let mut body = Vec::new();
        Completion { submitted, errno, value: 0 }.encode(&mut body);
        self.record(RecordType::Complete, &body)
    }

    pub fn parse(&self) -> Timeline {
        Timeline::parse(self.bytes.clone()).expect("the header is right")
    }
}
