//! The map pages of a checkpoint: each is read once, even if several versions share it. A page that doesn't
//! match the directory is removed from the loaded directory.

use super::{Check, Finding};
use crate::directory::{Directory, PagePlace};
use crate::format::VersionId;
use crate::map::{PAGE_BLOCKS, Physical};
use block::{ZoneBlock, ZoneIndex};
use logkit::layout::ROOT_ZONES;
use logkit::record::sum_of;
use logkit::scan;
use std::collections::BTreeSet;

/// Most blocks that are read together, gaps included.
const SPAN: u32 = 256;

/// Result of checking the map pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Unreadable pages of versions: the locations of their blocks are unknown.
    pub(super) lost: BTreeSet<(VersionId, u64)>,
    /// Blocks that hold pages or parts of the directory, in order.
    pub(super) needed: Vec<u32>,
}

/// Checks all pages. Damaged ones are reported, and removed from the directory.
pub(super) async fn check(check: &mut Check<'_>, directory: &mut Directory) -> Pages {
    let mut places: Vec<(u32, u32, u64)> = Vec::new();
    for version in &directory.versions {
        places.extend(version.table.iter().map(|(page, place)| (place.physical.0, place.sum, page)));
    }
    places.sort_unstable();
    places.dedup();
    check.checked.pages = places.len() as u64;
    let mut at = 0;
    while at < places.len() {
        let zone = check.layout.place(Physical(places[at].0)).zone;
        let is_near = |place: &&(u32, u32, u64)| {
            place.0 - places[at].0 < SPAN && check.layout.place(Physical(place.0)).zone == zone
        };
        let count = places[at..].iter().take_while(is_near).count();
        check_run(check, directory, &places[at..at + count]).await;
        at += count;
    }
    let mut pages = Pages::default();
    for (number, _, page) in &places {
        pages.needed.push(*number);
        let is_gone = |version: &&crate::directory::VersionEntry| {
            version.table.get(*page).physical == Physical(u32::MAX)
        };
        pages.lost.extend(directory.versions.iter().filter(is_gone).map(|version| (version.id, *page)));
    }
    for (version, page) in &pages.lost {
        let entry = directory.versions.iter_mut().find(|entry| entry.id == *version);
        if let Some(entry) = entry {
            entry.table.set(*page, PagePlace::default());
        }
    }
    for extent in check.root.directory.iter().filter(|extent| extent.zone < check.layout.zones) {
        let place = ZoneBlock { zone: ZoneIndex(extent.zone), block: extent.position };
        let first = check.layout.physical(place).0;
        pages.needed.extend(first..first.saturating_add(extent.blocks));
    }
    pages.needed.sort_unstable();
    pages.needed.dedup();
    pages
}

/// Checks pages that are close together; a bad page gets an impossible location in the directory.
async fn check_run(check: &mut Check<'_>, directory: &mut Directory, run: &[(u32, u32, u64)]) {
    let layout = check.layout;
    let most = layout.zones * layout.zone_blocks;
    let (first, last) = (run[0].0, run[run.len() - 1].0);
    let ZoneBlock { zone, block: position } = layout.place(Physical(first));
    let is_possible = zone.0 >= ROOT_ZONES && last < most;
    let read = match is_possible {
        true => scan::read(check.zones, &layout, zone.0, position, last - first + 1).await.ok(),
        false => None,
    };
    for (number, sum, page) in run {
        let block = layout.block_bytes();
        let from = (number - first) as usize * block;
        let alone;
        let bytes = match &read {
            Some(bytes) => Ok(&bytes[from..from + block]),
            None if !is_possible => {
                Err(format!("the directory says that it lies in block {number}, of {most}"))
            }
            None => {
                let ZoneBlock { zone, block } = layout.place(Physical(*number));
                alone = scan::read(check.zones, &layout, zone.0, block, 1).await;
                alone.as_deref().map_err(|error| error.detail().to_owned())
            }
        };
        let trouble = bytes.map(|bytes| trouble_of(bytes, *sum, most)).unwrap_or_else(Some);
        if let Some(trouble) = trouble {
            lose(check, directory, *number, *page, &trouble);
        }
    }
}

/// Returns the fault of a page; `None` if it is good.
fn trouble_of(bytes: &[u8], sum: u32, most: u32) -> Option<String> {
    if sum_of(bytes) != sum {
        return Some("its checksum is wrong".to_owned());
    }
    let entries = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let strange = entries.into_iter().find(|entry| *entry >= most);
    strange.map(|entry| format!("block {entry} out of range 0..{most}"))
}

fn lose(check: &mut Check<'_>, directory: &mut Directory, number: u32, page: u64, trouble: &str) {
    let what = format!(
        "page {page} of the map is damaged ({trouble}): where these blocks lie is lost; the log can't be opened"
    );
    let place = check.layout.place(Physical(number));
    let mut finding = Finding::at(Some(place), 1, what);
    for version in &mut directory.versions {
        if version.table.get(page).physical.0 == number {
            let start = page * PAGE_BLOCKS;
            let count = PAGE_BLOCKS.min(version.blocks.saturating_sub(start));
            finding.hit(version.id.0, &version.name, start, count);
            version.table.set(page, PagePlace { physical: Physical(u32::MAX), sum: 0 });
        }
    }
    check.findings.damage(finding);
}
