//! Entries of the log's records: changes with their data, and the requests that they complete.

use crate::format::Change;
use crate::stripes;
use block::Payload;
use logkit::{Entry, StreamId};
use runtime::RequestKey;

/// A change, with its data.
#[derive(Debug)]
pub struct LogEntry {
    /// The change.
    pub change: Change,
    /// Data of the change.
    pub payload: Payload,
    /// Request to complete; `None` for the cleaner's moves.
    pub request: Option<RequestKey>,
    /// Number of blocks by which the change may grow the live data; capacity is reserved for them.
    pub growth: u32,
    /// Number of other shards whose streams the change joins: all for a change of versions, which the first
    /// shard appends; otherwise 0.
    pub joins: u8,
    /// Number of the data in the buffer, if the change was acknowledged from there; otherwise 0.
    pub ticket: u64,
}

impl Entry for LogEntry {
    #[inline]
    fn blocks(&self) -> u32 {
        self.change.data_blocks()
    }

    #[inline]
    fn payload(&self) -> &Payload {
        &self.payload
    }

    #[inline]
    fn meta_length(&self) -> usize {
        self.change.encoded_length()
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        self.change.encode(meta);
    }

    fn steps(&self) -> u64 {
        match &self.change {
            Change::Unmap { count, .. } => u64::from(*count),
            _ => 0,
        }
    }

    fn only_frees(&self) -> bool {
        matches!(self.change, Change::Unmap { .. } | Change::Delete { .. })
    }

    fn is_moved(&self) -> bool {
        matches!(self.change, Change::Move { .. })
    }

    #[inline]
    fn joins(&self) -> &[StreamId] {
        stripes::joined(self.joins)
    }

    fn is_acknowledged(&self) -> bool {
        self.ticket != 0
    }
}
