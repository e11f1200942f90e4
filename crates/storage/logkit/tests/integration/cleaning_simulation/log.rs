//! A log without any I/O: zones of blocks, a policy, the pacer, and users that overwrite blocks.
//!
//! It has the knowledge of the log device: the class of a zone, when it was opened (in user blocks), and when
//! its latest block died; no times of blocks. With [`Knowledge::Blocks`] it knows when a user wrote each
//! block, to measure the benefit of that.

use block::ZoneIndex;
use logkit::cleaning::{Arrival, Candidate, Marks, Pacer, Policy};

/// Precision of known ages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// The time at which each zone was opened.
    Zones,
    /// The time at which a user wrote each block.
    Blocks,
}

const DEAD: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Open,
    Full,
    Victim,
}

#[derive(Clone)]
struct Zone {
    state: State,
    class: u8,
    written: u32,
    live: u32,
    opened: u64,
    changed: u64,
}

/// Counts since the last [`Log::begin_measuring`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Blocks that users wrote.
    pub user: u64,
    /// Blocks that were moved.
    pub moved: u64,
    /// Zones that were cleaned.
    pub cleaned: u64,
    /// Blocks that were moved in the worst window of [`WINDOW`] user writes.
    pub worst_window: u64,
    /// User writes that had to wait at the pacer's lowest watermark.
    pub waits: u64,
    /// Least headroom, in blocks.
    pub least_room: u64,
}

impl Counts {
    /// Blocks written per block that a user wrote.
    pub fn amplification(&self) -> f64 {
        1.0 + self.moved as f64 / self.user as f64
    }

    /// Rate of moves in the worst window, relative to the average.
    pub fn burst(&self) -> f64 {
        (self.worst_window as f64 / WINDOW as f64) / (self.amplification() - 1.0)
    }
}

/// Number of user writes over which bursts are measured.
pub const WINDOW: u64 = 64;

pub struct Log {
    policy: Box<dyn Policy>,
    pacer: Pacer,
    marks: Marks,
    knowledge: Knowledge,
    zones: Vec<Zone>,
    zone_blocks: u32,
    /// Logical block at each location: zone * zone_blocks + block of the zone.
    contents: Vec<u32>,
    /// Time at which a user wrote the block at each location, if known.
    times: Vec<u64>,
    /// Location of each logical block.
    places: Vec<u32>,
    empty: Vec<u32>,
    open: Vec<Option<u32>>,
    victim: Option<(u32, u32)>,
    /// Headroom; see [`Pacer`].
    room: u64,
    now: u64,
    /// Moves that are due.
    due: f64,
    moved_in_window: u64,
    pub counts: Counts,
}

impl Log {
    pub fn new(
        policy: Box<dyn Policy>,
        marks: Marks,
        zones: u32,
        zone_blocks: u32,
        logical: u32,
        knowledge: Knowledge,
    ) -> Log {
        let empty = Zone { state: State::Empty, class: 0, written: 0, live: 0, opened: 0, changed: 0 };
        let places = (zones * zone_blocks) as usize;
        Log {
            pacer: Pacer::new(u64::from(zone_blocks)),
            marks,
            open: vec![None; usize::from(policy.classes())],
            policy,
            knowledge,
            zones: vec![empty; zones as usize],
            zone_blocks,
            contents: vec![DEAD; places],
            times: vec![0; places],
            places: vec![DEAD; logical as usize],
            empty: (0..zones).rev().collect(),
            victim: None,
            room: places as u64,
            now: 0,
            due: 0.0,
            moved_in_window: 0,
            counts: Counts::default(),
        }
    }

    pub fn begin_measuring(&mut self) {
        self.counts = Counts { least_room: self.room, ..Counts::default() };
        self.moved_in_window = 0;
    }

    /// Writes this block as a user.
    pub fn write(&mut self, block: u32) {
        self.clean();
        let arrival = self.kill(block);
        let class = self.policy.place(arrival);
        assert!(self.policy.is_users(class), "{}: a user's write in class {class}", self.policy.name());
        self.append(class, block, self.now);
        self.now += 1;
        self.counts.user += 1;
        self.counts.least_room = self.counts.least_room.min(self.room);
        if self.counts.user.is_multiple_of(WINDOW) {
            self.counts.worst_window = self.counts.worst_window.max(self.moved_in_window);
            self.moved_in_window = 0;
        }
    }

    /// Moves the blocks that are due before the next user write.
    fn clean(&mut self) {
        let pace = self.pacer.pace(self.room, &self.marks);
        if pace.must.is_infinite() {
            self.counts.waits += 1;
            while self.room <= self.marks.stop {
                assert!(self.move_one(), "{}: nothing to clean and no free space", self.policy.name());
            }
            self.due = 0.0;
            return;
        }
        // A policy that cleans without a request is asked from time to time.
        let asked = self.room < self.marks.high;
        if asked || self.victim.is_some() || self.now.is_multiple_of(32) {
            self.due += if asked { pace.must } else { pace.may };
            while self.due >= 1.0 {
                self.due -= 1.0;
                if !self.move_one() {
                    self.due = 0.0;
                }
            }
        }
    }

