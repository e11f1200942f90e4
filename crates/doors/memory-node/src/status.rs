//! State of a node: one JSON object, padded with spaces to the size of the export `status`.
//!
//! Each read of the export generates the object, so only a read of the whole export is consistent. A borrower
//! parses a bounded length, and ignores unknown fields.

use crate::borrowers::{Borrowers, shortened};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Name of the export with the document.
pub const STATUS_EXPORT: &str = "status";
/// Size of the export, in bytes.
pub const STATUS_BYTES: usize = 64 << 10;
/// Most borrowers of a node: their document fits in the export.
pub const MAX_BORROWERS: usize = 128;
/// Version of the document and of the names of the exports.
pub const VERSION: u64 = 1;

/// State of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub version: u64,
    pub capacity_bytes: u64,
    pub lent_bytes: u64,
    pub free_bytes: u64,
    pub reserve_bytes: u64,
    pub reclaim_bytes: u64,
    pub pressure: Pressure,
    pub borrowers: BTreeMap<String, BorrowerState>,
}

/// State of the node's machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pressure {
    pub some_avg10: Option<f64>,
    pub mem_available_bytes: u64,
    pub cgroup_limit_bytes: Option<u64>,
    pub cgroup_used_bytes: Option<u64>,
}

/// State of a borrower.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BorrowerState {
    pub quota_bytes: u64,
    pub lent_bytes: u64,
    pub reclaim_bytes: u64,
    pub connections: u64,
    pub epoch: u64,
}

impl Document {
    /// Returns the current state.
    pub fn of(borrowers: &Borrowers) -> Self {
        let last = borrowers.lending.last();
        let policy = borrowers.lending.policy();
        let all = borrowers.all();
        let lent: Vec<u64> = all.iter().map(|borrower| borrower.lent()).collect();
        let shares = crate::shares(last.decision.reclaim, &lent);
        let state = |((borrower, lent_bytes), reclaim_bytes): ((&_, u64), u64)| {
            let borrower: &Arc<crate::borrowers::Borrower> = borrower;
            let connections = borrower.uses().connections as u64;
            let state = BorrowerState {
                quota_bytes: borrowers.quota,
                lent_bytes,
                reclaim_bytes,
                connections,
                epoch: borrower.epoch,
            };
            (borrower.name.clone(), state)
        };
        let states = all.iter().zip(lent.iter().copied()).zip(shares).map(state).collect();
        Document {
            version: VERSION,
            capacity_bytes: policy.capacity,
            lent_bytes: borrowers.lending.lent(),
            free_bytes: last.decision.may_lend,
            reserve_bytes: policy.reserve,
            reclaim_bytes: last.decision.reclaim,
            pressure: Pressure {
                some_avg10: last.measured.some_avg10,
                mem_available_bytes: last.measured.available,
                cgroup_limit_bytes: last.measured.cgroup.map(|cgroup| cgroup.limit),
                cgroup_used_bytes: last.measured.cgroup.map(|cgroup| cgroup.used),
            },
            borrowers: states,
        }
    }

    /// The bytes of the export.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes.resize(STATUS_BYTES, b' ');
        bytes
    }

    /// Parses the bytes of an export.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another version, and for any other text.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        let bytes = bytes.trim_ascii_end();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let malformed = |error: serde_json::Error| {
            let why = shortened(&error.to_string(), 200);
            Error::protocol(format!("the node's status isn't the JSON object that was expected: {why}"))
        };
        let Versioned { version } = serde_json::from_slice(&bytes[..end]).map_err(malformed)?;
        if version != VERSION {
            return Err(Error::protocol(format!(
                "the memory node has status version {version}: expected {VERSION}; use the same version of siltstone on both machines"
            )));
        }
        serde_json::from_slice(&bytes[..end]).map_err(malformed)
    }
}

/// The export with the document.
pub(crate) struct StatusPart {
    borrowers: Arc<Borrowers>,
    geometry: DeviceGeometry,
}

impl StatusPart {
    pub fn new(borrowers: Arc<Borrowers>) -> Result<Self> {
        let block_size = BlockSize::new(u64::from(BlockSize::SMALLEST))?;
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount((STATUS_BYTES as u64) >> block_size.shift()),
            atomic_write: BlockSize::SMALLEST,
            volatile_cache: false,
            read_only: true,
        };
        Ok(StatusPart { borrowers, geometry })
    }
}

