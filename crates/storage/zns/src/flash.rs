//! The flash below the zones: the position of a zone's bytes, and the times at which operations on dies and
//! channels end.
//!
//! A [`Schedule`] is a table of the times at which each die, each channel and the link are free again. An
//! operation takes its resources at that time or now, whichever is later, in the order of calls, so its end
//! is computed at once, without a simulation in steps.

use crate::profile::Profile;
use std::collections::VecDeque;

/// Position of a byte in the flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Die, over all channels.
    pub die: u32,
    /// Number of the die within its zone: the number of the block among the zone's blocks.
    pub lane: u32,
    /// Row of blocks of the die.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
}

/// Placement of zones on dies and blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    dies: u32,
    channels: u32,
    /// Dies of a zone.
    pub lanes: u32,
    /// Bytes that a die programs at a time.
    pub unit: u64,
    /// Bytes of a page.
    pub page: u64,
    /// Bytes of a zone.
    pub capacity: u64,
}

impl Layout {
    /// Placement of zones with this capacity.
    pub fn new(profile: &Profile, capacity: u64) -> Layout {
        Layout {
            dies: profile.dies(),
            channels: profile.channels,
            lanes: profile.dies_per_zone(),
            unit: profile.program_unit,
            page: profile.page,
            capacity,
        }
    }

    /// Pages of a block.
    pub fn pages(&self) -> u32 {
        let rows = self.capacity.div_ceil(self.unit * u64::from(self.lanes));
        (rows * (self.unit / self.page)) as u32
    }

    /// First die of a zone and its row of blocks.
    fn group(&self, zone: u32) -> (u32, u32) {
        let groups = self.dies / self.lanes;
        (zone % groups * self.lanes, zone / groups)
    }

    /// Die of a lane of a zone.
    pub fn die(&self, zone: u32, lane: u32) -> u32 {
        self.group(zone).0 + lane
    }

    /// Channel of a die: neighbouring dies lie on different channels.
    pub fn channel(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Position of a byte of a zone.
    pub fn place(&self, zone: u32, offset: u64) -> Place {
        let (first, block) = self.group(zone);
        let unit = offset / self.unit;
        let lane = (unit % u64::from(self.lanes)) as u32;
        let row = unit / u64::from(self.lanes);
        let page = row * (self.unit / self.page) + offset % self.unit / self.page;
        Place { die: first + lane, lane, block, page: page as u32 }
    }

    /// First byte of a page in its zone, which may be beyond the capacity.
    pub fn offset(&self, lane: u32, page: u32) -> u64 {
        let pages = self.unit / self.page;
        let row = u64::from(page) / pages;
        (row * u64::from(self.lanes) + u64::from(lane)) * self.unit + u64::from(page) % pages * self.page
    }
}

/// Busy times of a channel or of the link, in order and disjoint. A transfer takes the first gap that it fits
/// into: one that has to wait for its die doesn't block earlier ones.
#[derive(Debug, Clone, Default)]
struct Calendar(VecDeque<(u64, u64)>);

impl Calendar {
    /// Takes `length` nanoseconds, at `from` or later. Returns the end. Busy times that ended before `now`
    /// are removed.
    fn take(&mut self, now: u64, from: u64, length: u64) -> u64 {
        while self.0.front().is_some_and(|(_, end)| *end <= now) {
            self.0.pop_front();
        }
        if length == 0 {
            return from;
        }
        let mut start = from;
        let mut at = self.0.len();
        for (number, (busy, end)) in self.0.iter().enumerate() {
            if start + length <= *busy {
                at = number;
                break;
            }
            start = start.max(*end);
        }
        let end = start + length;
        match at.checked_sub(1).and_then(|before| self.0.get_mut(before)) {
            Some(before) if before.1 == start => before.1 = end,
            _ => self.0.insert(at, (start, end)),
        }
        end
    }
}

/// Times at which each die becomes free, and the busy times of channels and link, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Schedule {
    now: u64,
    dies: Vec<u64>,
    channels: Vec<Calendar>,
    link: Calendar,
}

