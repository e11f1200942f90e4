//! What the log knows of each zone: what it is used for, how much of it is live, what has to be durable before it is
//! reset.

use crate::format::REPLAYED;

use block::ZoneIndex;
use std::cell::{Cell, RefCell};
use zones::cleaning::Candidate;

/// The class of zones that hold checkpoints.
pub const CHECKPOINT_CLASS: u8 = 0xFF;

/// What a zone is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Empty, to be taken.
    Free,
    /// Of the two roots.
    Root,
    /// Being written, or about to be finished.
    Open,
    /// Takes no more records.
    Full,
    /// Being cleaned.
    Cleaning,
    /// Nothing in it is live: reset once that is durable.
    Dead,
    /// Something in it could not be read or finished; it is left as it is.
    Damaged,
}

/// One zone.
#[derive(Debug, Clone, Copy)]
pub struct Zone {
    /// See [`Usage`].
    pub usage: Usage,
    /// Under which class it is written.
    pub class: u8,
    /// How many times it has been reset.
    pub generation: u64,
    /// How many of its data blocks are live.
    pub live: u32,
    /// How many data blocks were written to it.
    pub written: u32,
    /// How many blocks of it were written, headers and summary included; of an open zone, by records that have committed.
    pub end: u32,
    /// Before this block of it, all records have committed; 0 where that isn't known.
    pub committed: u32,
    /// When it was begun, in data blocks that users had written.
    pub opened: u64,
    /// When its last block died.
    pub changed: u64,
    /// The highest sequence in it, of each stream that is replayed.
    pub last: [u64; REPLAYED],
    /// The device below has space for all of it, as far as is known: it was filled or reserved.
    pub backed: bool,
}

impl Zone {
    fn free(generation: u64) -> Self {
        Zone {
            usage: Usage::Free,
            class: 0,
            generation,
            live: 0,
            written: 0,
            end: 0,
            committed: 0,
            opened: 0,
            changed: 0,
            last: [0; REPLAYED],
            backed: false,
        }
    }
}

/// All zones of a log. Belongs to its home shard.
#[derive(Debug)]
pub struct ZoneTable {
    zones: RefCell<Vec<Zone>>,
    /// Free zones, the one that was freed last at the end.
    free: RefCell<std::collections::VecDeque<u32>>,
    /// Number of free zones that are backed.
    free_backed: Cell<u32>,
    /// The device below has no space: only zones that are backed are taken.
    only_backed: Cell<bool>,
    /// Live data blocks in zones that aren't for checkpoints.
    live_data: Cell<u64>,
    /// Zones that became dead and wait to be reset.
    dead: RefCell<Vec<u32>>,
    /// How many of those that were taken for that haven't been yet.
    resetting: Cell<u32>,
    /// Zones for data that were taken and, all but some, are open still.
    open: RefCell<Vec<u32>>,
    /// Zones that were changed since somebody asked, and whether each of all zones is one of them.
    touched: RefCell<(Vec<u32>, Vec<bool>)>,
}

impl ZoneTable {
    /// Of so many zones, about which nothing is known.
    pub fn new(zones: u32) -> Self {
        ZoneTable {
            zones: RefCell::new(vec![Zone { usage: Usage::Damaged, ..Zone::free(0) }; zones as usize]),
            free: RefCell::default(),
            free_backed: Cell::new(0),
            only_backed: Cell::new(false),
            live_data: Cell::new(0),
            dead: RefCell::default(),
            resetting: Cell::new(0),
            open: RefCell::default(),
            touched: RefCell::new((Vec::new(), vec![false; zones as usize])),
        }
    }

    /// One zone, as it is now.
    pub fn get(&self, zone: u32) -> Zone {
        self.zones.borrow()[zone as usize]
    }

    /// Changes one zone.
    pub fn change<T>(&self, zone: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        self.touch(zone);
        change(&mut self.zones.borrow_mut()[zone as usize])
    }

    /// The zone counts as changed.
    pub fn touch(&self, zone: u32) {
        let (list, is_in_it) = &mut *self.touched.borrow_mut();
        if !std::mem::replace(&mut is_in_it[zone as usize], true) {
            list.push(zone);
        }
    }

    /// The zones that were changed since the last time, in order.
    pub fn take_touched(&self) -> Vec<u32> {
        let (list, is_in_it) = &mut *self.touched.borrow_mut();
        let mut taken = std::mem::take(list);
        taken.iter().for_each(|zone| is_in_it[*zone as usize] = false);
        taken.sort_unstable();
        taken
    }

