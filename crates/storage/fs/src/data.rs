//! Data of files: files in use, checksums, clones and defragmentation.

pub(crate) mod checksums;
pub mod clones;
pub(crate) mod cut;
pub mod defrag;
pub(crate) mod node;
pub(crate) mod reader;
