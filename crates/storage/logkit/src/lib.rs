//! The log kit: the common parts of everything log-structured. It knows no maps, versions, files or keys:
//! those belong to an [`Owner`], which appends [`Entry`]s.
//!
//! On the medium:
//! - [`record`]: format of records and their checksums, of the crate `zones`; [`summary`]: the headers of a
//!   full zone's records, at its end.
//! - [`root`]: the identity of a log and its newest checkpoint; [`directory`]: the zones of a checkpoint and
//!   the owner's part.
//! - [`sums`]: the checksums of a zone's data blocks, read from its headers.
//! - [`layout`]: the division of zones into blocks; [`leb128`]: numbers of variable length.
//!
//! Shared by all shards:
//! - [`pool`]: the state of each zone (free, open, full or dead) and its live blocks.
//! - [`stream`]: numbered sequences of records, with the last committed, durable and covered record of each.
//! - [`readers`]: reads in progress, so that no zone is reset while it is read.
//!
//! On each shard, in a [`Kit`]:
//! - [`appender`], [`lane`]: group commit: entries are queued, and appended as records; [`entry`]: entries
//!   and frozen records; [`zone_writer`]: one open zone; `opening`, `sealing`: opening and sealing zones;
//!   [`seals`]: requests to seal them.
//! - [`prepare`]: opens the next zone of a lane before the lane needs it.
//! - [`shard_flusher`], [`flusher`]: make appends durable, also on an idle shard (`idle`); [`space`]: handles
//!   a device below that runs out of space.
//! - [`checkpoint`], [`recovery`]: writing checkpoints, and opening a log.
//! - [`cleaner`], [`victim`], [`moves`]: moving live data out of a zone; [`reset`]: turning dead zones into
//!   free ones.
//! - [`decision`]: the cleaner's next action, as a pure function; [`pace`]: the speed of moves; [`cleaning`]:
//!   the choice of victims, and of the data that is written together.
//!
//! Left to others: the meaning of records (the log device, the file system, the key-value store), zones
//! (`zones`), and the execution of calls (`runtime`).
#![doc = include_str!("../DESIGN.md")]

pub mod appender;
pub mod checkpoint;
pub mod cleaner;
pub mod cleaning;
pub mod decision;
pub mod device_space;
pub mod directory;
pub mod entry;
pub mod flusher;
mod idle;
pub mod kit;
pub mod lane;
pub mod layout;
pub mod leb128;
mod marks;
pub mod mover;
pub mod moves;
pub mod newest_checkpoint;
mod opening_zones;
pub mod owner;
pub mod pace;
pub mod pace_state;
pub mod pool;
pub mod prepare;
pub mod readers;
pub mod recovery;
pub mod reset;
pub mod root;
pub mod scan;
mod sealing;
pub mod seals;
pub mod shard_flusher;
pub mod shards;
pub mod shared;
pub mod space;
pub mod stream;
pub mod summary;
pub mod sums;
pub mod turns;
pub mod victim;
pub mod zone_writer;

pub use appender::Appender;
pub use entry::{Batch, Entry};
pub use kit::{Counters, Kit, Parts, Peer, Settings, count};
pub use layout::Layout;
pub use mover::Mover;
pub use owner::Owner;
pub use pool::{Usage, Zone, ZonePool};
pub use stream::{Joint, Sequences, Streams};
pub use sums::ZoneSums;
pub use victim::{Piece, READ_REQUEST_BYTES, Victim};
pub use zone_writer::ZoneWriter;
pub use zones::record;
pub use zones::record::StreamId;
