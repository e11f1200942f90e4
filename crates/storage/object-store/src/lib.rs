//! A client of S3 object stores on the runtime's sockets, tested with VersityGW and moto.
//!
//! # Promises
//! - A store is hostile input: memory is bounded for each answer (16 KiB and 64 headers for a head, 64 KiB
//!   for the description of an error, 8 MiB for a page of a listing, and the caller's limit for an object).
//!   An error names the store, the request, the status and what was expected, and no secret.
//! - Every wait has a limit ([`Limits`]), and so has the number of connections. An idle client sends nothing.
//! - A request that failed is retried after random, growing pauses within the limit of an operation, and
//!   within a retry budget of a tenth of all requests. A nonce distinguishes a conditional write whose answer
//!   was lost from another writer's: [`Put::ConditionFailed`] is never the outcome of a write that is on the
//!   object.
//! - [`Store::get`] returns the bytes that [`Store::put`] was given, or an error: their CRC-32C travels as
//!   the store's own checksum and as metadata. Ranges aren't checked, nor objects of other programs without a
//!   checksum.
//! - A slow read gets a hedged read, for at most a tenth of the reads.
//! - [`Store::probe`] refuses a store whose conditional writes aren't atomic.
//!
//! # Limits
//! Requests in TLS need a folder of certificates (crate `tls`), and a store with TLS 1.3. Redirections aren't
//! followed. The store may carry out an unconditional write that timed out after a later write of the same
//! key, so users write a key once.
//!
//! # Structure
//! `http`, `xml`: parsers; `any_bytes`: their check for fuzzing. `connection`, `endpoint`, `transport`:
//! connections. `credentials`. `retry`: retries and hedged reads. `store`: one signed request. `objects`,
//! `batches`, `parts`: operations. `probe`. `counts`: counters. `testing`: a simulated store, with the
//! feature of this name.
#![doc = include_str!("../DESIGN.md")]

mod any_bytes;
mod batches;
mod connection;
mod counts;
mod credentials;
mod endpoint;
pub mod http;
mod objects;
mod parts;
mod probe;
mod retry;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod xml;

pub use any_bytes::check_any_bytes;
pub use batches::{Listed, MAX_BATCH, Page};
pub use connection::MAX_BODY;
pub use counts::{Counts, Kind};
pub use credentials::{CredentialSource, Credentials, INSTANCE_METADATA, RENEWAL};
pub use endpoint::host_of;
pub use objects::{Condition, Description, Object, Put};
pub use parts::MAX_PARTS;
pub use probe::{RACERS, RACES};
pub use store::{Addressing, Config, FIRST_CONTACT, Limits, MAX_KEY, Store};
