//! Snapshots of an open file system: their list, and the gates that are shut while one is taken.

pub(crate) mod gate;
pub(crate) mod list;
pub(crate) mod taking;
