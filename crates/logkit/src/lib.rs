//! The log kit: what everything log-structured stands on. It knows nothing of maps, versions, files or keys.
//!
//! - [`record`]: the records that an owner appends; [`summary`]: the records of a full zone, listed at its end.
//! - [`cleaning`]: which zone is cleaned next, and which data is written together.
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
pub mod kit;
pub mod lane;
pub mod layout;
pub mod mover;
pub mod owner;
pub mod pace;
pub mod pool;
pub mod readers;
pub mod record;
pub mod recovery;
pub mod reset;
pub mod root;

pub mod scan;
pub mod shards;
pub mod space;
pub mod stream;
pub mod summary;
pub mod victim;
pub mod zone_writer;

pub use appender::Appender;
pub use entry::{Batch, Entry};
pub use kit::{Counters, Kit, Parts, Peer, Settings, count};
pub use layout::Layout;
pub use mover::Mover;
pub use owner::Owner;
pub use pool::{Usage, Zone, ZonePool};
pub use stream::{Sequences, StreamId, Streams};
pub use victim::{Piece, Victim};
pub use zone_writer::ZoneWriter;
