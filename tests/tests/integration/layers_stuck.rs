//! Each dependency of a layer stops answering, for each operation, in simulated time. Within the time limit
//! every request ends, requests that don't need the dependency continue, and the stack can be closed.

use block::{
    BlockCount, BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Extent, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::requests::{full, geometry, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use stack::{Built, BuiltStack, Contract, Key, Kind, Registry, Shape, Stack, ValueKind};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Size of each disk.
const BLOCKS: u64 = 4096;

const READ: u32 = 1;
const WRITE: u32 = 2;
const FLUSH: u32 = 4;
const DISCARD: u32 = 8;
const ZEROES: u32 = 16;
const ALL: u32 = 31;
/// The close fails.
const CLOSE_FAILS: u32 = 32;
const OPERATIONS: [(&str, u32); 6] = [
    ("read", READ),
    ("write", WRITE),
    ("flush", FLUSH),
    ("discard", DISCARD),
    ("zeroes", ZEROES),
    ("all", ALL),
];

/// `timeout` of the stacks, 2 s, and time for the requests that continue.
const LONGEST: Duration = Duration::from_millis(2200);
/// Time after which a request counts as waiting for ever.
const FOR_EVER: Duration = Duration::from_secs(60);

thread_local! {
    /// Operations that each part doesn't answer, by the number of the part. A simulation runs on one thread.
    static SILENT: [Cell<u32>; 2] = const { [const { Cell::new(0) }; 2] };
}

fn silent(number: usize) -> u32 {
    SILENT.with(|silent| silent[number].get())
}

fn silence(number: usize, operations: u32) {
    SILENT.with(|silent| silent[number].set(operations));
}

/// A disk that stops answering.
struct SilentPart {
    disk: Arc<dyn DevicePart>,
    number: usize,
}

async fn answers(number: usize, operation: u32) {
    while silent(number) & operation != 0 {
        runtime::sleep(Duration::from_millis(500)).await;
    }
}

impl Part for SilentPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            // A leaf flushes when it is closed.
            answers(self.number, FLUSH).await;
            match silent(self.number) & CLOSE_FAILS {
                0 => Ok(()),
                _ => Err(Error::io("it can't be closed")),
            }
        })
    }
}

impl DevicePart for SilentPart {
    fn geometry(&self) -> &DeviceGeometry {
        self.disk.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let device = self.disk.open().await?;
            Ok(Rc::new(SilentDevice { device, number: self.number }) as Rc<dyn Device>)
        })
    }
}

struct SilentDevice {
    device: Rc<dyn Device>,
    number: usize,
}

impl Device for SilentDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            answers(self.number, READ).await;
            self.device.read(at, buffer).await
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            answers(self.number, WRITE).await;
            self.device.write(at, payload, durability).await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            answers(self.number, FLUSH).await;
            self.device.flush().await
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            answers(self.number, DISCARD).await;
            self.device.discard(range).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(async move {
            answers(self.number, ZEROES).await;
            self.device.write_zeroes(range, mode, durability).await
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(range)
    }
}

const KIND: Kind = Kind {
    name: "silent",
    contract: Contract::Device,
    summary: "a disk that stops answering",
    keys: &[Key::required("number", ValueKind::Integer { min: 0, max: 1 }, "number of the disk").positional()],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "silent(0)",
    plan: |_| Ok(Shape::new(BLOCKS << 12, 4096)),
    build: |arguments| {
        let number = arguments.integer("number");
        Call::new(async move {
            let geometry = DeviceGeometry { blocks: BlockCount(BLOCKS), ..geometry() };
            let disk = Arc::new(ImageDisk::empty(geometry));
            Ok(Built::Device(Arc::new(SilentPart { disk, number: number? as usize })))
        })
    },
};

fn registry() -> Registry {
    Registry::new(vec![&KIND, &mirror::KIND, &cache::KIND, &writecache::KIND, &disks::ram::KIND])
}

