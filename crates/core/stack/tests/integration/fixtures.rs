//! Kinds for the tests: a device in memory, layers over one or several devices, zones and a door. Builds,
//! starts, stops and closes are recorded per thread.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
    ZoneGeometry, Zones, ZonesPart,
};
use stack::{Arguments, Built, Contract, Door, Key, Kind, Registry, Shape, ValueKind};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

thread_local! {
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(event: String) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

/// Events on this thread since the last call.
pub fn events() -> Vec<String> {
    EVENTS.take()
}

/// Runs a call whose parts never wait.
pub fn run<T>(mut call: Call<'_, T>) -> T {
    match Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("no kind of these tests waits for anything"),
    }
}

pub fn registry() -> Registry {
    Registry::new(vec![&FILE, &RAM, &NULL, &LOG, &MIRROR, &WRITECACHE, &CUT, &LIAR, &NBD])
}

/// Moment at which a part of these tests fails.
const FAIL: Key =
    Key::optional("fail", ValueKind::Choice(&["never", "build", "close"]), "when to fail").or("never");

static FILE: Kind = Kind {
    name: "file",
    contract: Contract::Device,
    summary: "a device that only says which path it was given",
    keys: &[
        Key::required("path", ValueKind::Path, "the file that holds the data").positional(),
        Key::optional("size", ValueKind::Size, "its size").positional(),
        Key::optional("block_size", ValueKind::Size, "bytes per block").or("4KiB"),
        Key::optional("direct", ValueKind::Bool, "past the page cache").or("true"),
        Key::optional("latency", ValueKind::Duration, "added to every call"),
        Key::optional("depth", ValueKind::Integer { min: 1, max: 256 }, "calls at a time").or("32"),
        Key::optional("seed", ValueKind::Integer { min: 0, max: u64::MAX }, "of what is random"),
        Key::optional("rate", ValueKind::Float { min: 0.0, max: 1e9 }, "calls a second"),
        Key::optional("note", ValueKind::Text, "for people"),
        Key::optional("tags", ValueKind::Texts, "for people, too"),
        Key::optional("mode", ValueKind::Choice(&["fast", "safe"]), "what matters").or("safe"),
        Key::optional("levels", ValueKind::Percentages, "when to warn").or("80%, 90%"),
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "file(disk.img, size=4GiB)",
    plan: |arguments| leaf_shape(arguments),
    build: |arguments| Call::new(async move { leaf(&arguments, "file") }),
};

static RAM: Kind = Kind {
    name: "ram",
    contract: Contract::Device,
    summary: "a device in memory",
    keys: &[
        Key::required("size", ValueKind::Size, "its size").positional(),
        Key::optional("block_size", ValueKind::Size, "bytes per block").or("512"),
        FAIL,
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "ram(1MiB)",
    plan: |arguments| leaf_shape(arguments),
    build: |arguments| Call::new(async move { leaf(&arguments, "ram") }),
};

static NULL: Kind = Kind {
    name: "null",
    contract: Contract::Device,
    summary: "a device that any number of parts may stand on",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: true,
    example: "null",
    plan: |_| Ok(Shape::new(1 << 20, 512)),
    build: |arguments| Call::new(async move { memory(&arguments, "null", 1 << 20, 512) }),
};

static LOG: Kind = Kind {
    name: "log",
    contract: Contract::Device,
    summary: "a device on another one, a MiB smaller",
    keys: &[
        Key::required("on", ValueKind::Device, "what it stands on").positional(),
        Key::optional("map", ValueKind::Choice(&["radix", "btree", "hash"]), "how blocks are found")
            .or("radix"),
        FAIL,
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "log(file(disk.img, size=4GiB), map=radix)",
    plan: |arguments| {
        let below = arguments.shape("on")?;
        let bytes = match below.bytes {
            Some(bytes) if bytes <= 1 << 20 => {
                return Err(Error::invalid(format!("{bytes} bytes below: expected more than 1MiB")));
            }
            bytes => bytes.map(|bytes| bytes - (1 << 20)),
        };
        Ok(Shape { bytes, ..below })
    },
    build: |arguments| Call::new(async move { layer(&arguments, "log", vec![arguments.device("on")?]) }),
};

static MIRROR: Kind = Kind {
    name: "mirror",
    contract: Contract::Device,
    summary: "a device on several",
    keys: &[
        Key::required("devices", ValueKind::Devices, "the copies").positional(),
        Key::optional("zones", ValueKind::Zones, "where to note what differs"),
        FAIL,
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "mirror(file(a.img), file(b.img))",
    plan: |arguments| {
        let shapes = arguments.shapes("devices")?;
        if shapes.windows(2).any(|pair| pair[0].bytes != pair[1].bytes) {
            return Err(arguments.refuse("devices", "the copies differ in size: expected the same"));
        }
        Ok(shapes[0].clone())
    },
    build: |arguments| Call::new(async move { layer(&arguments, "mirror", arguments.devices("devices")?) }),
};

static WRITECACHE: Kind = Kind {
    name: "writecache",
    contract: Contract::Device,
    summary: "a device before another one",
    keys: &[
        Key::required("fast", ValueKind::Device, "what is written first"),
        Key::required("origin", ValueKind::Device, "what is written in the end"),
        FAIL,
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "writecache(fast=ram(size=1GiB), origin=file(slow.img))",
    plan: |arguments| arguments.shape("origin"),
    build: |arguments| {
        Call::new(async move {
            layer(&arguments, "writecache", vec![arguments.device("origin")?, arguments.device("fast")?])
        })
    },
};

static CUT: Kind = Kind {
    name: "cut",
    contract: Contract::Zones,
    summary: "zones on a device",
    keys: &[Key::required("on", ValueKind::Device, "what is cut up").positional()],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "cut(ram(1MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::new(async move {
            note(format!("build {}", arguments.name()));
            let geometry = ZoneGeometry {
                zones: 4,
                zone_size: 1 << 18,
                zone_capacity: 1 << 18,
                append_granularity: 512,
                read_granularity: 512,
                max_append: 1 << 18,
                max_open: 0,
                max_active: 0,
                durable: Durable::OnFlush,
                erase: EraseGuarantee::None,
            };
            Ok(Built::Zones(Arc::new(Cut { name: arguments.name().to_owned(), geometry })))
        })
    },
};

/// Builds a part of another contract than it declares.
static LIAR: Kind = Kind {
    name: "liar",
    contract: Contract::Zones,
    summary: "declares zones and builds a device",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "liar",
    plan: |_| Ok(Shape::default()),
    build: |arguments| Call::new(async move { memory(&arguments, "liar", 512, 512) }),
};

static NBD: Kind = Kind {
    name: "nbd",
    contract: Contract::Door,
    summary: "a door",
    keys: &[
        Key::optional("device", ValueKind::Device, "what it serves").positional(),
        Key::optional("exports", ValueKind::Devices, "more of them"),
        Key::optional("socket", ValueKind::Text, "where").or("vol.sock"),
        Key::optional("fail", ValueKind::Choice(&["never", "start", "stop"]), "when to fail").or("never"),
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "nbd(ram(1MiB), socket=vol.sock)",
    plan: |_| Ok(Shape::default()),
    build: |arguments| {
        Call::new(async move {
            note(format!("build door {}", arguments.name()));
            let fail = arguments.choice("fail")?;
            Ok(Built::Door(Arc::new(Nbd {
                name: arguments.name().to_owned(),
                socket: arguments.text("socket")?,
                fail,
            })))
        })
    },
};

fn leaf_shape(arguments: &Arguments) -> Result<Shape> {
    let block_size = arguments.size("block_size")?;
    let block_size = BlockSize::new(block_size)
        .map_err(|error| arguments.refuse("block_size", error.detail().to_owned()))?;
    let bytes = arguments.optional_size("size")?;
    if let Some(bytes) = bytes
        && bytes % block_size.bytes() != 0
    {
        let detail = format!("size {bytes}: expected a multiple of the block size, {block_size}");
        return Err(arguments.refuse("size", detail));
    }
    Ok(Shape { bytes, block_size: Some(block_size.bytes() as u32), zones: None })
}

fn leaf(arguments: &Arguments, kind: &'static str) -> Result<Built> {
    let bytes = arguments.optional_size("size")?.unwrap_or(1 << 20);
    memory(arguments, kind, bytes, arguments.size("block_size")?)
}

fn memory(arguments: &Arguments, kind: &'static str, bytes: u64, block_size: u64) -> Result<Built> {
    // Tests plan with real sizes and build with small ones.
    assert!(bytes <= 16 << 20, "the device of this test is in memory");
    let block_size = BlockSize::new(block_size)?;
    let geometry = DeviceGeometry {
        block_size,
        blocks: BlockCount(bytes >> block_size.shift()),
        atomic_write: 512,
        volatile_cache: false,
        read_only: false,
    };
    let content = Mutex::new(vec![0; bytes as usize]);
    part(arguments, kind, Memory { geometry, content: Arc::new(content) })
}

fn layer(arguments: &Arguments, kind: &'static str, below: Vec<Arc<dyn DevicePart>>) -> Result<Built> {
    part(arguments, kind, Below(below))
}

fn part<T: Opens + 'static>(arguments: &Arguments, kind: &'static str, opens: T) -> Result<Built> {
    note(format!("build {}", arguments.name()));
    let fail = arguments.optional_choice("fail").ok().flatten().unwrap_or("never");
    if fail == "build" {
        return Err(Error::io("it was told to fail"));
    }
    let name = arguments.name().to_owned();
    Ok(Built::Device(Arc::new(TestPart { name, kind, fails_to_close: fail == "close", opens })))
}

/// Differences between a leaf and a layer.
trait Opens: Send + Sync {
    fn geometry(&self) -> &DeviceGeometry;
    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>>;
}

struct TestPart<T> {
    name: String,
    kind: &'static str,
    fails_to_close: bool,
    opens: T,
}

impl<T: Opens> Part for TestPart<T> {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(Status::from_iter([("bytes".to_owned(), self.opens.geometry().bytes().into())]))
    }

    fn close(&self) -> Call<'_, Result<()>> {
        note(format!("close {}", self.name));
        Call::ready(if self.fails_to_close { Err(Error::io("it was told to fail")) } else { Ok(()) })
    }
}

