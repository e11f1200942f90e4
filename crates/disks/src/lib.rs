//! Leaves: file, ram, null.
