//! Every map behaves like a plain list of locations.

mod map_model;

use log::map::{Map, Mapping, PAGE_BLOCKS, Physical, make};

fn check(name: &str, cases: u32) {
    map_model::check(
        cases,
        |blocks| make(name, blocks).expect("a known name"),
        |map| assert_eq!(map.name(), name),
    );
}

#[test]
fn radix() {
    check("radix", 400);
}

#[test]
fn hash() {
    check("hash", 150);
}

#[test]
fn skiplist() {
    check("skiplist", 200);
}

#[test]
fn btree() {
    check("btree", 200);
}

#[test]
fn mutex_btree() {
    check("mutex-btree", 200);
}
