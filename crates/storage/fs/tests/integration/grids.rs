//! Grids of sizes: full file systems, all of which must be usable again after removals, and geometries, which
//! must work or be refused with numbers.

use crate::world::{BASE, Files, Setup, checked, empty, zones};
use block::{Data, Error, Result};
use conformance::budget::is_long;
use fs::{FileSystem, OpenOptions};
use runtime::{Random, Simulation};
use std::time::Duration;

/// Longest permitted time of a removal, or a write after it, in simulated time, while the cleaner runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Method of filling a file system until operations are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// With files, large ones first.
    Writes,
    /// With files, whose blocks are then overwritten.
    Overwrites,
    /// With empty files.
    Names,
    /// With snapshots of a file that is overwritten, and then with files.
    Snapshots,
}

/// Method of freeing space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayOut {
    /// Remove every second file, or all snapshots.
    Unlink,
    /// Truncate every second file within a block, or remove all snapshots.
    Truncate,
}

/// Interruption between filling and removing, and between rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Close,
    PowerCut,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    disk: u64,
    zone: u64,
    shards: u32,
    filled: Filled,
    way_out: WayOut,
    between: Between,
}

const SETUP: Setup = Setup { checkpoint_after: 1 << 20, stripe_above: u64::MAX, ..BASE };

fn data(length: usize, byte: u64) -> Data {
    Data::copy_of(&vec![byte as u8; length])
}

/// Waits for an operation that must end within [`PATIENCE`].
async fn soon<T>(what: &str, cell: Cell, done: impl Future<Output = Result<T>>) -> T {
    match runtime::timeout(PATIENCE, done).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => panic!("{cell:?}: {what}: {error}"),
        Err(_) => panic!("{cell:?}: {what}: no end after {PATIENCE:?}"),
    }
}

/// Whether an operation was refused for lack of space; other errors fail the test.
fn is_refused<T>(cell: Cell, what: &str, done: Result<T>) -> bool {
    match done {
        Ok(_) => false,
        Err(Error::NoSpace(_)) => true,
        Err(error) => panic!("{cell:?}: {what}: {error}"),
    }
}

/// A file system with its files.
struct Filling {
    cell: Cell,
    files: FileSystem,
    /// Numbers of the existing files.
    there: Vec<u64>,
    next: u64,
    snapshots: u64,
}

impl Filling {
    /// Creates files of `length` bytes until one is refused.
    async fn add(&mut self, length: usize) {
        loop {
            let path = format!("/a-name-that-takes-some-bytes-{}", self.next);
            let options = OpenOptions { create_new: true, ..OpenOptions::default() };
            let Ok(file) = self.files.open_file(&path, options).await else { return };
            self.there.push(self.next);
            self.next += 1;
            if length > 0 && is_refused(self.cell, &path, file.write_at(0, data(length, self.next)).await) {
                return;
            }
        }
    }

    async fn fill(&mut self) {
        match self.cell.filled {
            Filled::Names => self.add(0).await,
            Filled::Writes => {
                for length in [200_000, 20_000, 4096, 1, 0] {
                    self.add(length).await;
                }
            }
            Filled::Overwrites => {
                for length in [60_000, 4096] {
                    self.add(length).await;
                }
                let mut random = Random::new(1);
                for _ in 0..500 {
                    let number = self.there[random.below(self.there.len() as u64) as usize];
                    let path = format!("/a-name-that-takes-some-bytes-{number}");
                    let file = self.files.open_file(&path, OpenOptions::default()).await.unwrap();
                    if file.attributes().await.unwrap().size > 0 {
                        soon("an overwrite", self.cell, file.write_at(0, data(1000, number))).await;
                    }
                }
            }
            Filled::Snapshots => {
                loop {
                    let file = self.files.create("/overwritten").await;
                    let Ok(file) = file else { break };
                    if is_refused(self.cell, "a write", file.write_at(0, data(400_000, 7)).await) {
                        break;
                    }
                    let name = self.snapshots.to_string();
                    if is_refused(self.cell, "a snapshot", self.files.create_snapshot(&name).await) {
                        break;
                    }
                    self.snapshots += 1;
                }
                for length in [20_000, 0] {
                    self.add(length).await;
                }
            }
        }
        soon("a sync", self.cell, self.files.sync()).await;
    }

