//! The rules for shared blocks of one version: the owners of runs are the extents that are marked as shared, and no other extent has their
//! blocks.

use super::{Kind, Mapped, Report};
use crate::extents::Extent;
use crate::forest::Forest;
use crate::shared::{Run, is_run};
use crate::tree::Key;
use logkit::Layout;

/// What the items of a version say of shared blocks.
#[derive(Debug, Default)]
pub(super) struct SharedBlocks {
    /// Extents that are marked.
    marked: Vec<Mapped>,
    /// Extents of the owners of runs.
    owned: Vec<Mapped>,
}

impl SharedBlocks {
    /// Notes an extent that is marked as shared.
    pub fn add_extent(&mut self, inode: u64, extent: Extent) {
        self.marked.push(Mapped { inode, extent });
    }

    /// Notes a run. Returns its blocks as the file has them that they were written for.
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
                report.note(Kind::Item, format!("item {key}: a run of shared blocks that isn't its shard's"));
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
                format!(
                    "{} shared blocks at {} of zone {} aren't there",
                    extent.blocks, extent.position, extent.zone
                ),
            );
            return None;
        }
        let owned = run.owners.iter().map(|owner| run.extent_of(*owner));
        self.owned.extend(owned.map(|(inode, extent)| Mapped { inode, extent }));
        Some(Mapped { inode, extent })
    }

    /// Compares the owners of runs with the extents that are marked, and looks for other extents with their blocks among those that are
    /// `mapped`, which are without marks, or stand for runs.
    pub fn check(self, mapped: &[Mapped], report: &mut Report) {
        let (marked, owned) = (joined(self.marked), joined(self.owned));
        for (of, others, what) in [
            (&marked, &owned, "is marked as shared, and no run has it as an owner"),
            (&owned, &marked, "is an owner of shared blocks, and has no such extent"),
        ] {
            // A difference is in both lists, unless one has nothing in this place.
            for Mapped { inode, extent } in of.iter().filter(|it| !others.contains(it)) {
                report.note(
                    Kind::Shared,
                    format!(
                        "inode {inode}, {} blocks from block {} on, at {} of zone {}: it {what}",
                        extent.blocks, extent.block, extent.position, extent.zone
                    ),
                );
            }
        }
        let mut places: Vec<_> = mapped.iter().map(|it| (it.extent.zone, it.extent.position, *it)).collect();
        places.sort_unstable_by_key(|(zone, position, it)| (*zone, *position, it.inode));
        let mut farthest: Option<Mapped> = None;
        for (zone, position, it) in places {
            let end = |it: &Mapped| (it.extent.zone, it.extent.position.saturating_add(it.extent.blocks));
            if let Some(before) = farthest.filter(|before| end(before) > (zone, position)) {
                // What two files have without a run is found among all versions.
                if before.extent.is_shared != it.extent.is_shared {
                    let plain = if it.extent.is_shared { before } else { it };
                    report.note(
                        Kind::Shared,
                        format!(
                            "inode {}, block {}: others share its blocks at {position} of zone {zone}, and it isn't marked",
                            plain.inode, plain.extent.block
                        ),
                    );
                }
            }
            if farthest.is_none_or(|before| end(&it) > end(&before)) {
                farthest = Some(it);
            }
        }
    }
}

/// Sorts extents, and unites those that go on in the file and in the zone.
fn joined(mut all: Vec<Mapped>) -> Vec<Mapped> {
    all.sort_unstable_by_key(|it| (it.inode, it.extent.block, it.extent.zone, it.extent.position));
    let mut joined: Vec<Mapped> = Vec::with_capacity(all.len());
    for next in all {
        if let Some(last) = joined.last_mut()
            && last.inode == next.inode
            && last.extent.end() == next.extent.block
            && last.extent.zone == next.extent.zone
            && last.extent.position.checked_add(last.extent.blocks) == Some(next.extent.position)
        {
            last.extent.blocks = last.extent.blocks.saturating_add(next.extent.blocks);
            continue;
        }
        joined.push(next);
    }
    joined
}
