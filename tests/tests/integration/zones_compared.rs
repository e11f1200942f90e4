//! The emulated drive behind its handle against its own state machine: the handle's additions (openings of
//! empty zones, erases, waiting for programs) change no answer.

use block::{Buffer, Data, EraseGuarantee, Error, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use serde_json::Value;
use siltstone_tests::zoned::differences::DRIVE;
use siltstone_tests::zoned::model::{Draw, Shape};
use siltstone_tests::zoned::{Answer, BLOCK, Comparison, Report, Reported, Subject, found_all, stamp_all};
use std::rc::Rc;
use zns::machine::{Command, State, Zone, ZoneStatus};
use zns::{Settings, Zns};

const SHAPE: Shape = Shape { zones: 10, size: 64, capacity: 48, max_open: 3, max_active: 5 };

/// Answers that must occur.
const ANSWERS: [&str; 28] = [
    "Append 1B8h",
    "Append 1B9h",
    "Append 1BAh",
    "Append 1BBh",
    "Append 1BDh",
    "Append 1BEh",
    "Append done",
    "Close 1BFh",
    "Close done",
    "Fail Offline",
    "Fail ReadOnly",
    "Finish 1BFh",
    "Finish done",
    "Open 1BDh",
    "Open 1BEh",
    "Open 1BFh",
    "Open done",
    "Read 1BBh",
    "Read done",
    "Reset 1BFh",
    "Reset done",
    "Write 1B8h",
    "Write 1B9h",
    "Write 1BAh",
    "Write 1BBh",
    "Write 1BCh",
    "Write 1BDh",
    "Write done",
];

const BEFORE_FAILURES: [State; 5] =
    [State::Empty, State::ImplicitlyOpened, State::ExplicitlyOpened, State::Closed, State::Full];

struct Drive {
    zns: Zns,
    zones: Rc<dyn Zones>,
}

impl Drive {
    async fn new(profile: &str, encrypted: bool) -> Drive {
        let bytes = |blocks: u64| blocks * BLOCK as u64;
        let shape = zns::Shape {
            profile: profile.into(),
            zones: SHAPE.zones,
            zone_size: bytes(SHAPE.size),
            zone_capacity: bytes(SHAPE.capacity),
            encrypted,
            seed: Some(1),
            ..zns::Shape::default()
        };
        let Shape { max_open, max_active, .. } = SHAPE;
        let settings = Settings { max_open, max_active, timed: true, ..Settings::default() };
        let zns = Zns::in_memory(&shape, settings).unwrap();
        let zones = zns.open().await.unwrap();
        Drive { zns, zones }
    }

    async fn read(&self, at: ZoneAddress, zone: u32, length: u64) -> Result<Answer, Error> {
        let (read, buffer) = self.zones.read(at, Buffer::new(length as usize * BLOCK)).await;
        read.map(|()| Answer::Done { at: None, blocks: found_all(zone, buffer.filled()) })
    }
}

/// Status that the text of a refusal names.
fn status(error: &Error) -> Option<u16> {
    let text = error.to_string();
    let (_, after) = text.split_once("NVMe status ")?;
    let code = u16::from_str_radix(after.get(..2)?, 16).ok()?;
    Some(if code == ZoneStatus::InvalidField as u16 { code } else { 0x100 | code })
}

impl Subject for Drive {
    async fn command(&mut self, zone: u32, command: Command, number: u64) -> Result<Answer, String> {
        let (index, zones) = (ZoneIndex(zone), &self.zones);
        let data = |length: u64| {
            let mut bytes = vec![0; length as usize * BLOCK];
            stamp_all(zone, number, &mut bytes);
            Data::copy_of(&bytes)
        };
        let address = |at: u64| ZoneAddress::new(zone, at * BLOCK as u64);
        let answer = match command {
            Command::Write { at, length } => {
                zones.append_at(address(at), data(length).into()).await.map(|()| Answer::done())
            }
            Command::Append { at: 0, length } => {
                let landed = zones.append(index, data(length).into()).await;
                landed.map(|at| Answer::Done { at: Some(at.offset.0 / BLOCK as u64), blocks: Vec::new() })
            }
            // The contract names zones, so no append can name anything but the start of one.
            Command::Append { .. } => return Ok(Answer::Refused(None)),
            Command::Read { at, length } => self.read(address(at), zone, length).await,
            Command::Open => zones.open(index).await.map(|()| Answer::done()),
            Command::Close => zones.close(index).await.map(|()| Answer::done()),
            Command::Finish => zones.finish(index).await.map(|()| Answer::done()),
            Command::Reset => {
                let erase = match number % 3 {
                    0 => EraseGuarantee::Erased,
                    _ => EraseGuarantee::None,
                };
                zones.reset(index, erase).await.map(|_| Answer::done())
            }
            Command::Offline => return Err("the contract has no such call".to_owned()),
        };
        Ok(answer.unwrap_or_else(|error| Answer::Refused(status(&error))))
    }

    async fn fail(&mut self, zone: u32, to: State) -> Result<(), String> {
        self.zns.fail_zone(ZoneIndex(zone), to).await.map_err(|error| error.to_string())
    }

    async fn report(&mut self, first: u32, _: Option<State>, _: bool, most: u32) -> Result<Report, String> {
        let zones = self.zones.report(ZoneIndex(first), most).await.map_err(|error| error.to_string())?;
        let reported = zones.into_iter().map(|it| {
            let state = match it.state {
                ZoneState::Empty => State::Empty,
                ZoneState::ImplicitlyOpen => State::ImplicitlyOpened,
                ZoneState::ExplicitlyOpen => State::ExplicitlyOpened,
                ZoneState::Closed => State::Closed,
                ZoneState::Full => State::Full,
                ZoneState::ReadOnly => State::ReadOnly,
                ZoneState::Offline => State::Offline,
                ZoneState::Interrupted => return Err(format!("zone {} is interrupted", it.zone)),
            };
            let machine = Zone { state, write_pointer: it.write_pointer / BLOCK as u64 };
            Ok(Reported { zone: it.zone.0, machine })
        });
        let zones = reported.collect::<Result<Vec<_>, String>>()?;
        Ok(Report { count: zones.len() as u64, zones })
    }
}

/// Compares one drive. Returns a summary.
async fn compare(seed: u64, profile: &'static str, encrypted: bool) -> Value {
    let draw = Draw { appends: true, nvme: false, crossing: true, failures: &BEFORE_FAILURES, longest: 16 };
    let mut drive = Drive::new(profile, encrypted).await;
    let mut comparison = Comparison::new(seed, SHAPE, draw, DRIVE);
    let compared = comparison.run(&mut drive, 4000).await;
    compared.unwrap_or_else(|why| panic!("seed {seed}, profile {profile}: {why}"));
    comparison.summary()
}

#[test]
fn the_drive_answers_as_its_state_machine_does() {
    let drives =
        [("zn540", false), ("zn540", true), ("unprotected", false), ("confzns", false), ("femu-tlc", true)];
    let summaries: Vec<Value> = (1..)
        .zip(drives)
        .map(|(seed, (profile, encrypted))| {
            let run = move || compare(seed, profile, encrypted);
            let ended = runtime::simulate(runtime::Simulation::new(seed), run);
            ended.expect("the simulation ends").value
        })
        .collect();
    let met = |kind: &str, name: &str| summaries.iter().any(|it| it[kind][name].as_u64() > Some(0));
    for answer in ANSWERS {
        assert!(met("answers", answer), "\"{answer}\" wasn't met: {summaries:?}");
    }
    for difference in DRIVE {
        assert!(met("differences", difference.name), "{difference} wasn't met: {summaries:?}");
    }
}