impl Part for StatusPart {
    fn kind(&self) -> &'static str {
        "status"
    }
}

impl DevicePart for StatusPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let handle = Handle { borrowers: self.borrowers.clone(), geometry: self.geometry.clone() };
        Call::ready(Ok(Rc::new(handle) as Rc<dyn Device>))
    }
}

struct Handle {
    borrowers: Arc<Borrowers>,
    geometry: DeviceGeometry,
}

impl Handle {
    fn refuse(&self) -> Call<'_, Result<()>> {
        Call::ready(Err(Error::read_only("the status of a memory node can only be read")))
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            // Other tasks of the shard run between the reads of a client that reads continuously.
            runtime::yield_now().await;
            let checked = self.geometry.range(at, buffer.len()).map(drop);
            buffer.clear();
            if checked.is_ok() {
                let begin = self.geometry.block_size.offset_of(at).0 as usize;
                buffer.append(&Document::of(&self.borrowers).to_bytes()[begin..begin + buffer.len()]);
            }
            (checked, buffer)
        })
    }

    fn write(&self, _at: BlockIndex, _payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, _range: BlockRange) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn write_zeroes(&self, _: BlockRange, _: ZeroMode, _: Durability) -> Call<'_, Result<()>> {
        self.refuse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn largest() -> Document {
        let state = BorrowerState {
            quota_bytes: u64::MAX,
            lent_bytes: u64::MAX,
            reclaim_bytes: u64::MAX,
            connections: u64::MAX,
            epoch: u64::MAX,
        };
        let name = |number: usize| format!("{number:0>64}");
        let borrowers = (0..MAX_BORROWERS).map(|number| (name(number), state.clone())).collect();
        let (most, pressure) = (u64::MAX, Pressure { some_avg10: Some(99.99), ..Pressure::default() });
        let bytes =
            Document { version: VERSION, capacity_bytes: most, lent_bytes: most, ..Document::default() };
        Document { free_bytes: most, pressure, borrowers, ..bytes }
    }

    #[test]
    fn the_largest_document_fits_and_is_parsed_again() {
        let document = largest();
        let text = serde_json::to_vec(&document).expect("it is JSON");
        assert!(text.len() < STATUS_BYTES / 2, "{} bytes", text.len());
        let bytes = document.to_bytes();
        assert_eq!(bytes.len(), STATUS_BYTES);
        assert_eq!(Document::parse(&bytes), Ok(document));
    }

    #[test]
    fn zeros_and_unknown_fields_are_ignored() {
        let mut bytes =
            serde_json::to_vec(&Document { version: VERSION, ..Document::default() }).expect("JSON");
        bytes.truncate(bytes.len() - 1);
        bytes.extend_from_slice(b",\"mood\":[1]}\0\0\0");
        assert_eq!(Document::parse(&bytes).expect("parsed").version, VERSION);
    }

    #[test]
    fn another_version_is_refused_first() {
        let error = Document::parse(b"{\"version\": 2}").expect_err("it isn't known");
        assert!(error.detail().contains("version 2: expected 1"), "{error}");
    }

    #[test]
    fn hostile_texts_are_errors_without_control_characters() {
        let deep = "[".repeat(60_000);
        let nested = format!("{{\"version\":1,\"x\":{deep}");
        let texts = [
            "",
            "\0\0",
            "null",
            "[]",
            "{",
            "{}",
            "{\"version\":-1}",
            "{\"version\":1}",
            "{\"version\":1e400}",
            "{\"version\":\"\x1b[31m\"}",
            &deep,
            &nested,
        ];
        for text in texts {
            let error = Document::parse(text.as_bytes()).expect_err(text);
            assert_eq!(error.errno(), 71, "{error}");
            assert!(error.detail().len() < 400 && !error.detail().contains('\x1b'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Document::parse(&bytes);
        }

        #[test]
        fn any_change_of_a_document_is_parsed_or_refused(at in 0..600_usize, byte: u8) {
            let mut document = largest();
            document.borrowers.retain(|name, _| name.ends_with('7'));
            let mut bytes = document.to_bytes();
            bytes[at] = byte;
            if let Ok(parsed) = Document::parse(&bytes) {
                prop_assert_eq!(parsed.version, VERSION);
            }
        }
    }
}
