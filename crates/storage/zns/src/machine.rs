//! The zone state machine of the NVM Express Zoned Namespace Command Set Specification, revision 1.1, without
//! I/O.
//!
//! Lengths and offsets are in any one unit, from the start of the zone. A command is checked completely
//! before it has an effect: a refused command leaves zone and resources unchanged.
//!
//! Order of checks of a write: state of the zone, write pointer, capacity, limits. The specification leaves
//! the choice among several errors to the controller; this is the order of QEMU's `nvme-ns`, with which the
//! tests compare it (`tests/zoned/differences.rs`).

use std::fmt;

/// Zone states (specification, section 2.1.1.2, "Zone State Machine").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// ZSE: reset, and neither opened nor written since.
    Empty,
    /// ZSIO: opened by a write or an append.
    ImplicitlyOpened,
    /// ZSEO: opened by Zone Management Send.
    ExplicitlyOpened,
    /// ZSC: active and not open.
    Closed,
    /// ZSF: accepts no writes until it is reset.
    Full,
    /// ZSRO: accepts no writes; the controller put it into this state.
    ReadOnly,
    /// ZSO: neither read nor written.
    Offline,
}

impl State {
    /// All states.
    pub const ALL: [State; 7] = [
        State::Empty,
        State::ImplicitlyOpened,
        State::ExplicitlyOpened,
        State::Closed,
        State::Full,
        State::ReadOnly,
        State::Offline,
    ];

    /// Whether the zone holds an open resource.
    pub fn is_open(self) -> bool {
        matches!(self, State::ImplicitlyOpened | State::ExplicitlyOpened)
    }

    /// Whether the zone holds an active resource.
    pub fn is_active(self) -> bool {
        self.is_open() || self == State::Closed
    }

    /// Value of the Zone State field of a zone descriptor.
    pub fn number(self) -> u8 {
        match self {
            State::Empty => 0x1,
            State::ImplicitlyOpened => 0x2,
            State::ExplicitlyOpened => 0x3,
            State::Closed => 0x4,
            State::ReadOnly => 0xD,
            State::Full => 0xE,
            State::Offline => 0xF,
        }
    }
}

/// Status of a refused command: status code type 1 (command specific), except for
/// [`InvalidField`](Self::InvalidField), of type 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ZoneStatus {
    /// An append that doesn't name the start of its zone, or a length of 0.
    InvalidField = 0x02,
    /// A write reaches past the capacity of the zone, or a read past its end.
    BoundaryError = 0xB8,
    /// The zone is full.
    Full = 0xB9,
    /// The zone is read-only.
    ReadOnly = 0xBA,
    /// The zone is offline.
    Offline = 0xBB,
    /// A write elsewhere than at the write pointer.
    InvalidWrite = 0xBC,
    /// The limit of active zones is reached.
    TooManyActive = 0xBD,
    /// The limit of open zones is reached.
    TooManyOpen = 0xBE,
    /// The zone's state has no such transition.
    InvalidTransition = 0xBF,
}

impl fmt::Display for ZoneStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            ZoneStatus::InvalidField => "Invalid Field in Command",
            ZoneStatus::BoundaryError => "Zone Boundary Error",
            ZoneStatus::Full => "Zone Is Full",
            ZoneStatus::ReadOnly => "Zone Is Read Only",
            ZoneStatus::Offline => "Zone Is Offline",
            ZoneStatus::InvalidWrite => "Zone Invalid Write",
            ZoneStatus::TooManyActive => "Too Many Active Zones",
            ZoneStatus::TooManyOpen => "Too Many Open Zones",
            ZoneStatus::InvalidTransition => "Invalid Zone State Transition",
        };
        write!(formatter, "{name}, NVMe status {:02X}h", *self as u8)
    }
}

/// Commands to a zone. Offsets count from the start of the zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Write: at an offset, which must be the write pointer.
    Write {
        /// Offset.
        at: u64,
        /// Length, at least 1.
        length: u64,
    },
    /// Zone Append: at the write pointer; the command names the start of the zone, offset 0.
    Append {
        /// Offset; must be 0.
        at: u64,
        /// Length, at least 1.
        length: u64,
    },
    /// Read.
    Read {
        /// Offset.
        at: u64,
        /// Length.
        length: u64,
    },
    /// Zone Management Send, Open Zone.
    Open,
    /// Zone Management Send, Close Zone.
    Close,
    /// Zone Management Send, Finish Zone.
    Finish,
    /// Zone Management Send, Reset Zone.
    Reset,
    /// Zone Management Send, Offline Zone.
    Offline,
}

/// Limits of open and active zones of a namespace, and their current numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Open zones.
    pub open: u32,
    /// Active zones.
    pub active: u32,
}

