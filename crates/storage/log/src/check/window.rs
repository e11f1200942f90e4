//! Reading a zone from its beginning to its end, one window at a time; unreadable blocks are recorded by
//! number and hold zeros.

use crate::layout::Layout;
use block::{Error, ZoneIndex, Zones};
use logkit::scan;
use std::collections::BTreeMap;

/// Least number of bytes of a window.
const BYTES: usize = 8 << 20;

/// Reader of the blocks of one zone.
pub(crate) struct Window<'a> {
    zones: &'a dyn Zones,
    layout: &'a Layout,
    zone: ZoneIndex,
    /// End of the reads, in blocks.
    end: u32,
    start: u32,
    bytes: Vec<u8>,
    /// Unreadable blocks, with the error of each.
    pub(crate) unreadable: BTreeMap<u32, Error>,
    /// Called with the number of bytes before the end of the window, each time that it advances.
    pub(crate) on_read: Option<Box<dyn Fn(u64) + 'a>>,
}

impl<'a> Window<'a> {
    /// Returns a window on the first `end` blocks of a zone.
    pub(crate) fn new(zones: &'a dyn Zones, layout: &'a Layout, zone: ZoneIndex, end: u32) -> Self {
        Window {
            zones,
            layout,
            zone,
            end,
            start: 0,
            bytes: Vec::new(),
            unreadable: BTreeMap::new(),
            on_read: None,
        }
    }

    /// Returns `count` blocks at `position`, all before the end.
    pub(crate) async fn blocks(&mut self, position: u32, count: u32) -> &[u8] {
        debug_assert!(position + count <= self.end, "blocks behind the end of a zone");
        let block = self.layout.block_bytes();
        let held = self.start..self.start + (self.bytes.len() / block) as u32;
        if position < held.start || position + count > held.end {
            let most = ((BYTES / block) as u32).max(count).min(self.end - position);
            self.fill(position, most).await;
        }
        let from = (position - self.start) as usize * block;
        &self.bytes[from..from + count as usize * block]
    }

    async fn fill(&mut self, position: u32, count: u32) {
        self.start = position;
        let (zones, layout, zone) = (self.zones, self.layout, self.zone);
        self.bytes = match scan::read(zones, layout, zone.0, position, count).await {
            Ok(bytes) => bytes,
            // One block at a time, since the others may be readable.
            Err(_) => {
                let mut bytes = Vec::with_capacity(count as usize * layout.block_bytes());
                for number in position..position + count {
                    match scan::read(zones, layout, zone.0, number, 1).await {
                        Ok(block) => bytes.extend_from_slice(&block),
                        Err(error) => {
                            self.unreadable.insert(number, error);
                            bytes.resize(bytes.len() + layout.block_bytes(), 0);
                        }
                    }
                }
                bytes
            }
        };
        if let Some(on_read) = &self.on_read {
            on_read(u64::from(position + count) << layout.block_size.shift());
        }
    }
}
