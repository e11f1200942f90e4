//! File systems in simulated worlds: operations that follow from a seed, compared with a model; closed and opened, and opened after
//! power cuts at any time, where what is found must be what some first part of the operations leaves, and all that was
//! made durable is among them.

use crate::model::{Model, View, apply, draw, is_alike, is_of_medium, view_of};
use block::{Error, Result};
use fs::{FileSystem, Properties, Settings};
use runtime::{Random, Simulation};
use stack::{Registry, Stack};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const DISK: &str = "/disk";

type Files = Vec<(PathBuf, Vec<u8>)>;

/// Zones on the file of the world.
async fn zones(zone_size: Option<u64>) -> Result<Arc<zones::OnDevice>> {
    let registry = Registry::new(vec![&disks::file::KIND]);
    let stack = Stack::from_line("test", &format!("file({DISK}, block_size=4096)"), &registry);
    let stack = stack.map_err(|error| Error::invalid(error.to_string()))?;
    let plan = stack.check(false).map_err(|error| Error::invalid(error.to_string()))?;
    let file = plan.build().await?.top()?;
    let options = zones::on_device::Options { format: zone_size.is_some(), zone_size, ..Default::default() };
    Ok(Arc::new(zones::OnDevice::open(file, options).await?))
}

/// What stays the same over the lives of a file system.
#[derive(Debug, Clone, Copy)]
struct Setup {
    disk: u64,
    zone: u64,
    block_size: u64,
    checkpoint_after: u64,
}

impl Setup {
    fn draw(random: &mut Random) -> Self {
        let of = |random: &mut Random, list: &[u64]| list[random.below(list.len() as u64) as usize];
        Setup {
            disk: of(random, &[8 << 20, 12 << 20]),
            zone: of(random, &[128 << 10, 256 << 10]),
            block_size: of(random, &[4096, 4096, 8192, 65536]),
            checkpoint_after: of(random, &[64 << 10, 256 << 10, 64 << 20]),
        }
    }

    fn settings(&self) -> Settings {
        // Few checksums in memory, so that some are read from the zones.
        Settings { checkpoint_after: self.checkpoint_after, sums_bytes: 1, ..Settings::default() }
    }

    async fn open(&self, format: bool) -> Result<FileSystem> {
        let zones = zones(format.then_some(self.zone)).await?;
        match format {
            true => {
                FileSystem::format(zones, Properties { block_size: self.block_size }, &self.settings()).await
            }
            false => FileSystem::open(zones, &self.settings()).await,
        }
    }
}

/// What is known of a file system after a life: what it may show, the first of which is durable.
struct Left {
    files: Files,
    states: Vec<Model>,
}

