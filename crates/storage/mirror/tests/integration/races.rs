//! Races with the resync of legs: changes that fail in flight, flushes, and an operator who adds a leg with a
//! superblock out of range.

use crate::{settled, simulated};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::requests::{full, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use mirror::format::Superblock;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use stack::Contract;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// First block of the data on legs of this size.
const DATA: u64 = 3;
/// Number of blocks of the only chunk; the keeper copies half of it at once.
const CHUNK: u64 = 256;
/// Limit of copying in bytes per second: half a chunk takes half a second.
const SPEED: u64 = 1 << 20;
/// Block in the first half of the chunk; it begins at 32 KiB on the legs.
const BLOCK: u64 = 5;

fn disk() -> Arc<ImageDisk> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(DATA + CHUNK),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// A disk that fails by this rule after the message `rules on`.
async fn faulty(disk: &Arc<ImageDisk>, rule: &str) -> Arc<dyn DevicePart> {
    let rules = parse_rules(&[rule.to_owned()], Contract::Device).unwrap();
    let part = FaultDevicePart::new(disk.clone(), rules, 3).unwrap();
    part.message("rules off").await.unwrap();
    Arc::new(part)
}

fn plan(legs: &[Arc<dyn DevicePart>], format: bool) -> Plan {
    let settings = Settings {
        write_mostly: 0,
        write_behind: 0,
        behind_bytes: 64 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_secs(3600),
        sync_speed_max: SPEED,
        first_leg: false,
        timeout: Duration::from_secs(30),
    };
    let names = ["a", "b", "c"].into_iter().map(str::to_owned);
    Plan {
        legs: names.zip(legs.iter().cloned()).collect(),
        settings,
        permissions: Permissions::default(),
        format,
        bitmap_chunk: format.then_some(CHUNK * 4096),
    }
}

/// Waits until half of the chunk has been copied.
async fn half_copied(part: &MirrorPart, before: u64) {
    runtime::sleep(Duration::from_millis(100)).await;
    let copied = part.status().await["copied_bytes"].as_u64().unwrap() - before;
    assert_eq!(copied, CHUNK / 2 * 4096, "{:?}", part.status().await);
}

/// Whether the legs of a closed mirror have the same data.
async fn are_equal(a: &Arc<ImageDisk>, b: &Arc<ImageDisk>) -> bool {
    let mut data = Vec::new();
    for leg in [a, b] {
        let leg = DevicePart::open(&**leg).await.unwrap();
        data.push(read(&*leg, DATA, CHUNK as usize).await.unwrap());
    }
    data[0] == data[1]
}

/// The leg that is being rebuilt took the change, and the only active one failed it.
#[test]
fn a_change_that_fails_behind_the_copying_of_its_chunk_is_copied_again() {
    simulated(|| async {
        let (a, b) = (disk(), disk());
        let wrong = faulty(&a, "write error=EIO range=32KiB..36KiB").await;
        let part = MirrorPart::open(plan(&[wrong.clone(), b.clone()], true)).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, BLOCK, 1).await.unwrap();
        part.message("fail b").await.unwrap();
        write(&*handle, BLOCK + 1, 2).await.unwrap();
        let before = part.status().await["copied_bytes"].as_u64().unwrap();
        part.message("re-add b").await.unwrap();
        half_copied(&part, before).await;
        wrong.message("rules on").await.unwrap();
        write(&*handle, BLOCK, 9).await.unwrap_err();
        wrong.message("rules off").await.unwrap();
        settled(&part).await;
        assert_eq!(read(&*handle, BLOCK, 1).await.unwrap()[0], 1);
        drop(handle);
        part.close().await.unwrap();
        assert!(are_equal(&a, &b).await, "the bitmap is clear, and legs differ");
    });
}

