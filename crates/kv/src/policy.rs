//! Which tables are compacted next, and in which zones tables are written.
