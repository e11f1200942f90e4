//! What a map without snapshots of its own does; [`Versioned`](super::Versioned) adds the rest.

use super::{Mapping, Physical};
use std::fmt::Debug;
use std::ops::Range;

/// A map of one version. The methods are those of [`Map`](super::Map), whose promises hold here, too.
pub trait Plain: Debug + Send + Sync + 'static {
    /// See [`Map::name`](super::Map::name).
    fn name(&self) -> &'static str;

    /// See [`Map::lookup`](super::Map::lookup).
    fn lookup(&self, block: u64) -> Physical;

    /// See [`Map::lookup_range`](super::Map::lookup_range).
    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping));

    /// See [`Map::insert`](super::Map::insert).
    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping));

    /// See [`Map::compare_and_move`](super::Map::compare_and_move). Both places are mapped ones.
    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    );

    /// About how much memory it takes, in bytes: what its entries take in this structure, as the allocator rounds it.
    fn bytes(&self) -> u64;
}
