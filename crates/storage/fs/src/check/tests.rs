use super::*;
use crate::metadata::change::{Attributes, Change};
use crate::metadata::extents::Lost;
use crate::metadata::inode::{FileType, Inode, ROOT, kind};
use crate::metadata::stripes::{self, Striped, Stripes};
use crate::metadata::{directory, orphan};
use crate::names::namespace::{self, New};
use crate::tree::{Key, Released};
use block::{BlockSize, ZoneBlock};

fn layout() -> Layout {
    Layout { block_size: BlockSize::default(), zone_blocks: 64, zones: 8, max_append: 32 }
}

fn apply(metadata: &mut Metadata, change: Change, position: u32) {
    metadata.apply(&change, ZoneBlock::new(3, position), &mut Lost::default()).expect("a sound tree");
}

fn create(metadata: &mut Metadata, directory: u64, name: &str, mode: u32) -> u64 {
    let number = metadata.next_inode(0);
    let new = New { mode, ..New::default() };
    let changes =
        namespace::create(metadata, number, directory, name.as_bytes(), &new, 5).expect("a free name");
    changes.into_iter().for_each(|change| apply(metadata, change, 0));
    number
}

/// Returns two nested directories with a file in each: inodes 2 to 5.
fn sound() -> Metadata {
    let mut metadata = Metadata::new(Forest::new(1, &Released::new()), 1);
    let outer = create(&mut metadata, ROOT, "outer", FileType::Directory as u32 | 0o755);
    let inner = create(&mut metadata, outer, "inner", FileType::Directory as u32 | 0o755);
    for (directory, position) in [(outer, 5), (inner, 20)] {
        let file = create(&mut metadata, directory, "file", FileType::Regular as u32 | 0o644);
        let map = Change::Map { inode: file, block: 0, blocks: 3, size: 10_000, modified: 7 };
        apply(&mut metadata, map, position);
    }
    metadata
}

fn report_of(metadata: &Metadata) -> Report {
    let mut report = Report::new(Options::default());
    let extents = items::check(metadata, &layout(), &mut report);
    check_places(&united(extents), &[], &mut report);
    report
}

/// Returns the kinds of problems after a damage of sound metadata.
fn kinds(damage: impl Fn(&mut Metadata)) -> Vec<Kind> {
    let mut metadata = sound();
    damage(&mut metadata);
    let mut kinds: Vec<Kind> = report_of(&metadata).problems.iter().map(|problem| problem.kind).collect();
    kinds.dedup();
    kinds
}

fn set(inode: u64, attributes: Attributes) -> impl Fn(&mut Metadata) {
    move |metadata| apply(metadata, Change::set(inode, attributes), 0)
}

fn entry_of(metadata: &Metadata, directory: u64, name: &str) -> Key {
    let found = directory::find(&metadata.items, directory, name.as_bytes()).expect("a sound tree");
    found.expect("the name is there").key
}

#[test]
fn sound_metadata_has_no_problems() {
    let report = report_of(&sound());
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.inodes, report.orphans, report.blocks), (5, 0, 6));
}

