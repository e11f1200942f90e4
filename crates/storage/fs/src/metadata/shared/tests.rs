use super::*;
use crate::metadata::Metadata;
use crate::metadata::change::{Change, KEEP_TIMES};
use crate::metadata::inode::{FileType, Inode};
use crate::metadata::versions::{Snapshot, own_blocks, visit_own_blocks};
use crate::tree::Released;
use block::ZoneBlock;
use std::collections::{BTreeMap, BTreeSet};

/// Zone and position.
type At = (u32, u32);

const FILES: u64 = 5;
const BLOCKS: u64 = 24;

/// Counted live blocks of zones.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Live(BTreeMap<u32, i64>);

impl Blocks for Live {
    fn live(&mut self, zone: u32, blocks: u32) {
        *self.0.entry(zone).or_default() += i64::from(blocks);
    }

    fn dead(&mut self, zone: u32, blocks: u32) {
        *self.0.entry(zone).or_default() -= i64::from(blocks);
    }
}

impl Live {
    fn of(places: &BTreeSet<At>) -> Self {
        let mut live = Live::default();
        places.iter().for_each(|(zone, _)| live.live(*zone, 1));
        live
    }

    fn without_empty(mut self) -> Self {
        self.0.retain(|_, blocks| *blocks != 0);
        self
    }
}

/// Expected places of the blocks of files in one version.
type Version = BTreeMap<(u64, u64), At>;

/// Metadata with its expected state.
struct World {
    metadata: Metadata,
    live: Live,
    /// Snapshots, oldest first, and the present version.
    versions: Vec<(u32, Version)>,
    present: Version,
    /// Files and blocks for which the blocks at places were written.
    written: BTreeMap<At, (u64, u64)>,
    next: At,
    snapshots: u32,
    random: runtime::Random,
}

fn file(number: u64) -> InodeNumber {
    10 + number
}

