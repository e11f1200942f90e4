//! Rules for items of the tree, as functions of the metadata.

use super::places::SharedBlocks;
use super::{Kind, Mapped, Report, Subject, check_totals};
use crate::format::BLOCK;
use crate::metadata::directory::{self, check_name, show};
use crate::metadata::extents::Extent;
use crate::metadata::inode::{FileType, Inode, InodeNumber, ROOT, kind};
use crate::metadata::stripes::{self, Striped, Stripes};
use crate::metadata::{Inodes, Metadata, attributes};
use crate::tree::Key;
use logkit::Layout;
use std::collections::BTreeMap;

/// Facts found about an inode.
#[derive(Debug)]
pub(super) struct Seen {
    inode: Inode,
    /// Number of names of the inode, and a directory with such a name. A directory has one name.
    names: u32,
    named_in: InodeNumber,
    /// Number of subdirectories, for a directory.
    subdirectories: u32,
    is_orphan: bool,
    /// Number of blocks of the extents, and the end of the last extent.
    blocks: u64,
    extents_end: u64,
    /// End of the extents with data, in blocks of the file.
    data_end: u64,
    /// Bytes of the target of a symbolic link.
    target: u64,
    has_attributes: bool,
}

pub(super) type SeenInodes = BTreeMap<InodeNumber, Seen>;

/// Checks all items. Returns the extents that have blocks in zones.
pub(super) fn check(metadata: &Metadata, layout: &Layout, report: &mut Report) -> Vec<Mapped> {
    let (inodes, mapped, preallocated) = check_version(metadata, layout, report);
    report.inodes = inodes.len() as u64;
    report.orphans = inodes.values().filter(|seen| seen.is_orphan).count() as u64;
    let groups = metadata.items.groups();
    let mut there: Vec<Inodes> = (0..groups).map(|group| Inodes::none(group, groups)).collect();
    for number in inodes.keys() {
        let of_group = &mut there[metadata.items.group_of(*number) as usize];
        of_group.next = of_group.next.max(number.saturating_add(groups.into()));
        of_group.count += 1;
    }
    check_totals(metadata, &there, preallocated, report);
    report.blocks = mapped.iter().map(|it| u64::from(it.extent.blocks)).sum();
    mapped
}

/// Checks the items of a snapshot or of the present version, except for counts. Returns the inodes, the
/// blocks in zones with the files that they were written for, and the number of preallocated blocks.
pub(super) fn check_version(
    metadata: &Metadata,
    layout: &Layout,
    report: &mut Report,
) -> (SeenInodes, Vec<Mapped>, u64) {
    let mut inodes = find_inodes(metadata, report);
    let directories = StripedDirectories::find(metadata, &inodes, report);
    let mut mapped = Vec::new();
    let (mut preallocated, mut shared) = (0, SharedBlocks::default());
    for (key, value) in metadata.items.items() {
        if key.kind == kind::SHARED {
            mapped.extend(shared.add_run(&metadata.items, &key, value, layout, report));
            continue;
        }
        if key.inode == 0 {
            // Items of striped directories have been checked with their stripes.
            if key.kind != kind::STRIPES {
                check_orphan(&key, &mut inodes, report);
            }
            continue;
        }
        if key.kind == kind::INODE && key.offset == 0 {
            continue;
        }
        let Some(seen) = inodes.get_mut(&key.inode) else {
            report.note(Kind::Stray, format!("item {key}: there is no inode {}", key.inode));
            continue;
        };
        match key.kind {
            kind::ATTRIBUTE => seen.has_attributes = true,
            kind::TARGET => seen.target += value.len() as u64,
            kind::EXTENT => {
                if let Some(extent) = check_extent(&key, value, seen, layout, report) {
                    match extent.is_preallocated() {
                        true => preallocated += u64::from(extent.blocks),
                        false if extent.is_shared => shared.add_extent(key.inode, extent),
                        false => mapped.push(Mapped { inode: key.inode, extent }),
                    }
                }
            }
            kind::ENTRY => check_entry(metadata, &key, value, &mut inodes, &directories, report),
            other => report.note(Kind::Item, format!("item {key}: kind {other} isn't known")),
        }
    }
    shared.check(&mapped, report);
    for (number, seen) in &inodes {
        check_inode(metadata, *number, seen, &inodes, &directories, report);
    }
    (inodes, mapped, preallocated)
}

fn find_inodes(metadata: &Metadata, report: &mut Report) -> SeenInodes {
    let mut inodes = SeenInodes::new();
    for (key, value) in metadata.items.items() {
        if key.inode == 0 || (key.kind, key.offset) != (kind::INODE, 0) {
            continue;
        }
        match Inode::decode(value) {
            Ok(inode) => {
                let seen = Seen {
                    inode,
                    names: 0,
                    named_in: 0,
                    subdirectories: 0,
                    is_orphan: false,
                    blocks: 0,
                    extents_end: 0,
                    data_end: 0,
                    target: 0,
                    has_attributes: false,
                };
                inodes.insert(key.inode, seen);
            }
            Err(error) => report.note(Kind::Item, format!("inode {}: {}", key.inode, error.detail())),
        }
    }
    if !inodes.get(&ROOT).is_some_and(|root| root.inode.is_directory()) {
        report.note(Kind::Unreachable, "there is no root directory");
    }
    inodes
}

