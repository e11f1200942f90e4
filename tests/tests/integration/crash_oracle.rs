//! The crash oracle on stacks of one disk, and the proof that it can fail.

use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Part, Result,
};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::linear::{linear, part_of};
use layers::model::ModelPart;
use layers::stats::StatsDevicePart;
use layers::stripe::stripe;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::rc::Rc;
use std::sync::Arc;

type Opened = Result<Arc<dyn DevicePart>>;

/// Runs the oracle over a stack in a simulated world.
fn run(
    oracle: Oracle,
    open: impl AsyncFn(Arc<dyn DevicePart>, Opening) -> Opened + Send + 'static,
) -> Result<Report, Box<Violation>> {
    in_simulation(oracle.seed, move || async move { oracle.run(open).await })
}

fn with_rules(disk: Arc<dyn DevicePart>, rules: &[&str], seed: u64) -> Opened {
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let rules = parse_rules(&rules, stack::Contract::Device)?;
    Ok(Arc::new(FaultDevicePart::new(disk, rules, seed)?))
}

fn holds(name: &str, report: Result<Report, Box<Violation>>) {
    match report {
        Ok(report) => {
            println!("{name}: {report:?}");
            assert!(report.states > 1000, "{name}: only {} states", report.states);
        }
        Err(violation) => panic!("{name}: {violation}"),
    }
}

fn is_caught(name: &str, report: Result<Report, Box<Violation>>, expected: &str) {
    match report {
        Ok(report) => panic!("{name}: the oracle has not noticed it in {report:?}"),
        Err(violation) => {
            println!("{name}: caught: {violation}");
            assert!(
                violation.to_string().contains(expected),
                "{name}: expected \"{expected}\" in: {violation}"
            );
        }
    }
}

#[test]
fn a_disk_straight() {
    let seed = seed("a disk straight", 1);
    holds("a disk straight", run(Oracle::new(seed), async |disk, _| Ok(disk)));
}

#[test]
fn ram() {
    let seed = seed("ram", 15);
    let main = move || async move {
        let oracle = Oracle::new(seed);
        let disk =
            disks::ram::RamPart::new(oracle.disk.bytes(), oracle.disk.block_size).expect("there is memory");
        oracle.run_on(Arc::new(disk), async |disk, _| Ok(disk)).await
    };
    holds("ram", runtime::run(runtime::Config::default(), main).expect("the runtime starts"));
}

#[test]
fn file() {
    let seed = seed("file", 16);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("disk.img");
    let main = move || async move {
        let oracle = Oracle::new(seed);
        let disk = disks::file::FilePart::open_path(&path, Some(oracle.disk.bytes())).await;
        let disk = Arc::new(disk.expect("the file is made"));
        let report = oracle.run_on(disk.clone(), async |disk, _| Ok(disk)).await;
        disk.close().await.expect("the file closes");
        report
    };
    holds("file", runtime::run(runtime::Config::default(), main).expect("the runtime starts"));
}

#[test]
fn a_disk_without_a_volatile_cache() {
    let seed = seed("a disk without a volatile cache", 2);
    let mut oracle = Oracle::new(seed);
    oracle.disk.volatile_cache = false;
    holds("a disk without a volatile cache", run(oracle, async |disk, _| Ok(disk)));
}

#[test]
fn large_atomic_writes() {
    let seed = seed("large atomic writes", 3);
    let mut oracle = Oracle::new(seed);
    oracle.disk.atomic_write = 4096;
    holds("large atomic writes", run(oracle, async |disk, _| Ok(disk)));
}

#[test]
fn stats_and_fault_without_rules_change_nothing() {
    let seed = seed("stats and fault", 4);
    let open = async |disk, _| {
        let fault = with_rules(disk, &[], 0)?;
        Ok(Arc::new(StatsDevicePart::new(fault)) as Arc<dyn DevicePart>)
    };
    holds("stats and fault", run(Oracle::new(seed), open));
}

/// Thirds of one disk, which are cut together.
fn thirds(disk: &Arc<dyn DevicePart>) -> Result<Vec<Arc<dyn DevicePart>>> {
    let blocks = disk.geometry().blocks.0 / 3;
    let third = |at| {
        Ok(Arc::new(part_of(disk.clone(), BlockRange::new(at * blocks, blocks))?) as Arc<dyn DevicePart>)
    };
    (0..3).map(third).collect()
}

