//! The disk below a log stops answering, at each of its operations. The log has no time limit of its own:
//! requests that need the disk wait until it answers; `mirror`, `cache` or the NBD client below set a limit.
//! Everything else continues: reads of unmapped or buffered blocks, status, lists, other logs. Closing also
//! waits. Requests and a close can be cancelled. Once the disk answers, everything continues where it
//! stopped.

use crate::life::controlled::{ControlledDisk, Controls};
use crate::life::{Volume, copy_of, disk, raw};
use block::{BlockIndex, BlockRange, Buffer, DevicePart, Part};
use log::core::Acknowledge;
use log::kind::Options;
use runtime::{ShardIndex, Simulation};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longest time of a request that doesn't need the disk.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Time for which the disk is silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Blocks that the load writes; the next one is never written.
const BLOCKS: u64 = 200;

/// Event after the silence.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// The disk answers.
    Answers,
    /// All requests are cancelled, then the disk answers.
    RequestsGivenUp,
    /// The close is cancelled; the log is opened from the contents of the disk.
    CloseGivenUp,
    /// The close waits, and the disk answers.
    CloseWaits,
}

const ENDS: [End; 4] = [End::Answers, End::RequestsGivenUp, End::CloseGivenUp, End::CloseWaits];

#[derive(Debug, Clone, Copy)]
struct Case {
    acknowledge: Acknowledge,
    /// Number of the disk's operations that are answered.
    operations: u64,
    end: End,
}

impl Case {
    fn options(&self) -> Options {
        Options {
            size: Some(240 * 4096),
            zone_size: Some(64 << 10),
            checkpoint_after: 128 << 10,
            acknowledge: self.acknowledge,
            dirty: 256 << 10,
            ..Options::default()
        }
    }
}

/// Versions of each block in the order of their requests, and the numbers of acknowledged and of durable
/// ones.
#[derive(Debug)]
struct Model {
    asked: Vec<Vec<u64>>,
    acknowledged: Vec<usize>,
    durable: Vec<usize>,
}

impl Model {
    fn new() -> Rc<RefCell<Self>> {
        let first = || vec![0; BLOCKS as usize];
        let asked = vec![vec![0]; BLOCKS as usize];
        Rc::new(RefCell::new(Model { asked, acknowledged: first(), durable: first() }))
    }

    fn ask(&mut self, at: u64, version: u64) {
        self.asked[at as usize..at as usize + 8].iter_mut().for_each(|versions| versions.push(version));
    }

    fn acknowledge(&mut self, at: u64) {
        for block in at as usize..at as usize + 8 {
            self.acknowledged[block] = self.asked[block].len() - 1;
        }
    }

    /// Whether a block may have this version; `is_lost` is whether non-durable versions may be lost.
    fn permits(&self, block: usize, found: u64, is_lost: bool) -> bool {
        let first = if is_lost { self.durable[block] } else { self.acknowledged[block] };
        self.asked[block][first..].contains(&found)
    }
}

/// Overwrites, discards, flushes and snapshots, so that the log uses every operation of the disk.
async fn load(volume: Rc<Volume>, model: Rc<RefCell<Model>>) {
    for round in 1..7u64 {
        for number in 0..BLOCKS / 8 {
            let (at, version) = (number * 7 % (BLOCKS / 8) * 8, round * 1000 + number);
            model.borrow_mut().ask(at, version);
            volume.write(at, 8, version).await;
            model.borrow_mut().acknowledge(at);
            if number % 10 == 9 {
                let acknowledged = model.borrow().acknowledged.clone();
                volume.flush().await;
                model.borrow_mut().durable = acknowledged;
            }
        }
        model.borrow_mut().ask(round * 8, 0);
        volume.discard(round * 8, 8).await;
        model.borrow_mut().acknowledge(round * 8);
        if round == 2 {
            volume.part.message("snapshot create s").await.unwrap();
        }
        if round == 3 {
            volume.part.message("snapshot delete s").await.unwrap();
        }
        volume.bytes(0, 64).await.unwrap();
    }
}

/// Checks requests that need no disk.
async fn check_others(volume: &Rc<Volume>, other: &Volume, case: Case) {
    let limited = |what: &'static str, time: Duration| {
        assert!(time <= AT_ONCE, "{case:?}: {what} took {time:?}");
    };
    let begin = runtime::now();
    let unmapped = runtime::timeout(SILENCE, volume.versions(BLOCKS, 8)).await;
    assert_eq!(unmapped.ok(), Some(vec![0; 8]), "{case:?}");
    limited("a read of unmapped blocks", begin.elapsed());
    let begin = runtime::now();
    assert!(runtime::timeout(SILENCE, volume.part.status()).await.is_ok(), "{case:?}: status");
    assert!(runtime::timeout(SILENCE, volume.part.message("snapshot list")).await.is_ok(), "{case:?}: list");
    let extents = volume.device.extents(BlockRange::new(0, volume.blocks()));
    assert!(runtime::timeout(SILENCE, extents).await.is_ok(), "{case:?}: extents");
    limited("status", begin.elapsed());
    // On another shard.
    let part = volume.part.clone();
    let elsewhere = runtime::spawn_on(ShardIndex(1), move || async move {
        let begin = runtime::now();
        let device = runtime::timeout(SILENCE, part.open()).await.unwrap().unwrap();
        let read = device.read(BlockIndex(BLOCKS), Buffer::new(4096));
        assert!(runtime::timeout(SILENCE, read).await.is_ok(), "another shard");
        begin.elapsed()
    });
    limited("a read on another shard", elsewhere.await.unwrap());
    // On another log of the same shards.
    let begin = runtime::now();
    other.write(0, 8, 7).await;
    other.flush().await;
    assert_eq!(other.versions(0, 8).await, [7; 8]);
    assert!(begin.elapsed() < Duration::from_millis(50), "{case:?}: another log");
}