/// Carries out one request of each kind at the same time, on different blocks. Returns the longest time and
/// the number that failed.
async fn one_of_each(device: &Rc<dyn Device>) -> (Duration, usize) {
    let began = runtime::now();
    let (one, two, three, four, five) =
        (device.clone(), device.clone(), device.clone(), device.clone(), device.clone());
    let requests = vec![
        runtime::spawn(async move { read(&*one, 2, 1).await.map(drop) }),
        runtime::spawn(async move { write(&*two, 5, 7).await }),
        runtime::spawn(async move { three.flush().await }),
        runtime::spawn(async move { four.discard(BlockRange::new(9, 2)).await }),
        runtime::spawn(async move {
            five.write_zeroes(BlockRange::new(13, 2), ZeroMode::MayDeallocate, Durability::Durable).await
        }),
    ];
    let outcomes = runtime::timeout(FOR_EVER, runtime::join_all(requests)).await;
    let failed =
        outcomes.map_or(usize::MAX, |outcomes| outcomes.iter().filter(|outcome| outcome.is_err()).count());
    (began.elapsed(), failed)
}

/// A stack, the part that stops answering, and whether requests have to succeed.
#[derive(Clone, Copy)]
struct Case {
    line: &'static str,
    silent: usize,
    /// Whether all requests and the close have to succeed.
    goes_on: bool,
}

const fn case(line: &'static str, silent: usize, goes_on: bool) -> Case {
    Case { line, silent, goes_on }
}

const CASES: &[Case] = &[
    case("mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB)", 0, true),
    case("mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB)", 1, true),
    case("mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB, read_policy=first)", 0, true),
    case(
        "mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB, write_mostly=[1], write_behind=8)",
        1,
        true,
    ),
    case(
        "mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB, write_mostly=[1], write_behind=8, flush=fast)",
        1,
        true,
    ),
    case("writecache(silent(0), silent(1), timeout=2s)", 0, false),
    case("writecache(silent(0), silent(1), timeout=2s)", 1, false),
    case("writecache(silent(0), silent(1), timeout=2s, cleaner=true)", 0, false),
    case("cache(ram(16MiB), silent(1), timeout=2s, block_size=32KiB, mode=writethrough)", 1, false),
    case("cache(silent(0), ram(16MiB), timeout=2s, block_size=32KiB, mode=writethrough)", 0, false),
    case("cache(silent(0), ram(16MiB), timeout=2s, block_size=32KiB, mode=writeback)", 0, false),
    case("cache(silent(0), ram(16MiB), timeout=2s, block_size=32KiB, mode=passthrough)", 0, false),
];

/// Returns descriptions of the failures.
async fn run(case: Case, operations: u32, only_close: bool) -> Vec<String> {
    (0..2).for_each(|number| silence(number, 0));
    let parsed = Stack::from_line("line", case.line, &registry()).unwrap();
    let plan = parsed.check(true).unwrap_or_else(|problems| panic!("{problems}"));
    let built = plan.build().await.unwrap();
    let device = built.device("top").unwrap().open().await.unwrap();
    for block in 0..16 {
        device.write(BlockIndex(block), full(block as u8 + 1, 1), Durability::Visible).await.unwrap();
    }
    device.flush().await.unwrap();
    runtime::sleep(Duration::from_secs(30)).await;
    assert_eq!(one_of_each(&device).await.1, 0, "before");
    write(&*device, 3, 9).await.unwrap();

    let mut wrong = Vec::new();
    silence(case.silent, operations);
    if !only_close {
        for round in 0..3 {
            let (took, failed) = one_of_each(&device).await;
            if took > LONGEST {
                wrong.push(format!("requests of round {round} took {took:?}"));
            }
            if failed > 0 && case.goes_on {
                wrong.push(format!("{failed} requests of round {round} failed"));
            }
        }
    }
    drop(device);
    let began = runtime::now();
    let closed = runtime::timeout(FOR_EVER, built.close()).await;
    if began.elapsed() > LONGEST {
        wrong.push(format!("the close took {:?}", began.elapsed()));
    }
    if let Ok(Err(error)) = closed
        && case.goes_on
    {
        wrong.push(format!("the close failed: {error}"));
    }
    wrong
}

