//! Expected state of a whole device by the state machine of the emulated drive, and the drawing of commands.

use super::{Found, stamp_of};
use runtime::Random;
use zns::machine::{Command, Lengths, Resources, State, Zone, ZoneStatus};

/// Shape of a device. Lengths are in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of zones.
    pub zones: u32,
    /// Distance between the starts of two zones.
    pub size: u64,
    /// Writable blocks of a zone.
    pub capacity: u64,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
}

/// One step of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A command to a zone.
    Command {
        /// Number of the zone.
        zone: u32,
        /// The command.
        command: Command,
    },
    /// A failure of the medium.
    Fail {
        /// Number of the zone.
        zone: u32,
        /// State after it.
        to: State,
    },
    /// A report of some of the zones.
    Report {
        /// First zone.
        first: u32,
        /// State of the zones that are listed; `None` lists all.
        state: Option<State>,
        /// Whether only described zones are counted.
        partial: bool,
        /// Largest number of zones that are described.
        most: u32,
    },
}

/// Zones, resources and contents of a device.
#[derive(Debug, Clone)]
pub struct Model {
    /// Shape.
    pub shape: Shape,
    /// States and write pointers.
    pub zones: Vec<Zone>,
    /// Limits, and numbers of open and active zones.
    pub resources: Resources,
    /// Stamps of the written blocks of each zone.
    written: Vec<Vec<u64>>,
}

impl Model {
    /// Empty device.
    pub fn new(shape: Shape) -> Model {
        let Shape { max_open, max_active, .. } = shape;
        Model {
            shape,
            zones: vec![Zone::empty(); shape.zones as usize],
            resources: Resources { max_open, max_active, ..Resources::default() },
            written: vec![Vec::new(); shape.zones as usize],
        }
    }

    /// Carries out a command by the state machine.
    ///
    /// # Errors
    /// The status of a refused command.
    pub fn apply(&mut self, zone: u32, command: Command, number: u64) -> Result<u64, ZoneStatus> {
        let index = zone as usize;
        let lengths = Lengths { size: self.shape.size, capacity: self.shape.capacity };
        let at = self.zones[index].apply(command, lengths, &mut self.resources)?;
        match command {
            Command::Write { length, .. } | Command::Append { length, .. } => {
                self.written[index].extend((0..length).map(|block| stamp_of(number, block)));
            }
            Command::Reset => self.written[index].clear(),
            _ => {}
        }
        Ok(at)
    }

    /// Puts a zone into the state Read Only or Offline.
    pub fn fail(&mut self, zone: u32, to: State) {
        self.zones[zone as usize].fail(to, &mut self.resources);
    }

    /// Takes over states and write pointers of a device whose contents are unchanged.
    pub fn adopt(&mut self, zones: &[Zone]) {
        let Resources { max_open, max_active, .. } = self.resources;
        self.resources = Resources { max_open, max_active, ..Resources::default() };
        for zone in zones {
            self.resources.moved(State::Empty, zone.state);
        }
        self.zones.copy_from_slice(zones);
    }

    /// Blocks that a read of this range must find.
    pub fn contents(&self, zone: u32, at: u64, length: u64) -> Vec<Found> {
        let written = &self.written[zone as usize];
        let block =
            |offset: u64| written.get(offset as usize).copied().map_or(Found::Deallocated, Found::Written);
        (at..at + length).map(block).collect()
    }

    /// Compares the states, and the write pointers in states that have one.
    ///
    /// # Errors
    /// The first zone that differs.
    pub fn compare(&self, found: &[Zone]) -> Result<(), String> {
        (0..).zip(found).try_for_each(|(zone, found)| self.compare_zone(zone, found))
    }

    /// Compares one zone.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn compare_zone(&self, zone: u32, found: &Zone) -> Result<(), String> {
        let expected = &self.zones[zone as usize];
        let has_pointer = !matches!(expected.state, State::Full | State::ReadOnly | State::Offline);
        let same =
            expected.state == found.state && (!has_pointer || expected.write_pointer == found.write_pointer);
        match same {
            true => Ok(()),
            false => Err(format!("zone {zone}: expected {expected:?}, found {found:?}")),
        }
    }
}

/// Kinds of commands that are sent to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Zone appends.
    pub appends: bool,
    /// Offline Zone, and reports of zones in one state.
    pub nvme: bool,
    /// Reads and writes that reach past the end of their zone.
    pub crossing: bool,
    /// States from which a zone may fail to Read Only, and later to Offline; none for a device whose zones
    /// can't be made to fail.
    pub failures: &'static [State],
    /// Longest read and write, in blocks.
    pub longest: u64,
}

impl Draw {
    /// Draws the next step.
    pub fn next(&self, model: &Model, random: &mut Random) -> Step {
        let shape = &model.shape;
        let zone = random.below(shape.zones.into()) as u32;
        let is_failed = |it: &Zone| matches!(it.state, State::ReadOnly | State::Offline);
        let Zone { state, write_pointer } = model.zones[zone as usize];
        let pointer = write_pointer.min(shape.capacity - 1);
        let length = 1 + random.below(self.longest);
        let within = |at: u64, length: u64| if self.crossing { length } else { length.min(shape.size - at) };
        // Otherwise most zones would be full after a while.
        let is_emptied = state == State::Full && random.chance(0.3);
        let command = match random.below(100) {
            _ if is_emptied => Command::Reset,
            0..22 => Command::Write { at: pointer, length: within(pointer, length) },
            22..27 => {
                // The rest of the zone, if a write may be that long.
                Command::Write { at: pointer, length: (shape.capacity - pointer).min(self.longest) }
            }
            27..33 => {
                let at = random.below(shape.size);
                Command::Write { at, length: within(at, length) }
            }
            33..45 if self.appends => {
                let at = if random.chance(0.06) { 1 + random.below(shape.size - 1) } else { 0 };
                Command::Append { at, length }
            }
            33..55 => Command::Open,
            55..64 => Command::Close,
            64..69 => Command::Finish,
            69..79 => Command::Reset,
            79..81 if self.nvme => Command::Offline,
            81..95 => {
                // Below the write pointer, across it, and anywhere.
                let at = match random.below(3) {
                    0 => random.below(pointer + 1),
                    1 => pointer.saturating_sub(random.below(length)),
                    _ => random.below(shape.size),
                };
                Command::Read { at, length: within(at, length) }
            }
            95..96
                if self.failures.contains(&state)
                    && model.zones.iter().filter(|it| is_failed(it)).count() < 2 =>
            {
                return Step::Fail { zone, to: State::ReadOnly };
            }
            96..97 if !self.failures.is_empty() && state == State::ReadOnly => {
                return Step::Fail { zone, to: State::Offline };
            }
            _ => {
                let state = State::ALL[random.below(State::ALL.len() as u64) as usize];
                return Step::Report {
                    first: zone,
                    state: (self.nvme && random.chance(0.7)).then_some(state),
                    partial: !self.nvme || random.chance(0.5),
                    most: 1 + random.below(shape.zones.into()) as u32,
                };
            }
        };
        Step::Command { zone, command }
    }
}