impl World {
    fn new(seed: u64) -> Self {
        let mut metadata = Metadata::new(Forest::new(1, &Released::new()), 1);
        for number in 0..FILES {
            let value = Inode { mode: FileType::Regular as u32, ..metadata.inode(1).unwrap() }.encode();
            metadata.put(&Inode::key(file(number)), &value);
        }
        World {
            metadata,
            live: Live::default(),
            versions: Vec::new(),
            present: Version::new(),
            written: BTreeMap::new(),
            next: (3, 0),
            snapshots: 0,
            random: runtime::Random::new(seed),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn apply(&mut self, change: &Change, at: At) {
        let place = ZoneBlock::new(at.0, at.1);
        self.metadata
            .apply(change, place, &mut self.live)
            .unwrap_or_else(|error| panic!("{change:?}: {error}"));
    }

    /// Allocates the next blocks of a zone.
    fn take(&mut self, count: u32) -> At {
        if self.next.1 + count > 60 {
            self.next = (self.next.0 + 1, 0);
        }
        let at = self.next;
        self.next.1 += count;
        at
    }

    fn write(&mut self, inode: u64, block: u64, count: u32) {
        let at = self.take(count);
        let change = Change::Map { inode, block, blocks: count, size: 1 << 20, modified: KEEP_TIMES };
        self.apply(&change, at);
        for (number, block) in (0..count).zip(block..) {
            let at = (at.0, at.1 + number);
            self.present.insert((inode, block), at);
            self.written.insert(at, (inode, block));
        }
    }

    fn unmap(&mut self, inode: u64, from: u64, to: u64) {
        self.apply(&Change::Unmap { inode, from, to }, (0, 0));
        self.present.retain(|(other, block), _| *other != inode || !(from..to).contains(block));
    }

    fn owners(&self, at: At) -> usize {
        self.present.values().filter(|it| **it == at).count()
    }

    fn share(&mut self, from: (u64, u64), to: (u64, u64), count: u64) {
        let is_apart = from.1 + count <= to.1 || to.1 + count <= from.1;
        if from.0 == to.0 && !is_apart {
            return;
        }
        let at = |block: u64| self.present.get(&(from.0, from.1 + block)).copied();
        let places: Vec<Option<At>> = (0..count).map(at).collect();
        if places.iter().flatten().any(|at| self.owners(*at) >= MAX_OWNERS) {
            return;
        }
        let change = Change::Share {
            inode: to.0,
            block: to.1,
            count,
            from_inode: from.0,
            from_block: from.1,
            size: 0,
            modified: KEEP_TIMES,
        };
        self.apply(&change, (0, 0));
        for (block, place) in (to.1..).zip(places) {
            match place {
                Some(place) => self.present.insert((to.0, block), place),
                None => self.present.remove(&(to.0, block)),
            };
        }
    }

    /// Moves blocks as the cleaner does, whether they are live or not.
    fn relocate(&mut self) {
        let all: Vec<At> = self.written.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let from = all[self.below(all.len() as u64) as usize];
        let (inode, block) = self.written[&from];
        let most = 1 + self.below(8) as u32;
        let follows = |count: &u32| {
            self.written.get(&(from.0, from.1 + count)) == Some(&(inode, block + u64::from(*count)))
        };
        let count = (0..most).take_while(follows).count() as u32;
        let to = self.take(count);
        let place = ZoneBlock::new(from.0, from.1);
        self.apply(&Change::Move { inode, block, blocks: count, from: place }, to);
        let versions = self.versions.iter_mut().map(|(_, version)| version).chain([&mut self.present]);
        for at in versions.flat_map(|version| version.values_mut()) {
            if at.0 == from.0 && (from.1..from.1 + count).contains(&at.1) {
                *at = (to.0, to.1 + (at.1 - from.1));
            }
        }
        for number in 0..count {
            let owner = self.written.remove(&(from.0, from.1 + number)).unwrap();
            self.written.insert((to.0, to.1 + number), owner);
        }
    }

    fn snapshot(&mut self) {
        self.snapshots += 1;
        let version = self.metadata.version();
        self.metadata.snapshots.add(Snapshot::new(self.snapshots, version));
        self.versions.push((self.snapshots, self.present.clone()));
    }

    fn delete(&mut self, at: usize) {
        let (number, _) = self.versions.remove(at);
        let Metadata { items, snapshots, .. } = &mut self.metadata;
        let lost = snapshots.remove_group(number, 0, items).unwrap();
        lost.0.iter().for_each(|(zone, blocks)| self.live.dead(*zone, *blocks));
        snapshots.forget(number);
    }

    fn step(&mut self) {
        let (inode, block) = (file(self.below(FILES)), self.below(BLOCKS));
        let count = 1 + self.below(12);
        match self.below(20) {
            0..5 => self.write(inode, block, count as u32),
            5..12 => {
                let from = (file(self.below(FILES)), self.below(BLOCKS));
                self.share(from, (inode, block), count);
            }
            12..15 => self.unmap(inode, block, block + count),
            15 => self.unmap(inode, 0, u64::MAX),
            16 | 17 => self.relocate(),
            18 if self.versions.len() < 4 => self.snapshot(),
            _ if self.versions.is_empty() => {}
            _ => {
                let at = self.below(self.versions.len() as u64) as usize;
                self.delete(at);
            }
        }
    }

    /// Returns the places of a version by its items.
    fn shown(items: &Forest) -> Version {
        let mut shown = Version::new();
        for number in 0..FILES {
            for extent in extents(items, file(number), 0..u64::MAX) {
                let extent = extent.unwrap();
                for (block, position) in (extent.block..extent.end()).zip(extent.place.block..) {
                    shown.insert((file(number), block), (extent.place.zone.0, position));
                }
            }
        }
        shown
    }

    fn places(&self) -> BTreeSet<At> {
        let all = self.versions.iter().map(|(_, version)| version).chain([&self.present]);
        all.flat_map(|version| version.values().copied()).collect()
    }

    /// Counts live blocks as opening does.
    fn recounted(&self) -> Live {
        let (items, mut live) = (&self.metadata.items, Live::default());
        for (key, value) in items.items() {
            if let Some((_, extent)) = own_blocks(&key, value).unwrap() {
                live.live(extent.place.zone.0, extent.blocks);
            }
        }
        for (older, newer) in self.metadata.snapshots.with_newer(items) {
            visit_own_blocks(older.tree(0), newer, 0, |_, extent| {
                live.live(extent.place.zone.0, extent.blocks);
                Ok(())
            })
            .unwrap();
        }
        live
    }

    fn verify(&self) {
        assert_eq!(World::shown(&self.metadata.items), self.present);
        for (version, snapshot) in self.versions.iter().zip(self.metadata.snapshots.all()) {
            assert_eq!(World::shown(&snapshot.metadata.items), version.1);
        }
        let places = self.places();
        assert_eq!(self.live.clone().without_empty(), Live::of(&places));
        assert_eq!(self.recounted(), Live::of(&places));
        // Blocks in headers are reported as live exactly if a version has them.
        let (snapshots, items) = (&self.metadata.snapshots, &self.metadata.items);
        for (at, (inode, block)) in &self.written {
            let (mut found, place) = (0, ZoneBlock::new(at.0, at.1));
            snapshots.visit_at_any(items, *inode, (*block, 1), place, |_, count| found += count).unwrap();
            assert_eq!(found == 1, places.contains(at), "{at:?} of {inode}, {block}");
        }
        // Runs are disjoint and merged where possible, and have exactly the existing owners.
        let keeper = keeper(items, file(0));
        let all = items.range(&Key::new(keeper, 0, 0)).map(|(key, value)| Run::decode(key, value).unwrap());
        let runs: Vec<Run> = all.collect();
        let mut shared = 0;
        for run in &runs {
            for number in 0..run.blocks {
                let owners = run.owners.iter().map(|owner| (owner.inode, owner.after(number).block));
                let place = (run.place.zone.0, run.place.block + number);
                let expected = self.present.iter().filter(|(_, at)| **at == place).map(|(owner, _)| *owner);
                assert!(owners.eq(expected), "{run:?}");
                shared += 1;
            }
        }
        assert!(runs.windows(2).all(|pair| !pair[0].is_before(&pair[1])));
        assert!(
            runs.windows(2)
                .all(|pair| pair[0].place.zone != pair[1].place.zone || pair[0].end() <= pair[1].place.block)
        );
        let several = self.present.values().copied().collect::<BTreeSet<_>>();
        let several = several.into_iter().filter(|at| self.owners(*at) > 1).count();
        assert!(shared >= several, "{shared} of {several} blocks with several owners are in runs");
    }
}

#[test]
fn owners_of_blocks_are_those_of_a_map_of_single_blocks_whatever_is_done_in_whatever_version() {
    for seed in 0..25 {
        let mut world = World::new(seed);
        for step in 0..120 {
            world.step();
            if step % 4 == 0 {
                world.verify();
            }
        }
        while !world.versions.is_empty() {
            let at = world.below(world.versions.len() as u64) as usize;
            world.delete(at);
            world.verify();
        }
        for number in 0..FILES {
            world.apply(&Change::Remove { inode: file(number) }, (0, 0));
            world.present.retain(|(inode, _), _| *inode != file(number));
        }
        world.verify();
        assert_eq!(world.live.without_empty(), Live::default());
    }
}

#[test]
fn a_block_has_at_most_16_owners() {
    let mut world = World::new(1);
    world.write(file(0), 0, 1);
    for block in 1..MAX_OWNERS as u64 {
        world.share((file(0), 0), (file(1), block), 1);
    }
    world.verify();
    let extent = |inode| extents(&world.metadata.items, inode, 0..1).next().unwrap().unwrap();
    let only = extent(file(0));
    assert_eq!(shareable(&world.metadata.items, file(0), &only), Ok(0));
    assert_eq!(unshareable(&world.metadata.items, file(0), &only), Ok(1));
    let one_more = Change::Share {
        inode: file(2),
        block: 0,
        count: 1,
        from_inode: file(0),
        from_block: 0,
        size: 0,
        modified: KEEP_TIMES,
    };
    let place = ZoneBlock::new(0, 0);
    assert!(matches!(world.metadata.apply(&one_more, place, &mut world.live), Err(Error::Corrupt(_))));
    world.unmap(file(1), 1, 2);
    world.share((file(0), 0), (file(2), 0), 1);
    world.verify();
}

#[test]
fn other_bytes_are_no_run() {
    let owner = |inode, block| BlockOwner { inode, block };
    let place = ZoneBlock::new(7, 9);
    let owners = SmallVec::from_vec(vec![owner(3, 1), owner(3, 200), owner(7, 0)]);
    let run = Run { place, blocks: 5, written: owner(2, 300), owners };
    let (key, bytes) = (key(FIRST_KEEPER, place), run.encode());
    assert_eq!(Run::decode(key, &bytes), Ok(run.clone()));
    for length in 0..bytes.len() {
        // A truncated list of owners is a run with fewer of them.
        let found = Run::decode(key, &bytes[..length]);
        assert!(found.is_err() || found.is_ok_and(|it| (1..3).contains(&it.owners.len())), "{length} bytes");
    }
    let mut twice = run.clone();
    twice.owners[1] = twice.owners[0];
    let none = Run { owners: SmallVec::new(), ..run.clone() };
    let empty = Run { blocks: 0, ..run.clone() };
    let owners = (0..17).map(|block| owner(3, block)).collect();
    for other in [twice, none, empty, Run { owners, ..run }] {
        assert!(Run::decode(key, &other.encode()).is_err(), "{other:?}");
    }
}