#[test]
fn nothing_waits_longer_than_the_limit_for_a_dependency_that_is_silent() {
    let mut wrong = Vec::new();
    for case in CASES.iter().copied() {
        for (name, operations) in OPERATIONS {
            for only_close in [false, true] {
                let main = move || async move { run(case, operations, only_close).await };
                let found = runtime::simulate(runtime::Simulation::new(1), main).unwrap().value;
                let when = if only_close { "from the close on" } else { "under load" };
                let what = format!("{}: {} silent to {name} {when}", case.line, case.silent);
                wrong.extend(found.into_iter().map(|found| format!("{what}: {found}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of the grid:\n{}", wrong.len(), wrong.join("\n"));
}

async fn opened(line: &str) -> (BuiltStack, Rc<dyn Device>) {
    (0..2).for_each(|number| silence(number, 0));
    let built =
        Stack::from_line("line", line, &registry()).unwrap().check(true).unwrap().build().await.unwrap();
    let device = built.device("top").unwrap().open().await.unwrap();
    (built, device)
}

#[test]
fn a_leg_that_failed_long_ago_fails_no_stop() {
    let main = || async {
        for fails in [false, true] {
            let (built, device) =
                opened("mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB)").await;
            if fails {
                silence(1, WRITE);
                write(&*device, 1, 1).await.unwrap();
                runtime::sleep(Duration::from_secs(60)).await;
            }
            silence(1, CLOSE_FAILS);
            runtime::sleep(Duration::from_secs(60)).await;
            write(&*device, 1, 2).await.unwrap();
            drop(device);
            let closed = built.close().await;
            assert_eq!(closed.is_ok(), fails, "{closed:?}");
        }
    };
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}

#[test]
fn a_device_that_answers_again_is_used_again_after_its_late_requests() {
    let main = || async {
        let (built, device) = opened("writecache(silent(0), silent(1), timeout=2s)").await;
        silence(0, READ);
        assert!(matches!(read(&*device, 3, 1).await, Err(Error::TimedOut(_))));
        let began = runtime::now();
        assert!(matches!(read(&*device, 4, 1).await, Err(Error::TimedOut(_))));
        assert!(began.elapsed() < Duration::from_millis(100), "known to be silent");
        write(&*device, 3, 7).await.unwrap();
        assert_eq!(read(&*device, 3, 1).await.unwrap()[0], 7);
        silence(0, 0);
        runtime::sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&*device, 4, 1).await.unwrap()[0], 0);
        // The last leg of a mirror isn't abandoned for good.
        drop(device);
        built.close().await.unwrap();
        let (built, device) = opened("mirror(silent(0), silent(1), timeout=2s, bitmap_chunk=16KiB)").await;
        (0..2).for_each(|number| silence(number, ALL));
        assert!(write(&*device, 1, 1).await.is_err() && read(&*device, 1, 1).await.is_err());
        (0..2).for_each(|number| silence(number, 0));
        runtime::sleep(Duration::from_secs(1)).await;
        write(&*device, 1, 5).await.unwrap();
        assert_eq!(read(&*device, 1, 1).await.unwrap()[0], 5);
        drop(device);
        built.close().await.unwrap();
    };
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}

#[test]
fn a_long_discard_is_cut_into_pieces_each_with_the_limit() {
    let main = || async {
        let geometry = DeviceGeometry { blocks: BlockCount(1 << 18), ..geometry() };
        let rules = vec!["discard delay=1500ms".to_owned(), "write_zeroes delay=1500ms".to_owned()];
        let slow = parse_rules(&rules, Contract::Device).unwrap();
        let slow = FaultDevicePart::new(Arc::new(ImageDisk::empty(geometry.clone())), slow, 1).unwrap();
        let slow: Arc<dyn DevicePart> = Arc::new(slow);
        let fast = Arc::new(ImageDisk::empty(DeviceGeometry { blocks: BlockCount(BLOCKS), ..geometry }));
        let options = cache::Options {
            format: true,
            mode: cache::Mode::Passthrough,
            timeout: Duration::from_secs(2),
            ..cache::Options::default()
        };
        let part = cache::CachePart::open(slow, fast, "slow", &options).await.unwrap();
        let device = part.open().await.unwrap();
        // 1 GiB: 16 pieces.
        let began = runtime::now();
        device.discard(BlockRange::new(0, 1 << 18)).await.unwrap();
        device
            .write_zeroes(BlockRange::new(0, 1 << 17), ZeroMode::MayDeallocate, Durability::Visible)
            .await
            .unwrap();
        assert!(began.elapsed() >= Duration::from_millis(24 * 1500), "{:?}", began.elapsed());
        drop(device);
        part.close().await.unwrap();
    };
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}
