//! Settings of an open file system, the streams of its shards, and the zones that they reserve.

use crate::classes::{BACKGROUND_SHARES, IO_DEPTH};
use crate::format::MAX_SHARDS;
use crate::metadata::change::Change;
use logkit::StreamId;
use logkit::layout::ROOT_ZONES;
use logkit::recovery::Goal;

/// Stream of users' records of a shard.
pub fn user_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16)
}

/// Stream of the cleaner's moves of a shard's files.
pub fn cleaner_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16 + 1)
}

/// Number of streams.
pub const STREAMS: usize = 2 * MAX_SHARDS as usize;

/// Zones for the records of removals, which the cleaner doesn't use: blocks of removed files can't be reused
/// until these records are written.
pub(crate) const REMOVAL_RESERVE: u32 = 1;

/// Number of zones that are reserved for the cleaner and for records of removals. The cleaner fills one zone,
/// has one that is being sealed, and moves the blocks of a victim to a zone of each shard.
fn cleaner_reserve(shards: u32) -> u32 {
    2 + shards + REMOVAL_RESERVE
}

/// Settings of an open file system; none of them is stored on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most appends in flight on a shard.
    pub appends_in_flight: u32,
    /// Most bytes of writes in memory on a shard; further writes wait.
    pub dirty_bytes: u64,
    /// Most operations in memory on a shard whose records aren't written; further operations wait.
    pub queued_operations: u32,
    /// Least number of bytes that are written between two checkpoints.
    pub checkpoint_after: u64,
    /// Most bytes of checksums in memory on a shard.
    pub sums_bytes: u64,
    /// Most bytes of memory for metadata. Opening a file system that needs more fails; at seven eighths of
    /// it, new files are refused.
    pub metadata_bytes: u64,
    /// Number of shards among which the inode groups are divided; `None` for the number of the runtime's
    /// shards. Limited by the numbers of inode groups and zones.
    pub shards: Option<u32>,
    /// Name and parameters of the cleaning policy; `None` for parameters chosen by the number of zones.
    pub cleaning: (String, Option<logkit::cleaning::Parameters>),
    /// [`logkit::Settings::read_request_bytes`].
    pub read_request_bytes: u64,
    /// Shares of the class of the cleaner, scrub and defragmentation.
    pub background_shares: u32,
    /// Most bytes of requests in flight on a shard where [classes](crate::classes) compete; each request
    /// counts [16 KiB](crate::classes::REQUEST_COST) in addition to its bytes.
    pub io_depth: u64,
    /// Number of names above which the names of a directory are divided among
    /// stripes on all shards; values above 64 are compared with an estimate.
    /// `None` for 16384 on several shards, and for no limit on one shard.
    pub stripe_above: Option<u64>,
    /// Purpose of the opening: use or salvage.
    pub goal: Goal,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            appends_in_flight: 2,
            dirty_bytes: 64 << 20,
            queued_operations: 16_384,
            checkpoint_after: 64 << 20,
            sums_bytes: 64 << 20,
            metadata_bytes: u64::MAX,
            shards: None,
            cleaning: (logkit::cleaning::DEFAULT.to_owned(), None),
            read_request_bytes: logkit::READ_REQUEST_BYTES,
            background_shares: BACKGROUND_SHARES,
            io_depth: IO_DEPTH,
            stripe_above: None,
            goal: Goal::Serve,
        }
    }
}

/// Number of zones that files can't use: those of roots, the reserve of the cleaner, two zones for each lane
/// and mover of a shard (one open, one being sealed), and two of checkpoints.
pub(crate) fn reserved_zones(lanes: u32, shards: u32) -> u32 {
    ROOT_ZONES + cleaner_reserve(shards) + shards * 2 * (lanes + 1) + 2
}

/// Returns the settings of the log kit for these settings of a file system.
pub fn kit_settings(
    settings: &Settings,
    layout: &logkit::Layout,
    (shard, shards): (u32, u32),
) -> logkit::Settings {
    logkit::Settings {
        user_stream: user_stream(shard),
        cleaner_stream: cleaner_stream(shard),
        appends_in_flight: settings.appends_in_flight,
        data_blocks: layout.data_blocks(Change::MAX_WITH_BLOCKS),
        record_blocks: layout.record_blocks(Change::MAX_WITH_BLOCKS),
        cleaner_reserve: cleaner_reserve(shards),
        checkpoint_blocks: layout.blocks_in(settings.checkpoint_after),
        low_watermark: 0.05,
        high_watermark: 0.2,
        most_steps: u64::MAX,
        read_request_bytes: settings.read_request_bytes,
        prepare_zones: true,
    }
}