#[test]
fn linear_over_three_devices() {
    let seed = seed("linear", 17);
    let open = async |disk, _| Ok(Arc::new(linear(thirds(&disk)?)?) as Arc<dyn DevicePart>);
    holds("linear", run(Oracle::new(seed), open));
}

#[test]
fn stripe_over_three_devices() {
    let seed = seed("stripe", 18);
    let open = async |disk, _| Ok(Arc::new(stripe(thirds(&disk)?, 8192)?) as Arc<dyn DevicePart>);
    holds("stripe", run(Oracle::new(seed), open));
}

/// A device that encrypts another one; discards leave holes, over which writes are torn.
fn encrypted(disk: Arc<dyn DevicePart>, key: u8, sector_size: usize) -> Result<Arc<dyn DevicePart>> {
    let segment = crypt::device::Segment { offset: 0, bytes: None, tweak: 0, sector_size };
    let part = crypt::device::CryptPart::new(disk, crypt::secret::expand(&[key; 64])?, segment, true)?;
    Ok(Arc::new(part))
}

#[test]
fn encryption_in_sectors_of_two_sizes() {
    for (number, sector_size) in [(21, 4096), (22, 512)] {
        let what = format!("encryption in sectors of {sector_size}");
        let seed = seed(&what, number);
        holds(&what, run(Oracle::new(seed), async move |disk, _| encrypted(disk, 1, sector_size)));
    }
}

#[test]
fn encryption_that_forgets_its_key_is_caught() {
    let name = "encryption that forgets its key";
    let open = async |disk, opening| encrypted(disk, u8::from(opening == Opening::Recover), 4096);
    is_caught(name, run(Oracle::new(seed(name, 23)), open), "found");
}

/// A model of a device only takes time; it changes no result.
#[test]
fn models_with_and_without_moving_parts() {
    // A disk that turns so fast that the test ends soon.
    let text = "[drum]\ntitle = \"a drum\"\nmedium = \"disk\"\nrpm = 6000000\ntrack_seek = \"1us\"\nfull_seek = \"9us\"\n\
                bandwidth = \"1GiB\"\ninterface = \"1us\"\nqueue_depth = 8\nwrite_buffer = 8\nvolatile_cache = true";
    let known = layers::model::profile::known().expect("they are right");
    let drum = layers::model::profile::parse(text).expect("it is right");
    for (number, (name, profiles)) in [("optane-900p", known), ("drum", drum)].into_iter().enumerate() {
        let profile = profiles.get(name).expect("it is there").clone();
        let what = format!("model of {name}");
        let seed = seed(&what, 19 + number as u64);
        let open = async move |disk, _| {
            Ok(Arc::new(ModelPart::new(disk, name, profile.clone(), seed)) as Arc<dyn DevicePart>)
        };
        holds(&what, run(Oracle::new(seed), open));
    }
}