#[test]
fn every_kind_of_damage_is_found() {
    let none = Attributes::default();
    assert_eq!(kinds(set(4, Attributes { links: Some(2), ..none })), [Kind::Links]);
    assert_eq!(kinds(set(2, Attributes { links: Some(2), ..none })), [Kind::Links]);
    assert_eq!(kinds(set(3, Attributes { parent: Some(ROOT), ..none })), [Kind::Parent]);
    assert_eq!(kinds(set(4, Attributes { size: Some(4096), ..none })), [Kind::Blocks]);
    let put = |key: Key, value: Vec<u8>| {
        move |metadata: &mut Metadata| {
            metadata.items.put(&key, &value);
        }
    };
    assert_eq!(kinds(put(Inode::key(4), vec![255])), [Kind::Item, Kind::Entry, Kind::Stray, Kind::Count]);
    assert_eq!(kinds(put(Key::new(4, 99, 0), vec![])), [Kind::Item]);
    assert_eq!(kinds(put(Key::new(77, kind::EXTENT, 0), vec![1, 3, 1])), [Kind::Stray]);
    assert_eq!(kinds(put(orphan(4), vec![])), [Kind::Links]);
    assert_eq!(kinds(put(orphan(99), vec![])), [Kind::Stray]);
    let extent = |block, value: &[u8]| put(Key::new(4, kind::EXTENT, block), value.to_vec());
    assert_eq!(kinds(extent(0, &[3, 3, 20])), [Kind::Overlap], "the other file's blocks");
    assert_eq!(kinds(extent(2, &[1, 4, 9])), [Kind::Overlap, Kind::Blocks], "a block twice");
    assert_eq!(kinds(extent(0, &[3, 9, 5])), [Kind::Extent], "no such zone");
    assert_eq!(kinds(extent(0, &[3, 1, 5])), [Kind::Extent], "a zone of roots");
    assert_eq!(kinds(extent(0, &[3, 3, 62])), [Kind::Extent], "beyond the zone");
    assert_eq!(kinds(extent(0, &[2, 3, 5])), [Kind::Blocks]);
    assert_eq!(
        kinds(|metadata| metadata.set_inodes(0, Inodes { count: 6, ..metadata.inodes(0) })),
        [Kind::Count]
    );
    assert_eq!(kinds(|metadata| metadata.preallocated += 1), [Kind::Count]);
    assert_eq!(
        kinds(|metadata| metadata.set_inodes(0, Inodes { next: 5, ..metadata.inodes(0) })),
        [Kind::Count]
    );
}

/// Returns sound metadata in which inode 5 has cloned the first two blocks of inode 4 after its own.
fn with_clone() -> Metadata {
    let mut metadata = sound();
    let share = Change::Share {
        inode: 5,
        block: 3,
        count: 2,
        from_inode: 4,
        from_block: 0,
        size: 20_480,
        modified: 7,
    };
    apply(&mut metadata, share, 0);
    metadata
}

#[test]
fn damage_of_shared_blocks_is_found() {
    let report = report_of(&with_clone());
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.blocks, 6);
    let (keeper, run) = {
        let metadata = with_clone();
        let found = metadata.items.items().find(|(key, _)| key.kind == kind::SHARED);
        found.map(|(key, value)| (key, value.to_vec())).expect("blocks are shared")
    };
    // Two blocks at position 5 of zone 3, written for block 0 of inode 4.
    assert_eq!(run, [2, 4, 0, 4, 0, 5, 3]);
    let kinds = |damage: &dyn Fn(&mut Metadata)| {
        let mut metadata = with_clone();
        damage(&mut metadata);
        let report = report_of(&metadata);
        let mut kinds: Vec<Kind> = report.problems.iter().map(|problem| problem.kind).collect();
        kinds.dedup();
        kinds
    };
    let put = |key: Key, value: &[u8]| {
        let value = value.to_vec();
        move |metadata: &mut Metadata| {
            metadata.items.put(&key, &value);
        }
    };
    let extent = |inode, block, value: &[u8]| put(Key::new(inode, kind::EXTENT, block), value);
    let shared = [Kind::Shared];
    assert_eq!(kinds(&put(keeper, &[2, 4, 0, 4, 0])), shared, "an owner is missing");
    assert_eq!(kinds(&put(keeper, &[2, 4, 0, 4, 0, 5, 3, 5, 9])), shared, "an owner too many");
    assert_eq!(kinds(&put(keeper, &[1, 4, 0, 4, 0, 5, 3])), shared, "a shorter run");
    let without_run = |metadata: &mut Metadata| {
        metadata.items.remove(&keeper);
    };
    assert_eq!(kinds(&without_run), shared);
    assert_eq!(kinds(&put(keeper, &[2, 4, 0])), [Kind::Item, Kind::Shared], "no owners");
    assert_eq!(kinds(&extent(4, 0, &[2, 3, 5])), shared, "an owner without the mark");
    assert_eq!(kinds(&extent(5, 3, &[2, 3, 6, 1])), shared, "another place");
    assert_eq!(kinds(&extent(5, 0, &[3, 3, 20, 1])), shared, "a mark without a run");
    assert_eq!(kinds(&extent(5, 3, &[2, 3, 5])), [Kind::Shared, Kind::Overlap], "the clone without the mark");
    assert_eq!(kinds(&extent(5, 3, &[2, 3, 5, 2])), [Kind::Item, Kind::Shared, Kind::Blocks], "another mark");
    let elsewhere = Key { inode: keeper.inode + 1, ..keeper };
    assert_eq!(kinds(&put(elsewhere, &run))[0], Kind::Item);
    let beyond = Key { offset: keeper.offset + 58, ..keeper };
    assert_eq!(kinds(&put(beyond, &run)), [Kind::Extent]);
    let other = Key { offset: keeper.offset + 15, ..keeper };
    assert_eq!(kinds(&put(other, &[1, 5, 0, 5, 0])), shared, "a run over blocks of a file");
}

