//! Configuration of a device on memory nodes, and the sizes that follow from it.

use crate::arena::{BLOCK, Sizes};
use crate::compression::Compression;
use crate::core::{MIN_STAGED, Settings, USER_STREAMS};
use crate::entry::MAX_GRANULES;
use crate::slot::{GRANULE, PAGE};
use crate::zones::MAX_COPIES;
use block::{DevicePart, Error, Result};
use stack::{format_duration, format_size};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Smallest cache in bytes.
const MIN_CACHE: u64 = 32 << 20;
/// Largest cache in bytes: the number of a frame has 32 bits.
const MAX_CACHE: u64 = 1 << 40;
/// Largest number of nodes: the number of a node has 8 bits.
const MAX_NODES: u64 = 255;
/// Largest size of a node, and of all zones together: the place of a page has 36 bits.
const MAX_BYTES: u64 = MAX_GRANULES * GRANULE as u64;
/// Limits of the longest time of a request.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// Zones that only the cleaner takes.
const RESERVE: u64 = 2;

/// Configuration of a device on memory nodes.
pub struct Config {
    /// Memory nodes with their names, in the same order each time. Their contents are overwritten.
    pub nodes: Vec<(String, Arc<dyn DevicePart>)>,
    /// Device on which every page is also written.
    pub backup: Option<Arc<dyn DevicePart>>,
    /// Size in bytes; `None` for the size that fits if no page can be compressed.
    pub size: Option<u64>,
    /// Whether `size` may exceed what fits if no page can be compressed.
    pub may_overcommit: bool,
    /// Copies of each page, on different nodes.
    pub copies: u64,
    /// Local memory for pages, in bytes.
    pub cache: u64,
    /// Size of a zone in bytes.
    pub group: u64,
    /// Compression of pages.
    pub compression: Compression,
    /// Time limit of a request to a node, after which the node is down.
    pub timeout: Duration,
    /// Memory that another process keeps: empty, or used by the previous process.
    pub kept: Option<OwnedFd>,
}

impl Config {
    /// Creates the configuration of a device on these nodes with the defaults of the stack's keys.
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
            timeout: Duration::from_secs(5),
            kept: None,
        }
    }

    /// Inputs of the layout: sizes of the nodes and of the device.
    pub(crate) fn request(&self) -> Request {
        let capacity = |part: &Arc<dyn DevicePart>| {
            let geometry = part.geometry();
            Capacity { bytes: geometry.bytes(), block_size: geometry.block_size.bytes() }
        };
        Request {
            nodes: self.nodes.iter().map(|(_, node)| capacity(node)).collect(),
            backup: self.backup.as_ref().map(capacity),
            size: self.size,
            may_overcommit: self.may_overcommit,
            copies: self.copies,
            cache: self.cache,
            group: self.group,
            timeout: self.timeout,
        }
    }

    /// Computes the sizes and settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] for values that don't fit together, with permitted ones.
    pub(crate) fn plan(&self) -> Result<(Sizes, Settings)> {
        let sizes = self.request().sizes().map_err(|refusal| Error::invalid(refusal.text))?;
        let settings = Settings {
            copies: self.copies as usize,
            compression: self.compression,
            limit: self.timeout,
            reserve: RESERVE as u32,
            low: low_of(sizes.zones.into()) as u32,
        };
        Ok((sizes, settings))
    }
}

/// Bytes and block size of a node, or of the backup device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub bytes: u64,
    pub block_size: u64,
}

/// Inputs from which the sizes are computed.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub nodes: Vec<Capacity>,
    pub backup: Option<Capacity>,
    pub size: Option<u64>,
    pub may_overcommit: bool,
    pub copies: u64,
    pub cache: u64,
    pub group: u64,
    pub timeout: Duration,
}

/// Problem of a value, and the value's key.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub key: &'static str,
    pub text: String,
}

/// Most bytes of a page as it is packed: with its header, if it can't be compressed.
pub(crate) const MAX_PAGE_BYTES: u64 = (PAGE + crate::slot::GRANULE) as u64;

/// Free zones below which zones are cleaned.
fn low_of(zones: u64) -> u64 {
    RESERVE + (zones / 10).max(2)
}

/// Number of zones with data that nodes with these regions have space for, of at most `most` zones; the
/// others are for the cleaner.
fn usable_zones(regions: &[u64], copies: u64, most: u64) -> (u64, u64) {
    let zones = most_zones(regions, copies).min(most);
    (zones, zones.saturating_sub(low_of(zones) + USER_STREAMS as u64 + 1))
}

