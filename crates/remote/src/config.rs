//! How a device on memory nodes is set up, and how large everything is.

use crate::arena::{BLOCK, Sizes};
use crate::compression::Compression;
use crate::core::{FEWEST_STAGED, Settings, USER_STREAMS};
use crate::slot::PAGE;
use block::{DevicePart, Error, Result};
use stack::format_size;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Smallest cache in bytes.
const SMALLEST_CACHE: u64 = 32 << 20;
/// Zones that only the cleaner takes.
const RESERVE: u64 = 2;

/// A device on memory nodes.
pub struct Config {
    /// Memory nodes with their names, in the same order each time. Their contents are overwritten.
    pub nodes: Vec<(String, Arc<dyn DevicePart>)>,
    /// Device on which every page is written, too.
    pub backup: Option<Arc<dyn DevicePart>>,
    /// Size in bytes; `None` for what fits if no page can be compressed.
    pub size: Option<u64>,
    /// Whether the size may be larger than that.
    pub may_overcommit: bool,
    /// Copies of each page, on different nodes.
    pub copies: u64,
    /// Local memory for pages, in bytes.
    pub cache: u64,
    /// Bytes of a zone.
    pub group: u64,
    /// How pages are compressed.
    pub compression: Compression,
    /// Memory that another process keeps, which the process before has used or which is empty.
    pub kept: Option<OwnedFd>,
}

impl Config {
    /// A device on these nodes as stacks have it by default.
    pub fn new(nodes: Vec<(String, Arc<dyn DevicePart>)>) -> Self {
        Config {
            nodes,
            backup: None,
            size: None,
            may_overcommit: false,
            copies: 1,
            cache: 64 << 20,
            group: 8 << 20,
            compression: Compression::Lz4,
            kept: None,
        }
    }

    /// Sizes of everything.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what doesn't fit together, with what would.
    pub(crate) fn plan(&self) -> Result<(Sizes, Settings)> {
        let refuse = |text: String| Err(Error::invalid(text));
        let Config { copies, group, cache, .. } = *self;
        if !(1..=self.nodes.len() as u64).contains(&copies) {
            return refuse(format!("copies {copies}: expected 1 to {}, one on each node", self.nodes.len()));
        }
        if !group.is_multiple_of(BLOCK as u64) || !(BLOCK as u64..=64 << 20).contains(&group) {
            return refuse(format!("group {}: expected whole MiB, 1MiB to 64MiB", format_size(group)));
        }
        for device in self.nodes.iter().map(|(_, node)| node).chain(&self.backup) {
            let (block, page) = (device.geometry().block_size.bytes(), PAGE as u64);
            if block > page {
                return refuse(format!(
                    "a node with blocks of {}: expected at most {}, a page",
                    format_size(block),
                    format_size(page)
                ));
            }
        }
        let regions: Vec<u64> = self.nodes.iter().map(|(_, node)| node.geometry().bytes() / group).collect();
        let on_backup = self.backup.as_ref().map_or(u64::MAX, |backup| backup.geometry().bytes() / group);
        let zones = most_zones(&regions, copies).min(on_backup);
        let low = RESERVE + (zones / 10).max(2);
        let usable = zones.saturating_sub(low + USER_STREAMS as u64 + 1);
        if usable == 0 {
            return refuse(format!(
                "the nodes, and backup, have space for {zones} groups of {}; expected at least {}",
                format_size(group),
                low + USER_STREAMS as u64 + 2
            ));
        }
        // A page that can't be compressed takes 65 granules of 64, and blocks aren't filled to their last byte. So if `low` zones aren't free, one of the full zones is
        // live to less than 63 of 64 parts, and can be cleaned.
        let most = usable * group / PAGE as u64 * 62 / 65 * PAGE as u64;
        let size = self.size.unwrap_or(most);
        if size < PAGE as u64 || !size.is_multiple_of(PAGE as u64) || size / PAGE as u64 > u64::from(u32::MAX)
        {
            return refuse(format!("size {}: expected whole pages of 4KiB, up to 15TiB", format_size(size)));
        }
        if size > most && !self.may_overcommit {
            return refuse(format!(
                "size {}: the nodes have space for {} if no page can be compressed; expected that, or overcommit = true",
                format_size(size),
                format_size(most)
            ));
        }
        if cache < SMALLEST_CACHE {
            let smallest = format_size(SMALLEST_CACHE);
            return refuse(format!("cache {}: expected at least {smallest}", format_size(cache)));
        }
        let staged = (cache / 2 / BLOCK as u64).clamp(FEWEST_STAGED.into(), 4096);
        let frames = (cache - staged * BLOCK as u64) / PAGE as u64;
        let sizes = Sizes {
            pages: size / PAGE as u64,
            zones: zones as u32,
            zone_blocks: (group / BLOCK as u64) as u32,
            staged: staged as u32,
            frames: frames.min(1 << 30) as u32,
            identity: regions.iter().sum::<u64>() << 8 | copies,
        };
        let settings = Settings {
            copies: copies as usize,
            compression: self.compression,
            reserve: RESERVE as u32,
            low: low as u32,
        };
        Ok((sizes, settings))
    }
}

/// Largest number of zones whose copies fit on different nodes, by the number of regions of each node.
fn most_zones(regions: &[u64], copies: u64) -> u64 {
    let fits = |zones: u64| regions.iter().map(|count| zones.min(*count)).sum::<u64>() >= copies * zones;
    let (mut most, mut too_many) = (0, regions.iter().sum::<u64>() / copies + 1);
    while most + 1 < too_many {
        let middle = most + (too_many - most) / 2;
        match fits(middle) {
            true => most = middle,
            false => too_many = middle,
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::most_zones;

    #[test]
    fn copies_are_on_different_nodes() {
        assert_eq!(
            [most_zones(&[60, 20], 1), most_zones(&[60, 20], 2), most_zones(&[60, 20, 20], 2)],
            [80, 20, 40]
        );
        let equal = [10, 10, 10];
        assert_eq!([most_zones(&equal, 2), most_zones(&equal, 3), most_zones(&[0, 10], 2)], [15, 10, 0]);
    }
}
