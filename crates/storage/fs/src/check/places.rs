//! Rules for shared blocks of one version: the owners of runs are exactly the extents that are marked as
//! shared, and no other extent has their blocks.

use super::{Kind, Mapped, Report, Subject};
use crate::metadata::extents::Extent;
use crate::metadata::forest::Forest;
use crate::metadata::shared::{Run, is_run};
use crate::tree::Key;
use logkit::Layout;

/// Extents and runs of shared blocks of one version.
#[derive(Debug, Default)]
pub(super) struct SharedBlocks {
    /// Extents that are marked as shared.
    marked: Vec<Mapped>,
    /// Extents of the owners of runs.
    owned: Vec<Mapped>,
}

impl SharedBlocks {
    /// Adds an extent that is marked as shared.
    pub fn add_extent(&mut self, inode: u64, extent: Extent) {
        self.marked.push(Mapped { inode, extent });
    }

    /// Adds a run. Returns its blocks as an extent of the file that they were written for.
    pub fn add_run(
        &mut self,
        items: &Forest,
        key: &Key,
        value: &[u8],
        layout: &Layout,
        report: &mut Report,
    ) -> Option<Mapped> {
        let run = match Run::decode(*key, value) {
            Ok(run) if is_run(items, key) => run,
            Ok(_) => {
                report.note(
                    Kind::Item,
                    format!("item {key}: a run of shared blocks in the tree of another inode group"),
                );
                return None;
            }
            Err(error) => {
                report.note(Kind::Item, format!("item {key}: {}", error.detail()));
                return None;
            }
        };
        let (inode, extent) = run.extent_of(run.written);
        if extent.is_preallocated() || !extent.is_within(layout) {
            report.note(
                Kind::Extent,
                format!("{} shared blocks at {} are outside of the zones", extent.blocks, extent.place),
            );
            return None;
        }
        let owned = run.owners.iter().map(|owner| run.extent_of(*owner));
        self.owned.extend(owned.map(|(inode, extent)| Mapped { inode, extent }));
        Some(Mapped { inode, extent })
    }

    /// Compares the owners of runs with the marked extents, and looks in `mapped` for unmarked extents that
    /// have blocks of runs. `mapped` holds the unmarked extents, and one extent for each run.
    pub fn check(self, mapped: &[Mapped], report: &mut Report) {
        let (marked, owned) = (joined(self.marked), joined(self.owned));
        for (of, others, what) in [
            (&marked, &owned, "marked as shared, and no run names them"),
            (&owned, &marked, "named by a run, and the file has no such extent marked as shared"),
        ] {
            // A difference appears in both lists, unless one of them has no extent at this place.
            for Mapped { inode, extent } in of.iter().filter(|it| !others.contains(it)) {
                report.note_of(
                    Kind::Shared,
                    Subject::Inode(*inode),
                    format!(
                        ", {} blocks from block {} on, at {}: {what}",
                        extent.blocks, extent.block, extent.place
                    ),
                );
            }
        }
        let mut mapped = mapped.to_vec();
        mapped.sort_unstable_by_key(|it| (it.extent.place, it.inode));
        let mut farthest: Option<Mapped> = None;
        for it in mapped {
            let place = it.extent.place;
            if let Some(before) = farthest.filter(|before| before.extent.end_place() > place) {
                // Blocks of two files without a run are found by the check for overlaps over all versions.
                if before.extent.is_shared != it.extent.is_shared {
                    let plain = if it.extent.is_shared { before } else { it };
                    report.note_of(
                        Kind::Shared,
                        Subject::Inode(plain.inode),
                        format!(
                            ", block {}: {place} is shared, and the extent isn't marked as shared",
                            plain.extent.block
                        ),
                    );
                }
            }
            if farthest.is_none_or(|before| it.extent.end_place() > before.extent.end_place()) {
                farthest = Some(it);
            }
        }
    }
}

/// Sorts extents, and merges those that are contiguous in the file and in the zone.
fn joined(mut all: Vec<Mapped>) -> Vec<Mapped> {
    all.sort_unstable_by_key(|it| (it.inode, it.extent.block, it.extent.place));
    let mut joined: Vec<Mapped> = Vec::with_capacity(all.len());
    for next in all {
        if let Some(last) = joined.last_mut()
            && last.inode == next.inode
            && last.extent.end() == next.extent.block
            && last.extent.end_place() == next.extent.place
        {
            last.extent.blocks = last.extent.blocks.saturating_add(next.extent.blocks);
            continue;
        }
        joined.push(next);
    }
    joined
}
