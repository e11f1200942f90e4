//! The log-structured device and its maps.
//!
//! - [`map`]: where each block of a volume lies: one trait, several structures behind it, to be compared.
//! - [`home`]: the map kept in memory that survives.
//! - [`mod@check`] looks at a whole log for damage, [`dump`] shows what is on the medium; both write nothing.
//!
//! Left to others: zones, records, roots and cleaning policies (`zones`), and running the calls (`runtime`).

mod buffered;
pub mod changes;
pub mod check;
pub mod checkpoint;
mod cleaner;
mod commit;
pub mod core;
mod decision;
pub mod device;
pub mod directory;
pub mod dump;
mod flush;
pub mod format;
pub mod home;
pub mod kind;
mod lane;
pub mod layout;
pub mod map;
mod open_zone;
mod pace;
mod readers;
pub mod recovery;
mod room;
pub mod root;
pub mod scan;
pub mod snapshot;
mod space;
mod status;
mod stream;
mod table;
mod transaction;
mod versions;

pub use device::LogPart;
pub use kind::KIND;
pub use snapshot::KIND as SNAPSHOT_KIND;
