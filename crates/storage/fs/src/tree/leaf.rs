//! Leaves: items packed into the bytes of a page, in memory as on the medium.
//!
//! After the [header](super::page) there is one record for each item, in the order of keys: the key's columns
//! ([`layout`](super::layout)), then 3 bytes, big-endian: the position of the value in the page (13 bits) and
//! its length (11 bits). Values are stacked from the end of the page downwards.
//!
//! On the medium, the layout is the narrowest, the base is the first key, values are stacked in the order of
//! keys without gaps, and the bytes between the records and the values are zeros: equal items have equal
//! bytes. In memory, the layout may be wider, values may be in any order, and bytes of removed values remain
//! until the space is needed.

use super::Key;
use super::key::partition;
use super::layout::{Layout, Packed};
use super::node::{Family, Slot};
use super::page::{HEADER, Header, PAGE, check_padding, strange};
use block::{Result, ZoneBlock};
use std::cell::Cell;
use std::rc::Rc;

/// Greatest length of a value in bytes.
pub const MAX_VALUE: usize = 1024;

/// Number of low bits of a record's slot for the value's length.
const LENGTH_BITS: u32 = 11;

/// An item, borrowed.
pub(super) type Item<'a> = (Key, &'a [u8]);

#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub slot: Slot,
    /// Index of the last inserted item, to detect runs of ascending keys.
    last_insert: u16,
    /// Index that the last search found: the next one is often for the same key or the one after it.
    found: Cell<u16>,
    body: Body,
}

/// An item to insert or replace, with its index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change<'a> {
    pub index: usize,
    pub key: Key,
    pub value: &'a [u8],
    /// Whether the item at the index is replaced; otherwise the item is inserted before it.
    pub replaces: bool,
}

#[derive(Debug, Clone)]
struct Body {
    layout: Layout,
    count: u16,
    /// Position of the lowest value.
    heap: u16,
    /// Bytes of values, without those of removed values.
    live: u16,
    page: [u8; PAGE],
}