    /// All zones with a number.
    pub fn list(&self) -> Vec<(u32, Zone)> {
        self.zones.borrow().iter().enumerate().map(|(number, zone)| (number as u32, *zone)).collect()
    }

    /// How many zones are used so.
    pub fn count(&self, wanted: impl Fn(&Zone) -> bool) -> u32 {
        self.zones.borrow().iter().filter(|zone| wanted(zone)).count() as u32
    }

    /// The zone is empty, with this generation; nothing is known of its space.
    pub fn set_free(&self, zone: u32, generation: u64) {
        self.change(zone, |entry| *entry = Zone::free(generation));
        self.free.borrow_mut().push_back(zone);
    }

    /// The zone was reset, to this generation. The space below that it had taken stays.
    pub fn set_reset(&self, zone: u32, generation: u64) {
        let backed = self.get(zone).backed;
        self.change(zone, |entry| *entry = Zone { backed, ..Zone::free(generation) });
        self.count_backed(backed, 1);
        self.free.borrow_mut().push_back(zone);
    }

    /// How many zones are free; while the device below has no space, of those that are backed.
    pub fn free(&self) -> u32 {
        match self.only_backed.get() {
            true => self.free_backed.get(),
            false => self.free.borrow().len() as u32,
        }
    }

    /// Has the free zones used in the order of their generations: for a log that was opened.
    pub fn order_free(&self) {
        self.free.borrow_mut().make_contiguous().sort_by_key(|zone| self.get(*zone).generation);
    }

    /// How many zones are free, backed or not.
    pub fn all_free(&self) -> u32 {
        self.free.borrow().len() as u32
    }

    /// How many free zones are backed.
    pub fn free_backed(&self) -> u32 {
        self.free_backed.get()
    }

    /// Whether only zones that are backed are taken.
    pub fn is_only_backed(&self) -> bool {
        self.only_backed.get()
    }

    /// Says whether only zones that are backed are taken.
    pub fn set_only_backed(&self, only: bool) {
        self.only_backed.set(only);
    }

    fn count_backed(&self, backed: bool, change: i32) {
        if backed {
            self.free_backed.set(self.free_backed.get().saturating_add_signed(change));
        }
    }

    /// Takes the free zone that isn't backed and would be used last out of the others, to be
    /// [reserved](block::Zones::reserve); [`end_reserving`](Self::end_reserving) follows.
    pub fn begin_reserving(&self) -> Option<u32> {
        let mut free = self.free.borrow_mut();
        let at = free.iter().rposition(|zone| !self.get(*zone).backed)?;
        free.remove(at)
    }

    /// The zone is backed now and is used last, or it isn't and is used first.
    pub fn end_reserving(&self, zone: u32, backed: bool) {
        self.change(zone, |entry| entry.backed = backed);
        self.count_backed(backed, 1);
        let mut free = self.free.borrow_mut();
        match backed {
            true => free.push_back(zone),
            false => free.push_front(zone),
        }
    }

    /// Takes a free zone, if more than `keep` are, for this class.
    pub fn take(&self, class: u8, keep: u32, clock: u64) -> Option<u32> {
        if self.free() <= keep {
            return None;
        }
        let mut free = self.free.borrow_mut();
        let zone = match self.only_backed.get() {
            true => free.iter().position(|zone| self.get(*zone).backed).and_then(|at| free.remove(at))?,
            // The backed ones stay for the cleaner and for checkpoints, unless there are more of them.
            false if self.free_backed.get() <= keep => {
                let at = free.iter().position(|zone| !self.get(*zone).backed).unwrap_or(0);
                free.remove(at)?
            }
            false => free.pop_front()?,
        };
        drop(free);
        self.count_backed(self.get(zone).backed, -1);
        self.change(zone, |entry| {
            entry.usage = Usage::Open;
            entry.class = class;
            entry.opened = clock;
            entry.changed = clock;
        });
        if class != CHECKPOINT_CLASS {
            let mut open = self.open.borrow_mut();
            open.retain(|other| *other != zone && self.get(*other).usage == Usage::Open);
            open.push(zone);
        }
        Some(zone)
    }

    /// How many zones for data are open, and how much room is left in them, in data blocks: of `blocks` blocks of a zone
    /// `capacity` can be data.
    pub fn open_room(&self, capacity: u32, blocks: u32) -> (u32, u64) {
        let left =
            |zone: Zone| u64::from(blocks.saturating_sub(zone.end)) * u64::from(capacity) / u64::from(blocks);
        let open = self.open.borrow();
        let zones = open.iter().map(|zone| self.get(*zone)).filter(|zone| zone.usage == Usage::Open);
        zones.fold((0, 0), |(zones, room), zone| (zones + 1, room + left(zone)))
    }