#[test]
fn damaged_names_are_found() {
    let removed = |metadata: &mut Metadata| {
        let key = entry_of(metadata, 3, "file");
        metadata.items.remove(&key);
    };
    assert_eq!(kinds(removed), [Kind::Links, Kind::Unreachable]);
    let directory_without_name = |metadata: &mut Metadata| {
        let key = entry_of(metadata, ROOT, "outer");
        metadata.items.remove(&key);
    };
    assert_eq!(kinds(directory_without_name), [Kind::Links, Kind::Unreachable]);
    let other = |inode: u64, code: u8, name: &'static str| {
        move |metadata: &mut Metadata| {
            let key = entry_of(metadata, 3, "file");
            metadata.items.put(&key, &directory::encode(inode, code, name.as_bytes()));
        }
    };
    let code = FileType::Regular.code();
    assert_eq!(kinds(other(99, code, "file"))[0], Kind::Entry, "no such inode");
    assert_eq!(kinds(other(5, 4, "file")), [Kind::Entry], "another type");
    assert_eq!(kinds(other(5, code, "other")), [Kind::Entry], "another hash");
    assert_eq!(kinds(other(5, code, "a/b")), [Kind::Entry], "no name");
    let ring = |metadata: &mut Metadata| {
        // Each directory is in the other one.
        let key = entry_of(metadata, ROOT, "outer");
        let value = metadata.items.get(&key).expect("it was found").to_vec();
        metadata.items.remove(&key);
        metadata.items.put(&Key { inode: 3, ..key }, &value);
        set(2, Attributes { parent: Some(3), ..Attributes::default() })(metadata);
        set(3, Attributes { links: Some(3), ..Attributes::default() })(metadata);
        set(ROOT, Attributes { links: Some(2), ..Attributes::default() })(metadata);
    };
    assert_eq!(kinds(ring), [Kind::Unreachable]);
}

#[test]
fn the_list_of_problems_is_bounded() {
    let mut metadata = sound();
    for number in 0..50 {
        metadata.items.put(&Key::new(1000 + number, kind::EXTENT, 0), &[1, 3, 1]);
    }
    let mut report = Report::new(Options { most_problems: 10, ..Options::default() });
    items::check(&metadata, &layout(), &mut report);
    assert_eq!((report.problems.len(), report.further), (10, 40));
    assert!(!report.is_sound() && report.has(Kind::Stray));
}

#[test]
fn counts_of_inodes_that_none_has_do_no_harm() {
    let mut metadata = Metadata::new(Forest::new(2, &Released::new()), 1);
    for group in 0..2 {
        metadata.set_inodes(group, Inodes { count: u64::MAX, ..metadata.inodes(group) });
    }
    assert!(report_of(&metadata).has(Kind::Count));
    let mut metadata = sound();
    metadata.set_inodes(0, Inodes { count: 0, ..metadata.inodes(0) });
    apply(&mut metadata, Change::Remove { inode: 4 }, 0);
    assert!(report_of(&metadata).has(Kind::Count));
}

