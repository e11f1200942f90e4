//! Grid of geometries on zoned drives: numbers of shards, zones and open zones with which a file system
//! works, or is refused with the numbers.

use block::{Data, ZonesPart};
use conformance::budget::is_left_out;
use fs::core::geometry::MIN_OPEN;
use fs::{FileSystem, OpenOptions, Properties, Settings};
use runtime::Simulation;
use std::sync::Arc;
use std::time::Duration;
use zns::{Shape, Zns};

const KIB: u64 = 1 << 10;
/// Bytes of each file and of each write.
const FILE: usize = 24 << 10;
/// Longest permitted time of a step, in simulated time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A geometry.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// Shards of the runtime.
    shards: u32,
    zones: u32,
    zone_size: u64,
    /// Most open zones; 0 means no limit.
    most_open: u32,
    block_size: u64,
}

fn drive(line: Line) -> Arc<dyn ZonesPart> {
    let shape = Shape {
        zones: line.zones,
        zone_size: line.zone_size,
        zone_capacity: line.zone_size,
        seed: Some(5),
        ..Shape::default()
    };
    let limits =
        zns::Settings { max_open: line.most_open, max_active: line.most_open, ..zns::Settings::default() };
    Arc::new(Zns::in_memory(&shape, limits).unwrap())
}

fn contents(number: u64, round: u64) -> Data {
    Data::copy_of(&vec![(number * 7 + round * 31 + 1) as u8; FILE])
}

async fn soon<T>(what: &str, line: Line, done: impl Future<Output = block::Result<T>>) -> T {
    match runtime::timeout(PATIENCE, done).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => panic!("{line:?}: {what}: {error}"),
        Err(_) => panic!("{line:?}: {what}: no end after {PATIENCE:?}"),
    }
}

/// Writes all files concurrently and repeatedly, in directories of all shards: several times the capacity of
/// the zones.
async fn write(files: &FileSystem, line: Line, round: u64, count: u64) {
    let writers = (0..count).map(|number| {
        let files = files.clone();
        runtime::spawn(async move {
            let path = format!("/{}/{number}", number % 8);
            let file = soon("a creation", line, files.create(&path)).await;
            soon("a write", line, file.write_at(0, contents(number, round))).await;
            if number % 5 == 0 {
                soon("a sync of a file", line, file.sync()).await;
            }
        })
    });
    runtime::join_all(writers.collect::<Vec<_>>()).await;
    soon("a sync", line, files.sync()).await;
    soon("a checkpoint", line, files.take_checkpoint()).await;
}

async fn check(files: &FileSystem, line: Line, round: u64, count: u64) {
    for number in 0..count {
        let path = format!("/{}/{number}", number % 8);
        let file = files.open_file(&path, OpenOptions::default()).await.unwrap();
        let found = soon("a read", line, file.read_at(0, FILE + 1)).await.to_data();
        assert!(found[..] == contents(number, round)[..], "{line:?}: {path}");
    }
}

/// Creates, fills, closes and reopens a file system. Returns the error if it was refused.
fn run(line: Line) -> Option<String> {
    let main = move || async move {
        let zones = drive(line);
        let settings = Settings { checkpoint_after: 256 << 10, ..Settings::default() };
        if let Err(error) = fs::core::geometry::check_new(zones.geometry()) {
            return Some(error.to_string());
        }
        let properties = Properties { block_size: line.block_size, ..Properties::default() };
        let files = match FileSystem::format(zones.clone(), properties, &settings).await {
            Ok(files) => files.on_lent_zones(),
            Err(error) => panic!("{line:?}: refused only while it was formatted: {error}"),
        };
        for number in 0..8 {
            soon("a directory", line, files.make_directory(&format!("/{number}"))).await;
        }
        // A third of the space.
        let free = files.statistics().await.unwrap().free;
        let count = (free * fs::format::BLOCK / FILE as u64 / 3).min(64);
        for round in 0..5 {
            write(&files, line, round, count).await;
        }
        check(&files, line, 4, count).await;
        soon("closing", line, files.close()).await;
        let files = soon("opening", line, FileSystem::open(zones.clone(), &settings)).await.on_lent_zones();
        check(&files, line, 4, count).await;
        write(&files, line, 5, count).await;
        soon("closing", line, files.close()).await;
        let handle = zones.open().await.unwrap();
        let report =
            fs::check(&*handle, fs::check::Options { data: true, ..Default::default() }).await.unwrap();
        assert!(report.is_sound(), "{line:?}: {report:?}");
        drop(handle);
        zones.close().await.unwrap();
        None
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(7) }.with_shards(line.shards as usize);
    runtime::simulate(world, main).unwrap_or_else(|error| panic!("{line:?}: {error}")).value
}

