//! Operations on names: decisions without I/O ([`namespace`]), operations on several shards, striped
//! directories, and paths.

#[cfg(feature = "broken-rules")]
mod broken;
pub(crate) mod joint;
pub(crate) mod locks;
pub mod namespace;
pub(crate) mod path;
pub(crate) mod path_of;
pub(crate) mod striping;
