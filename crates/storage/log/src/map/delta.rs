//! Snapshots for maps without snapshots of their own: the map is frozen, and each version keeps its changes
//! in deltas.
//!
//! ```text
//!   the map      a snapshot     another
//!   [delta]        [delta]      [delta]     what only this version changed
//!       \___________/              |
//!          [delta]                 |        frozen: what these two have in common
//!              \___________________/
//!                     base                  the map itself, frozen while there are several versions
//! ```
//!
//! A lookup goes from its version's delta down to the first layer that has the block. When a version is
//! dropped, each delta with the same users as the layer below is merged into that layer. With one version
//! left everything is merged into the map, which is then used directly again. A map without snapshots costs
//! only one more load of a flag per operation.
//!
//! Deltas are extents behind a reader–writer lock for every map: with snapshots, lookups aren't lock-free.

use super::extents::{Extents, SOME};
use super::joined::Joined;
use super::{Map, Mapping, Physical, Plain};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Changes of some versions: blocks mapped to new locations, or unmapped.
#[derive(Debug, Default)]
struct Delta(RwLock<Extents>);

impl Delta {
    fn read(&self) -> RwLockReadGuard<'_, Extents> {
        read(&self.0)
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// The deltas of a version, its own first.
#[derive(Debug, Default)]
struct Path {
    /// Whether the version has deltas.
    layered: AtomicBool,
    deltas: RwLock<Vec<Arc<Delta>>>,
}

impl Path {
    fn new(deltas: Vec<Arc<Delta>>) -> Arc<Self> {
        Arc::new(Path { layered: AtomicBool::new(!deltas.is_empty()), deltas: RwLock::new(deltas) })
    }

    fn set(&self, deltas: Vec<Arc<Delta>>) {
        let layered = !deltas.is_empty();
        *write(&self.deltas) = deltas;
        self.layered.store(layered, Ordering::Release);
    }

    /// Returns the deltas of a version with a new one of its own on top, without empty ones.
    fn above(deltas: &[Arc<Delta>]) -> Vec<Arc<Delta>> {
        let frozen = deltas.iter().filter(|delta| delta.read().len() > 0).cloned();
        std::iter::once(Arc::default()).chain(frozen).collect()
    }
}

/// Paths of a map and its snapshots. Changes of a sole version take this lock for reading (the base
/// serializes them); all other changes take it for writing.
type Family = RwLock<Vec<Arc<Path>>>;

/// A version of a map.
pub struct Versioned<P: Plain> {
    base: Arc<P>,
    path: Arc<Path>,
    family: Arc<Family>,
    blocks: AtomicU64,
}

impl<P: Plain> Versioned<P> {
    /// Returns a map of this number of blocks without snapshots.
    pub fn new(base: P, blocks: u64) -> Self {
        let path = Path::new(Vec::new());
        let family = Arc::new(RwLock::new(vec![path.clone()]));
        Versioned { base: Arc::new(base), path, family, blocks: AtomicU64::new(blocks) }
    }

    #[cold]
    fn lookup_layered(&self, block: u64) -> Physical {
        for delta in read(&self.path.deltas).iter() {
            if let Some(physical) = delta.read().get(block) {
                return physical;
            }
        }
        self.base.lookup(block)
    }

