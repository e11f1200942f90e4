//! The suite for zones, on drives in memory and on files, with power cuts.

use block::{Call, ZonesPart};
use conformance::zones::{Options, run};
use runtime::file::{File, OpenOptions};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use zns::{Settings, Shape, Zns};

fn shape(profile: &str) -> Shape {
    let (zone_size, zone_capacity) = (1 << 20, 768 << 10);
    Shape { profile: profile.into(), zones: 12, zone_size, zone_capacity, seed: Some(5), ..Shape::default() }
}

async fn in_memory(shape: Shape, settings: Settings) -> Result<(), String> {
    let zns = Arc::new(Zns::in_memory(&shape, settings).unwrap());
    let held = zns.clone();
    let make = async || held.clone() as Arc<dyn ZonesPart>;
    let crash = move |_: Arc<dyn ZonesPart>| {
        let zns = zns.clone();
        Call::new(async move {
            zns.power_off().await.unwrap();
            zns.power_on().unwrap();
            zns as Arc<dyn ZonesPart>
        })
    };
    run(make, Options { rounds: 60, crash: Some(Rc::new(crash)), crashes: 12, ..Options::default() }).await
}

async fn on_file(path: PathBuf, shape: Shape, settings: Settings) -> Result<(), String> {
    let open = async || {
        let options = OpenOptions { create: true, ..OpenOptions::read_write() };
        File::open(&path, options).await.unwrap()
    };
    Zns::format(&open().await, &shape).await.unwrap();
    let current: Rc<Mutex<Option<Arc<Zns>>>> = Rc::default();
    let (held, again) = (current.clone(), path.clone());
    let make = async || {
        let zns = Arc::new(Zns::open_file(&open().await, settings).await.unwrap());
        *held.lock().unwrap() = Some(zns.clone());
        zns as Arc<dyn ZonesPart>
    };
    // The surviving state is opened from the file.
    let crash = move |_: Arc<dyn ZonesPart>| {
        let (current, path) = (current.clone(), again.clone());
        Call::new(async move {
            let zns = current.lock().unwrap().clone().unwrap();
            zns.power_off().await.unwrap();
            let file = File::open(&path, OpenOptions::read_write()).await.unwrap();
            let zns = Arc::new(Zns::open_file(&file, settings).await.unwrap());
            *current.lock().unwrap() = Some(zns.clone());
            zns as Arc<dyn ZonesPart>
        })
    };
    run(
        make,
        Options {
            rounds: 60,
            persistent: true,
            crash: Some(Rc::new(crash)),
            crashes: 10,
            ..Options::default()
        },
    )
    .await
}

fn shards(number: usize) -> runtime::Config {
    runtime::Config::default().with_shards(number)
}

fn settings(timed: bool, max_open: u32, max_active: u32) -> Settings {
    Settings { timed, max_open, max_active, max_append: 256 << 10, ..Settings::default() }
}

fn judge_in_memory(number: usize, profile: &'static str, settings: Settings) {
    let judged = runtime::run(shards(number), move || in_memory(shape(profile), settings));
    judged.unwrap().unwrap_or_else(|broken| panic!("{profile} {settings:?}: {broken}"));
}

#[test]
fn protected_drives_in_memory_keep_the_promises() {
    judge_in_memory(1, "zn540", settings(false, 0, 0));
    judge_in_memory(2, "zn540", settings(true, 5, 6));
}

#[test]
fn unprotected_drives_in_memory_keep_the_promises() {
    judge_in_memory(2, "unprotected", settings(true, 6, 5));
    judge_in_memory(2, "unprotected", settings(false, 0, 4));
}

#[test]
fn an_encrypted_drive_keeps_the_promises() {
    let shape = Shape { encrypted: true, zone_capacity: 192 << 10, ..shape("unprotected") };
    runtime::run(shards(2), move || in_memory(shape, settings(false, 0, 0))).unwrap().unwrap();
}

#[test]
fn drives_on_files_keep_the_promises() {
    let folder = tempfile::tempdir().unwrap();
    for (number, profile, encrypted) in [(1, "zn540", false), (2, "unprotected", true)] {
        let path = folder.path().join(profile);
        let shape = Shape { encrypted, zone_capacity: 192 << 10, ..shape(profile) };
        let judged = runtime::run(shards(number), move || on_file(path, shape, settings(false, 5, 6)));
        judged.unwrap().unwrap_or_else(|broken| panic!("{profile}: {broken}"));
    }
}

fn simulation() -> runtime::Simulation {
    runtime::Simulation { shards: 2, most_events: 200_000_000, ..runtime::Simulation::new(3) }
}

/// Under the simulated runtime all times of the profile pass, in virtual time.
#[test]
fn simulated_drives_in_memory_keep_the_promises() {
    for profile in ["unprotected", "confzns", "femu-qlc"] {
        let run = runtime::simulate(simulation(), move || in_memory(shape(profile), settings(true, 5, 6)));
        run.unwrap().value.unwrap_or_else(|broken| panic!("{profile}: {broken}"));
    }
}

#[test]
fn simulated_drives_on_files_keep_the_promises() {
    for profile in ["zn540", "unprotected"] {
        let path = PathBuf::from("/drive.zns");
        let run =
            runtime::simulate(simulation(), move || on_file(path, shape(profile), settings(true, 0, 0)));
        run.unwrap().value.unwrap_or_else(|broken| panic!("{profile} on a file: {broken}"));
    }
}