    async fn empty(&mut self) {
        let mut stay = Vec::new();
        for (at, number) in std::mem::take(&mut self.there).into_iter().enumerate() {
            let path = format!("/a-name-that-takes-some-bytes-{number}");
            if at % 2 == 0 || self.cell.way_out == WayOut::Truncate {
                stay.push(number);
            }
            if at % 2 == 0 {
                continue;
            }
            match self.cell.way_out {
                WayOut::Unlink => soon("an unlink", self.cell, self.files.unlink(&path)).await,
                WayOut::Truncate => {
                    let file = self.files.open_file(&path, OpenOptions::default()).await.unwrap();
                    let size = file.attributes().await.unwrap().size;
                    soon("a truncate", self.cell, file.truncate(size / 40)).await;
                }
            }
        }
        self.there = stay;
        for number in 0..std::mem::take(&mut self.snapshots) {
            let name = number.to_string();
            soon("deleting a snapshot", self.cell, self.files.delete_snapshot(&name)).await;
        }
        soon("a sync after removals", self.cell, self.files.sync()).await;
    }

    /// Writes a third of the free space again.
    async fn refill(&mut self) {
        let free = self.files.statistics().await.unwrap().free;
        assert!(free > 0, "{:?}: {free} blocks are free after removals", self.cell);
        let blocks = (free / 3).clamp(1, 15);
        for part in 0..free / 3 / blocks {
            let path = format!("/again-{part}");
            let written = async {
                let file = self.files.create(&path).await?;
                file.write_at(0, data(blocks as usize * 4096, part)).await
            };
            soon("a write after removals", self.cell, written).await;
            soon("an unlink after removals", self.cell, self.files.unlink(&path)).await;
        }
        soon("a sync after writes", self.cell, self.files.sync()).await;
    }
}

fn in_world<T: 'static, F: Future<Output = T> + 'static>(
    cell: Cell,
    files: Files,
    main: impl FnOnce() -> F,
) -> T {
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(cell.shards as usize);
    runtime::simulate(world.with_files(files), main).unwrap().value
}

/// Fills, removes and writes again repeatedly, with an interruption in between.
fn fill_and_empty(cell: Cell) {
    let setup = Setup { disk: cell.disk, zone: cell.zone, shards: cell.shards, ..SETUP };
    let mut disk = in_world(cell, empty(cell.disk), move || async move {
        setup.format().await.unwrap().close().await.unwrap();
        runtime::power_cut()
    });
    let mut state = (Vec::new(), 0, 0);
    for round in 0..3 {
        let steps: &[&[u8]] = if cell.between == Between::Nothing { &[&[0, 1]] } else { &[&[0], &[1]] };
        for steps in steps {
            let (steps, (there, next, snapshots)) = (*steps, state);
            (disk, state) = in_world(cell, disk, move || async move {
                let files = setup.open().await.unwrap_or_else(|error| panic!("{cell:?}: {round}: {error}"));
                let mut filling = Filling { cell, files, there, next, snapshots };
                for step in steps {
                    match step {
                        0 => filling.fill().await,
                        _ => {
                            filling.empty().await;
                            filling.refill().await;
                        }
                    }
                }
                if cell.between != Between::PowerCut {
                    soon("closing", cell, filling.files.close()).await;
                    let report = checked(&zones(None).await.unwrap()).await.unwrap();
                    assert!(report.is_sound(), "{cell:?}: {report:?}");
                }
                (runtime::power_cut(), (filling.there, filling.next, filling.snapshots))
            });
        }
    }
}

