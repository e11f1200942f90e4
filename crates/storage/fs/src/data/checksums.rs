//! Cache of the checksums of data blocks, which every read verifies: those of recently written or read zones,
//! in bounded memory. The checksums of other zones are read from the zones when needed.
//!
//! In other crates: reading the checksums ([`logkit::scan`]).

use block::{Result, ZoneReport, Zones};
use logkit::Layout;
use logkit::record::Identity;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Checksums of one zone, by block; undefined for blocks without data.
type Zone = Rc<Vec<u32>>;

/// Cached checksums of zones.
#[derive(Debug)]
pub struct Sums {
    zones: BTreeMap<u32, (Zone, u64)>,
    zone_blocks: u32,
    /// Most zones in the cache, not counting zones that are being written.
    most: usize,
    clock: u64,
}

impl Sums {
    /// Returns an empty cache of checksums, limited to about `bytes` bytes; `zone_blocks` is the number of
    /// blocks of a zone.
    pub fn new(zone_blocks: u32, bytes: u64) -> Self {
        let most = (bytes / (4 * u64::from(zone_blocks))).max(8) as usize;
        Sums { zones: BTreeMap::new(), zone_blocks, most, clock: 0 }
    }

    /// Adds the checksums of blocks that were written to a zone.
    pub fn note(&mut self, zone: u32, position: u32, sums: &[u32]) {
        self.clock += 1;
        let empty = || (Rc::new(vec![0; self.zone_blocks as usize]), 0);
        let (of_zone, used) = self.zones.entry(zone).or_insert_with(empty);
        *used = self.clock;
        let from = position as usize;
        Rc::make_mut(of_zone)[from..from + sums.len()].copy_from_slice(sums);
    }

    /// Returns the checksums of a zone if they are in the cache.
    pub fn get(&mut self, zone: u32) -> Option<Zone> {
        self.clock += 1;
        let (sums, used) = self.zones.get_mut(&zone)?;
        *used = self.clock;
        Some(sums.clone())
    }

    /// Adds the checksums of a zone that were read from it.
    pub fn insert(&mut self, zone: u32, sums: Zone) {
        self.clock += 1;
        self.zones.insert(zone, (sums, self.clock));
    }

    /// Evicts the checksums of the least recently used zones above the limit, except zones that are being
    /// written: their checksums can't be read from the zone yet.
    pub fn shrink(&mut self, is_written: impl Fn(u32) -> bool) {
        if self.zones.len() <= self.most {
            return;
        }
        let mut by_use: Vec<(u64, u32)> = self.zones.iter().map(|(zone, (_, used))| (*used, *zone)).collect();
        by_use.sort_unstable();
        let surplus = self.zones.len() - self.most * 7 / 8;
        for (_, zone) in by_use.into_iter().filter(|(_, zone)| !is_written(*zone)).take(surplus) {
            self.zones.remove(&zone);
        }
    }
}

/// Returns the checksums of the data blocks in a zone, from its records; 0 for other blocks.
///
/// # Errors
/// Errors of reading.
pub(crate) async fn sums_in(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<Vec<u32>> {
    let found = logkit::sums::read(zones, layout, identity, report).await?;
    let mut sums = vec![0; layout.zone_blocks as usize];
    // Records lie within the zone, so the index is in bounds.
    found.iter().for_each(|(position, sum)| sums[position as usize] = sum);
    Ok(sums)
}
