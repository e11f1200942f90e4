//! The crash oracle on a log whose client takes and deletes snapshots all the time: after every cut, the
//! volume is as promised, and each existing snapshot shows exactly the contents of the volume when it was
//! taken.

use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Extent, Part,
    Payload, ReadOutcome, Result, ZeroMode,
};
use log::kind::{Options, open};
use siltstone_tests::halves;
use siltstone_tests::oracle::{Opening, Oracle, in_simulation, seed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

type Contents = Vec<u8>;

/// Contents of each snapshot, by its name.
type Expected = Arc<Mutex<BTreeMap<String, Contents>>>;

/// Takes a snapshot at every third flush. At flush 12, 18, 24 and so on it also deletes the previous one.
struct Snapshotting {
    log: Arc<dyn DevicePart>,
    expected: Expected,
}

struct Handle {
    log: Arc<dyn DevicePart>,
    device: Rc<dyn Device>,
    expected: Expected,
    flushes: RefCell<u64>,
}

impl Part for Snapshotting {
    fn kind(&self) -> &'static str {
        "snapshotting"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.log.close()
    }
}

impl DevicePart for Snapshotting {
    fn geometry(&self) -> &DeviceGeometry {
        self.log.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let device = self.log.open().await?;
            let (log, expected) = (self.log.clone(), self.expected.clone());
            Ok(Rc::new(Handle { log, device, expected, flushes: RefCell::default() }) as Rc<dyn Device>)
        })
    }
}

async fn contents(device: &dyn Device) -> Result<Contents> {
    let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(device.geometry().bytes() as usize)).await;
    outcome.map(|()| buffer.filled().to_vec())
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.device.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.device.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.device.flush().await?;
            let number = {
                let mut flushes = self.flushes.borrow_mut();
                *flushes += 1;
                *flushes
            };
            if number.is_multiple_of(3) {
                let name = format!("s{number:04}");
                // Nothing else is in flight: the snapshot will have the current contents of the volume.
                let now = contents(&*self.device).await?;
                self.expected.lock().expect("nothing panics under it").insert(name.clone(), now);
                self.log.message(&format!("snapshot create {name}")).await?;
                if number.is_multiple_of(2) && number >= 9 {
                    self.log.message(&format!("snapshot delete s{:04}", number - 3)).await?;
                }
            }
            Ok(())
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.device.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.device.write_zeroes(range, mode, durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(range)
    }
}

/// Compares all snapshots with their expected contents.
async fn check(log: &dyn DevicePart, expected: &Expected) -> Result<usize> {
    let told = log.message("snapshot list").await?;
    let told: serde_json::Value = serde_json::from_str(&told).expect("the answer is JSON");
    let snapshots = told["snapshots"].as_array().expect("a list");
    for snapshot in snapshots {
        let name = snapshot["name"].as_str().expect("a name");
        let version = log.version(name).await?;
        let device = version.open().await?;
        let found = contents(&*device).await?;
        let wanted = expected.lock().expect("nothing panics under it").get(name).cloned();
        if Some(found) != wanted {
            return Err(block::Error::corrupt(format!(
                "snapshot {name} shows something else than it was taken of"
            )));
        }
        drop(device);
        version.close().await?;
    }
    Ok(snapshots.len())
}

fn holds(name: &str, usual_seed: u64, map: &'static str, at_home: bool) {
    holds_on(name, usual_seed, map, at_home, 1);
}

fn holds_on(name: &str, usual_seed: u64, map: &'static str, at_home: bool, shards: u32) {
    let mut oracle = Oracle::limited(seed(name, usual_seed), 1);
    oracle.disk.blocks = block::BlockCount(match at_home {
        true => 900 + 400,
        false => 780 + 120 * u64::from(shards),
    });
    oracle.workload.operations = 220;
    oracle.workload.queue_depth = 1;
    oracle.again_every = 499;
    let seed = oracle.seed;
    let main = move || async move {
        let expected = Expected::default();
        let seen = RefCell::new(0);
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let format = opening == Opening::Format;
            let options = Options {
                format,
                size: Some(40 * 4096),
                zone_size: Some(32 << 10),
                checkpoint_after: 64 << 10,
                map: map.to_owned(),
                shards: format.then_some(shards),
                stripe_blocks: 8,
                ..Options::default()
            };
            let log: Arc<dyn DevicePart> = match at_home {
                true => {
                    let options = Options { zone_size: options.zone_size.filter(|_| format), ..options };
                    Arc::new(halves::open(disk, 900, &options, false).await?)
                }
                false => Arc::new(open(disk, &options).await?),
            };
            if opening == Opening::Recover {
                *seen.borrow_mut() += check(&*log, &expected).await?;
                return Ok(log);
            }
            Ok(Arc::new(Snapshotting { log, expected: expected.clone() }) as Arc<dyn DevicePart>)
        };
        (oracle.run(open).await, seen.take())
    };
    let (report, seen) = in_simulation(seed, main);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}; {seen} snapshots compared");
    assert!(report.states > 1000 && (seen > 1000 || !report.is_whole()), "{name}: too little was tried");
}

#[test]
fn radix() {
    holds("snapshots of radix", 31, "radix", false);
}

#[test]
fn at_home() {
    holds("snapshots at home", 33, "radix", true);
}

#[test]
fn hash() {
    holds("snapshots of hash", 32, "hash", false);
}

#[test]
fn on_several_home_shards() {
    for shards in [2, 3, 8] {
        holds_on(&format!("snapshots of {shards} shards"), 34 + u64::from(shards), "radix", false, shards);
    }
}
