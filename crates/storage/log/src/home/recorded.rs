//! A medium for tests that records every store, flush and fence, and yields the permitted states after a
//! power cut.
//!
//! The model: a store of 8 bytes is atomic. It is durable once its line was flushed after it and a fence has
//! followed. Until then it may be present or absent, independent of the other words of its line and of the
//! order of stores. A word never reverts to a value older than its last durable one.

use super::{LINE, Line, Medium};
use block::{Call, Error, Result};
use runtime::mapping::PrivateWords;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

const WORDS: usize = LINE / 8;

/// Nonzero words, by number.
pub type Image = BTreeMap<u64, u64>;

/// An operation on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// This word is stored.
    Store(u64, u64),
    /// The line that begins with this word is flushed.
    Flush(u64),
    /// All earlier flushes have ended.
    Fence,
}

/// A step that a faulty medium omits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// No step.
    Not,
    /// The fence after the data that must be durable when `write` returns.
    WriteWithoutFence,
    /// The fence before a journal is emptied.
    PersistWithoutFence,
    /// The flushes of stored lines.
    StoreWithoutFlush,
}

/// A medium in memory that records its events.
#[derive(Debug)]
pub struct Recorded {
    /// Contents at the start.
    start: Image,
    now: RefCell<Image>,
    events: RefCell<Vec<Event>>,
    broken: Broken,
    /// Number of bytes that can still be allocated.
    space: Cell<u64>,
}

impl Recorded {
    pub fn new(start: Image, broken: Broken) -> Rc<Self> {
        let now = RefCell::new(start.clone());
        Rc::new(Recorded { start, now, events: RefCell::default(), broken, space: Cell::new(u64::MAX) })
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    pub fn done(&self) -> usize {
        self.events.borrow().len()
    }

    /// Limits the remaining space.
    pub fn leave_space(&self, bytes: u64) {
        self.space.set(bytes);
    }

    /// Returns the states after power cuts.
    pub fn cuts(&self) -> Cuts {
        Cuts { sure: self.start.clone(), pending: BTreeMap::new(), at: 0 }
    }

    /// Returns the contents after a power cut before event `cut`, see [`Cuts::choose`].
    pub fn after_power_cut(&self, cut: usize, chance: impl FnMut() -> bool) -> Image {
        let mut cuts = self.cuts();
        cuts.advance(&self.events.borrow(), cut);
        cuts.choose(false, chance)
    }

    fn put(&self, offset: u64, line: &Line, flush: bool) {
        let first = offset / 8;
        let mut events = self.events.borrow_mut();
        let mut now = self.now.borrow_mut();
        for (word, value) in (first..).zip(line) {
            events.push(Event::Store(word, *value));
            now.insert(word, *value);
        }
        if flush {
            events.push(Event::Flush(first));
        }
    }

    fn word(&self, number: u64) -> u64 {
        self.now.borrow().get(&number).copied().unwrap_or(0)
    }
}

/// The durable words, and those that may be lost, at one event.
#[derive(Debug, Clone)]
pub struct Cuts {
    sure: Image,
    /// By line: the stores, and how many of them were flushed.
    pending: BTreeMap<u64, (Vec<(u64, u64)>, usize)>,
    at: usize,
}

impl Cuts {
    /// Advances to event `cut`.
    pub fn advance(&mut self, events: &[Event], cut: usize) {
        for event in &events[self.at..cut] {
            match *event {
                Event::Store(word, value) => {
                    self.pending.entry(word / WORDS as u64).or_default().0.push((word, value));
                }
                Event::Flush(word) => {
                    if let Some((stores, flushed)) = self.pending.get_mut(&(word / WORDS as u64)) {
                        *flushed = stores.len();
                    }
                }
                Event::Fence => {
                    for (stores, flushed) in self.pending.values_mut() {
                        self.sure.extend(stores.drain(..std::mem::take(flushed)));
                    }
                    self.pending.retain(|_, (stores, _)| !stores.is_empty());
                }
            }
        }
        self.at = cut;
    }

    /// Returns the contents after a power cut here: `chance` decides for each store that isn't durable
    /// whether it is present; with `whole_lines`, once for all stores of a line.
    pub fn choose(&self, whole_lines: bool, mut chance: impl FnMut() -> bool) -> Image {
        let mut image = self.sure.clone();
        for (stores, _) in self.pending.values() {
            let is_there = whole_lines.then(&mut chance);
            // Stores of a word are in order, so its chosen value is one of its values.
            image.extend(stores.iter().copied().filter(|_| is_there.unwrap_or_else(&mut chance)));
        }
        image
    }
}

impl Medium for Recorded {
    fn name(&self) -> &str {
        "recorded"
    }

    fn durable_by(&self) -> &'static str {
        "flush"
    }

    fn length(&self) -> Result<u64> {
        Ok(1 << 40)
    }

    fn words(&self, offset: u64, most: usize) -> Result<PrivateWords> {
        let words = PrivateWords::anonymous(most)?;
        let now = self.now.borrow();
        let first = offset / 8;
        if let Some((last, _)) = now.range(first..).next_back() {
            words.grow(((last - first) as usize + 1) * 2)?;
        }
        for (number, value) in now.range(first..) {
            let at = (number - first) as usize * 2;
            let bytes = value.to_ne_bytes();
            for (word, bytes) in words[at..].iter().zip(bytes.as_chunks::<4>().0) {
                word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
        }
        Ok(words)
    }

    fn read(&self, offset: u64, length: usize) -> Call<'_, Result<Vec<u8>>> {
        let words = offset / 8..(offset + length as u64).div_ceil(8);
        let mut bytes: Vec<u8> = words.flat_map(|number| self.word(number).to_ne_bytes()).collect();
        bytes.truncate(length);
        Call::ready(Ok(bytes))
    }

    fn allocate(&self, _offset: u64, length: u64) -> Call<'_, Result<()>> {
        match self.space.get().checked_sub(length) {
            Some(left) => {
                self.space.set(left);
                Call::ready(Ok(()))
            }
            None => Call::ready(Err(Error::no_space("the medium is full"))),
        }
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> Call<'_, Result<()>> {
        assert!(bytes.len().is_multiple_of(LINE), "{} bytes", bytes.len());
        for (number, line) in bytes.chunks(LINE).enumerate() {
            self.put(offset + (number * LINE) as u64, &super::format::line_of(line), true);
        }
        if self.broken != Broken::WriteWithoutFence {
            self.events.borrow_mut().push(Event::Fence);
        }
        Call::ready(Ok(()))
    }

    fn load(&self, offset: u64, lines: &mut [Line]) {
        for (word, number) in lines.as_flattened_mut().iter_mut().zip(offset / 8..) {
            *word = self.word(number);
        }
    }

    fn store(&self, offset: u64, line: &Line) {
        self.put(offset, line, self.broken != Broken::StoreWithoutFlush);
    }

    fn persist(&self) -> Call<'_, Result<()>> {
        if self.broken != Broken::PersistWithoutFence {
            self.events.borrow_mut().push(Event::Fence);
        }
        Call::ready(Ok(()))
    }
}