fn check_orphan(key: &Key, inodes: &mut SeenInodes, report: &mut Report) {
    if key.kind != kind::ORPHAN {
        report.note(Kind::Item, format!("item {key}: inode 0 has orphans and striped directories only"));
        return;
    }
    match inodes.get_mut(&key.offset) {
        Some(seen) => seen.is_orphan = true,
        None => report.note(Kind::Stray, format!("inode {} is an orphan and isn't there", key.offset)),
    }
}

fn check_extent(
    key: &Key,
    value: &[u8],
    seen: &mut Seen,
    layout: &Layout,
    report: &mut Report,
) -> Option<Extent> {
    let extent = match Extent::decode(*key, value) {
        Ok(extent) => extent,
        Err(error) => {
            report.note(Kind::Item, format!("item {key}: {}", error.detail()));
            return None;
        }
    };
    let of = || Subject::Inode(key.inode);
    if seen.inode.file_type() != FileType::Regular {
        report.note_of(Kind::Extent, of(), " has blocks and isn't a regular file");
    }
    if extent.block < seen.extents_end {
        report.note_of(Kind::Overlap, of(), format!(" has two extents with block {}", extent.block));
    }
    seen.blocks += u64::from(extent.blocks);
    seen.extents_end = seen.extents_end.max(extent.end());
    if !extent.is_preallocated() {
        seen.data_end = seen.data_end.max(extent.end());
    }
    if !extent.is_within(layout) {
        report.note_of(
            Kind::Extent,
            of(),
            format!(" has {} blocks at {}, which aren't there", extent.blocks, extent.place),
        );
        return None;
    }
    Some(extent)
}

fn check_entry(
    metadata: &Metadata,
    key: &Key,
    value: &[u8],
    inodes: &mut SeenInodes,
    striped: &StripedDirectories,
    report: &mut Report,
) {
    let directory = key.inode;
    let (inode, code, name) = match directory::decode(value) {
        Ok(entry) => entry,
        Err(error) => {
            report.note(Kind::Item, format!("item {key}: {}", error.detail()));
            return;
        }
    };
    let what = || format!("\"{}\" in directory {directory}", show(name));
    let Some(in_directory) = inodes.get(&directory).map(|seen| seen.inode.as_parent(directory)) else {
        return;
    };
    if striped.is_meaningless(directory, inodes) {
        return;
    }
    if let Some(stripes) = striped.all.get(&in_directory).map(|it| &it.stripes)
        && stripes.of_name(name) != directory
    {
        report.note(Kind::Entry, format!("{} isn't in the stripe of its hash", what()));
    }
    if check_name(name).is_err() {
        report.note(Kind::Entry, format!("{} is no name", what()));
    }
    if !inodes.get(&directory).is_some_and(|seen| seen.inode.is_directory()) {
        report.note(Kind::Entry, format!("{}: it isn't a directory", what()));
    }
    match directory::find(&metadata.items, directory, name) {
        Ok(Some(found)) if found.key == *key => {}
        _ => report.note(Kind::Entry, format!("{} is there twice, or isn't found by its hash", what())),
    }
    let Some(seen) = inodes.get_mut(&inode) else {
        report.note(Kind::Entry, format!("{} refers to inode {inode}, which doesn't exist", what()));
        return;
    };
    if seen.inode.file_type().code() != code {
        report.note(Kind::Entry, format!("{} has the type of another file than inode {inode}", what()));
    }
    seen.names += 1;
    seen.named_in = in_directory;
    if seen.inode.is_directory()
        && let Some(parent) = inodes.get_mut(&directory)
    {
        parent.subdirectories += 1;
    }
}

fn check_inode(
    metadata: &Metadata,
    number: InodeNumber,
    seen: &Seen,
    inodes: &SeenInodes,
    striped: &StripedDirectories,
    report: &mut Report,
) {
    let (inode, of) = (&seen.inode, Subject::Inode(number));
    check_names(number, seen, inodes, striped, report);
    if inode.blocks != seen.blocks {
        report.note_of(
            Kind::Blocks,
            of,
            format!(" has {} blocks, and {} are counted", seen.blocks, inode.blocks),
        );
    }
    let end = inode.size.div_ceil(BLOCK);
    if seen.data_end > end {
        report.note_of(
            Kind::Blocks,
            of,
            format!(" has {} bytes, and data in block {}", inode.size, seen.data_end - 1),
        );
    }
    if inode.file_type() == FileType::Link && seen.target != inode.size {
        report.note_of(
            Kind::Item,
            of,
            format!(": the target of the link has {} of {} bytes", seen.target, inode.size),
        );
    }
    if seen.has_attributes
        && let Err(error) = attributes::names(metadata, number)
    {
        report.note_of(Kind::Item, of, format!(": its attributes: {}", error.detail()));
    }
}

