//! Known differences: a device's answer is not the state machine's, because the specification leaves the
//! choice, or because the device deviates from it. Sections are those of the NVM Express Zoned Namespace
//! Command Set Specification, revision 1.1.

use super::model::Model;
use super::{Answer, Found};
use zns::machine::{Command, State, Zone, ZoneStatus};

/// Status code of LBA Out of Range, of the generic status code type.
const LBA_OUT_OF_RANGE: u16 = 0x80;

/// Difference between a device and the state machine.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// Name.
    pub name: &'static str,
    /// Section of the specification.
    pub section: &'static str,
    /// Behaviour of the device, and of the state machine.
    pub what: &'static str,
    /// Whether the device must differ at this step.
    pub applies: fn(&Seen<'_>) -> bool,
    /// Checks that the device differs in this way, and returns the model after the command.
    pub explain: fn(&Seen<'_>) -> Result<Model, String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "\"{}\" ({}; section {})", self.name, self.what, self.section)
    }
}

/// A command with its answer, and the states after it.
pub struct Seen<'a> {
    /// Model before the command.
    pub before: &'a Model,
    /// Number of the zone.
    pub zone: u32,
    /// Command.
    pub command: Command,
    /// Number of the command.
    pub number: u64,
    /// Answer of the state machine.
    pub machine: Result<u64, ZoneStatus>,
    /// Answer of the device.
    pub answer: &'a Answer,
    /// States of the device's zones after the command.
    pub states: &'a [Zone],
}

/// Status code type and status code of the Status Field.
pub fn status_field(status: ZoneStatus) -> u16 {
    let command_specific = if status == ZoneStatus::InvalidField { 0 } else { 0x100 };
    command_specific | status as u16
}

impl Seen<'_> {
    /// Checks answer, states and data against a model after the command.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn agrees_with(&self, after: &Model, machine: Result<u64, ZoneStatus>) -> Result<(), String> {
        let same = match (machine, self.answer) {
            (Err(status), Answer::Refused(found)) => found.is_none_or(|found| found == status_field(status)),
            (Ok(offset), Answer::Done { at, blocks }) => match self.command {
                Command::Append { .. } => *at == Some(offset),
                Command::Read { at, length } => {
                    let expected = after.contents(self.zone, at, length);
                    if *blocks != expected {
                        return Err(self.differs(&format!("{expected:?}")));
                    }
                    true
                }
                _ => true,
            },
            _ => false,
        };
        if !same {
            return Err(self.differs(&format!("{machine:X?}")));
        }
        after.compare(self.states).map_err(|why| format!("{}: {why}", self.describe()))
    }

    fn describe(&self) -> String {
        let Model { zones, resources, shape, .. } = self.before;
        let zone = zones[self.zone as usize];
        format!(
            "{:?} to zone {}, which was {zone:?}, with {resources:?} of {shape:?}",
            self.command, self.zone
        )
    }

    fn differs(&self, expected: &str) -> String {
        format!("{}: expected {expected}, found {:X?}", self.describe(), self.answer)
    }

    fn state(&self) -> State {
        self.before.zones[self.zone as usize].state
    }

    /// Whether the command needs an open zone in this state: only the limits can make the state machine
    /// refuse it.
    fn needs_open(&self) -> bool {
        let opens = matches!(self.command, Command::Write { .. } | Command::Append { .. } | Command::Open);
        let only_limits =
            matches!(self.machine, Ok(_) | Err(ZoneStatus::TooManyActive | ZoneStatus::TooManyOpen));
        opens && only_limits && matches!(self.state(), State::Empty | State::Closed)
    }

    fn is_open_limit_reached(&self) -> bool {
        let resources = &self.before.resources;
        resources.max_open != 0 && resources.open >= resources.max_open
    }

    fn is_active_limit_reached(&self) -> bool {
        let resources = &self.before.resources;
        resources.max_active != 0 && resources.active >= resources.max_active
    }

    fn has_implicitly_opened(&self) -> bool {
        self.before.zones.iter().any(|zone| zone.state == State::ImplicitlyOpened)
    }

    /// Checks that the device refused, and that nothing has changed.
    fn refused_as(&self, status: Option<u16>) -> Result<Model, String> {
        match self.answer {
            Answer::Refused(found) if *found == status => {}
            _ => return Err(self.differs(&format!("a refusal with {status:X?}"))),
        }
        self.before.compare(self.states)?;
        Ok(self.before.clone())
    }

    /// Checks that the device closed one implicitly opened zone, and then did the same as the state machine.
    fn closed_another(&self) -> Result<Model, String> {
        let (mut model, mut closed) = (self.before.clone(), None);
        for (zone, (before, after)) in (0..).zip(self.before.zones.iter().zip(self.states)) {
            let gave_way = before.state == State::ImplicitlyOpened && after.state == State::Closed;
            if zone != self.zone && gave_way && closed.replace(zone).is_none() {
                let outcome = model.apply(zone, Command::Close, self.number);
                outcome.map_err(|status| format!("closing zone {zone}: {status}"))?;
            }
        }
        if closed.is_none() {
            return Err(self.differs("an implicitly opened zone to be closed"));
        }
        let machine = model.apply(self.zone, self.command, self.number);
        self.agrees_with(&model, machine)?;
        Ok(model)
    }
}