/// Each active leg has another part of the change.
#[test]
fn a_change_that_fails_everywhere_behind_a_resync_is_copied_again() {
    simulated(|| async {
        let (a, b) = (disk(), disk());
        // Data other than zeros, which wouldn't be copied.
        let old = DevicePart::open(&*a).await.unwrap();
        old.write(BlockIndex(DATA), full(1, CHUNK as usize), Durability::Visible).await.unwrap();
        let legs = [
            faulty(&a, "write torn at=512 error=EIO range=32KiB..36KiB").await,
            faulty(&b, "write torn at=1024 error=EIO range=32KiB..36KiB").await,
        ];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        let handle = part.open().await.unwrap();
        half_copied(&part, 0).await;
        for leg in &legs {
            leg.message("rules on").await.unwrap();
        }
        write(&*handle, BLOCK, 9).await.unwrap_err();
        for leg in &legs {
            leg.message("rules off").await.unwrap();
        }
        settled(&part).await;
        drop(handle);
        part.close().await.unwrap();
        assert!(are_equal(&a, &b).await, "the bitmap is clear, and legs differ");
    });
}

/// Both rebuilding legs fail a change. The superblock write that records the first one fails on the last
/// active leg; the second one becomes faulty as well.
#[test]
fn legs_that_fail_a_change_together_are_left_behind_together() {
    simulated(|| async {
        let (a, b, c) = (disk(), disk(), disk());
        let legs = [
            // The superblocks of the leg.
            faulty(&a, "write error=EIO range=0..8KiB").await,
            faulty(&b, "write error=EIO range=32KiB..36KiB").await,
            faulty(&c, "write error=EIO range=32KiB..36KiB").await,
        ];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, BLOCK, 1).await.unwrap();
        let before = part.status().await["copied_bytes"].as_u64().unwrap();
        for message in ["fail b", "fail c", "re-add b", "re-add c"] {
            part.message(message).await.unwrap();
        }
        half_copied(&part, before).await;
        for leg in &legs {
            leg.message("rules on").await.unwrap();
        }
        write(&*handle, BLOCK, 9).await.unwrap_err();
        for leg in &legs {
            leg.message("rules off").await.unwrap();
        }
        let legs = part.status().await["legs"].clone();
        assert_eq!((&legs[1]["state"], &legs[2]["state"]), (&"faulty".into(), &"faulty".into()));
        for leg in ["b", "c"] {
            part.message(&format!("re-add {leg}")).await.unwrap();
        }
        settled(&part).await;
        drop(handle);
        part.close().await.unwrap();
        assert!(are_equal(&a, &b).await && are_equal(&a, &c).await);
    });
}

/// A superblock of the same mirror with fewer slots: it has none for the source.
#[test]
fn a_leg_that_names_fewer_legs_is_not_re_added() {
    simulated(|| async {
        let (a, b, c) = (disk(), disk(), disk());
        let mut plan = plan(&[a, b.clone(), c], true);
        plan.settings.write_mostly = 0b11;
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        assert_eq!(part.status().await["legs"][2]["source"], true);
        part.message("fail b").await.unwrap();
        let leg = DevicePart::open(&*b).await.unwrap();
        for copy in 0..2 {
            let found = read(&*leg, copy, 1).await.unwrap();
            let mut superblock = Superblock::decode(&found).unwrap();
            superblock.slots.truncate(2);
            superblock.source = 0;
            leg.write(BlockIndex(copy), superblock.encode(4096), Durability::Durable).await.unwrap();
        }
        let error = part.message("re-add b").await.unwrap_err();
        assert!(error.detail().contains("its superblock has 2 slots; expected 3"), "{error}");
        // With `add` the leg is overwritten.
        part.message("add b").await.unwrap();
        settled(&part).await;
        part.close().await.unwrap();
    });
}

/// A disk with a volatile cache. A flush covers the data in the cache when it begins. All flushes take the
/// same time, so none returns before one that began earlier.
struct Caching {
    cached: ImageDisk,
    durable: Arc<ImageDisk>,
    pending: Arc<Mutex<Vec<(BlockIndex, Payload)>>>,
    flush_takes: Duration,
}