/// Time of a transfer at a rate in bytes per second, in nanoseconds; a rate of 0 is unlimited.
fn transfer(bytes: u64, rate: u64) -> u64 {
    if rate == 0 { 0 } else { (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64 }
}

impl Schedule {
    /// Creates a schedule in which all resources are free.
    pub fn new(profile: &Profile) -> Schedule {
        Schedule {
            dies: vec![0; profile.dies() as usize],
            now: 0,
            channels: vec![Calendar::default(); profile.channels as usize],
            link: Calendar::default(),
        }
    }

    /// Passes bytes over the host's link. Returns the end.
    pub fn link(&mut self, profile: &Profile, from: u64, bytes: u64) -> u64 {
        self.link.take(self.now, from, transfer(bytes, profile.link))
    }

    fn channel(&mut self, profile: &Profile, channel: u32, from: u64, bytes: u64) -> u64 {
        self.channels[channel as usize].take(self.now, from, transfer(bytes, profile.channel))
    }

    /// Sets the current time: no later call begins before it.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Removes all operations, for a power cut.
    pub fn cut(&mut self) {
        self.dies.fill(0);
        self.channels.iter_mut().for_each(|channel| channel.0.clear());
        self.link.0.clear();
    }

    /// Programs `bytes` of a unit: over the channel, then on the die. Returns the start of the program on the
    /// die and its end.
    pub fn program(
        &mut self,
        profile: &Profile,
        layout: &Layout,
        die: u32,
        from: u64,
        bytes: u64,
    ) -> (u64, u64) {
        let begin = self.dies[die as usize].max(from);
        let arrived = self.channel(profile, layout.channel(die), begin, bytes);
        let end = arrived + profile.program;
        self.dies[die as usize] = end;
        (arrived, end)
    }

    /// Reads `bytes` of one page: on the die, then over the channel. Returns the end.
    pub fn read(&mut self, profile: &Profile, layout: &Layout, die: u32, from: u64, bytes: u64) -> u64 {
        let begin = self.dies[die as usize].max(from);
        let sensed = begin + if bytes <= 4096 { profile.read_4k } else { profile.read };
        let end = self.channel(profile, layout.channel(die), sensed, bytes);
        self.dies[die as usize] = end;
        end
    }

    /// Erases a block. Returns the start and the end.
    pub fn erase(&mut self, profile: &Profile, die: u32, from: u64) -> (u64, u64) {
        let begin = self.dies[die as usize].max(from);
        let end = begin + profile.erase;
        self.dies[die as usize] = end;
        (begin, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_place_and_back() {
        for name in ["zn540", "confzns", "femu-qlc"] {
            let profile = Profile::named(name).unwrap();
            let capacity = profile.program_unit * 70 + 4096;
            let layout = Layout::new(&profile, capacity);
            let mut seen = std::collections::BTreeSet::new();
            for zone in 0..5 {
                for page in 0..capacity.div_ceil(profile.page) {
                    let place = layout.place(zone, page * profile.page + 17);
                    assert!(seen.insert((place.die, place.block, place.page)), "{name} {zone} {page}");
                    assert_eq!(layout.offset(place.lane, place.page), page * profile.page);
                    assert_eq!(layout.die(zone, place.lane), place.die);
                    assert!(place.page < layout.pages() && place.die < profile.dies());
                }
            }
        }
    }

    #[test]
    fn dies_work_side_by_side_and_each_does_one_thing_at_a_time() {
        let profile = Profile::named("confzns").unwrap();
        let layout = Layout::new(&profile, 1 << 20);
        let mut schedule = Schedule::new(&profile);
        let unit = profile.program_unit;
        // A page takes 25 us over the channel and 450 us on the die.
        assert_eq!(schedule.program(&profile, &layout, 0, 1000, unit), (26_000, 476_000));
        assert_eq!(schedule.program(&profile, &layout, 1, 1000, unit), (26_000, 476_000));
        assert_eq!(schedule.program(&profile, &layout, 0, 1000, unit), (501_000, 951_000));
        // Die 8 shares the channel of die 0, which is busy until 26 us, and again at 476 us.
        assert_eq!(schedule.program(&profile, &layout, 8, 1000, unit), (51_000, 501_000));
        // A read waits for the program; 4 KiB pass the channel in 6.25 us.
        assert_eq!(schedule.read(&profile, &layout, 1, 2000, 4096), 476_000 + 65_000 + 6_250);
        assert_eq!(schedule.erase(&profile, 2, 5), (5, 3_000_005));
    }
}