/// Breaks the stack's promises while it runs by these rules, and not when it is opened again.
fn wrong(name: &'static str, usual_seed: u64, rules: &'static [&'static str], expected: &str) {
    let seed = seed(name, usual_seed);
    // The same workload without the rules shows that the rules cause the violation.
    holds(name, run(Oracle::new(seed), async |disk, _| with_rules(disk, &[], 0)));
    let open = async move |disk, opening| match opening {
        Opening::Format => with_rules(disk, rules, seed),
        Opening::Recover => Ok(disk),
    };
    is_caught(name, run(Oracle::new(seed), open), expected);
}

#[test]
fn a_flush_that_lies_is_caught() {
    wrong("a flush that lies", 5, &["flush lie"], "found");
}

#[test]
fn fua_that_lies_is_caught() {
    wrong("FUA that lies", 6, &["write lie"], "found");
}

#[test]
fn dropped_writes_are_caught() {
    wrong("dropped writes", 7, &["write drop every=10"], "found");
}

#[test]
fn dropped_zeros_are_caught() {
    wrong("dropped zeros", 8, &["write_zeroes discard drop"], "zeros (submitted in event");
}

#[test]
fn torn_writes_are_caught() {
    wrong("torn writes", 9, &["write torn at=512 every=10"], "found");
}

#[test]
fn misdirected_writes_are_caught() {
    wrong("misdirected writes", 10, &["write misdirect by=1 blocks every=10"], "found");
}

#[test]
fn corrupted_writes_are_caught() {
    wrong("corrupted writes", 11, &["write corrupt bits=1 every=10"], "damaged data");
}

/// Writes the existing contents again, in place, after zeros. Changes nothing, unless the power is cut.
async fn scrub(disk: &dyn DevicePart) -> Result<()> {
    let handle = disk.open().await?;
    for at in (0..handle.geometry().blocks.0).map(BlockIndex) {
        let bytes = handle.geometry().block_size.bytes() as usize;
        let (outcome, found) = handle.read(at, Buffer::new(bytes)).await;
        outcome?;
        if found.filled().iter().any(|byte| *byte != 0) {
            handle.write(at, Buffer::zeroed(bytes).into(), Durability::Durable).await?;
            handle.write(at, found.into(), Durability::Durable).await?;
        }
    }
    Ok(())
}

#[test]
fn a_recovery_that_must_not_be_cut_is_caught() {
    let seed = seed("a recovery that must not be cut", 17);
    let scrubbing = async |disk: Arc<dyn DevicePart>, opening: Opening| {
        if opening == Opening::Recover {
            scrub(&*disk).await?;
        }
        Ok(disk)
    };
    holds("a recovery that isn't cut", run(Oracle::new(seed), scrubbing));
    let oracle = Oracle { again_every: 61, ..Oracle::new(seed) };
    is_caught("a recovery that must not be cut", run(oracle, scrubbing), "in a second recovery");
}

#[test]
fn a_recovery_that_fails_is_caught() {
    let seed = seed("a recovery that fails", 12);
    let open = async move |disk, opening| match opening {
        Opening::Format => Ok(disk),
        Opening::Recover => with_rules(disk, &["range=16KiB..20KiB dead"], seed),
    };
    is_caught("a recovery that fails", run(Oracle::new(seed), open), "can't be used");
}

/// A part whose geometry promises more than the part keeps.
struct Boasting {
    inner: Arc<dyn DevicePart>,
    geometry: DeviceGeometry,
}

struct BoastingHandle {
    inner: Rc<dyn Device>,
    geometry: DeviceGeometry,
}

impl Part for Boasting {
    fn kind(&self) -> &'static str {
        "boasting"
    }
}

impl DevicePart for Boasting {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let handle = BoastingHandle { inner: self.inner.open().await?, geometry: self.geometry.clone() };
            Ok(Rc::new(handle) as Rc<dyn Device>)
        })
    }
}

impl Device for BoastingHandle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: block::BlockIndex, buffer: block::Buffer) -> Call<'_, block::ReadOutcome> {
        self.inner.read(at, buffer)
    }

    fn write(
        &self,
        at: block::BlockIndex,
        payload: block::Payload,
        durability: block::Durability,
    ) -> Call<'_, Result<()>> {
        self.inner.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.inner.flush()
    }

    fn discard(&self, range: block::BlockRange) -> Call<'_, Result<()>> {
        self.inner.discard(range)
    }

    fn write_zeroes(
        &self,
        range: block::BlockRange,
        mode: block::ZeroMode,
        durability: block::Durability,
    ) -> Call<'_, Result<()>> {
        self.inner.write_zeroes(range, mode, durability)
    }
}

fn boasting(disk: Arc<dyn DevicePart>, change: impl Fn(&mut DeviceGeometry)) -> Opened {
    let mut geometry = disk.geometry().clone();
    change(&mut geometry);
    Ok(Arc::new(Boasting { inner: disk, geometry }))
}

#[test]
fn a_volatile_cache_that_is_denied_is_caught() {
    let seed = seed("a denied cache", 13);
    let open = async |disk, _| boasting(disk, |geometry| geometry.volatile_cache = false);
    is_caught("a denied cache", run(Oracle::new(seed), open), "found");
}

#[test]
fn atomic_writes_that_are_not_are_caught() {
    let seed = seed("atomic writes that aren't", 14);
    let open = async |disk, _| boasting(disk, |geometry| geometry.atomic_write = 4096);
    is_caught("atomic writes that aren't", run(Oracle::new(seed), open), ", then ");
}
