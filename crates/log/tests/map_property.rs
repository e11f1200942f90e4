//! Every map does what a plain list of places does.

mod map_model;

use log::map::{Map, Mapping, PAGE_BLOCKS, Physical, Radix};
use std::sync::Arc;

#[test]
fn radix() {
    map_model::check(400, |blocks| Arc::new(Radix::new(blocks).unwrap()), |_| {});
}
