//! Bursts larger than the write cache, in simulated time: writes per second once the cache is full.

use block::{BlockIndex, BlockSize, Buffer, Device, DevicePart, Durability, Payload};
use layers::model::{ModelPart, Profile, profile};
use runtime::{Random, Simulation, now};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, WriteCachePart};

const MIB: u64 = 1 << 20;

/// A built-in profile with replacements in its text.
fn changed(name: &str, changes: &[(&str, &str)]) -> Profile {
    let mut text = profile::known().unwrap().remove(name).unwrap().to_toml(name);
    for (from, to) in changes {
        assert!(text.contains(from), "{from} in {text}");
        text = text.replace(from, to);
    }
    profile::parse(&text).unwrap().remove(name).unwrap()
}

fn model(on: Arc<dyn DevicePart>, profile: Profile) -> Arc<dyn DevicePart> {
    Arc::new(ModelPart::new(on, "model", profile, 7))
}

/// Result of a burst.
struct Burst {
    /// Time of the acknowledgement and latency of each write.
    writes: Vec<(Duration, Duration)>,
    time: Duration,
}

impl Burst {
    /// Number of writes in each whole second, beginning with second `from`.
    fn seconds(&self, from: u64) -> Vec<u64> {
        let mut seconds = vec![0; (self.time.as_secs() - from) as usize];
        for (at, _) in &self.writes {
            let second = at.as_secs().checked_sub(from).and_then(|second| seconds.get_mut(second as usize));
            second.into_iter().for_each(|count| *count += 1);
        }
        seconds
    }

    fn mean(&self, from: u64) -> f64 {
        let seconds = self.seconds(from);
        seconds.iter().sum::<u64>() as f64 / seconds.len() as f64
    }

    fn slowest(&self, from: u64) -> Duration {
        self.writes.iter().filter(|(at, _)| at.as_secs() >= from).map(|(_, took)| *took).max().unwrap()
    }
}

/// Writes 4 KiB at random offsets at depth 32 for `time`.
async fn write_at_random(device: Rc<dyn Device>, time: Duration) -> Burst {
    let begin = now();
    let writes = Rc::new(RefCell::new(Vec::new()));
    let blocks = device.geometry().blocks.0;
    let tasks = (0..32).map(|task| {
        let (device, writes) = (device.clone(), writes.clone());
        runtime::spawn(async move {
            let mut random = Random::new(task + 1);
            while begin.elapsed() < time {
                let from = now();
                let payload = Payload::from(Buffer::zeroed(4096));
                device.write(BlockIndex(random.below(blocks)), payload, Durability::Visible).await.unwrap();
                writes.borrow_mut().push((now() - begin, from.elapsed()));
            }
        })
    });
    runtime::join_all(tasks.collect::<Vec<_>>()).await;
    Burst { writes: writes.take(), time }
}

/// Result of a burst to this origin, with a cache of `cache` bytes on an Optane drive or, with `None`,
/// without a cache.
fn burst(origin: &Profile, cache: Option<u64>, seconds: u64) -> Burst {
    let (origin, time) = (origin.clone(), Duration::from_secs(seconds));
    let simulated = runtime::simulate(Simulation::new(1), move || async move {
        let null = disks::null::NullPart::new(64 << 30, BlockSize::default());
        let origin = model(Arc::new(null), origin);
        let Some(cache) = cache else {
            return write_at_random(origin.open().await.unwrap(), time).await;
        };
        let ram = disks::ram::RamPart::new(cache, BlockSize::default()).unwrap();
        let fast = model(Arc::new(ram), changed("optane-900p", &[]));
        let options = Options { format: true, ..Options::default() };
        let part = WriteCachePart::open(origin, fast, options).await.unwrap();
        write_at_random(part.open().await.unwrap(), time).await
    });
    simulated.unwrap().value
}

