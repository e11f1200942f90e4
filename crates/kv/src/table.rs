//! The format of sorted tables.