fn caching(flush_takes: Duration) -> Arc<Caching> {
    let cached = ImageDisk::empty(disk().geometry().clone());
    Arc::new(Caching { cached, durable: disk(), pending: Arc::default(), flush_takes })
}

impl Part for Caching {
    fn kind(&self) -> &'static str {
        "caching"
    }
}

impl DevicePart for Caching {
    fn geometry(&self) -> &DeviceGeometry {
        self.cached.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            Ok(Rc::new(CachingDevice {
                cached: DevicePart::open(&self.cached).await?,
                durable: DevicePart::open(&*self.durable).await?,
                pending: self.pending.clone(),
                flush_takes: self.flush_takes,
            }) as Rc<dyn Device>)
        })
    }
}

struct CachingDevice {
    cached: Rc<dyn Device>,
    durable: Rc<dyn Device>,
    pending: Arc<Mutex<Vec<(BlockIndex, Payload)>>>,
    flush_takes: Duration,
}

impl Device for CachingDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.cached.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.cached.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.cached.write(at, payload.clone(), durability).await?;
            match durability {
                Durability::Durable => self.durable.write(at, payload, durability).await,
                Durability::Visible => {
                    self.pending.lock().unwrap().push((at, payload));
                    Ok(())
                }
            }
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let taken = std::mem::take(&mut *self.pending.lock().unwrap());
            runtime::sleep(self.flush_takes).await;
            for (at, payload) in taken {
                self.durable.write(at, payload, Durability::Durable).await?;
            }
            Ok(())
        })
    }

    fn discard(&self, _: BlockRange) -> Call<'_, Result<()>> {
        Call::ready(Err(Error::unsupported("no test needs it")))
    }

    fn write_zeroes(&self, _: BlockRange, _: ZeroMode, _: Durability) -> Call<'_, Result<()>> {
        Call::ready(Err(Error::unsupported("no test needs it")))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<block::Extent>>> {
        self.cached.extents(range)
    }
}

/// The leg becomes active, and then the source, while the write is in the leg's cache.
#[test]
fn a_flush_while_a_leg_becomes_active_covers_that_leg() {
    simulated(|| async {
        let (a, b) = (caching(Duration::from_millis(1)), caching(Duration::from_millis(10)));
        let legs: [Arc<dyn DevicePart>; 2] = [a.clone(), b.clone()];
        let plan = |legs: &[Arc<dyn DevicePart>], format| {
            let mut plan = plan(legs, format);
            plan.settings.write_mostly = 0b01;
            plan
        };
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        settled(&part).await;
        part.close().await.unwrap();
        // No chunk is dirty, so nothing has to be copied.
        let part = MirrorPart::open(plan(&legs, false)).await.unwrap();
        part.message("fail b").await.unwrap();
        let handle = part.open().await.unwrap();
        part.message("re-add b").await.unwrap();
        // The flush of the leg has begun.
        runtime::sleep(Duration::from_millis(1)).await;
        assert_eq!(part.status().await["legs"][1]["state"], "rebuilding");
        write(&*handle, BLOCK, 7).await.unwrap();
        handle.flush().await.unwrap();
        settled(&part).await;
        assert_eq!(part.status().await["legs"][1]["source"], true);
        // Power cut.
        let part = MirrorPart::open(plan(&[a.durable.clone(), b.durable.clone()], false)).await.unwrap();
        settled(&part).await;
        assert_eq!(read(&*part.open().await.unwrap(), BLOCK, 1).await.unwrap()[0], 7);
        part.close().await.unwrap();
    });
}

/// Copied data may be lost, and would not be copied again.
#[test]
fn a_leg_that_fails_a_flush_while_it_is_rebuilt_is_left_behind() {
    simulated(|| async {
        let (a, b) = (disk(), disk());
        let legs = [faulty(&a, "flush error=EIO").await, faulty(&b, "flush error=EIO").await];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, BLOCK, 1).await.unwrap();
        let before = part.status().await["copied_bytes"].as_u64().unwrap();
        for message in ["fail b", "re-add b"] {
            part.message(message).await.unwrap();
        }
        half_copied(&part, before).await;
        for leg in &legs {
            leg.message("rules on").await.unwrap();
        }
        // The leg is left behind even if the last leg also fails the flush.
        handle.flush().await.unwrap_err();
        assert_eq!(part.status().await["legs"][1]["state"], "faulty");
        drop(handle);
    });
}

