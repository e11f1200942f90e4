//! Maps without snapshots of their own; [`Versioned`](super::Versioned) adds snapshots.

use super::joined::Joined;
use super::{Mapping, Physical};
use std::fmt::Debug;
use std::ops::Range;

/// A map of one version. The methods are those of [`Map`](super::Map), with the same contract. Changes push
/// the pieces that they visit; the caller finishes the visitor.
pub trait Plain: Debug + Send + Sync + 'static {
    /// Returns the name, as [`Map::name`](super::Map::name).
    fn name(&self) -> &'static str;

    /// Looks up a block, as [`Map::lookup`](super::Map::lookup).
    fn lookup(&self, block: u64) -> Physical;

    /// Visits a range, as [`Map::lookup_range`](super::Map::lookup_range).
    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping));

    /// Maps a range, as [`Map::insert`](super::Map::insert).
    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>);

    /// Moves blocks, as [`Map::compare_and_move`](super::Map::compare_and_move). Both locations are mapped
    /// ones.
    fn compare_and_move(&self, range: Range<u64>, from: Physical, to: Physical, moved: &mut Joined<'_>);

    /// Returns the approximate memory of the structure's entries in bytes, rounded like the allocator does.
    fn bytes(&self) -> u64;
}