/// One life. It ends with a close or a power cut. `None` if that came before the file system was made.
fn live(setup: Setup, seed: u64, left: Option<Left>) -> std::result::Result<Option<Left>, String> {
    let files = left
        .as_ref()
        .map_or_else(|| vec![(DISK.into(), vec![0; setup.disk as usize])], |it| it.files.clone());
    let format = left.is_none();
    let main = move || async move {
        let mut random = Random::new(seed);
        let shift = 18 + random.below(12);
        let cut_after = random.chance(0.6).then(|| Duration::from_nanos(random.below(1 << shift)));
        let mut states: Vec<Model> = left.map_or_else(|| vec![Model::default()], |left| left.states);
        let shared = std::rc::Rc::new(std::cell::RefCell::new(std::mem::take(&mut states)));
        let all = shared.clone();
        let is_made = std::rc::Rc::new(std::cell::Cell::new(!format));
        let made = is_made.clone();
        let life = async move {
            let files = setup.open(format).await.map_err(|error| format!("opening: {error}"))?;
            made.set(true);
            let found = view_of(&files).await.map_err(|error| format!("reading: {error}"))?;
            let model = matching(&shared.borrow(), &found)?;
            *shared.borrow_mut() = vec![model.clone()];
            // What was found may not be durable yet where it was the kernel's.
            let mut model = model;
            for number in 0..random.below(200) {
                if random.chance(0.1) {
                    files.sync().await.map_err(|error| format!("sync: {error}"))?;
                    *shared.borrow_mut() = vec![model.clone()];
                }
                let operation = draw(&mut random, seed.wrapping_add(number));
                if !model.is_atomic(&operation, setup.block_size) {
                    continue;
                }
                let mut next = model.clone();
                let expected = next.apply(&operation);
                if expected.is_ok() {
                    shared.borrow_mut().push(next.clone());
                }
                let done = apply(&files, &operation).await;
                if !is_alike(&expected, &done) {
                    if done.as_ref().is_err_and(|error| matches!(error, Error::NoSpace(_))) {
                        // Nothing has changed.
                        shared.borrow_mut().pop();
                        continue;
                    }
                    return Err(format!("{operation:?}: {done:?}, expected {expected:?}"));
                }
                if expected.is_ok() {
                    model = next;
                }
            }
            let found = view_of(&files).await.map_err(|error| format!("reading: {error}"))?;
            if found != model.view() {
                return Err(format!("shows {}", difference(&found, &model.view())));
            }
            if random.chance(0.5) {
                files.close().await.map_err(|error| format!("closing: {error}"))?;
                *shared.borrow_mut() = vec![model];
            }
            Ok(())
        };
        let ended = match cut_after {
            Some(time) => runtime::timeout(time, life).await.unwrap_or(Ok(())),
            None => life.await,
        };
        let files = runtime::power_cut();
        ended.map(|()| is_made.get().then(|| Left { files, states: all.take() }))
    };
    let world = Simulation { most_events: 30_000_000, trace_lines: 0, ..Simulation::new(seed) };
    let ended = runtime::simulate(world.with_files(files), main).map_err(|error| error.to_string())?;
    ended.value
}

/// The newest of these states that shows this.
fn matching(states: &[Model], found: &View) -> std::result::Result<Model, String> {
    let matching = states.iter().rev().find(|state| state.view() == *found);
    matching.cloned().ok_or_else(|| {
        let first = states.first().map(Model::view).unwrap_or_default();
        let last = states.last().map(Model::view).unwrap_or_default();
        format!(
            "shows what none of {} states does; other than the durable one: {}; than the last one: {}",
            states.len(),
            difference(found, &first),
            difference(found, &last)
        )
    })
}

fn difference(found: &View, expected: &View) -> String {
    let short = |shown: Option<&crate::model::Shown>| match shown {
        Some(crate::model::Shown::File { contents, links }) => {
            format!("{} bytes, {links} links", contents.len())
        }
        other => format!("{other:?}"),
    };
    let paths: std::collections::BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differing = paths.into_iter().filter(|path| found.get(*path) != expected.get(*path));
    differing
        .map(|path| format!("{path}: {} for {}", short(found.get(path)), short(expected.get(path))))
        .collect::<Vec<_>>()
        .join("; ")
}

fn lives(seed: u64) {
    let mut random = Random::new(seed);
    let setup = Setup::draw(&mut random);
    let mut left = None;
    for life in 0..1 + random.below(6) {
        let next = live(setup, random.next_u64(), left);
        left = next.unwrap_or_else(|error| panic!("SILTSTONE_SEED={seed}: {setup:?}, life {life}: {error}"));
    }
    let _ = is_of_medium;
}

#[test]
fn what_was_made_durable_survives_and_the_rest_is_cut_off_at_one_point() {
    let number =
        |name: &str, usual: u64| std::env::var(name).ok().map_or(usual, |text| text.parse().unwrap());
    let (first, count) = (number("SILTSTONE_SEED", 1), number("SILTSTONE_SEEDS", 40));
    println!("SILTSTONE_SEED={first}");
    (first..first + count).for_each(lives);
}