/// Bytes of a page with these items.
pub(super) fn encoded_size(items: &[Item<'_>]) -> usize {
    let values: usize = items.iter().map(|(_, value)| value.len()).sum();
    HEADER + items.len() * Layout::of(items.iter().map(|(key, _)| *key)).record() + values
}

/// Index that divides items into two non-empty parts of about the same size.
pub(super) fn middle(items: &[Item<'_>]) -> usize {
    let record = Layout::of(items.iter().map(|(key, _)| *key)).record();
    let size = |(_, value): &Item<'_>| record + value.len();
    let half = items.iter().map(size).sum::<usize>() / 2;
    let mut before = 0;
    let middle = items.iter().position(|item| {
        before += size(item);
        before > half
    });
    middle.unwrap_or(1).clamp(1, items.len() - 1)
}

impl Body {
    fn new(layout: Layout) -> Self {
        Body { layout, count: 0, heap: PAGE as u16, live: 0, page: [0; PAGE] }
    }

    fn count(&self) -> usize {
        usize::from(self.count)
    }

    fn record_at(&self, index: usize) -> usize {
        HEADER + index * self.layout.record()
    }

    fn key(&self, index: usize) -> Key {
        self.layout.read(&self.page, self.record_at(index))
    }

    /// Position and length of a value.
    fn slot(&self, index: usize) -> (usize, usize) {
        let at = self.record_at(index) + self.layout.key_bytes();
        let slot = u32::from_be_bytes([0, self.page[at], self.page[at + 1], self.page[at + 2]]);
        ((slot >> LENGTH_BITS) as usize, (slot & ((1 << LENGTH_BITS) - 1)) as usize)
    }

    fn set_slot(&mut self, index: usize, position: usize, length: usize) {
        let at = self.record_at(index) + self.layout.key_bytes();
        let slot = (position as u32) << LENGTH_BITS | length as u32;
        self.page[at..at + 3].copy_from_slice(&slot.to_be_bytes()[1..]);
    }

    fn value(&self, index: usize) -> &[u8] {
        let (position, length) = self.slot(index);
        &self.page[position..position + length]
    }

    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        (0..self.count()).map(|index| (self.key(index), self.value(index)))
    }

    /// Bytes between the records and the values.
    fn gap(&self) -> usize {
        usize::from(self.heap) - self.record_at(self.count())
    }

    /// Bytes that the page uses if it is packed with this layout.
    fn packed_size(&self, layout: &Layout, count: usize) -> usize {
        HEADER + count * layout.record() + usize::from(self.live)
    }

    /// Copies a value to the heap, which must have the space, and returns its position.
    fn push_value(&mut self, value: &[u8]) -> usize {
        let position = usize::from(self.heap) - value.len();
        self.page[position..position + value.len()].copy_from_slice(value);
        self.heap = position as u16;
        self.live += value.len() as u16;
        position
    }

    /// Subtracts a value at this position from the live bytes.
    fn free_value(&mut self, position: usize, length: usize) {
        self.live -= length as u16;
        if position == usize::from(self.heap) {
            self.heap += length as u16;
        }
    }

    /// Appends an item, which must fit, with a key above all others.
    fn push(&mut self, key: &Key, value: &[u8]) {
        let index = self.count();
        let at = self.record_at(index);
        self.layout.write(key, &mut self.page, at);
        let position = self.push_value(value);
        self.set_slot(index, position, value.len());
        self.count += 1;
    }

    /// Moves the values together, so that bytes of removed values become part of the gap.
    fn compact(&mut self) {
        let old = self.page;
        (self.heap, self.live) = (PAGE as u16, 0);
        for index in 0..self.count() {
            let (position, length) = self.slot(index);
            let position = self.push_value(&old[position..position + length]);
            self.set_slot(index, position, length);
        }
    }

    /// Repacks the items and a new one, which must fit, with another layout.
    fn rebuild(&mut self, layout: Layout, new: &Change<'_>) {
        let old = std::mem::replace(self, Body::new(layout));
        for (index, (key, value)) in old.items().enumerate() {
            if index == new.index {
                self.push(&new.key, new.value);
            }
            self.push(&key, value);
        }
        if new.index == old.count() {
            self.push(&new.key, new.value);
        }
    }

    /// Number of keys for which `is_before` returns true; these are a prefix. Fast if the result is `guess`
    /// or one more.
    #[inline]
    fn partition(&self, guess: usize, is_before: impl Fn(usize) -> bool) -> usize {
        let count = self.count();
        if guess <= count && (guess == 0 || is_before(guess - 1)) {
            if guess == count || !is_before(guess) {
                return guess;
            }
            if guess + 1 == count || !is_before(guess + 1) {
                return guess + 1;
            }
        }
        partition(count, is_before)
    }

    /// Index of the item with this key, or index at which it would be inserted. Fast if the result is `guess`
    /// or one more.
    fn search(&self, key: &Key, guess: usize) -> Result<usize, usize> {
        if *key < self.layout.base {
            return Err(0);
        }
        if self.layout.key_bytes() > 8 {
            let index = self.partition(guess, |index| !key.is_at_most(&self.key(index)));
            return if index < self.count() && self.key(index) == *key { Ok(index) } else { Err(index) };
        }
        let packed = |index| self.layout.read_packed(&self.page, self.record_at(index));
        match self.layout.pack(key) {
            Packed::Before(bound) => Err(self.partition(guess, |index| packed(index) < bound)),
            Packed::After(bound) => Err(self.partition(guess, |index| packed(index) <= bound)),
            Packed::Exactly(exact) => {
                let index = self.partition(guess, |index| packed(index) < exact);
                if index < self.count() && packed(index) == exact { Ok(index) } else { Err(index) }
            }
        }
    }
}

impl Leaf {
    /// Bytes of a leaf in memory, including the counters of its `Rc`.
    pub const MEMORY: usize = size_of::<Self>() + 2 * size_of::<usize>();

    /// Returns a leaf with these items, in ascending order of keys.
    ///
    /// # Panics
    /// If there are no items, or more than fit.
    pub fn of(family: &Rc<Family>, items: &[Item<'_>]) -> Rc<Self> {
        let mut body = Body::new(Layout::of(items.iter().map(|(key, _)| *key)));
        for (key, value) in items {
            body.push(key, value);
        }
        Rc::new(Leaf { slot: Slot::new(family, true), last_insert: 0, found: Cell::new(0), body })
    }

    pub fn len(&self) -> usize {
        self.body.count()
    }

    pub fn key(&self, index: usize) -> Key {
        self.body.key(index)
    }

    pub fn value(&self, index: usize) -> &[u8] {
        self.body.value(index)
    }

    pub fn item(&self, index: usize) -> Item<'_> {
        (self.key(index), self.value(index))
    }

    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.body.items()
    }

    /// Mutable value of an item.
    pub fn value_mut(&mut self, index: usize) -> &mut [u8] {
        let (position, length) = self.body.slot(index);
        &mut self.body.page[position..position + length]
    }

    /// Bytes that the page uses if it is packed.
    pub fn used(&self) -> usize {
        self.body.packed_size(&self.body.layout, self.len())
    }

    /// Index of the item with this key, or index at which it would be inserted.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let found = self.body.search(key, usize::from(self.found.get()));
        self.found.set(found.unwrap_or_else(|index| index) as u16);
        found
    }

    /// Makes a change if it fits in the page. Returns whether it was made.
    pub fn change(&mut self, change: &Change<'_>) -> bool {
        let changed = if change.replaces { self.replace(change) } else { self.insert(change) };
        if changed && !change.replaces {
            self.last_insert = change.index as u16;
        }
        changed
    }

    fn insert(&mut self, change: &Change<'_>) -> bool {
        let (body, value) = (&mut self.body, change.value);
        let count = body.count();
        let fits = |layout: &Layout, body: &Body| body.packed_size(layout, count + 1) + value.len() <= PAGE;
        if !body.layout.fits(&change.key) {
            let before = (0..change.index).map(|index| body.key(index));
            let after = (change.index..count).map(|index| body.key(index));
            let layout = Layout::of(before.chain([change.key]).chain(after));
            let fits = fits(&layout, body);
            if fits {
                body.rebuild(layout, change);
            }
            return fits;
        }
        if !fits(&body.layout, body) {
            return false;
        }
        let record = body.layout.record();
        if record + value.len() > body.gap() {
            body.compact();
        }
        let at = body.record_at(change.index);
        body.page.copy_within(at..HEADER + count * record, at + record);
        body.count += 1;
        body.layout.write(&change.key, &mut body.page, at);
        let position = body.push_value(value);
        body.set_slot(change.index, position, value.len());
        true
    }

    fn replace(&mut self, change: &Change<'_>) -> bool {
        let (body, value) = (&mut self.body, change.value);
        let (mut position, length) = body.slot(change.index);
        if value.len() <= length {
            body.page[position..position + value.len()].copy_from_slice(value);
            body.live -= (length - value.len()) as u16;
        } else {
            if body.packed_size(&body.layout, body.count()) - length + value.len() > PAGE {
                return false;
            }
            body.free_value(position, length);
            body.set_slot(change.index, 0, 0);
            if value.len() > body.gap() {
                body.compact();
            }
            position = body.push_value(value);
        }
        body.set_slot(change.index, position, value.len());
        true
    }

    /// Removes an item.
    pub fn remove(&mut self, index: usize) {
        let body = &mut self.body;
        let (position, length) = body.slot(index);
        body.free_value(position, length);
        let (at, next, end) =
            (body.record_at(index), body.record_at(index + 1), body.record_at(body.count()));
        body.page.copy_within(next..end, at);
        body.count -= 1;
    }

    /// Whether a change that doesn't fit in this leaf continues a run of ascending keys, after all keys of
    /// the leaf. `is_last` is true if this leaf is the last one of the tree, where new keys are expected.
    pub fn ends_run(&self, change: &Change<'_>, is_last: bool) -> bool {
        let is_after = !change.replaces && change.index == self.len();
        is_after && (is_last || change.index == usize::from(self.last_insert) + 1)
    }

    /// Returns leaves with the items and a change that doesn't fit in this leaf: two, in rare cases three.
    ///
    /// A run of ascending keys leaves full pages: the page is cut at the run. `is_last` is true if this leaf
    /// is the last one of the tree, where new keys are expected.
    pub fn split(&self, change: &Change<'_>, is_last: bool) -> Vec<Rc<Self>> {
        let mut items: Vec<Item<'_>> = self.items().collect();
        let (index, item) = (change.index, (change.key, change.value));
        if change.replaces {
            items[index] = item;
        } else {
            items.insert(index, item);
        }
        let is_run = !change.replaces
            && index > 0
            && (index == usize::from(self.last_insert) + 1 || is_last && index == self.len());
        let fits = |items: &[Item<'_>]| encoded_size(items) <= PAGE;
        let cuts = [is_run.then_some(index + 1), is_run.then_some(index), Some(middle(&items))];
        let cut = cuts
            .into_iter()
            .flatten()
            .find(|&cut| (1..items.len()).contains(&cut) && fits(&items[..cut]) && fits(&items[cut..]));
        // If the new key makes the columns of both halves too wide, it gets a page of its own: the items on
        // each side are a subset of those that fit before.
        let bounds = match cut {
            Some(cut) => vec![0, cut, items.len()],
            None => vec![0, index, index + 1, items.len()],
        };
        let pieces = bounds.windows(2).filter(|bounds| bounds[0] < bounds[1]);
        pieces
            .map(|bounds| {
                let mut leaf = Leaf::of(self.slot.family(), &items[bounds[0]..bounds[1]]);
                if (bounds[0]..bounds[1]).contains(&index)
                    && let Some(leaf) = Rc::get_mut(&mut leaf)
                {
                    leaf.last_insert = (index - bounds[0]) as u16;
                }
                leaf
            })
            .collect()
    }

    /// Encodes the leaf as a page.
    pub fn encode(&self, page: &mut [u8; PAGE]) {
        let keys = (0..self.len()).map(|index| self.key(index));
        let mut body = Body::new(Layout::of(keys));
        for (key, value) in self.items() {
            body.push(&key, value);
        }
        Header { level: 0, count: body.count, layout: body.layout }.write(&mut body.page);
        *page = body.page;
    }

    /// Decodes the leaf at `place` with keys from `lower` to below `upper`. It gets no place yet.
    ///
    /// # Errors
    /// [`Corrupt`](block::Error::Corrupt) for any deviation from the format.
    pub fn decode(
        family: &Rc<Family>,
        page: &[u8; PAGE],
        place: ZoneBlock,
        lower: Key,
        upper: Option<Key>,
    ) -> Result<Rc<Self>> {
        let Header { count, layout, .. } = Header::read(page, place, 0)?;
        if layout.inode > 8 || layout.kind > 1 || layout.offset > 8 {
            let Layout { inode, kind, offset, .. } = layout;
            return Err(strange(
                place,
                format_args!("column widths {inode}, {kind}, {offset}; expected at most 8, 1, 8"),
            ));
        }
        let most = (PAGE - HEADER) / layout.record();
        if count == 0 || usize::from(count) > most {
            return Err(strange(place, format_args!("{count} items; expected 1 to {most}")));
        }
        let mut body = Body { layout, count, heap: PAGE as u16, live: 0, page: *page };
        let records_end = body.record_at(body.count());
        let mut last = None;
        for index in 0..body.count() {
            let at = body.record_at(index);
            let Some(key) = layout.read_checked(page, at) else {
                return Err(strange(place, format_args!("key of item {index} overflows its base")));
            };
            if last.is_some_and(|last| key <= last) {
                return Err(strange(place, format_args!("key {key} of item {index}; expected rising keys")));
            }
            last = Some(key);
            let (position, length) = body.slot(index);
            let heap = usize::from(body.heap);
            if length > MAX_VALUE || heap < records_end + length {
                let most = MAX_VALUE.min(heap - records_end);
                let what = format_args!("value of item {index} has {length} bytes; expected at most {most}");
                return Err(strange(place, what));
            }
            if position != heap - length {
                let expected = heap - length;
                return Err(strange(
                    place,
                    format_args!("value of item {index} at byte {position}; expected byte {expected}"),
                ));
            }
            body.heap = position as u16;
            body.live += length as u16;
        }
        check_padding(page, records_end, usize::from(body.heap), place)?;
        let narrowest = Layout::of((0..body.count()).map(|index| body.key(index)));
        if layout != narrowest {
            return Err(strange(
                place,
                "base or column widths; expected the first key and the narrowest columns that hold all keys",
            ));
        }
        let first = layout.base;
        if first < lower {
            return Err(strange(
                place,
                format_args!("key {first}; expected keys from {lower}, from its parent"),
            ));
        }
        if let (Some(upper), Some(last)) = (upper, last)
            && last >= upper
        {
            return Err(strange(
                place,
                format_args!("key {last}; expected keys below {upper}, from its parent"),
            ));
        }
        Ok(Rc::new(Leaf { slot: Slot::new(family, true), last_insert: 0, found: Cell::new(0), body }))
    }
}