/// Checks names, link count and parent of an inode.
fn check_names(
    number: InodeNumber,
    seen: &Seen,
    inodes: &SeenInodes,
    striped: &StripedDirectories,
    report: &mut Report,
) {
    let (inode, of) = (&seen.inode, Subject::Inode(number));
    let is_removed = inode.links == 0;
    if is_removed != seen.is_orphan {
        let is = if seen.is_orphan { "is" } else { "isn't" };
        report.note_of(Kind::Links, of, format!(" has {} links and {is} an orphan", inode.links));
    }
    let expected = match inode.is_directory() {
        true if is_removed => 0,
        true => 2 + seen.subdirectories,
        false => seen.names,
    };
    if inode.links != expected {
        report.note_of(Kind::Links, of, format!(" has {} links; expected {expected}", inode.links));
    }
    if !inode.is_directory() {
        if seen.names == 0 && !seen.is_orphan {
            report.note(Kind::Unreachable, format!("inode {number} has no name"));
        }
        return;
    }
    if inode.is_stripe() && !is_removed && !striped.has_stripe(inode.parent, number) {
        report.note(Kind::Stripe, format!("stripe {number} isn't one of directory {}", inode.parent));
    }
    let names = if number == ROOT || is_removed || inode.is_stripe() { 0 } else { 1 };
    if seen.names != names {
        let kind = if seen.names == 0 { Kind::Unreachable } else { Kind::Links };
        report.note_of(kind, of, format!(" is a directory and has {} names; expected {names}", seen.names));
        return;
    }
    if inode.is_stripe() {
        return;
    }
    let parent = if number == ROOT { ROOT } else { seen.named_in };
    if !is_removed && inode.parent != parent {
        report.note_of(
            Kind::Parent,
            of,
            format!(" is in directory {parent}, and has the parent {}", inode.parent),
        );
    }
    if !is_removed && !is_below_root(number, inodes) {
        report.note(Kind::Unreachable, format!("directory {number} isn't below the root"));
    }
}

fn is_below_root(number: InodeNumber, inodes: &SeenInodes) -> bool {
    let mut at = number;
    for _ in 0..=inodes.len() {
        if at == ROOT {
            return true;
        }
        match inodes.get(&at) {
            Some(seen) => at = seen.named_in,
            None => return false,
        }
    }
    false
}

/// Striped directories.
#[derive(Debug, Default)]
struct StripedDirectories {
    all: BTreeMap<InodeNumber, Striped>,
}

impl StripedDirectories {
    /// Finds the striped directories, and checks them with their stripes.
    fn find(metadata: &Metadata, inodes: &SeenInodes, report: &mut Report) -> Self {
        let mut found = Self::default();
        for directory in metadata.striped_directories() {
            match stripes::read(&metadata.items, directory) {
                Ok(Some(striped)) => {
                    check_striped(directory, &striped.stripes, inodes, report);
                    found.all.insert(directory, striped);
                }
                Ok(None) => {}
                Err(error) => report.note(Kind::Item, format!("directory {directory}: {}", error.detail())),
            }
        }
        found
    }

    fn has_stripe(&self, directory: InodeNumber, stripe: InodeNumber) -> bool {
        self.all.get(&directory).is_some_and(|striped| striped.stripes.all().contains(&stripe))
    }

    /// Whether the names of an inode are ignored: they are copies in a stripe that is being made, or
    /// leftovers of a striped directory.
    fn is_meaningless(&self, holder: InodeNumber, inodes: &SeenInodes) -> bool {
        let is_new_stripe =
            inodes.get(&holder).is_some_and(|seen| seen.inode.is_stripe() && seen.inode.links == 0);
        is_new_stripe || self.all.get(&holder).is_some_and(|striped| striped.has_leftovers)
    }
}

fn check_striped(directory: InodeNumber, stripes: &Stripes, inodes: &SeenInodes, report: &mut Report) {
    let own = match inodes.get(&directory).map(|seen| &seen.inode) {
        Some(own) if own.is_directory() && !own.is_stripe() => own,
        _ => {
            let what = format!("inode {directory} is striped; expected a directory that is no stripe");
            report.note(Kind::Stripe, what);
            return;
        }
    };
    // The stripes of a removed directory are removed with its last name.
    if own.links == 0 {
        return;
    }
    for (index, stripe) in stripes.all().iter().enumerate() {
        let Some(found) = inodes.get(stripe).map(|seen| &seen.inode) else {
            report.note(
                Kind::Stripe,
                format!("directory {directory} has the stripe {stripe}, which isn't there"),
            );
            continue;
        };
        if !found.is_stripe() || found.parent != directory || stripes.all()[..index].contains(stripe) {
            report.note(
                Kind::Stripe,
                format!("inode {stripe} is a stripe of directory {directory}, and of another one"),
            );
        }
        let of = |inode: &Inode| (inode.mode, inode.uid, inode.gid);
        if of(found) != of(own) {
            let what = format!("stripe {stripe} has another mode or owner than its directory {directory}");
            report.note(Kind::Stripe, what);
        }
    }
}