impl Resources {
    /// Checks that a zone in this state can be opened.
    pub fn check_open(&self, from: State) -> Result<(), ZoneStatus> {
        if !from.is_active() && self.max_active != 0 && self.active >= self.max_active {
            return Err(ZoneStatus::TooManyActive);
        }
        if !from.is_open() && self.max_open != 0 && self.open >= self.max_open {
            return Err(ZoneStatus::TooManyOpen);
        }
        Ok(())
    }

    /// Counts a change of a zone's state.
    pub fn moved(&mut self, from: State, to: State) {
        self.open = self.open + u32::from(to.is_open()) - u32::from(from.is_open());
        self.active = self.active + u32::from(to.is_active()) - u32::from(from.is_active());
    }
}

/// Lengths of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Distance to the start of the next zone: the boundary of reads.
    pub size: u64,
    /// Length that can be written, at most `size`.
    pub capacity: u64,
}

/// State and write pointer of one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// State.
    pub state: State,
    /// Offset of the next write; undefined in the states Full, Read Only and Offline.
    pub write_pointer: u64,
}

impl Zone {
    /// An empty zone.
    pub fn empty() -> Zone {
        Zone { state: State::Empty, write_pointer: 0 }
    }

    /// Checks a write at `at`, or an append if that is `None`, except for the limits of open and active
    /// zones.
    #[inline]
    pub fn check_write(&self, at: Option<u64>, length: u64, capacity: u64) -> Result<(), ZoneStatus> {
        match self.state {
            State::Full => return Err(ZoneStatus::Full),
            State::ReadOnly => return Err(ZoneStatus::ReadOnly),
            State::Offline => return Err(ZoneStatus::Offline),
            _ => {}
        }
        if at.is_some_and(|at| at != self.write_pointer) {
            return Err(ZoneStatus::InvalidWrite);
        }
        match self.write_pointer.checked_add(length) {
            Some(end) if end <= capacity => Ok(()),
            _ => Err(ZoneStatus::BoundaryError),
        }
    }

    /// Executes a command. Returns the offset of a write, append or read, and 0 for other commands. Reads may
    /// extend to the end of the zone: unwritten and unwritable blocks are deallocated.
    ///
    /// # Errors
    /// Status of the refused command, which has changed nothing.
    pub fn apply(
        &mut self,
        command: Command,
        lengths: Lengths,
        resources: &mut Resources,
    ) -> Result<u64, ZoneStatus> {
        let Lengths { size, capacity } = lengths;
        match command {
            Command::Write { at, length } => self.write(Some(at), length, capacity, resources),
            Command::Append { at: 0, length } => self.write(None, length, capacity, resources),
            Command::Append { .. } => Err(ZoneStatus::InvalidField),
            Command::Read { at, length } => {
                if self.state == State::Offline {
                    return Err(ZoneStatus::Offline);
                }
                match at.checked_add(length) {
                    Some(end) if end <= size => Ok(at),
                    _ => Err(ZoneStatus::BoundaryError),
                }
            }
            Command::Open => match self.state {
                State::Empty | State::ImplicitlyOpened | State::Closed => {
                    resources.check_open(self.state)?;
                    self.turn(State::ExplicitlyOpened, resources)
                }
                State::ExplicitlyOpened => Ok(0),
                State::Full | State::ReadOnly | State::Offline => Err(ZoneStatus::InvalidTransition),
            },
            Command::Close => match self.state {
                State::ImplicitlyOpened | State::ExplicitlyOpened => self.turn(State::Closed, resources),
                State::Closed => Ok(0),
                _ => Err(ZoneStatus::InvalidTransition),
            },
            Command::Finish => match self.state {
                State::Empty | State::ImplicitlyOpened | State::ExplicitlyOpened | State::Closed => {
                    self.turn(State::Full, resources)
                }
                State::Full => Ok(0),
                State::ReadOnly | State::Offline => Err(ZoneStatus::InvalidTransition),
            },
            Command::Reset => match self.state {
                State::Empty => Ok(0),
                State::ReadOnly | State::Offline => Err(ZoneStatus::InvalidTransition),
                _ => {
                    self.write_pointer = 0;
                    self.turn(State::Empty, resources)
                }
            },
            Command::Offline => match self.state {
                State::ReadOnly => self.turn(State::Offline, resources),
                State::Offline => Ok(0),
                _ => Err(ZoneStatus::InvalidTransition),
            },
        }
    }

    /// Applies a change by the controller: to Read Only or Offline after a failure of the medium, to Closed
    /// when the power fails.
    pub fn fail(&mut self, to: State, resources: &mut Resources) {
        let _ = self.turn(to, resources);
    }

    fn turn(&mut self, to: State, resources: &mut Resources) -> Result<u64, ZoneStatus> {
        resources.moved(self.state, to);
        self.state = to;
        Ok(0)
    }