/// Checks that once the cache is full, the writes of each second reach at least the shares `least` of the
/// mean of the origin alone and of the mean with the cache, and that no write takes longer than `slowest`.
fn goes_on(what: &str, origin: Profile, cache: u64, seconds: u64, least: [f64; 2], slowest: Duration) {
    let alone = burst(&origin, None, seconds.min(20)).mean(1);
    let burst = burst(&origin, Some(cache), seconds);
    // The cache is full with seven tenths of its blocks in use: the others are reserved space and headers.
    let full = burst.writes[(cache / 4096 * 7 / 10) as usize].0;
    assert!(full < Duration::from_secs(2), "{what}: the cache takes writes at its own speed, {full:?}");
    let from = full.as_secs() + 1;
    let (each, mean, longest) = (burst.seconds(from), burst.mean(from), burst.slowest(from));
    let worst = *each.iter().min().unwrap() as f64;
    println!("{what}: alone {alone:.0}; mean {mean:.0}, worst {worst:.0}, slowest {longest:?}: {each:?}");
    // Within the randomness of the models.
    assert!(mean >= 0.99 * alone, "{what}: {mean:.0} a second in the mean, alone {alone:.0}");
    assert!(worst >= least[0] * alone, "{what}: {worst:.0} in one second, alone {alone:.0}");
    assert!(worst >= least[1] * mean, "{what}: {worst:.0} in one second, {mean:.0} in the mean");
    assert!(longest <= slowest, "{what}: one write took {longest:?}, expected at most {slowest:?}");
}

#[test]
fn before_a_disk_that_has_a_volatile_cache() {
    let disk = changed("wd43purz", &[]);
    let slowest = Duration::from_millis(200);
    for (mib, least) in [(64, [0.95, 0.9]), (128, [0.95, 0.9]), (512, [0.95, 0.85])] {
        goes_on(&format!("{mib} MiB before a disk"), disk.clone(), mib * MIB, 60, least, slowest);
    }
}

#[test]
fn before_a_disk_that_has_none() {
    let changes =
        [("volatile_cache = true", "volatile_cache = false"), ("write_buffer = 512", "write_buffer = 32")];
    let disk = changed("wd43purz", &changes);
    goes_on("64 MiB before a disk", disk, 64 * MIB, 60, [1.5, 0.85], Duration::from_millis(200));
}

#[test]
fn before_drives_without_an_arm() {
    if conformance::budget::is_left_out() {
        return;
    }
    let slowest = Duration::from_millis(2);
    for name in ["as2280p4u", "sata-ssd"] {
        goes_on(name, changed(name, &[]), 64 * MIB, 4, [0.98, 0.95], slowest);
    }
}

/// A disk far slower than the default rate and than its first small batch suggest: writers slow down in time.
#[test]
fn before_a_disk_that_is_very_slow() {
    let changes = [("rpm = 5400", "rpm = 1800"), ("write_buffer = 512", "write_buffer = 2")];
    let disk = changed("wd43purz", &changes);
    goes_on("64 MiB before a slow disk", disk, 64 * MIB, 90, [0.9, 0.6], Duration::from_secs(2));
}

/// A drive that is fast until its own buffer is full: the estimated rate becomes wrong at once.
#[test]
fn before_a_drive_that_becomes_slow() {
    if conformance::budget::is_left_out() {
        return;
    }
    let profile = changed("qlc", &[("24GiB", "512MiB")]);
    let burst = burst(&profile, Some(256 * MIB), 6);
    let seconds = burst.seconds(2);
    println!("{seconds:?}, slowest {:?}", burst.slowest(0));
    let drain = 150.0 * MIB as f64 / 4096.0;
    let worst = *seconds.iter().min().unwrap() as f64;
    assert!(worst >= 0.9 * drain, "{worst} in one second, {drain:.0} leave its buffer");
    assert!(burst.slowest(0) <= Duration::from_millis(500), "{:?}", burst.slowest(0));
}