fn grid(shards: u32) -> Vec<Line> {
    let mut lines = Vec::new();
    for (zones, zone_size) in [(8, 256 * KIB), (18, 256 * KIB), (24, 4096 * KIB), (400, 128 * KIB)] {
        for most_open in [MIN_OPEN - 1, MIN_OPEN, 14, 0] {
            for block_size in [4096, 65_536] {
                lines.push(Line { shards, zones, zone_size, most_open, block_size });
            }
        }
    }
    lines
}

fn check_grid(shards: u32, is_wanted: impl Fn(&Line) -> bool) {
    for line in grid(shards).into_iter().filter(|line| is_wanted(line)) {
        let fits = line.most_open == 0 || line.most_open >= MIN_OPEN;
        match run(line) {
            None => assert!(fits && line.zones > 8, "{line:?}: not refused"),
            Some(error) if line.zones == 8 => {
                assert!(error.contains("too few for a file system: expected at least"), "{line:?}: {error}");
            }
            Some(error) => {
                let limit = format!(
                    "max_open={0}, max_active={0}; expected 0 (no limit) or at least {1}",
                    line.most_open, MIN_OPEN
                );
                assert!(!fits && error.contains(&limit), "{line:?}: {error}");
            }
        }
    }
}

#[test]
fn a_file_system_works_on_every_drive_or_is_refused_with_the_numbers() {
    // The longer test covers the other geometries. A file system has at most 16 shards, so 32 shards of the
    // runtime are like 16.
    for shards in [1, 4, 7, 32] {
        check_grid(shards, |line| line.block_size == 4096 && line.zone_size <= 256 * KIB);
    }
}

#[test]
fn every_drive() {
    if is_left_out() {
        return;
    }
    for shards in [1, 2, 3, 4, 7, 8, 16, 32] {
        check_grid(shards, |_| true);
    }
}

/// Returns the problems of a stack that is to be formatted; empty if there are none.
fn problems(line: &str) -> String {
    let kinds = [&disks::ram::KIND, &zns::KIND, &zones::on_device::KIND, &fs::KIND];
    let stack = stack::Stack::from_line("line", line, &stack::Registry::new(kinds.to_vec()));
    let checked =
        stack.and_then(|stack| stack.with_base_directory(std::path::Path::new("/srv")).check(true).map(drop));
    checked.err().map_or_else(String::new, |problems| problems.to_string())
}

#[test]
fn a_plan_refuses_what_a_format_would_refuse() {
    for (on, expected) in [
        ("zns-emulator(zones=32, zone_size=4MiB)", ""),
        (
            "zns-emulator(zones=8, zone_size=4MiB)",
            "8 zones of 1024 blocks of 4 KiB are too few for a file system: expected at least",
        ),
        (
            "zns-emulator(zones=32, zone_size=4MiB, max_open=4)",
            "max_open=4, max_active=14; expected 0 (no limit) or at least 5",
        ),
        ("zns-emulator(zones=32, zone_size=4MiB, max_open=5)", ""),
        ("ram(32MiB)", ""),
        ("ram(1MiB)", "too few for a file system: expected at least"),
        ("zones(ram(1MiB), zone_size=128KiB)", "too few for a file system: expected at least"),
        ("ram(64KiB)", "expected"),
    ] {
        let found = problems(&format!("fs({on}, mnt)"));
        let is_right = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
        assert!(is_right, "{on}: {found}");
    }
}
