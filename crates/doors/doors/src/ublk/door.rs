//! The ublk door as a part of a stack.
//!
//! # Promises
//! - A device that exists and has a server is never changed.
//! - When the server is killed the device remains, and its requests wait. The next server of the same number
//!   repeats the requests that weren't completed.
//! - [`UblkDoor::stop`] writes back the device's page cache, stops the device and deletes it, unless another
//!   process [holds](UblkDoor::held) it. While the device is mounted the stop retries for [`STOP_LIMIT`].
//!   Then the users get I/O errors, and the stop returns an error that says so.

use super::backing::{Backing, OpenBacking};
use super::control::{self, Attached, Target};
use super::protocol::{DEPTH, MAX_REQUEST_BYTES};
use super::zoned::Layout;
use crate::served::metrics::{REQUEST_METRICS, TRIM_METRICS};
use block::{Call, Error, Part, Result, Status};
use runtime::ShardIndex;
use runtime::sync::{StopSource, StopToken};
use runtime::ublk_driver;
use serde_json::json;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Time limit for the users of the device to unmount it when the door stops.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the kernel to release the device of a killed server.
const RECOVERY_LIMIT: Duration = Duration::from_secs(5);
/// Largest number of a device (UBLK_MINORS).
const MAX_ID: u64 = (1 << 20) - 1;

/// Configuration of a door.
pub struct UblkConfig {
    /// Name in messages for operators.
    pub name: String,
    /// Device or zones to serve.
    pub backing: Backing,
    /// Number of the block device; `None` to let the kernel choose.
    pub id: Option<u32>,
    /// Whether changes are refused even if the backing accepts them.
    pub read_only: bool,
    /// Time limit for the users of the device to unmount it at the stop.
    pub stop_limit: Duration,
}

/// State that the door and its queues share.
struct Shared {
    name: String,
    backing: OpenBacking,
}

impl Shared {
    fn in_context(&self, error: &Error) -> Error {
        error.in_context(format_args!("ublk \"{}\"", self.name))
    }
}

/// Door that serves a device or zones as a block device of the kernel.
pub struct UblkDoor {
    shared: Arc<Shared>,
    target: Target,
    /// Whether another process keeps the device when the door stops.
    is_held: bool,
    stop_limit: Duration,
    running: Mutex<Option<Running>>,
}

struct Running {
    id: u32,
    leave: StopSource,
    /// Raised by each queue at its end.
    ended: Vec<StopToken>,
}

impl UblkDoor {
    /// Creates a door that isn't open yet. With a number in the configuration, a device of that number that
    /// has lost its server is recovered.
    pub fn new(config: UblkConfig) -> UblkDoor {
        let target = config.id.map_or(Target::New, Target::Any);
        UblkDoor::create(config, target, false)
    }

    /// Creates a door whose device another process holds: the device remains at the stop, and after the end
    /// of this process its requests wait for the next server. With `left`, that device exists and is
    /// recovered. [`control::delete`] deletes it.
    pub fn held(config: UblkConfig, left: Option<u32>) -> UblkDoor {
        let target = left.map_or(config.id.map_or(Target::New, Target::Any), Target::Existing);
        UblkDoor::create(config, target, true)
    }

    fn create(config: UblkConfig, target: Target, is_held: bool) -> UblkDoor {
        let UblkConfig { name, backing, read_only, stop_limit, .. } = config;
        let shared = Shared { name, backing: OpenBacking::new(backing, read_only) };
        UblkDoor { shared: Arc::new(shared), target, is_held, stop_limit, running: Mutex::new(None) }
    }

    /// Number of the block device of an open door.
    pub fn id(&self) -> Option<u32> {
        self.running().as_ref().map(|running| running.id)
    }

    /// Path of the block device of an open door.
    pub fn node(&self) -> Option<PathBuf> {
        self.id().map(control::node)
    }