/// Returns sound metadata in which inode 2 is striped, with stripes 6 and 7 and leftovers.
fn with_stripes() -> Metadata {
    let mut metadata = sound();
    let own = metadata.inode(2).expect("a directory");
    let stripes = Stripes::new(&[6, 7]);
    let mut subdirectories = [0, 0];
    let names: Vec<_> =
        directory::entries(&metadata.items, 2, 0).map(|entry| entry.expect("a name")).collect();
    for (stripe, count) in [6, 7].into_iter().zip(&mut subdirectories) {
        let new = Inode::stripe(2, own.mode).encode();
        apply(&mut metadata, Change::Put { key: Inode::key(stripe), value: new }, 0);
        apply(&mut metadata, Change::Put { key: orphan(stripe), value: [].into_iter().collect() }, 0);
        for entry in names.iter().filter(|entry| stripes.of_name(&entry.name) == stripe) {
            *count += u32::from(entry.code == FileType::Directory.code());
            let value = directory::encode(entry.inode, entry.code, &entry.name);
            let key = Key::new(stripe, kind::ENTRY, entry.next - 1);
            apply(&mut metadata, Change::Put { key, value }, 0);
        }
    }
    let report = report_of(&metadata);
    assert!(report.is_sound(), "before it is striped: {report:?}");
    let changes = stripes::switch((2, &own), &stripes, &subdirectories);
    changes.into_iter().for_each(|change| apply(&mut metadata, change, 0));
    metadata
}

#[test]
fn damage_of_striped_directories_is_found() {
    let report = report_of(&with_stripes());
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.inodes, report.orphans), (7, 0));
    let kinds = |damage: &dyn Fn(&mut Metadata)| {
        let mut metadata = with_stripes();
        damage(&mut metadata);
        let report = report_of(&metadata);
        let mut kinds: Vec<Kind> = report.problems.iter().map(|problem| problem.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    let removal = |metadata: &mut Metadata, inode: u64| {
        let all = directory::removal(&metadata.items, inode, 100);
        all.into_iter().for_each(|change| apply(metadata, change, 0));
    };
    assert_eq!(kinds(&|metadata| removal(metadata, 2)), [], "its leftovers are removed");
    let without_leftovers = |metadata: &mut Metadata| {
        let striped = Striped { stripes: Stripes::new(&[6, 7]), has_leftovers: false };
        let value = striped.encode();
        metadata.items.put(&stripes::key(2), &value);
    };
    assert!(kinds(&|metadata| without_leftovers(metadata)).contains(&Kind::Entry), "names of its own");
    let forgotten = kinds(&|metadata| {
        metadata.items.remove(&stripes::key(2));
    });
    assert!(forgotten.contains(&Kind::Stripe), "stripes without a directory: {forgotten:?}");
    let lost = kinds(&|metadata| apply(metadata, Change::Remove { inode: 7 }, 0));
    assert!(lost.contains(&Kind::Stripe), "a directory without a stripe: {lost:?}");
    let moved = kinds(&|metadata| {
        let entry =
            directory::entries(&metadata.items, 6, 0).chain(directory::entries(&metadata.items, 7, 0)).next();
        let entry = entry.expect("there are names").expect("a sound name");
        let right = Stripes::new(&[6, 7]).of_name(&entry.name);
        let value = directory::encode(entry.inode, entry.code, &entry.name);
        metadata.items.remove(&Key::new(right, kind::ENTRY, entry.next - 1));
        metadata.items.put(&Key::new(13 - right, kind::ENTRY, entry.next - 1), &value);
    });
    assert!(moved.contains(&Kind::Entry), "a name in another stripe: {moved:?}");
    let mode = Attributes { mode: Some(FileType::Directory as u32 | 0o700), ..Attributes::default() };
    assert_eq!(kinds(&|metadata| apply(metadata, Change::set(6, mode), 0)), [Kind::Stripe]);
    let parent = Attributes { parent: Some(3), ..Attributes::default() };
    assert!(kinds(&|metadata| apply(metadata, Change::set(6, parent), 0)).contains(&Kind::Stripe));
    assert_eq!(
        kinds(&|metadata| {
            metadata.items.put(&stripes::key(4), &[0, 6]);
        }),
        [Kind::Stripe],
        "a file"
    );
    assert_eq!(
        kinds(&|metadata| {
            metadata.items.put(&stripes::key(3), &[]);
        }),
        [Kind::Item]
    );
}
