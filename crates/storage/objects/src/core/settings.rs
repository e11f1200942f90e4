//! Settings of a writer, and the geometry of zones that follows from them.
//!
//! # Promises
//! - Memory is enough for a piece and for two appends, so an append that waits for memory gets it.
//!
//! Left to others: keys of stacks (`kind`), the guarantee of a reset (`encryption`).

use super::GRANULARITY;
use crate::compression::Compression;
use block::{Durable, EraseGuarantee, Error, Result, ZoneGeometry};
use std::time::Duration;

/// Largest piece, in bytes.
const MAX_PIECE: u64 = 1 << 30;
/// Most memory, in bytes.
const MAX_MEMORY: u64 = 1 << 40;

/// Settings of a writer.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Number of bytes at which a piece is uploaded.
    pub piece_size: u64,
    /// Most bytes that aren't uploaded yet; at least a piece and at least two appends, at most 1 TiB.
    pub memory: u64,
    /// Largest append, in bytes.
    pub max_append: u64,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Time until objects are deleted that no manifest names any more.
    pub grace: Duration,
    /// Time limit of a close.
    pub close_limit: Duration,
    /// Whether small pieces are merged.
    pub merge: bool,
    /// Compression of new objects; all are read, whatever it is.
    pub compression: Compression,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            piece_size: 8 << 20,
            memory: 32 << 20,
            max_append: 1 << 20,
            max_open: 0,
            max_active: 0,
            grace: Duration::from_secs(60),
            close_limit: Duration::from_secs(60),
            merge: true,
            compression: Compression::None,
        }
    }
}

impl Settings {
    /// Checks the settings. Returns the key of the first one that can't be, and why.
    ///
    /// # Errors
    /// The key in stacks, and a text with its value and the expected ones.
    pub(crate) fn check(&self) -> std::result::Result<(), (&'static str, String)> {
        let is_unit = |bytes: u64| bytes > 0 && bytes.is_multiple_of(GRANULARITY.into());
        let Settings { piece_size, memory, max_append, .. } = *self;
        if !is_unit(piece_size) || piece_size > MAX_PIECE {
            return Err((
                "piece_size",
                format!("piece_size {piece_size}: expected a multiple of {GRANULARITY} bytes, up to 1 GiB"),
            ));
        }
        if !is_unit(max_append) {
            return Err((
                "max_append",
                format!("max_append {max_append}: expected a multiple of {GRANULARITY} bytes"),
            ));
        }
        let min_memory = piece_size.max(max_append.saturating_mul(2));
        if !(min_memory..=MAX_MEMORY).contains(&memory) {
            return Err((
                "memory",
                format!(
                    "memory {memory}: expected {min_memory} bytes (a piece of {piece_size}, and two appends of {max_append}, whichever is \
                     more) to {MAX_MEMORY} (1 TiB); change memory, or lower piece_size and max_append"
                ),
            ));
        }
        Ok(())
    }

    /// Geometry of zones with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the key of a setting that can't be.
    pub fn geometry(&self, zones: u32, zone_size: u64) -> Result<ZoneGeometry> {
        self.check().map_err(|(_, text)| Error::invalid(text))?;
        Ok(ZoneGeometry {
            zones,
            zone_size,
            zone_capacity: zone_size,
            append_granularity: GRANULARITY,
            read_granularity: GRANULARITY,
            max_append: self.max_append.min(zone_size),
            max_open: self.max_open,
            max_active: self.max_active,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_range_is_named_with_its_value_and_the_range() {
        let with = |piece_size, memory, max_append| Settings {
            piece_size,
            memory,
            max_append,
            ..Settings::default()
        };
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(with(8 << 20, 8 << 20, 4 << 20).check(), Ok(()), "a piece and two appends are the same");
        for (settings, key, value, expected) in [
            (with(1000, 1 << 20, 512), "piece_size", "1000", "multiple of 512"),
            (with(2 << 30, 4 << 30, 512), "piece_size", "2147483648", "up to 1 GiB"),
            (with(1 << 20, 2 << 20, 0), "max_append", "0", "multiple of 512"),
            (with(1 << 20, 1 << 19, 512), "memory", "524288", "expected 1048576 bytes"),
            (with(1 << 20, 1 << 20, 1 << 20), "memory", "1048576", "expected 2097152 bytes"),
            (with(1 << 20, 2 << 40, 512), "memory", "2199023255552", "to 1099511627776 (1 TiB)"),
            (with(1 << 20, 2 << 40, u64::MAX - 511), "memory", "2199023255552", "two appends"),
        ] {
            let (refused, text) = settings.check().unwrap_err();
            let is_told = text.starts_with(&format!("{key} {value}")) && text.contains(expected);
            assert!(refused == key && is_told, "{refused}: {text}");
        }
    }
}