/// Bytes of pages, as they are packed, that nodes with these regions of `group` bytes have space for, with
/// at most `most` zones in all. With fewer nodes than copies each page has fewer copies.
pub(crate) fn capacity(regions: &[u64], copies: u64, most: u64, group: u64) -> u64 {
    let copies = copies.min(regions.len() as u64).max(1);
    // A page takes up to 65 granules; `Request::sizes` has the reason for 62.
    usable_zones(regions, copies, most).1 * (group / PAGE as u64) * 62 / 65 * MAX_PAGE_BYTES
}

impl Request {
    /// Checks values that don't depend on the sizes of nodes.
    pub fn check_keys(&self, nodes: u64) -> Result<(), Refusal> {
        let refuse = |key, text| Err(Refusal { key, text });
        let Request { copies, group, cache, .. } = *self;
        if nodes > MAX_NODES {
            return refuse("nodes", format!("{nodes} nodes: expected at most {MAX_NODES}"));
        }
        if !(1..=nodes.min(MAX_COPIES as u64)).contains(&copies) {
            return refuse(
                "copies",
                format!("copies {copies}: expected 1 to {}, one on each node", nodes.min(MAX_COPIES as u64)),
            );
        }
        if !group.is_multiple_of(BLOCK as u64) || !(BLOCK as u64..=64 << 20).contains(&group) {
            let found = format_size(group);
            return refuse("group", format!("group {found}: expected whole MiB, 1MiB to 64MiB"));
        }
        if !(MIN_CACHE..=MAX_CACHE).contains(&cache) {
            let [cache, least, most] = [cache, MIN_CACHE, MAX_CACHE].map(format_size);
            return refuse("cache", format!("cache {cache}: expected {least} to {most}"));
        }
        if !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&self.timeout) {
            let [found, least, most] = [self.timeout, MIN_TIMEOUT, MAX_TIMEOUT].map(format_duration);
            return refuse("timeout", format!("timeout {found}: expected {least} to {most}"));
        }
        Ok(())
    }

    /// Checks the block sizes of nodes and backup, and the sizes of nodes.
    fn check_devices(&self) -> Result<(), Refusal> {
        let refuse = |key, text| Err(Refusal { key, text });
        let nodes = self.nodes.iter().map(|node| ("nodes", node));
        for (key, device) in nodes.chain(self.backup.iter().map(|backup| ("backup", backup))) {
            if device.block_size > PAGE as u64 {
                let [block, page] = [device.block_size, PAGE as u64].map(format_size);
                return refuse(
                    key,
                    format!("{key}: a device with blocks of {block}: expected at most {page}, a page"),
                );
            }
        }
        if let Some(large) = self.nodes.iter().find(|node| node.bytes > MAX_BYTES) {
            let [found, most] = [large.bytes, MAX_BYTES].map(format_size);
            return refuse("nodes", format!("nodes: a node of {found}: expected at most {most}"));
        }
        Ok(())
    }

    /// Computes the sizes.
    pub fn sizes(&self) -> Result<Sizes, Refusal> {
        let refuse = |key, text| Err(Refusal { key, text });
        let Request { copies, group, cache, .. } = *self;
        self.check_keys(self.nodes.len() as u64)?;
        self.check_devices()?;
        let regions: Vec<u64> = self.nodes.iter().map(|node| node.bytes / group).collect();
        let on_backup = self.backup.map_or(u64::MAX, |backup| backup.bytes / group);
        let (zones, usable) = usable_zones(&regions, copies, on_backup);
        if zones * group > MAX_BYTES {
            let [found, most] = [zones * group, MAX_BYTES].map(format_size);
            return refuse(
                "nodes",
                format!(
                    "nodes: space for {found} with copies {copies}: expected at most {most}; give fewer or smaller nodes, or more copies"
                ),
            );
        }
        if usable == 0 {
            return refuse(
                "group",
                format!(
                    "group {}: the nodes, and backup, have space for {zones} groups; expected at least {}: give a smaller group, or more memory",
                    format_size(group),
                    low_of(zones) + USER_STREAMS as u64 + 2
                ),
            );
        }
        // A page that can't be compressed takes 65 granules instead of 64, and blocks aren't filled to their
        // last byte. So if fewer than `low` zones are free, less than 63/64 of one of the full zones is live,
        // and it can be cleaned.
        let most = usable * group / PAGE as u64 * 62 / 65 * PAGE as u64;
        let size = self.size.unwrap_or(most);
        if size < PAGE as u64 || !size.is_multiple_of(PAGE as u64) || size / PAGE as u64 > u64::from(u32::MAX)
        {
            let found = format_size(size);
            return refuse("size", format!("size {found}: expected whole pages of 4KiB, up to 15TiB"));
        }
        if size > most && !self.may_overcommit {
            return refuse(
                "size",
                format!(
                    "size {}: the nodes have space for {} if no page can be compressed; expected that, or overcommit = true",
                    format_size(size),
                    format_size(most)
                ),
            );
        }
        let staged = (cache / 2 / BLOCK as u64).clamp(MIN_STAGED.into(), 4096);
        let frames = (cache - staged * BLOCK as u64) / PAGE as u64;
        Ok(Sizes {
            pages: size / PAGE as u64,
            zones: zones as u32,
            zone_blocks: (group / BLOCK as u64) as u32,
            staged: staged as u32,
            frames: frames as u32,
            identity: regions.iter().sum::<u64>() << 8 | copies,
        })
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
    use super::*;

    #[test]
    fn copies_are_on_different_nodes() {
        assert_eq!(
            [most_zones(&[60, 20], 1), most_zones(&[60, 20], 2), most_zones(&[60, 20, 20], 2)],
            [80, 20, 40]
        );
        let equal = [10, 10, 10];
        assert_eq!([most_zones(&equal, 2), most_zones(&equal, 3), most_zones(&[0, 10], 2)], [15, 10, 0]);
    }

    const TIB: u64 = 1 << 40;

    fn request(nodes: &[u64]) -> Request {
        Request {
            nodes: nodes.iter().map(|bytes| Capacity { bytes: *bytes, block_size: 4096 }).collect(),
            backup: None,
            size: None,
            may_overcommit: false,
            copies: 1,
            cache: 64 << 20,
            group: 8 << 20,
            timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn what_the_fields_of_the_map_do_not_hold_is_refused() {
        let refusal = |request: Request| request.sizes().map_err(|refusal| (refusal.key, refusal.text));
        let refused = |request: Request, key: &str, said: &str| {
            let (found, text) = refusal(request.clone()).unwrap_err();
            assert!(found == key && text.contains(said), "{request:?}: {found}: {text}");
        };
        // The number of the last granule of the largest device just fits its field.
        let largest = request(&[2 * TIB, 2 * TIB]).sizes().unwrap();
        let granules =
            u64::from(largest.zones) * u64::from(largest.zone_blocks) * crate::arena::BLOCK_GRANULES;
        assert_eq!(granules, MAX_GRANULES);
        refused(
            request(&[2 * TIB, 2 * TIB, 8 << 20]),
            "nodes",
            "space for 4194312MiB with copies 1: expected at most 4TiB",
        );
        refused(request(&[1 << 60]), "nodes", "a node of 1EiB: expected at most 4TiB");
        // Copies reduce the number of zones, and so does a small backup device.
        let copies = Request { copies: 2, ..request(&[4 * TIB, 4 * TIB]) };
        assert_eq!(copies.sizes().unwrap().zones, 1 << 19);
        let backup = Some(Capacity { bytes: 1 << 30, block_size: 512 });
        assert_eq!(Request { backup, ..request(&[4 * TIB, 4 * TIB]) }.sizes().unwrap().zones, 128);
        let backup = Some(Capacity { bytes: u64::MAX, block_size: 512 });
        assert_eq!(Request { backup, ..request(&[TIB]) }.sizes().unwrap().zones, 1 << 17);
        refused(request(&[8 << 20; 256]), "nodes", "256 nodes: expected at most 255");
        refused(Request { copies: 4, ..request(&[TIB; 5]) }, "copies", "copies 4: expected 1 to 3");
        refused(Request { cache: 2 * TIB, ..request(&[TIB]) }, "cache", "cache 2TiB: expected 32MiB to 1TiB");
        refused(
            request(&[64 << 20]),
            "group",
            "group 8MiB: the nodes, and backup, have space for 8 groups; expected at least 10",
        );
        let most = Request { size: Some(16 * TIB), may_overcommit: true, ..request(&[TIB]) };
        refused(most, "size", "size 16TiB");
    }
}