    /// Waits until all queues of an open door have ended, because the device or the door was stopped.
    pub async fn ended(&self) {
        let tokens = self.running().as_ref().map(|running| running.ended.clone()).unwrap_or_default();
        for token in tokens {
            token.stopped().await;
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // Nothing panics while the lock is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<()> {
        if self.running().is_some() {
            return Err(Error::busy("the door is open already"));
        }
        if runtime::is_simulated() {
            return Err(Error::unsupported("a block device of the kernel's under simulation"));
        }
        self.shared.backing.open().await?;
        let opened = self.attach_and_start().await;
        if opened.is_err() {
            self.shared.backing.close().await;
        }
        *self.running() = Some(opened?);
        Ok(())
    }

    async fn attach_and_start(&self) -> Result<Running> {
        let parameters = self.shared.backing.parameters().await?;
        let (target, queues) = (self.target, runtime::shard_count() as u16);
        let attach = async || runtime::blocking(move || control::attach(target, parameters, queues)).await;
        let Attached { info, descriptor, is_recovered } =
            runtime::retry_while_busy(RECOVERY_LIMIT, attach).await?;
        let mut running = Running { id: info.id, leave: StopSource::new(), ended: Vec::new() };
        let descriptor = Arc::new(descriptor);
        let mut started = Ok(());
        for index in 0..info.queues {
            let (shared, descriptor) = (self.shared.clone(), descriptor.clone());
            let (leave, ended) = (running.leave.token(), StopSource::new());
            running.ended.push(ended.token());
            let shard = ShardIndex(usize::from(index) % runtime::shard_count());
            let serving = runtime::spawn_on(shard, move || async move {
                let queue = ublk_driver::Queue::new(&descriptor, index, info.depth);
                drop(descriptor);
                match queue {
                    Ok(queue) => serve(shared, queue, leave, ended).await,
                    Err(error) => {
                        ended.stop();
                        Err(error)
                    }
                }
            });
            started = serving.await.and_then(|started| started);
            if started.is_err() {
                break;
            }
        }
        drop(descriptor);
        if started.is_ok() {
            let id = info.id;
            started = runtime::blocking(move || control::start(id, is_recovered)).await;
        }
        match started {
            Ok(()) => Ok(running),
            Err(error) => {
                // A device of an earlier server remains for the next one.
                let cleaned = if is_recovered { Ok(()) } else { delete(running, None).await };
                if let Err(error) = cleaned {
                    tracing::warn!("{}", self.shared.in_context(&error));
                }
                Err(error)
            }
        }
    }

    async fn close(&self) -> Result<()> {
        let Some(running) = self.running().take() else { return Ok(()) };
        let stopped = if self.is_held {
            running.leave.stop();
            for ended in &running.ended {
                ended.stopped().await;
            }
            Ok(())
        } else {
            let id = running.id;
            let claim = async || runtime::blocking(move || control::claim(id)).await;
            let claimed = runtime::retry_while_busy(self.stop_limit, claim).await;
            let (used, claim) = match claimed {
                Ok(claim) => (None, Some(claim)),
                Err(error) => (Some(error), None),
            };
            let deleted = delete(running, claim).await;
            let used = used.map(|error| match error {
                Error::Busy(_) => error.in_context(format_args!(
                    "{} was still in use after {} s; its users get I/O errors; unmount it before the stop",
                    control::node(id).display(),
                    self.stop_limit.as_secs()
                )),
                _ => error,
            });
            deleted.and(used.map_or(Ok(()), Err))
        };
        self.shared.backing.close().await;
        stopped
    }
}

/// Begins to serve a queue on this shard. Returns when its tags wait for requests.
async fn serve(
    shared: Arc<Shared>,
    queue: ublk_driver::Queue,
    leave: StopToken,
    ended: StopSource,
) -> Result<()> {
    let starting = StopSource::new();
    let started = starting.token();
    let refused = Rc::new(OnceLock::new());
    let told = refused.clone();
    runtime::spawn(async move {
        let fetching = |outcome: Result<()>| {
            if let Err(error) = outcome {
                let _ = told.set(error);
            }
            starting.stop();
        };
        let outcome = shared.backing.serve(queue, leave, fetching).await;
        starting.stop();
        if let Err(error) = outcome {
            tracing::error!("{}", shared.in_context(&error));
        }
        ended.stop();
    })
    .detach();
    started.stopped().await;
    refused.get().map_or(Ok(()), |error: &Error| Err(error.clone()))
}

/// Stops and deletes a device whose queues are served here. It remains claimed until it is stopped, so that
/// it can't be mounted before.
async fn delete(running: Running, claim: Option<std::fs::File>) -> Result<()> {
    let id = running.id;
    let stopped = runtime::blocking(move || control::stop(id)).await;
    drop(claim);
    stopped?;
    for ended in &running.ended {
        ended.stopped().await;
    }
    runtime::blocking(move || control::remove(id)).await
}

impl Part for UblkDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        let running = self.running().as_ref().map(|running| (running.id, running.ended.len()));
        status.insert("state".into(), json!(if running.is_some() { "started" } else { "closed" }));
        if let Some((id, queues)) = running {
            status.insert("node".into(), json!(control::node(id)));
            status.insert("queues".into(), json!(queues));
        }
        self.shared.backing.add_status(&mut status);
        status.insert("max_requests_per_queue".into(), json!(DEPTH));
        status.insert("max_request_bytes".into(), json!(MAX_REQUEST_BYTES));
        Call::ready(status)
    }
}

impl Door for UblkDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(async { self.open().await.map_err(|error| self.shared.in_context(&error)) })
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(async { self.close().await.map_err(|error| self.shared.in_context(&error)) })
    }

    fn addresses(&self) -> Vec<String> {
        self.node().iter().map(|node| node.display().to_string()).collect()
    }

    fn serves_kernel(&self) -> bool {
        true
    }
}

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "ublk",
    contract: Contract::Door,
    summary: "serves a device as a block device of the kernel, /dev/ublkbN, and zones as a zoned one",
    keys: &[
        Key::required("device", ValueKind::DeviceOrZones, "device or zones to serve").positional(),
        Key::optional(
            "id",
            ValueKind::Integer { min: 0, max: MAX_ID },
            "number N of the block device to create, or to recover if it has lost its server; default: chosen by the kernel",
        ),
        Key::optional("read_only", ValueKind::Bool, "refuse writes").or("false"),
    ],
    messages: &[],
    metrics: &[METRICS, REQUEST_METRICS, TRIM_METRICS],
    shareable: false,
    example: "ublk(ram(size=64MiB), id=7)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("state", "door_up", "1 while the door is in service").if_word("started"),
    Metric::gauge("queues", "door_queues", "Queues in service"),
];

fn plan(arguments: &Arguments) -> Result<Shape> {
    if let Some(zones) = arguments.shape("device")?.zones {
        Layout::of(&zones).map_err(|error| arguments.refuse("device", error.detail().to_owned()))?;
    }
    Ok(Shape::default())
}

fn build(arguments: &Arguments) -> Result<Built> {
    let config = UblkConfig {
        name: arguments.name().to_owned(),
        backing: match arguments.contract("device")? {
            Some(Contract::Zones) => Backing::Zones(arguments.zones("device")?),
            _ => Backing::Device(arguments.device("device")?),
        },
        id: arguments.optional_integer("id")?.map(|id| id as u32),
        read_only: arguments.boolean("read_only")?,
        stop_limit: STOP_LIMIT,
    };
    Ok(Built::Door(Arc::new(UblkDoor::new(config))))
}