async fn check_contents(volume: &Volume, model: &RefCell<Model>, is_lost: bool, case: Case) {
    let found = volume.versions(0, BLOCKS).await;
    let model = model.borrow();
    for (block, found) in found.into_iter().enumerate() {
        let versions = &model.asked[block];
        assert!(model.permits(block, found, is_lost), "{case:?}: block {block}: {found} of {versions:?}");
    }
}

async fn run(case: Case) -> u64 {
    let inner = disk(4);
    let (silent, controls): (Arc<dyn DevicePart>, Arc<Controls>) = ControlledDisk::over(inner.clone());
    let options = case.options();
    let volume = Rc::new(Volume::make(&silent, &options).await);
    let other = Volume::make(&disk(4), &options).await;
    let model = Model::new();
    let begun = controls.begun();
    controls.silence_after(case.operations);
    let task = runtime::spawn(load(volume.clone(), model.clone()));
    while !controls.is_silent() && !task.is_finished() {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    if !controls.is_silent() {
        task.await;
        // Operations of the load; the close has further ones.
        return controls.begun() - begun;
    }
    // Time for all requests to reach the silent disk.
    runtime::sleep(Duration::from_millis(100)).await;
    check_others(&volume, &other, case).await;
    runtime::sleep(SILENCE).await;
    check_others(&volume, &other, case).await;
    match case.end {
        End::Answers => {
            controls.answer();
            runtime::timeout(SILENCE, task).await.unwrap_or_else(|_| panic!("{case:?}: the load waits"));
        }
        End::RequestsGivenUp => {
            task.abort();
            runtime::sleep(Duration::from_millis(100)).await;
            controls.answer();
        }
        End::CloseGivenUp | End::CloseWaits => task.abort(),
    }
    let part = volume.part.clone();
    match case.end {
        End::Answers | End::RequestsGivenUp => {
            // The log continues as before.
            volume.write(BLOCKS, 8, 9).await;
            volume.flush().await;
            assert_eq!(volume.versions(BLOCKS, 8).await, [9; 8], "{case:?}");
            assert!(part.status().await.get("failed").is_none(), "{case:?}");
            drop(volume);
            part.close().await.unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
        End::CloseWaits => {
            drop(volume);
            let close = runtime::spawn({
                let part = part.clone();
                async move { part.close().await }
            });
            runtime::sleep(SILENCE).await;
            controls.answer();
            let closed = runtime::timeout(SILENCE, close).await;
            closed.unwrap_or_else(|_| panic!("{case:?}: the close waits")).unwrap();
        }
        End::CloseGivenUp => {
            drop(volume);
            let closed = runtime::timeout(Duration::from_secs(5), part.close()).await;
            assert!(closed.is_err(), "{case:?}: it was closed");
            let left = copy_of(&raw(&inner).await).await;
            let volume = Volume::open(&left, &options).await;
            check_contents(&volume, &model, true, case).await;
            volume.close().await;
            other.close().await;
            // The process ends while the old log still waits.
            return 0;
        }
    }
    let volume = Volume::open(&silent, &options).await;
    check_contents(&volume, &model, false, case).await;
    volume.close().await;
    other.close().await;
    0
}

fn check(case: Case) -> u64 {
    let world = Simulation::new(case.operations).with_shards(2);
    runtime::simulate(world, move || run(case)).unwrap_or_else(|error| panic!("{case:?}: {error}")).value
}

#[test]
fn what_does_not_need_a_silent_disk_goes_on_and_the_rest_once_it_answers() {
    for acknowledge in [Acknowledge::Log, Acknowledge::Buffer] {
        let all = check(Case { acknowledge, operations: u64::MAX, end: End::Answers });
        // The longer test runs all operations.
        let step = if conformance::budget::is_long() { 1 } else { all / 10 };
        println!("{acknowledge:?}: {all} operations, one of {step}");
        assert!(all > 200, "{all} operations");
        for operations in (0..all).step_by(step as usize) {
            for end in ENDS {
                check(Case { acknowledge, operations, end });
            }
        }
    }
}
