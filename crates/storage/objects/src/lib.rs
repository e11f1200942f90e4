//! Zones as immutable objects in a bucket of an S3 object store: kind `objects`.
//!
//! # Promises
//! - Bytes of a flush or a finish that has returned are in the bucket, and named by a manifest: they survive
//!   the loss of this machine. Bytes that weren't flushed may be lost with the process.
//! - A bucket has one writer: opening fences the writer before. From the fence on none of its flushes,
//!   finishes and resets is acknowledged, whenever it wakes up.
//! - With a key, all contents of the bucket are encrypted, and with a key store a reset destroys the key of a
//!   zone, also where the bucket keeps versions.
//! - Altered, misplaced and lost objects are errors of reads and of opening, never other bytes.
//! - In an outage of the store flushes wait, and appends at the limit of memory. Nothing fails for it except
//!   reads, at the client's limit, and a close, at its own.
//! - While nothing is changed or read, no request is sent, once the last garbage is deleted.
//!
//! # Structure
//! `names`: keys of objects. `table`: the zone table and its changes. `format`: manifests and pieces as
//! bytes. `chunks`: where chunks lie in an object. `compression`, `indexes`: compressed pieces. `seal`,
//! `key_store`, `encryption`: the cipher, and its keys. `open_piece`: bytes that aren't uploaded. `merging`:
//! which small pieces become one, and when. `manifests`, `manifest_log`, `bases`, `opening`: manifests in the
//! bucket, their log, epochs. `volume`: the claim. `garbage`: deletions. `core`: the zones of a writer.
//! `looking`: the state without a claim. `readable`: with the secrets of its zones. `reader`: zones that
//! another machine writes. `offline`: what operators ask about a bucket. `retry`: repeated attempts.
//! `state`, `part`, `message`, `kind`: the part in a stack. `any_bytes`: the check for fuzzing.
#![doc = include_str!("../DESIGN.md")]

mod any_bytes;
mod bases;
mod chunks;
mod compression;
mod core;
mod encryption;
mod format;
mod garbage;
mod indexes;
mod key_store;
mod kind;
mod looking;
mod manifest_log;
mod manifests;
mod merging;
mod message;
mod names;
mod offline;
mod open_piece;
mod opening;
mod part;
mod readable;
mod reader;
mod retry;
mod seal;
mod state;
mod table;
mod volume;

pub use self::core::Settings;
pub use any_bytes::check_any_bytes;
pub use compression::Compression;
pub use encryption::Encryption;
pub use kind::{KEY_STORE, KIND, options_of_look};
pub use offline::{CheckReport, Collected, Count, Damage, Epoch, Seal, Volume};
pub use part::{NewVolume, ObjectsPart, Options};
pub use reader::ReaderPart;