    fn write(
        &mut self,
        at: Option<u64>,
        length: u64,
        capacity: u64,
        resources: &mut Resources,
    ) -> Result<u64, ZoneStatus> {
        if length == 0 {
            return Err(ZoneStatus::InvalidField);
        }
        self.check_write(at, length, capacity)?;
        let start = self.write_pointer;
        let to = match self.state {
            _ if start + length == capacity => State::Full,
            State::Empty | State::Closed => State::ImplicitlyOpened,
            same => same,
        };
        if !self.state.is_open() {
            resources.check_open(self.state)?;
        }
        if to != self.state {
            let _ = self.turn(to, resources);
        }
        self.write_pointer += length;
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{
        Closed, Empty, ExplicitlyOpened as Explicit, Full, ImplicitlyOpened as Implicit, Offline, ReadOnly,
    };

    const CAPACITY: u64 = 8;
    const LENGTHS: Lengths = Lengths { size: 10, capacity: CAPACITY };

    fn zone(state: State) -> Zone {
        let write_pointer = if state == Empty { 0 } else { 3 };
        Zone { state, write_pointer }
    }

    fn resources(state: State, max_open: u32, max_active: u32) -> Resources {
        let mut resources = Resources { max_open, max_active, open: 0, active: 0 };
        resources.moved(Empty, state);
        resources
    }

    /// Column per state, in the order of `State::ALL`: the state after the command, or the status.
    type Row = (Command, [Result<State, ZoneStatus>; 7]);

    fn table() -> Vec<Row> {
        use ZoneStatus as S;
        let refused = [Err(S::Full), Err(S::ReadOnly), Err(S::Offline)];
        let transition = Err(S::InvalidTransition);
        let writes = |empty, open: Result<State, S>, explicit, closed| {
            [empty, open, explicit, closed, refused[0], refused[1], refused[2]]
        };
        let reads = |read: Result<(), S>| {
            State::ALL.map(|state| if state == Offline { Err(S::Offline) } else { read.map(|()| state) })
        };
        let (invalid, boundary) = (Err(S::InvalidWrite), Err(S::BoundaryError));
        vec![
            (Command::Write { at: 3, length: 2 }, writes(invalid, Ok(Implicit), Ok(Explicit), Ok(Implicit))),
            (Command::Write { at: 0, length: 2 }, writes(Ok(Implicit), invalid, invalid, invalid)),
            (Command::Write { at: 3, length: 5 }, writes(invalid, Ok(Full), Ok(Full), Ok(Full))),
            (Command::Write { at: 3, length: 6 }, writes(invalid, boundary, boundary, boundary)),
            (Command::Write { at: 3, length: u64::MAX }, writes(invalid, boundary, boundary, boundary)),
            (
                Command::Append { at: 0, length: 2 },
                writes(Ok(Implicit), Ok(Implicit), Ok(Explicit), Ok(Implicit)),
            ),
            (Command::Append { at: 0, length: 5 }, writes(Ok(Implicit), Ok(Full), Ok(Full), Ok(Full))),
            (Command::Append { at: 0, length: 8 }, writes(Ok(Full), boundary, boundary, boundary)),
            (Command::Append { at: 0, length: 9 }, writes(boundary, boundary, boundary, boundary)),
            (Command::Append { at: 1, length: 1 }, [Err(S::InvalidField); 7]),
            (Command::Append { at: 0, length: 0 }, [Err(S::InvalidField); 7]),
            (Command::Write { at: 3, length: 0 }, [Err(S::InvalidField); 7]),
            (Command::Read { at: 0, length: 8 }, reads(Ok(()))),
            // Beyond the capacity, up to the end of the zone.
            (Command::Read { at: 5, length: 5 }, reads(Ok(()))),
            (Command::Read { at: 8, length: 2 }, reads(Ok(()))),
            (Command::Read { at: 5, length: 6 }, reads(Err(S::BoundaryError))),
            (Command::Read { at: u64::MAX, length: 4 }, reads(Err(S::BoundaryError))),
            (
                Command::Open,
                [Ok(Explicit), Ok(Explicit), Ok(Explicit), Ok(Explicit), transition, transition, transition],
            ),
            (
                Command::Close,
                [transition, Ok(Closed), Ok(Closed), Ok(Closed), transition, transition, transition],
            ),
            (Command::Finish, [Ok(Full), Ok(Full), Ok(Full), Ok(Full), Ok(Full), transition, transition]),
            (Command::Reset, [Ok(Empty), Ok(Empty), Ok(Empty), Ok(Empty), Ok(Empty), transition, transition]),
            (
                Command::Offline,
                [transition, transition, transition, transition, transition, Ok(Offline), Ok(Offline)],
            ),
        ]
    }

    #[test]
    fn every_command_in_every_state_follows_the_table() {
        for (command, row) in table() {
            for (state, expected) in State::ALL.into_iter().zip(row) {
                let (mut zone, mut resources) = (zone(state), resources(state, 0, 0));
                let (before, counted) = (zone, resources);
                let outcome = zone.apply(command, LENGTHS, &mut resources);
                assert_eq!(outcome.map(|_| zone.state), expected, "{command:?} in {state:?}");
                match outcome {
                    Err(_) => assert_eq!((zone, resources), (before, counted), "{command:?} in {state:?}"),
                    Ok(offset) => {
                        let (wrote, at) = match command {
                            Command::Write { length, .. } | Command::Append { length, .. } => {
                                (length, before.write_pointer)
                            }
                            Command::Read { at, .. } => (0, at),
                            _ => (0, 0),
                        };
                        assert_eq!(offset, at, "{command:?} in {state:?}");
                        let pointer =
                            if command == Command::Reset { 0 } else { before.write_pointer + wrote };
                        assert_eq!(zone.write_pointer, pointer, "{command:?} in {state:?}");
                        let counts = (u32::from(zone.state.is_open()), u32::from(zone.state.is_active()));
                        assert_eq!((resources.open, resources.active), counts, "{command:?} in {state:?}");
                    }
                }
            }
        }
    }

    /// With both limits reached by other zones, only commands that need a resource are refused.
    #[test]
    fn limits_refuse_what_needs_a_resource() {
        let needing =
            [Command::Append { at: 0, length: 2 }, Command::Append { at: 0, length: 8 }, Command::Open];
        for (max_open, max_active) in [(2, 0), (0, 3), (2, 3), (3, 2)] {
            for state in State::ALL {
                for (command, row) in table() {
                    let mut zone = zone(state);
                    // Other zones use all remaining resources.
                    let mut counts = resources(state, max_open, max_active);
                    counts.open = counts.open.max(max_open);
                    counts.active = counts.active.max(max_active);
                    let before = (zone, counts);
                    let unlimited = row[State::ALL.iter().position(|it| *it == state).expect("listed")];
                    let needs = matches!(command, Command::Write { .. })
                        || needing.contains(&command)
                        || matches!(command, Command::Append { .. });
                    let expected = match unlimited {
                        Ok(_) if needs && state == Empty && max_active != 0 => Err(ZoneStatus::TooManyActive),
                        Ok(_)
                            if needs
                                && !state.is_open()
                                && state.is_active() | (state == Empty)
                                && max_open != 0 =>
                        {
                            Err(ZoneStatus::TooManyOpen)
                        }
                        other => other,
                    };
                    let outcome = zone.apply(command, LENGTHS, &mut counts).map(|_| zone.state);
                    assert_eq!(outcome, expected, "{command:?} in {state:?}, limits {max_open} {max_active}");
                    if outcome.is_err() {
                        assert_eq!((zone, counts), before, "{command:?} in {state:?}");
                    }
                }
            }
        }
    }

    /// Random commands to several zones: the counts are those of the states, and no limit is exceeded.
    #[test]
    fn counts_follow_the_states() {
        let mut random = runtime::Random::new(7);
        for (max_open, max_active) in [(0, 0), (2, 0), (0, 3), (2, 3)] {
            let mut zones = [Zone::empty(); 6];
            let mut counts = Resources { max_open, max_active, ..Resources::default() };
            for _ in 0..20_000 {
                let zone = &mut zones[random.below(6) as usize];
                let length = random.below(4);
                let command = match random.below(8) {
                    0 => Command::Write { at: zone.write_pointer, length },
                    1 | 2 => Command::Append { at: 0, length },
                    3 => Command::Open,
                    4 => Command::Close,
                    5 => Command::Finish,
                    _ => Command::Reset,
                };
                let _ = zone.apply(command, LENGTHS, &mut counts);
                assert!(zone.write_pointer <= CAPACITY);
                let open = zones.iter().filter(|zone| zone.state.is_open()).count() as u32;
                let active = zones.iter().filter(|zone| zone.state.is_active()).count() as u32;
                assert_eq!((counts.open, counts.active), (open, active));
                assert!(max_open == 0 || open <= max_open);
                assert!(max_active == 0 || active <= max_active);
            }
        }
    }

    #[test]
    fn status_codes_and_states_have_the_numbers_of_the_specification() {
        let named = |status: ZoneStatus| status.to_string();
        assert_eq!(named(ZoneStatus::BoundaryError), "Zone Boundary Error, NVMe status B8h");
        assert_eq!(named(ZoneStatus::InvalidTransition), "Invalid Zone State Transition, NVMe status BFh");
        let numbers = State::ALL.map(State::number);
        assert_eq!(numbers, [0x1, 0x2, 0x3, 0x4, 0xE, 0xD, 0xF]);
        assert_eq!(zone(ReadOnly).apply(Command::Offline, LENGTHS, &mut resources(ReadOnly, 1, 1)), Ok(0));
    }
}