/// Returns the cells; the larger grid has more zones, zone sizes, and numbers of shards.
fn cells() -> Vec<Cell> {
    const MIB: u64 = 1 << 20;
    let disks: &[(u64, u64, u32)] = match is_long() {
        // In the second cell, the cleaner once used up its zones for the rests of zones whose removals
        // weren't written.
        false => &[(4 * MIB, 128 << 10, 1), (16 * MIB, 256 << 10, 4)],
        true => &[
            (4 * MIB, 128 << 10, 1),
            (8 * MIB, 128 << 10, 1),
            (8 * MIB, 256 << 10, 2),
            (16 * MIB, 1 << 20, 1),
            (16 * MIB, 256 << 10, 4),
            (64 * MIB, 1 << 20, 4),
            (64 * MIB, 4 << 20, 1),
        ],
    };
    let mut cells = Vec::new();
    for &(disk, zone, shards) in disks {
        for filled in [Filled::Writes, Filled::Overwrites, Filled::Names, Filled::Snapshots] {
            for way_out in [WayOut::Unlink, WayOut::Truncate] {
                for between in [Between::Nothing, Between::Close, Between::PowerCut] {
                    // Empty files can't be truncated.
                    let has_way = (filled, way_out) != (Filled::Names, WayOut::Truncate);
                    let is_small = disk == 4 * MIB || between == Between::Close && way_out == WayOut::Unlink;
                    if has_way && (is_small || is_long()) {
                        cells.push(Cell { disk, zone, shards, filled, way_out, between });
                    }
                }
            }
        }
    }
    cells
}

#[test]
fn removals_lead_out_of_every_full_state() {
    cells().into_iter().for_each(fill_and_empty);
}

/// For shards of the runtime, zones and block sizes: a file system works, also over a power cut, or is
/// refused with the number of zones that it needs.
#[test]
fn a_file_system_works_in_every_geometry_or_is_refused_with_numbers() {
    let shards: &[u32] = if is_long() { &[1, 2, 3, 4, 7, 8, 16, 32] } else { &[1, 3, 8] };
    let few = [(128_u64 << 10, 8_u64), (128 << 10, 18), (128 << 10, 64), (1 << 20, 18)];
    let many = [(128 << 10, 512), (256 << 10, 128), (1 << 20, 48), (4 << 20, 16)];
    let (mut works, mut refused) = (0, 0);
    for &(zone, count) in few.iter().chain(many.iter().filter(|_| is_long())) {
        for &shards in shards {
            for block_size in [4096, 65_536] {
                let disk = (count + 1) * zone;
                let setup = Setup { disk, zone, shards, block_size, ..SETUP };
                let (filled, way_out, between) = (Filled::Writes, WayOut::Unlink, Between::PowerCut);
                let cell = Cell { disk, zone, shards, filled, way_out, between };
                let cut = in_world(cell, empty(disk), move || async move {
                    let files = match setup.format().await {
                        Ok(files) => files,
                        Err(error) => {
                            let detail = error.detail();
                            assert!(detail.contains("expected at least"), "{cell:?}: {error}");
                            return None;
                        }
                    };
                    for number in 0..10 {
                        files.make_directory(&format!("/{number}")).await.unwrap();
                        let file = files.create(&format!("/{number}/f")).await.unwrap();
                        file.write_at(0, data(5000, number)).await.unwrap();
                    }
                    soon("a sync", cell, files.sync()).await;
                    Some(runtime::power_cut())
                });
                let Some(cut) = cut else {
                    refused += 1;
                    continue;
                };
                works += 1;
                in_world(cell, cut, move || async move {
                    let files = setup.open().await.unwrap_or_else(|error| panic!("{cell:?}: {error}"));
                    for number in 0..10 {
                        let path = format!("/{number}/f");
                        let file = files.open_file(&path, OpenOptions::default()).await.unwrap();
                        let found = file.read_at(0, 9000).await.unwrap().to_data();
                        assert!(found[..] == data(5000, number)[..], "{cell:?}");
                    }
                    soon("closing", cell, files.close()).await;
                });
            }
        }
    }
    assert!(works > refused && refused > 0, "{works} work, {refused} are refused");
}
