//! Logs, also full ones, that are idle for a day, and steps of the system clock: an idle log writes nothing,
//! keeps acknowledged data, and continues afterwards.

use crate::life::controlled::{ControlledDisk, Controls};
use crate::life::{Volume, disk};
use block::{DevicePart, Error, Part};
use log::core::Acknowledge;
use log::kind::Options;
use runtime::Simulation;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time within which an idle log becomes quiet.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// Nothing happens.
    None,
    /// The system clock is set by this many seconds.
    Step(i64),
    /// Like `Step`; then the log is closed and opened.
    StepAndReopen(i64),
    /// Like `Step`; then the log is opened again without a close.
    StepAndKill(i64),
}

#[derive(Debug, Clone, Copy)]
struct Case {
    shards: usize,
    map: &'static str,
    acknowledge: Acknowledge,
    event: Event,
    is_full: bool,
}

impl Case {
    fn options(&self) -> Options {
        Options {
            map: self.map.to_owned(),
            zone_size: Some(32 << 10),
            checkpoint_after: 64 << 10,
            acknowledge: self.acknowledge,
            // A thin volume that becomes full.
            size: Some(if self.is_full { 64 << 20 } else { 100 * 4096 }),
            disk: self.is_full.then_some(2 << 20),
            ..Options::default()
        }
    }
}

async fn tell(volume: &Volume, message: &str) -> String {
    volume.part.message(message).await.unwrap_or_else(|error| panic!("{message}: {error}"))
}

/// Writes all blocks, from all shards concurrently, or as many as fit; returns their number.
async fn write_all(volume: &Volume, case: Case, version: u64) -> u64 {
    if !case.is_full {
        let each = volume.blocks() / case.shards as u64;
        let writes = (0..case.shards).map(|shard| volume.write_on(shard, shard as u64 * each, each, version));
        runtime::join_all(writes).await.into_iter().for_each(|written| written.unwrap());
        return each * case.shards as u64;
    }
    let mut count = 0;
    loop {
        match volume.try_write(count, 1, version).await {
            Ok(()) => count += 1,
            Err(Error::NoSpace(_)) => return count,
            Err(error) => panic!("{case:?}: {error}"),
        }
    }
}

/// Lets time pass in which the log must not write.
async fn stay_quiet(controls: &Controls, time: Duration, case: Case, what: &str) {
    let before = (controls.begun(), controls.changes());
    runtime::sleep(time).await;
    assert_eq!((controls.begun(), controls.changes()), before, "{case:?}: {what}");
}

async fn run(case: Case) {
    let (disk, controls): (Arc<dyn DevicePart>, _) = ControlledDisk::over(disk(2));
    let options = case.options();
    let mut volume = Volume::make(&disk, &options).await;
    if !case.is_full {
        volume.write(0, volume.blocks() / 8, 1).await;
        tell(&volume, "snapshot create before").await;
    }
    let count = write_all(&volume, case, 2).await;
    assert!(count > 20, "{case:?}: {count} blocks");
    // No flush: acknowledged data becomes durable by itself.
    runtime::sleep(QUIET).await;
    stay_quiet(&controls, if case.event == Event::None { DAY } else { HOUR }, case, "idle").await;
    if let Event::Step(seconds) | Event::StepAndReopen(seconds) | Event::StepAndKill(seconds) = case.event {
        runtime::step_simulated_wall_clock(seconds);
    }
    match case.event {
        Event::StepAndReopen(_) => {
            volume.close().await;
            volume = Volume::open(&disk, &options).await;
        }
        Event::StepAndKill(_) => {
            drop(volume);
            volume = Volume::open(&disk, &options).await;
        }
        _ => {}
    }
    runtime::sleep(QUIET).await;
    stay_quiet(&controls, HOUR, case, "after the event").await;
    assert_eq!(volume.versions(0, count).await, vec![2; count as usize], "{case:?}");
    if !case.is_full {
        tell(&volume, "snapshot create after").await;
        let list = tell(&volume, "snapshot list").await;
        assert!(list.contains("before") && list.contains("after"), "{list}");
        volume.write(0, volume.blocks() / 8, 3).await;
        tell(&volume, "snapshot delete before").await;
        tell(&volume, "snapshot delete after").await;
    }
    // After everything is discarded the log works again, without a trace of earlier data.
    volume.discard(0, volume.blocks()).await;
    volume.flush().await;
    runtime::sleep(QUIET).await;
    stay_quiet(&controls, HOUR, case, "empty").await;
    volume.write(0, count / 2, 4).await;
    volume.flush().await;
    assert_eq!(volume.versions(0, count / 2).await, vec![4; count as usize / 2], "{case:?}");
    assert!(volume.part.status().await.get("failed").is_none());
    volume.close().await;
    stay_quiet(&controls, HOUR, case, "closed").await;
}

fn check(case: Case) {
    println!("{case:?}");
    let world = Simulation::new(11).with_shards(case.shards);
    runtime::simulate(world, move || run(case)).unwrap_or_else(|error| panic!("{case:?}: {error}"));
}

#[test]
fn an_idle_log_writes_nothing_and_goes_on() {
    let is_long = conformance::budget::is_long();
    let events = [
        Event::None,
        Event::Step(-3600),
        Event::Step(3600),
        Event::StepAndReopen(-3600),
        Event::StepAndReopen(3600),
        Event::StepAndKill(-3600),
        Event::StepAndKill(3600),
    ];
    let maps = if is_long { &log::map::NAMES[..] } else { &log::map::NAMES[..1] };
    for map in maps {
        for acknowledge in [Acknowledge::Log, Acknowledge::Buffer] {
            for is_full in [false, true] {
                for (number, event) in (0..).zip(events) {
                    // The longer test runs the other lines.
                    if is_long || number == 0 || number % 2 == usize::from(is_full) {
                        check(Case { shards: 1 + 3 * (number % 2), map, acknowledge, event, is_full });
                    }
                }
            }
        }
    }
}
