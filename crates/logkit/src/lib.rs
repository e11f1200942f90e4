//! The log kit: what everything log-structured stands on. It knows nothing of maps, versions, files or keys: these are an
//! [`Owner`]'s, and what an owner appends are [`Entry`]s.
//!
//! On the medium:
//! - [`record`]: records and how they are told from anything else; [`summary`]: the records of a full zone, listed at its end.
//! - [`root`]: the identity of a log and its newest checkpoint; [`directory`]: the zones of a checkpoint and the owner's part.
//! - [`sums`]: the checksums of a zone's data blocks, read from its headers.
//! - [`layout`]: the division of zones into blocks; [`leb128`]: numbers of variable length.
//!
//! Shared by all shards:
//! - [`pool`]: which zones are free, open, full or dead, and how much of each is live.
//! - [`stream`]: numbered sequences of records, and up to where each has committed, is durable and is covered.
//! - [`readers`]: reads in progress, so that a zone is reset only when no read of it is.
//!
//! On each shard, in a [`Kit`]:
//! - [`appender`], [`lane`]: group commit: entries are queued, and appended as records; [`entry`]: entries and frozen records;
//!   [`zone_writer`]: one open zone.
//! - [`prepare`]: opens the next zone of a lane before the lane needs it.
//! - [`flusher`]: makes appends durable, also when the shard has become idle (`idle`); [`space`]: a device below that runs out of space.
//! - [`checkpoint`], [`recovery`]: writing checkpoints, and opening a log.
//! - [`cleaner`], [`victim`], [`mover`]: what is live in a zone is appended elsewhere; [`reset`]: dead zones become free.
//! - [`decision`]: what the cleaner does next, as a pure function; [`pace`]: how fast it moves; [`cleaning`]: which zone is cleaned
//!   next, and which data is written together.
//!
//! Left to others: what records mean (the log device, the file system, the key-value store), zones (`zones`), and running
//! the calls (`runtime`).

pub mod appender;
pub mod checkpoint;
pub mod cleaner;
pub mod cleaning;
pub mod decision;
pub mod directory;
pub mod entry;
pub mod flusher;
mod idle;
pub mod kit;
pub mod lane;
pub mod layout;
pub mod leb128;
pub mod mover;
pub mod owner;
pub mod pace;
pub mod pool;
pub mod prepare;
pub mod readers;
pub mod record;
pub mod recovery;
pub mod reset;
pub mod root;
pub mod scan;
pub mod seals;
pub mod shards;
pub mod space;
pub mod stream;
pub mod summary;
pub mod sums;
pub mod victim;
pub mod zone_writer;

pub use appender::Appender;
pub use entry::{Batch, Entry};
pub use kit::{Counters, Kit, Parts, Peer, Settings, count};
pub use layout::Layout;
pub use mover::Mover;
pub use owner::Owner;
pub use pool::{Usage, Zone, ZonePool};
pub use stream::{Joint, Sequences, StreamId, Streams};
pub use sums::ZoneSums;
pub use victim::{Piece, READ_REQUEST_BYTES, Victim};
pub use zone_writer::ZoneWriter;