    /// Moves the victim's next live block; false if the policy chooses no victim.
    fn move_one(&mut self) -> bool {
        let Some((zone, at)) = self.victim.or_else(|| self.choose()) else { return false };
        let first = self.passed_dead(zone, at);
        if first < self.zone_blocks {
            let (place, class) = (zone * self.zone_blocks + first, self.zones[zone as usize].class);
            let block = std::mem::replace(&mut self.contents[place as usize], DEAD);
            let time = self.times[place as usize];
            self.zones[zone as usize].live -= 1;
            self.room += 1;
            let arrival = Arrival::Moved { age: self.age(zone, time), class };
            let to = self.policy.place(arrival);
            assert!(!self.policy.is_users(to), "{}: a moved block in class {to}", self.policy.name());
            self.append(to, block, time);
            self.counts.moved += 1;
            self.moved_in_window += 1;
        }
        let next = self.passed_dead(zone, (first + 1).min(self.zone_blocks));
        self.victim = Some((zone, next));
        if next == self.zone_blocks {
            let cleaned = &mut self.zones[zone as usize];
            assert_eq!(cleaned.live, 0, "all that is live was moved");
            cleaned.state = State::Empty;
            self.empty.push(zone);
            self.victim = None;
            self.counts.cleaned += 1;
        }
        true
    }

    /// Position of the victim's next live block at or after `from`; the passed dead blocks become headroom.
    fn passed_dead(&mut self, zone: u32, from: u32) -> u32 {
        let base = zone * self.zone_blocks;
        let mut at = from;
        while at < self.zone_blocks && self.contents[(base + at) as usize] == DEAD {
            at += 1;
        }
        self.room += u64::from(at - from);
        at
    }

    fn choose(&mut self) -> Option<(u32, u32)> {
        let candidate = |number: u32, zone: &Zone| Candidate {
            zone: ZoneIndex(number),
            live: u64::from(zone.live),
            written: u64::from(zone.written),
            class: zone.class,
            opened: zone.opened,
            changed: zone.changed,
        };
        let pressure = self.marks.pressure(u64::from(self.zone_blocks), self.room, self.zones.len() as u32);
        let mut full = (0..).zip(&self.zones).filter(|(_, zone)| zone.state == State::Full);
        let chosen = self.policy.choose(
            &mut full.by_ref().map(|(number, zone)| candidate(number, zone)),
            pressure,
            self.now,
        );
        if chosen.is_none() && pressure.is_urgent() {
            let gains = |zone: &&Zone| zone.state == State::Full && zone.live < zone.written;
            assert!(self.zones.iter().find(gains).is_none(), "{}: no zone when urgent", self.policy.name());
        }
        let number = chosen?.0;
        let zone = &mut self.zones[number as usize];
        assert!(zone.state == State::Full && zone.live < zone.written, "a zone that gains something");
        zone.state = State::Victim;
        let victim = candidate(number, zone);
        self.pacer.begin(&victim);
        self.policy.cleaned(victim, self.now);
        Some((number, 0))
    }

    /// Known age of a block of this zone.
    fn age(&self, zone: u32, time: u64) -> u64 {
        match self.knowledge {
            Knowledge::Zones => self.now - self.zones[zone as usize].opened,
            Knowledge::Blocks => self.now - time,
        }
    }

    fn kill(&mut self, block: u32) -> Arrival {
        let place = self.places[block as usize];
        if place == DEAD {
            return Arrival::New;
        }
        let number = place / self.zone_blocks;
        let age = self.age(number, self.times[place as usize]);
        let zone = &mut self.zones[number as usize];
        zone.live -= 1;
        zone.changed = self.now;
        self.contents[place as usize] = DEAD;
        Arrival::Overwrite { age, class: zone.class }
    }

    fn append(&mut self, class: u8, block: u32, time: u64) {
        let number = match self.open[usize::from(class)] {
            Some(number) => number,
            None => {
                let number = self.empty.pop().expect("an empty zone is left");
                // Requirement on the owner of the zones, so that cleaning always makes progress.
                if self.policy.is_users(class) {
                    assert!(!self.empty.is_empty(), "{}: a user took the last zone", self.policy.name());
                }
                self.zones[number as usize] = Zone {
                    state: State::Open,
                    class,
                    written: 0,
                    live: 0,
                    opened: self.now,
                    changed: self.now,
                };
                self.open[usize::from(class)] = Some(number);
                number
            }
        };
        let zone = &mut self.zones[number as usize];
        let place = number * self.zone_blocks + zone.written;
        zone.written += 1;
        zone.live += 1;
        if zone.written == self.zone_blocks {
            zone.state = State::Full;
            zone.changed = self.now;
            self.open[usize::from(class)] = None;
        }
        self.contents[place as usize] = block;
        if self.knowledge == Knowledge::Blocks {
            self.times[place as usize] = time;
        }
        self.places[block as usize] = place;
        self.room -= 1;
    }
}