    /// A zone that was taken and not written to goes back.
    pub fn put_back(&self, zone: u32) {
        let Zone { generation, backed, .. } = self.get(zone);
        self.change(zone, |entry| *entry = Zone { backed, ..Zone::free(generation) });
        self.count_backed(backed, 1);
        self.free.borrow_mut().push_front(zone);
    }

    /// How many data blocks are live, those of checkpoints not included.
    pub fn live_data(&self) -> u64 {
        self.live_data.get()
    }

    /// Adds up again how much data is live: for who learned after counting which zones are for checkpoints.
    pub fn recount(&self) {
        let zones = self.zones.borrow();
        let of_data = zones.iter().filter(|zone| zone.class != CHECKPOINT_CLASS);
        self.live_data.set(of_data.map(|zone| u64::from(zone.live)).sum());
    }

    /// So many blocks of the zone are now referred to.
    pub fn add_live(&self, zone: u32, blocks: u32) {
        let class = self.change(zone, |entry| {
            entry.live += blocks;
            entry.class
        });
        if class != CHECKPOINT_CLASS {
            self.live_data.set(self.live_data.get() + u64::from(blocks));
        }
    }

    /// So many blocks of the zone are no longer referred to.
    pub fn remove_live(&self, zone: u32, blocks: u32, clock: u64) {
        let (class, is_dead) = self.change(zone, |entry| {
            debug_assert!(entry.live >= blocks, "zone {zone}: {blocks} of {} live blocks die", entry.live);
            entry.live = entry.live.saturating_sub(blocks);
            entry.changed = clock;
            (entry.class, entry.live == 0 && entry.usage == Usage::Full)
        });
        if class != CHECKPOINT_CLASS {
            self.live_data.set(self.live_data.get().saturating_sub(u64::from(blocks)));
        }
        if is_dead {
            self.bury(zone);
        }
    }

    /// A zone takes no more records. Returns whether nothing in it is live.
    pub fn set_full(&self, zone: u32) -> bool {
        let is_dead = self.change(zone, |entry| {
            entry.usage = Usage::Full;
            entry.live == 0
        });
        if is_dead {
            self.bury(zone);
        }
        is_dead
    }

    fn bury(&self, zone: u32) {
        self.change(zone, |entry| entry.usage = Usage::Dead);
        self.dead.borrow_mut().push(zone);
    }

    /// Zones in which nothing is live and that wait to be reset; the caller takes them over.
    pub fn take_dead(&self) -> Vec<u32> {
        let dead = std::mem::take(&mut *self.dead.borrow_mut());
        self.note_resetting(dead.len());
        dead
    }

    /// Of those that were taken, so many haven't been reset yet.
    pub fn note_resetting(&self, zones: usize) {
        self.resetting.set(zones as u32);
    }

    /// Gives back what could not be reset yet.
    pub fn return_dead(&self, zones: impl IntoIterator<Item = u32>) {
        self.dead.borrow_mut().extend(zones);
        self.note_resetting(0);
    }

    /// How many zones wait to be reset.
    pub fn dead(&self) -> u32 {
        self.dead.borrow().len() as u32
    }

    /// Number of dead zones that the running reset has taken and hasn't reset yet.
    pub fn resetting(&self) -> u32 {
        self.resetting.get()
    }

    /// How many zones are as good as free: empty, or dead.
    pub fn free_soon(&self) -> u32 {
        self.free() + self.dead() + self.resetting.get()
    }

    /// Whether this holds for any zone that waits to be reset.
    pub fn any_dead(&self, is_wanted: impl Fn(u32) -> bool) -> bool {
        self.dead.borrow().iter().any(|zone| is_wanted(*zone))
    }

    /// The full zones with users' data of which cleaning would gain anything; `capacity` is how many data blocks fit a
    /// zone that the cleaner fills.
    pub fn candidates(&self, capacity: u32) -> Vec<Candidate> {
        let zones = self.zones.borrow();
        let full = zones.iter().enumerate().filter(|(_, zone)| {
            zone.usage == Usage::Full && zone.class != CHECKPOINT_CLASS && zone.live < capacity
        });
        full.map(|(number, zone)| Candidate {
            zone: ZoneIndex(number as u32),
            live: zone.live.into(),
            // What records cost beside their data is garbage, too, as soon as they can be packed better.
            written: capacity.into(),
            class: zone.class,
            opened: zone.opened,
            changed: zone.changed,
        })
        .collect()
    }
}