impl<T: Opens> DevicePart for TestPart<T> {
    fn geometry(&self) -> &DeviceGeometry {
        self.opens.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.opens.open()
    }
}

/// Opens the first of the devices below.
struct Below(Vec<Arc<dyn DevicePart>>);

impl Opens for Below {
    fn geometry(&self) -> &DeviceGeometry {
        self.0[0].geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.0[0].open()
    }
}

#[derive(Clone)]
struct Memory {
    geometry: DeviceGeometry,
    content: Arc<Mutex<Vec<u8>>>,
}

impl Opens for Memory {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(self.clone())))
    }
}

impl Memory {
    fn bytes(&self, range: BlockRange) -> std::ops::Range<usize> {
        let size = self.geometry.block_size;
        let start = size.offset_of(range.start).0 as usize;
        start..start + size.bytes_of(range.count) as usize
    }

    fn put(&self, range: Result<BlockRange>, bytes: Option<&Payload>) -> Result<()> {
        let range = self.bytes(range?);
        let mut content = self.content.lock().unwrap();
        match bytes {
            Some(bytes) => bytes.copy_to(&mut content[range]),
            None => {
                content[range].fill(0);
                Ok(())
            }
        }
    }
}

impl Device for Memory {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let range = self.geometry.range(at, buffer.len());
        let outcome = range.map(|range| buffer.append(&self.content.lock().unwrap()[self.bytes(range)]));
        Call::ready((outcome, buffer))
    }

    fn write(&self, at: BlockIndex, payload: Payload, _: Durability) -> Call<'_, Result<()>> {
        Call::ready(self.put(self.geometry.range(at, payload.len()), Some(&payload)))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::ready(self.put(self.geometry.check(range).map(|()| range), None))
    }

    fn write_zeroes(&self, range: BlockRange, _: ZeroMode, _: Durability) -> Call<'_, Result<()>> {
        self.discard(range)
    }
}

/// Zones that are only composed here, never opened.
struct Cut {
    name: String,
    geometry: ZoneGeometry,
}

impl Part for Cut {
    fn kind(&self) -> &'static str {
        "cut"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        note(format!("close {}", self.name));
        Call::ready(Ok(()))
    }
}

impl ZonesPart for Cut {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::ready(Err(Error::unsupported("zones of these tests are not opened")))
    }
}

struct Nbd {
    name: String,
    socket: String,
    fail: &'static str,
}

impl Nbd {
    fn act(&self, what: &str) -> Call<'_, Result<()>> {
        note(format!("{what} door {}", self.name));
        Call::ready(if self.fail == what { Err(Error::busy("it was told to fail")) } else { Ok(()) })
    }
}

impl Part for Nbd {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.act("close")
    }
}

impl Door for Nbd {
    fn start(&self) -> Call<'_, Result<()>> {
        self.act("start")
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        self.act("stop")
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.socket.clone()]
    }
}
