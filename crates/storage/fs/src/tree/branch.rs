//! Branches: the children of a node, each with the smallest key that it may hold.
//!
//! `keys[i]` is at most every key under child `i`, and every key under child `i` is below `keys[i + 1]`.
//! `keys[0]` is the branch's own smallest permitted key, equal to the parent's key for the branch;
//! [`Key::MIN`] at the root.
//!
//! On the medium, after the [header](super::page): for each child its smallest permitted key (inode 8 bytes,
//! kind 1, offset 8) and its place (zone 4, position 4); then zeros.

use super::Key;
use super::key::partition;
use super::layout::Layout;
use super::node::{Family, Node, Slot};
use super::page::{self, HEADER, Header, PAGE, check_padding, strange, u32_at, u64_at};
use block::{Result, ZoneBlock};
use std::rc::Rc;

const ENTRY: usize = 25;

/// Number of children of a full branch.
pub(super) const MAX_CHILDREN: usize = (PAGE - HEADER) / ENTRY;

/// Number of children above [`MAX_CHILDREN`] that a branch may have during a change.
const SPARE: usize = 2;

#[derive(Debug)]
pub(super) struct Branch {
    pub slot: Slot,
    pub keys: Vec<Key>,
    pub children: Vec<Node>,
}

impl Clone for Branch {
    fn clone(&self) -> Self {
        let mut branch = Branch::new(self.slot.family());
        branch.keys.extend_from_slice(&self.keys);
        branch.children.extend_from_slice(&self.children);
        branch
    }
}

impl Branch {
    /// Bytes of a branch in memory: its vectors always have the capacity for all children.
    pub const MEMORY: usize = size_of::<Self>()
        + 2 * size_of::<usize>()
        + (MAX_CHILDREN + SPARE) * (size_of::<Key>() + size_of::<Node>());

    pub fn new(family: &Rc<Family>) -> Self {
        Branch {
            slot: Slot::new(family, false),
            keys: Self::key_vector(),
            children: Vec::with_capacity(MAX_CHILDREN + SPARE),
        }
    }

    /// Returns an empty vector with the capacity of a branch's keys.
    pub fn key_vector() -> Vec<Key> {
        Vec::with_capacity(MAX_CHILDREN + SPARE)
    }

    /// Returns a branch with these children.
    pub fn of(family: &Rc<Family>, children: impl Iterator<Item = (Key, Node)>) -> Self {
        let mut branch = Branch::new(family);
        for (key, child) in children {
            branch.keys.push(key);
            branch.children.push(child);
        }
        branch
    }

    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Index of the child that may hold `key`.
    pub fn index_of(&self, key: &Key) -> usize {
        let keys = &self.keys[1..];
        partition(keys.len(), |index| keys[index].is_at_most(key))
    }

    /// Removes an empty child; a neighbour takes over its range of keys.
    ///
    /// # Panics
    /// If it is the first of several children and a branch: the next child's keys would have to change.
    pub fn remove_empty(&mut self, index: usize) {
        match self.children.remove(index) {
            Node::Branch(_) => assert!(index > 0 || self.children.is_empty(), "branches are merged instead"),
            Node::Leaf(_) => {}
        }
        // The lower bound of the first leaf passes to the second.
        let key = if index == 0 && self.keys.len() > 1 { 1 } else { index };
        self.keys.remove(key);
    }

    /// Moves the children at and after `at` to a new branch.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut right = Branch::new(self.slot.family());
        right.keys.extend(self.keys.drain(at..));
        right.children.extend(self.children.drain(at..));
        right
    }

    /// Encodes the branch as a page of this level.
    ///
    /// # Panics
    /// If a child has no place.
    pub fn encode(&self, level: u8, page: &mut [u8; PAGE]) {
        page.fill(0);
        let layout = Layout { base: self.keys[0], inode: 0, kind: 0, offset: 0 };
        Header { level, count: self.len() as u16, layout }.write(page);
        for (at, (key, child)) in self.keys.iter().zip(&self.children).enumerate() {
            let place = child.place().expect("children are stored before their parents");
            let entry = &mut page[HEADER + at * ENTRY..][..ENTRY];
            entry[..8].copy_from_slice(&key.inode.to_le_bytes());
            entry[8] = key.kind;
            entry[9..17].copy_from_slice(&key.offset.to_le_bytes());
            entry[17..21].copy_from_slice(&place.zone.0.to_le_bytes());
            entry[21..].copy_from_slice(&place.block.to_le_bytes());
        }
    }

    /// Decodes a branch of this level with keys from `lower` to below `upper`. Returns the keys and places of
    /// the children.
    ///
    /// # Errors
    /// [`Corrupt`](block::Error::Corrupt) for any deviation from the format.
    pub fn decode(
        page: &[u8; PAGE],
        place: ZoneBlock,
        level: u8,
        lower: Key,
        upper: Option<Key>,
    ) -> Result<(Vec<Key>, Vec<ZoneBlock>)> {
        let header = Header::read(page, place, level)?;
        let count = usize::from(header.count);
        if !(1..=MAX_CHILDREN).contains(&count) {
            return Err(strange(place, format_args!("{count} children; expected 1 to {MAX_CHILDREN}")));
        }
        if header.layout != (Layout { base: header.layout.base, inode: 0, kind: 0, offset: 0 }) {
            return Err(strange(place, "column widths are nonzero; expected zeros in a branch"));
        }
        if header.layout.base != lower {
            let found = header.layout.base;
            return Err(strange(
                place,
                format_args!("smallest permitted key {found}; expected {lower}, from its parent"),
            ));
        }
        let (mut keys, mut places) = (Self::key_vector(), Vec::with_capacity(count));
        for at in (0..count).map(|index| HEADER + index * ENTRY) {
            let key = Key::new(u64_at(page, at), page[at + 8], u64_at(page, at + 9));
            match keys.last() {
                None if key != lower => {
                    return Err(strange(place, format_args!("first key {key}; expected {lower}")));
                }
                Some(last) if key <= *last => {
                    return Err(strange(place, format_args!("key {key} after {last}; expected rising keys")));
                }
                _ => {}
            }
            keys.push(key);
            places.push(ZoneBlock::new(u32_at(page, at + 17), u32_at(page, at + 21)));
        }
        if let (Some(upper), Some(last)) = (upper, keys.last())
            && *last >= upper
        {
            return Err(strange(
                place,
                format_args!("key {last}; expected keys below {upper}, from its parent"),
            ));
        }
        check_padding(page, HEADER + count * ENTRY, page::PAGE, place)?;
        Ok((keys, places))
    }
}