/// QEMU's namespace checks the range before the zone.
const PAST_THE_END: Difference = Difference {
    name: "past the end of the namespace",
    section: "3.3.5 Read command, 3.3.7 Write command",
    what: "QEMU: LBA Out of Range, a status of every namespace. The state machine knows zones only: Zone Boundary Error, \
           or what it has against the command before",
    applies: |seen| {
        let end = match seen.command {
            Command::Read { at, length } | Command::Write { at, length } | Command::Append { at, length } => {
                at + length
            }
            _ => 0,
        };
        seen.zone + 1 == seen.before.shape.zones && end > seen.before.shape.size
    },
    explain: |seen| seen.refused_as(Some(LBA_OUT_OF_RANGE)),
};

/// Controllers may close implicitly opened zones. QEMU does with `zoned.auto_transition=on`, its default.
const CLOSES_ANOTHER: Difference = Difference {
    name: "closes an implicitly opened zone to open another",
    section: "on managing resources: the controller may transition zones from ZSIO:Implicitly Opened to ZSC:Closed",
    what: "QEMU at the limit of open zones closes the zone that was implicitly opened first, also if the limit of active zones then \
           refuses the command. The emulated drive never closes a zone by itself: Too Many Open Zones",
    applies: |seen| seen.needs_open() && seen.is_open_limit_reached() && seen.has_implicitly_opened(),
    explain: |seen| seen.closed_another(),
};

/// As [`CLOSES_ANOTHER`], but a command that the limit of active zones refuses closes none.
const CLOSES_ANOTHER_IF_IT_HELPS: Difference = Difference {
    name: "closes an implicitly opened zone to open another, unless the limit of active zones refuses that",
    section: CLOSES_ANOTHER.section,
    what: "the ublk door at the limit of open zones, since the kernel expects it of zoned block devices. The drive below it never \
           closes a zone by itself",
    applies: |seen| {
        seen.needs_open()
            && seen.is_open_limit_reached()
            && !(seen.state() == State::Empty && seen.is_active_limit_reached())
            && seen.has_implicitly_opened()
    },
    explain: |seen| seen.closed_another(),
};

/// As [`CLOSES_ANOTHER`], but only while an active zone is free, and for finishes as well.
const CLOSES_ANOTHER_IF_ACTIVE_IS_FREE: Difference = Difference {
    name: "closes an implicitly opened zone to open or finish another, if the limit of active zones allows one more",
    section: CLOSES_ANOTHER.section,
    what: "null_blk at the limit of open zones, as ZBC has it. The emulated drive never closes a zone by itself",
    applies: |seen| {
        (seen.needs_open() || is_finish_of_inactive(seen))
            && seen.is_open_limit_reached()
            && !seen.is_active_limit_reached()
            && seen.has_implicitly_opened()
    },
    explain: |seen| seen.closed_another(),
};

const FINISH_NEEDS_RESOURCES: Difference = Difference {
    name: "finishing an empty or closed zone needs an open zone",
    section: "3.4.3 Zone Management Send command, Finish Zone: from ZSE:Empty and ZSC:Closed to ZSF:Full",
    what: "null_blk refuses at the limits. In the specification a full zone holds no resources, and the state machine takes none",
    applies: |seen| is_finish_of_inactive(seen) && seen.before.resources.check_open(seen.state()).is_err(),
    explain: |seen| seen.refused_as(None),
};

const CLOSE_EMPTIES: Difference = Difference {
    name: "closing an open zone without data makes it empty",
    section: "3.4.3 Zone Management Send command, Close Zone: from ZSIO and ZSEO to ZSC:Closed",
    what: "null_blk follows ZBC, where a zone without data is empty. The state machine: ZSC:Closed",
    applies: |seen| {
        seen.command == Command::Close
            && seen.state().is_open()
            && seen.before.zones[seen.zone as usize].write_pointer == 0
    },
    explain: |seen| {
        let mut model = seen.before.clone();
        // Nothing was written to the zone: this only empties it.
        model.apply(seen.zone, Command::Reset, seen.number).map_err(|status| status.to_string())?;
        seen.agrees_with(&model, Ok(0))?;
        Ok(model)
    },
};

/// The contract of zones is narrower than a namespace: `block::Zones::read`.
const READS_WRITTEN_ONLY: Difference = Difference {
    name: "reads above the write pointer",
    section: "3.3.5 Read command: blocks that aren't written are read as deallocated",
    what: "the drive's handle refuses them by the contract of zones; doors that serve blocks show zeros",
    applies: |seen| match seen.command {
        Command::Read { at, length } => {
            seen.machine.is_ok() && seen.before.contents(seen.zone, at, length).contains(&Found::Deallocated)
        }
        _ => false,
    },
    explain: |seen| seen.refused_as(None),
};

fn is_finish_of_inactive(seen: &Seen<'_>) -> bool {
    seen.command == Command::Finish && matches!(seen.state(), State::Empty | State::Closed)
}

/// QEMU's `nvme-ns` with `zoned.auto_transition=off` on its controller.
pub const QEMU: &[Difference] = &[PAST_THE_END];
/// QEMU's `nvme-ns` with its defaults.
pub const QEMU_AUTO_TRANSITION: &[Difference] = &[PAST_THE_END, CLOSES_ANOTHER];
/// The kernel's `null_blk`, through the block layer.
pub const NULL_BLK: &[Difference] =
    &[CLOSES_ANOTHER_IF_ACTIVE_IS_FREE, FINISH_NEEDS_RESOURCES, CLOSE_EMPTIES];
/// The emulated drive through a ublk door and the block layer.
pub const DOOR: &[Difference] = &[CLOSES_ANOTHER_IF_IT_HELPS];
/// The emulated drive behind its handle of the contract of zones.
pub const DRIVE: &[Difference] = &[READS_WRITTEN_ONLY];
