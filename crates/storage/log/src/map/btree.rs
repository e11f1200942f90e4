//! `btree` and `mutex-btree`: extents in B-trees behind locks.
//!
//! [`Btree`] has many trees, each for groups of 4096 blocks in turn, each behind a reader–writer lock:
//! lookups and changes of different groups don't block each other. [`MutexBtree`] is one tree behind one
//! mutex, as the baseline.

use super::extents::{Extents, SOME, visit_all};
use super::joined::Joined;
use super::{Mapping, Physical, Plain};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One tree behind one lock.
#[derive(Debug, Default)]
pub struct MutexBtree {
    extents: Mutex<Extents>,
}

impl MutexBtree {
    fn lock(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plain for MutexBtree {
    fn name(&self) -> &'static str {
        "mutex-btree"
    }

    fn lookup(&self, block: u64) -> Physical {
        self.lock().get(block).unwrap_or(Physical::NONE)
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        visit_all(range, visit, |range, some| self.lock().visit(range, SOME, |piece| some.push(piece)));
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>) {
        self.lock().insert(range, to, displaced);
    }

    fn compare_and_move(&self, range: Range<u64>, from: Physical, to: Physical, moved: &mut Joined<'_>) {
        self.lock().compare_and_move(range, from, to, moved);
    }

    fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.lock().bytes()
    }
}

/// Number of trees.
const SHARDS: usize = 64;

/// Number of consecutive blocks that belong to the same tree; no extent crosses their border.
const GROUP: u64 = 4 << 10;

/// Many trees, each behind a lock.
#[derive(Debug)]
pub struct Btree {
    shards: Box<[RwLock<Extents>]>,
}

impl Default for Btree {
    fn default() -> Self {
        Btree { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }
}

/// Returns the part of a range in the group of its first block.
fn first_part(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min((range.start / GROUP + 1) * GROUP)
}

impl Btree {
    fn shard(block: u64) -> usize {
        (block / GROUP % SHARDS as u64) as usize
    }

    fn read(&self, block: u64) -> RwLockReadGuard<'_, Extents> {
        self.shards[Self::shard(block)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` for each group's part of the range, in order, with the locks of all groups held, so that
    /// changes of the same blocks are serialized as a whole. Locks are taken in the order of the shards.
    fn change(&self, range: Range<u64>, mut change: impl FnMut(&mut Extents, Range<u64>)) {
        if range.is_empty() {
            return;
        }
        let lock = |shard: usize| self.shards[shard].write().unwrap_or_else(PoisonError::into_inner);
        if first_part(&range) == range {
            return change(&mut lock(Self::shard(range.start)), range);
        }
        let mut guards: [Option<RwLockWriteGuard<'_, Extents>>; SHARDS] = [const { None }; SHARDS];
        let groups = range.start / GROUP..range.end.div_ceil(GROUP);
        let mut wanted = [false; SHARDS];
        groups.take(SHARDS).for_each(|group| wanted[Self::shard(group * GROUP)] = true);
        for (shard, guard) in guards.iter_mut().enumerate().filter(|(shard, _)| wanted[*shard]) {
            *guard = Some(lock(shard));
        }
        let mut rest = range;
        while !rest.is_empty() {
            let part = first_part(&rest);
            if let Some(extents) = &mut guards[Self::shard(part.start)] {
                rest.start = part.end;
                change(extents, part);
            }
        }
    }
}

impl Plain for Btree {
    fn name(&self) -> &'static str {
        "btree"
    }

    fn lookup(&self, block: u64) -> Physical {
        self.read(block).get(block).unwrap_or(Physical::NONE)
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        visit_all(range, visit, |range, some| {
            self.read(range.start).visit(first_part(&range), SOME, |piece| some.push(piece))
        });
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>) {
        let start = range.start;
        self.change(range, |extents, part| {
            let to = to.offset(part.start - start);
            extents.insert(part, to, displaced);
        });
    }

    fn compare_and_move(&self, range: Range<u64>, from: Physical, to: Physical, moved: &mut Joined<'_>) {
        let start = range.start;
        self.change(range, |extents, part| {
            let offset = part.start - start;
            extents.compare_and_move(part, from.offset(offset), to.offset(offset), moved);
        });
    }

    fn bytes(&self) -> u64 {
        let shards = (0..SHARDS as u64).map(|shard| self.read(shard * GROUP).bytes()).sum::<u64>();
        (SHARDS * size_of::<RwLock<Extents>>()) as u64 + shards
    }
}