/// Waits until nothing is left to be copied and no leg is being rebuilt.
async fn copied(part: &MirrorPart) {
    for _ in 0..10_000 {
        if part.status().await["chunks_to_copy"] == 0 && part.status().await["sync_action"] == "idle" {
            return;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    panic!("copying never ends: {:?}", part.status().await);
}

/// The last active leg fails a change that was acknowledged before; the leg that is being rebuilt took it.
#[test]
fn a_lagging_change_that_fails_on_the_last_leg_is_copied_again() {
    simulated(|| async {
        let (a, b, c) = (disk(), disk(), disk());
        let slow = faulty(&b, "write delay=50ms error=EIO range=32KiB..36KiB").await;
        let mut plan = plan(&[a.clone(), slow.clone(), c.clone()], true);
        (plan.settings.write_mostly, plan.settings.write_behind) = (0b010, 10);
        let part = MirrorPart::open(plan).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, BLOCK, 1).await.unwrap();
        handle.flush().await.unwrap();
        part.message("fail c").await.unwrap();
        write(&*handle, BLOCK + 1, 2).await.unwrap();
        let before = part.status().await["copied_bytes"].as_u64().unwrap();
        part.message("re-add c").await.unwrap();
        half_copied(&part, before).await;
        slow.message("rules on").await.unwrap();
        write(&*handle, BLOCK, 9).await.unwrap();
        part.message("fail a").await.unwrap();
        assert_eq!(part.status().await["behind_writes"], 1);
        // Now the lagging leg fails the change.
        runtime::sleep(Duration::from_millis(100)).await;
        slow.message("rules off").await.unwrap();
        copied(&part).await;
        assert_eq!(part.status().await["legs"][2]["state"], "active");
        assert!(are_equal(&b, &c).await, "legs differ, and both are read");
        // The acknowledged change is lost: flushes and the close fail.
        for _ in 0..2 {
            let error = handle.flush().await.unwrap_err();
            assert!(error.detail().contains("may be lost"), "{error}");
        }
        drop(handle);
        part.close().await.unwrap_err();
    });
}

/// Each leg may have lost other data when it failed the flush.
#[test]
fn a_flush_that_fails_on_all_legs_makes_them_equal() {
    simulated(|| async {
        let (a, b) = (disk(), disk());
        let legs = [faulty(&a, "flush error=EIO").await, faulty(&b, "flush error=EIO").await];
        // Bits are cleared as soon as possible.
        let mut plan = plan(&legs, true);
        plan.settings.bitmap_delay = Duration::from_millis(1);
        let part = MirrorPart::open(plan.clone()).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, BLOCK, 1).await.unwrap();
        handle.flush().await.unwrap();
        write(&*handle, BLOCK, 9).await.unwrap();
        for leg in &legs {
            leg.message("rules on").await.unwrap();
        }
        // One leg drops the contents of its cache.
        write(&*DevicePart::open(&*b).await.unwrap(), DATA + BLOCK, 1).await.unwrap();
        handle.flush().await.unwrap_err();
        for leg in &legs {
            leg.message("rules off").await.unwrap();
        }
        settled(&part).await;
        assert!(are_equal(&a, &b).await, "legs differ, and both are read");
        assert_eq!(read(&*handle, BLOCK, 1).await.unwrap()[0], 9);
        // Flushes of the legs succeed again, but don't cover writes before the failed flush.
        let error = handle.flush().await.unwrap_err();
        assert!(error.detail().contains("may be lost"), "{error}");
        runtime::sleep(Duration::from_millis(100)).await;
        assert_eq!(
            part.status().await["dirty_chunks"],
            1,
            "the bit is cleared that would have them compared"
        );
        drop(handle);
        part.close().await.unwrap_err();
        // After opening again, the mirror starts from the data on the legs.
        plan.format = false;
        plan.bitmap_chunk = None;
        let part = MirrorPart::open(plan).await.unwrap();
        assert_eq!(part.status().await["chunks_to_copy"], 1, "the bitmap says where legs may differ");
        settled(&part).await;
        part.open().await.unwrap().flush().await.unwrap();
        part.close().await.unwrap();
    });
}

