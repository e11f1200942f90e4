//! Settings of a writer, and the geometry of zones that follows from them.

use super::GRANULARITY;
use crate::compression::Compression;
use block::{Durable, EraseGuarantee, Error, Result, ZoneGeometry};
use std::time::Duration;

/// Settings of a writer.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Number of bytes at which a piece is uploaded.
    pub piece_size: u64,
    /// Most bytes that aren't uploaded yet; at least a piece, and two appends.
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
    /// Geometry of zones with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that can't be, which the text names.
    pub fn geometry(&self, zones: u32, zone_size: u64) -> Result<ZoneGeometry> {
        let is_unit = |bytes: u64| bytes > 0 && bytes.is_multiple_of(GRANULARITY.into());
        if !is_unit(self.piece_size) || self.piece_size > 1 << 30 {
            return Err(Error::invalid(format!(
                "piece_size {}: expected a multiple of {GRANULARITY} bytes, up to 1 GiB",
                self.piece_size
            )));
        }
        if !is_unit(self.max_append) {
            return Err(Error::invalid(format!(
                "max_append {}: expected a multiple of {GRANULARITY} bytes",
                self.max_append
            )));
        }
        let least = self.piece_size.max(2 * self.max_append);
        if self.memory < least || self.memory > 1 << 40 {
            return Err(Error::invalid(format!(
                "memory {}: expected at least {least}, a piece and two appends",
                self.memory
            )));
        }
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
