//! A killed process, and the next one over the same devices: the first flush of the next one makes durable
//! what the killed one had written and not flushed. Then a power cut: every device loses all data that no
//! flush covered.

use block::{BlockCount, BlockSize, Device, DeviceGeometry, DevicePart};
use cache::{self, CachePart, Mode};
use conformance::requests::{read, write};
use layers::linear::linear;
use layers::record::replay::{Choice, Cursor, History, Image, ImageDisk};
use layers::record::{RecordDevicePart, Recorder, Role};
use layers::stripe::stripe;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use runtime::{Simulation, simulate};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use writecache::{self, WriteCachePart};

/// Number of the block that the tests write.
const BLOCK: u64 = 7;

type Disks = [Arc<dyn DevicePart>; 2];

/// One process. Its tasks end with it, and it closes nothing.
fn process<T: 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut) -> T {
    simulate(Simulation::new(1), main).unwrap().value
}

/// A disk whose unflushed writes a power cut loses.
struct Losing {
    recorder: Arc<Recorder>,
    part: Arc<RecordDevicePart>,
}

impl Losing {
    fn new(blocks: u64) -> Losing {
        let disk = Arc::new(ImageDisk::empty(DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(blocks),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        }));
        let recorder = Recorder::in_memory();
        let part = RecordDevicePart::new(disk, recorder.clone(), "disk", Role::Disk).unwrap();
        Losing { recorder, part: Arc::new(part) }
    }

    fn after_power_cut(&self) -> Arc<dyn DevicePart> {
        let history = History::new(&self.recorder.timeline().unwrap(), self.part.number()).unwrap();
        let mut cursor = Cursor::new(history.clone());
        cursor.advance_to(history.events());
        Arc::new(ImageDisk::new(Image::new(&cursor, Choice::Nothing)))
    }
}

/// Process 0 flushes one version of a block, writes another, and is killed. Process 1 flushes; after a power
/// cut process 2 reads the second version.
///
/// `open` opens the stack on the two disks, in the process of this number.
fn the_first_flush_reaches_everything<Fut: Future<Output = Rc<dyn Device>> + 'static>(
    what: &str,
    sizes: [u64; 2],
    open: impl Fn(usize, Disks) -> Fut + Copy + 'static,
) {
    let losing = process(|| async move { sizes.map(Losing::new) });
    let disks = || losing.each_ref().map(|losing| losing.part.clone() as Arc<dyn DevicePart>);
    let before = disks();
    process(|| async move {
        let device = open(0, before).await;
        write(&*device, BLOCK, 1).await.unwrap();
        device.flush().await.unwrap();
        write(&*device, BLOCK, 2).await.unwrap();
    });
    let taken_over = disks();
    process(|| async move {
        let device = open(1, taken_over).await;
        device.flush().await.unwrap();
    });
    let found = process(|| async move {
        let left = losing.map(|losing| losing.after_power_cut());
        let device = open(2, left).await;
        read(&*device, BLOCK, 1).await.unwrap()[0]
    });
    assert_eq!(found, 2, "{what}: the flushed version is lost");
}

#[test]
fn of_a_write_cache_that_was_in_the_mode_cleaner() {
    for cleans_again in [false, true] {
        let what = format!("a write cache, cleaner={cleans_again}");
        the_first_flush_reaches_everything(&what, [256, 130], move |process, [origin, fast]| async move {
            let cleaner = process == 0 || cleans_again;
            let options = writecache::Options { format: process == 0, cleaner, ..Default::default() };
            WriteCachePart::open(origin, fast, options).await.unwrap().open().await.unwrap()
        });
    }
}

#[test]
fn of_a_write_cache() {
    the_first_flush_reaches_everything("a write cache", [256, 130], |process, [origin, fast]| async move {
        let options = writecache::Options { format: process == 0, ..Default::default() };
        WriteCachePart::open(origin, fast, options).await.unwrap().open().await.unwrap()
    });
}

#[test]
fn of_a_cache() {
    for mode in [Mode::Writeback, Mode::Writethrough, Mode::Passthrough] {
        let what = format!("a cache in {mode:?}");
        the_first_flush_reaches_everything(&what, [256, 768], move |process, [slow, fast]| async move {
            let options = cache::Options {
                format: process == 0,
                mode,
                block_size: 32 << 10,
                settle_every: Duration::from_secs(3600),
                ..Default::default()
            };
            CachePart::open(slow, fast, "slow", &options).await.unwrap().open().await.unwrap()
        });
    }
}

#[test]
fn of_a_mirror() {
    for write_behind in [0, 8] {
        let what = format!("a mirror, write_behind={write_behind}");
        the_first_flush_reaches_everything(&what, [256, 256], move |process, [first, second]| async move {
            let settings = Settings {
                write_mostly: 0b10,
                write_behind,
                behind_bytes: 64 << 20,
                fast_flush: false,
                bitmap_delay: Duration::from_secs(3600),
                sync_speed_max: 0,
                first_leg: false,
                timeout: Duration::from_secs(30),
            };
            let plan = Plan {
                legs: vec![("first".to_owned(), first), ("second".to_owned(), second)],
                settings,
                permissions: Permissions::default(),
                format: process == 0,
                bitmap_chunk: None,
            };
            MirrorPart::open(plan).await.unwrap().open().await.unwrap()
        });
    }
}

#[test]
fn of_devices_that_spread_blocks() {
    the_first_flush_reaches_everything("a stripe", [256, 256], |_, disks| async move {
        stripe(disks.into(), 4096).unwrap().open().await.unwrap()
    });
    the_first_flush_reaches_everything("a concatenation", [4, 256], |_, disks| async move {
        linear(disks.into()).unwrap().open().await.unwrap()
    });
}