/// A change whose chunk no leg can mark fails, and no leg becomes faulty. If some legs can mark it, the
/// others become faulty.
#[test]
fn a_bitmap_that_no_leg_takes_fails_the_change_and_costs_no_leg() {
    simulated(|| async {
        for (write_mostly, failing) in
            [(0, 0b111), (0, 0b101), (0b100, 0b111), (0b100, 0b011), (0b110, 0b001)]
        {
            let what = format!("write_mostly {write_mostly:#b}, failing {failing:#b}");
            let disks = [disk(), disk(), disk()];
            let mut legs = Vec::new();
            for disk in &disks {
                legs.push(faulty(disk, "write error=EIO range=8KiB..12KiB").await);
            }
            let opened = |format| {
                let mut plan = plan(&legs, format);
                plan.settings.write_mostly = write_mostly;
                MirrorPart::open(plan)
            };
            let part = opened(true).await.unwrap();
            settled(&part).await;
            // The close clears the bitmap.
            part.close().await.unwrap();
            let part = opened(false).await.unwrap();
            let handle = part.open().await.unwrap();
            let state = async |leg: usize| part.status().await["legs"][leg]["state"].clone();
            for leg in (0..3).filter(|leg| failing & 1 << leg != 0) {
                legs[leg].message("rules on").await.unwrap();
            }
            let outcome = write(&*handle, BLOCK, 9).await;
            for leg in 0..3 {
                let is_lost = failing != 0b111 && failing & 1 << leg != 0;
                assert_eq!(state(leg).await, if is_lost { "faulty" } else { "active" }, "{what}, leg {leg}");
            }
            for leg in &legs {
                leg.message("rules off").await.unwrap();
            }
            if failing == 0b111 {
                outcome.expect_err(&what);
                assert_eq!(read(&*handle, BLOCK, 1).await.unwrap()[0], 0, "{what}: no leg has it");
                write(&*handle, BLOCK, 9).await.unwrap();
            } else {
                outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert_eq!(read(&*handle, BLOCK, 1).await.unwrap()[0], 9, "{what}");
            drop(handle);
            part.close().await.unwrap();
            if failing == 0b111 {
                assert!(
                    are_equal(&disks[0], &disks[1]).await && are_equal(&disks[1], &disks[2]).await,
                    "{what}"
                );
            }
        }
    });
}

/// If no leg can clear bits, no leg becomes faulty.
#[test]
fn bits_that_no_leg_clears_cost_no_leg() {
    simulated(|| async {
        let disks = [disk(), disk(), disk()];
        let mut legs = Vec::new();
        for disk in &disks {
            legs.push(faulty(disk, "write error=EIO range=8KiB..12KiB").await);
        }
        let mut plan = plan(&legs, true);
        plan.settings.bitmap_delay = Duration::from_millis(100);
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        let handle = part.open().await.unwrap();
        write(&*handle, BLOCK, 9).await.unwrap();
        for leg in &legs {
            leg.message("rules on").await.unwrap();
        }
        runtime::sleep(Duration::from_secs(1)).await;
        for leg in 0..3 {
            assert_eq!(part.status().await["legs"][leg]["state"], "active", "leg {leg}");
        }
        for leg in &legs {
            leg.message("rules off").await.unwrap();
        }
        write(&*handle, BLOCK, 8).await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        assert!(are_equal(&disks[0], &disks[1]).await && are_equal(&disks[1], &disks[2]).await);
    });
}