    /// Runs a change with the version's deltas; there are none if this is the only version.
    fn change(&self, change: impl FnOnce(&[Arc<Delta>])) {
        {
            let _versions = read(&self.family);
            if !self.path.layered.load(Ordering::Acquire) {
                return change(&[]);
            }
        }
        // A version with deltas may lose them in between, and then has an empty list.
        let _versions = write(&self.family);
        let deltas = read(&self.path.deltas).clone();
        change(&deltas);
    }
}

/// Visits a range in the deltas and, for blocks without a delta, in the base.
fn visit_layers<P: Plain>(
    deltas: &[Arc<Delta>],
    base: &P,
    range: Range<u64>,
    visit: &mut dyn FnMut(Mapping),
) {
    let Some((delta, below)) = deltas.split_first() else {
        return base.lookup_range(range, visit);
    };
    let mut some = Vec::new();
    let mut block = range.start;
    while block < range.end {
        some.clear();
        // The lock is released before the visits.
        let end = delta.read().visit(block..range.end, SOME, |piece| some.push(piece));
        for piece in &some {
            if block < piece.block {
                visit_layers(below, base, block..piece.block, visit);
            }
            visit(*piece);
            block = piece.block + piece.count;
        }
        if block < end {
            visit_layers(below, base, block..end, visit);
            block = end;
        }
    }
}

/// Moves the blocks of a range that are at the expected location, in the layer that has them, for all
/// versions that share it.
fn move_layers<P: Plain>(
    deltas: &[Arc<Delta>],
    base: &P,
    range: Range<u64>,
    [from, to]: [Physical; 2],
    moved: &mut Joined<'_>,
) {
    let Some((delta, below)) = deltas.split_first() else {
        return base.compare_and_move(range, from, to, moved);
    };
    let places = |block: u64| [from, to].map(|place| place.offset(block - range.start));
    let mut pieces = Vec::new();
    delta.read().visit(range.clone(), usize::MAX, |piece| pieces.push(piece));
    let mut block = range.start;
    for piece in pieces {
        if block < piece.block {
            move_layers(below, base, block..piece.block, places(block), moved);
        }
        block = piece.block + piece.count;
        write(&delta.0).compare_and_move(
            piece.block..block,
            places(piece.block)[0],
            places(piece.block)[1],
            moved,
        );
    }
    if block < range.end {
        move_layers(below, base, block..range.end, places(block), moved);
    }
}

/// Returns the number of paths that contain this delta.
fn users(paths: &[Arc<Path>], delta: &Arc<Delta>) -> usize {
    paths.iter().filter(|path| read(&path.deltas).iter().any(|other| Arc::ptr_eq(other, delta))).count()
}

/// Merges every delta into the layer below with the same users. Lookups run concurrently: a delta is removed
/// from the paths only after the layer below has all its contents.
fn merge<P: Plain>(paths: &[Arc<Path>], base: &P) {
    while let Some((upper, lower)) = mergeable(paths) {
        let mut pieces = Vec::new();
        upper.read().visit(0..u64::MAX, usize::MAX, |piece| pieces.push(piece));
        for piece in pieces {
            let range = piece.block..piece.block + piece.count;
            match &lower {
                Some(lower) => write(&lower.0).set(range, piece.physical),
                None => base.insert(range, piece.physical, &mut Joined::mapped(&mut |_| {})),
            }
        }
        for path in paths {
            let mut deltas = read(&path.deltas).clone();
            deltas.retain(|delta| !Arc::ptr_eq(delta, &upper));
            path.set(deltas);
        }
    }
}

/// Returns a delta that has the same users as the layer below, and that layer (`None` for the base); `None`
/// if there is no such delta.
fn mergeable(paths: &[Arc<Path>]) -> Option<(Arc<Delta>, Option<Arc<Delta>>)> {
    for path in paths {
        let deltas = read(&path.deltas).clone();
        for (at, upper) in deltas.iter().enumerate() {
            let lower = deltas.get(at + 1);
            let users_below = lower.map_or(paths.len(), |lower| users(paths, lower));
            if users(paths, upper) == users_below {
                return Some((upper.clone(), lower.cloned()));
            }
        }
    }
    None
}

impl<P: Plain> Map for Versioned<P> {
    fn name(&self) -> &'static str {
        self.base.name()
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    #[inline]
    fn lookup(&self, block: u64) -> Physical {
        if self.path.layered.load(Ordering::Acquire) {
            self.lookup_layered(block)
        } else {
            self.base.lookup(block)
        }
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        if !self.path.layered.load(Ordering::Acquire) {
            return self.base.lookup_range(range, visit);
        }
        let deltas = read(&self.path.deltas).clone();
        let mut visitor = Joined::all(visit);
        visit_layers(&deltas, &*self.base, range, &mut |piece| {
            visitor.push(piece.block, piece.count, piece.physical);
        });
        visitor.finish();
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping)) {
        if range.is_empty() {
            return;
        }
        let mut displaced = Joined::mapped(displaced);
        self.change(|deltas| {
            let Some(own) = deltas.first() else {
                return self.base.insert(range, to, &mut displaced);
            };
            visit_layers(deltas, &*self.base, range.clone(), &mut |piece| {
                displaced.push(piece.block, piece.count, piece.physical);
            });
            write(&own.0).set(range, to);
        });
        displaced.finish();
    }

    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    ) {
        if range.is_empty() || !(from.is_mapped() && to.is_mapped()) {
            return;
        }
        let mut moved = Joined::mapped(moved);
        self.change(|deltas| move_layers(deltas, &*self.base, range, [from, to], &mut moved));
        moved.finish();
    }

    fn snapshot(&self) -> Arc<dyn Map> {
        let mut paths = write(&self.family);
        let deltas = read(&self.path.deltas).clone();
        self.path.set(Path::above(&deltas));
        let path = Path::new(Path::above(&deltas));
        paths.push(path.clone());
        let blocks = AtomicU64::new(self.blocks());
        Arc::new(Versioned { base: self.base.clone(), path, family: self.family.clone(), blocks })
    }

    fn grow(&self, blocks: u64) {
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
    }

    fn bytes(&self) -> u64 {
        let deltas: u64 = read(&self.path.deltas).iter().map(|delta| delta.read().bytes()).sum();
        self.base.bytes() + deltas + size_of::<Self>() as u64
    }
}

impl<P: Plain> Drop for Versioned<P> {
    fn drop(&mut self) {
        let mut paths = write(&self.family);
        paths.retain(|path| !Arc::ptr_eq(path, &self.path));
        merge(&paths, &*self.base);
    }
}

impl<P: Plain> fmt::Debug for Versioned<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} map of {} blocks", self.name(), self.blocks())
    }
}
