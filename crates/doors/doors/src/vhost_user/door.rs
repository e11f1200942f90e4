//! The vhost-user-blk door as a part of a stack.

use super::connection::{End, serve};
use super::request::ID_BYTES;
use crate::served::export::{Export, Tally};
use crate::served::metrics::{REQUEST_METRICS, TRIM_METRICS};
use crate::served::unix_socket;
use block::{Call, Device, DevicePart, Error, Part, Result, Status};
use runtime::PerShard;
use runtime::ShardIndex;
use runtime::net::{Access, Address, Listener};
use runtime::sync::{StopSource, StopToken};
use serde_json::json;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of queues of a door without a configured number.
pub const DEFAULT_QUEUES: usize = 16;
/// Largest number of queues of a door.
const MAX_QUEUES: u64 = 256;

/// Configuration of a door.
pub struct VhostUserConfig {
    /// Name in messages for operators.
    pub name: String,
    /// Device to serve.
    pub device: Arc<dyn DevicePart>,
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Owner and permissions of the unix socket.
    pub access: Access,
    /// Number of queues that are offered.
    pub queues: usize,
    /// Serial number of the disk, at most 20 bytes.
    pub serial: String,
    /// Whether changes are refused even if the device accepts them.
    pub read_only: bool,
}

/// State that the door, its connection and its queues share.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) queues: usize,
    pub(super) serial: [u8; ID_BYTES],
    pub(super) devices: PerShard<Rc<dyn Device>>,
    pub(super) running_queues: AtomicUsize,
    device: Arc<dyn DevicePart>,
    address: Address,
    access: Access,
    read_only: bool,
    /// Created at the first start, when the number of shards is known.
    export: OnceLock<Export>,
    is_connected: AtomicBool,
    cut_off: AtomicU64,
    /// Raised, and replaced, when the device may have grown.
    refresh: Mutex<StopSource>,
}

impl Shared {
    pub(super) fn export(&self) -> &Export {
        self.export.get_or_init(|| Export::new(&self.device, self.read_only, runtime::shard_count()))
    }

    /// Returns the token that the next [`Door::refresh`] raises.
    pub(super) fn refresh_token(&self) -> StopToken {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner).token()
    }
}

/// Door that serves a device to virtual machines.
pub struct VhostUserDoor {
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: StopSource,
    /// Raised when the listener is closed.
    closed: StopToken,
    /// Error of closing the listener.
    close_failure: Arc<OnceLock<Error>>,
}

impl VhostUserDoor {
    /// Creates a door that isn't open yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a serial number that is too long.
    pub fn new(config: VhostUserConfig) -> Result<VhostUserDoor> {
        let VhostUserConfig { name, device, socket, access, queues, serial, read_only } = config;
        let mut bytes = [0; ID_BYTES];
        let Some(target) = bytes.get_mut(..serial.len()) else {
            return Err(Error::invalid(format!(
                "vhost-user \"{name}\": serial number of {} bytes; expected at most {ID_BYTES}",
                serial.len()
            )));
        };
        target.copy_from_slice(serial.as_bytes());
        let shared = Shared {
            name,
            queues,
            serial: bytes,
            devices: PerShard::new(),
            running_queues: AtomicUsize::new(0),
            device,
            address: Address::Unix(socket),
            access,
            read_only,
            export: OnceLock::new(),
            is_connected: AtomicBool::new(false),
            cut_off: AtomicU64::new(0),
            refresh: Mutex::default(),
        };
        Ok(VhostUserDoor { shared: Arc::new(shared), running: Mutex::new(None) })
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        // Nothing panics while the lock is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<()> {
        if self.running().is_some() {
            return Err(Error::busy(format!("vhost-user \"{}\": it is open already", self.shared.name)));
        }
        let device = self.shared.device.clone();
        self.shared
            .devices
            .open(move || {
                let device = device.clone();
                async move { device.open().await }
            })
            .await?;
        let (stop, closed) = (StopSource::new(), StopSource::new());
        let close_failure = Arc::new(OnceLock::new());
        let (shared, token, closed_token) = (self.shared.clone(), stop.token(), closed.token());
        let failure = close_failure.clone();
        let listening = runtime::spawn_on(ShardIndex(0), move || async move {
            let listener = Listener::replace_stale(&shared.address, shared.access).await?;
            runtime::spawn(async move {
                accept(&shared, &listener, &token).await;
                if let Err(error) = listener.close().await {
                    let _ = failure.set(error);
                }
                closed.stop();
            })
            .detach();
            Ok(())
        });
        match listening.await.and_then(|listening| listening) {
            Ok(()) => {
                *self.running() = Some(Running { stop, closed: closed_token, close_failure });
                Ok(())
            }
            Err(error) => {
                self.shared.devices.close(async |_| ()).await;
                Err(error)
            }
        }
    }

    async fn close(&self) -> Result<()> {
        let Some(running) = self.running().take() else { return Ok(()) };
        running.stop.stop();
        running.closed.stopped().await;
        self.shared.devices.close(async |_| ()).await;
        running.close_failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Serves one front-end after the other until the stop signal. The next one waits for the end of the one
/// before: a queue has only one user.
async fn accept(shared: &Arc<Shared>, listener: &Listener, stop: &StopToken) {
    while let Some(stream) = listener.accept_until(stop).await {
        shared.is_connected.store(true, Ordering::Relaxed);
        shared.export().counters.add(&mut Tally { connections: 1, ..Tally::default() });
        let end = runtime::attributed(stream.requester(), serve(stream, shared, stop)).await;
        shared.is_connected.store(false, Ordering::Relaxed);
        match end {
            End::Stopped => tracing::debug!("{}: {end}", shared.address),
            End::HungUp | End::Lost(_) => tracing::info!("{}: {end}", shared.address),
            End::Violation(_) => {
                shared.cut_off.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("vhost-user \"{}\": {}: {end}", shared.name, shared.address);
            }
        }
    }
}

impl Part for VhostUserDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let shared = &self.shared;
        let mut status = Status::new();
        status.insert("address".into(), json!(shared.address.to_string()));
        status.insert("connected".into(), json!(shared.is_connected.load(Ordering::Relaxed)));
        status.insert("cut_off_connections".into(), json!(shared.cut_off.load(Ordering::Relaxed)));
        status.insert("queues".into(), json!(shared.running_queues.load(Ordering::Relaxed)));
        if let Some(export) = shared.export.get() {
            status.extend(export.counters.status());
        }
        Call::ready(status)
    }
}

impl Door for VhostUserDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(self.open())
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(self.close())
    }

    fn addresses(&self) -> Vec<String> {
        vec![format!("vhost-user-blk {}", self.shared.address)]
    }

    fn refresh(&self) {
        std::mem::take(&mut *self.shared.refresh.lock().unwrap_or_else(PoisonError::into_inner)).stop();
    }
}

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "vhost-user",
    contract: Contract::Door,
    summary: "serves a device to a virtual machine as a vhost-user-blk disk",
    keys: &[
        Key::required("device", ValueKind::Device, "device to serve").positional(),
        Key::required("socket", ValueKind::Path, "path of a unix socket to listen on"),
        unix_socket::MODE,
        unix_socket::OWNER,
        Key::optional(
            "queues",
            ValueKind::Integer { min: 1, max: MAX_QUEUES },
            "limit of queues; queue N is served by shard N modulo the number of shards",
        )
        .or("16"),
        Key::optional(
            "serial",
            ValueKind::Text,
            "serial number that the guest sees, at most 20 bytes; default: the device's name",
        ),
        Key::optional("read_only", ValueKind::Bool, "refuse writes").or("false"),
    ],
    messages: &[],
    metrics: &[METRICS, REQUEST_METRICS, TRIM_METRICS],
    shareable: false,
    example: "vhost-user(ram(size=64MiB), socket=vm.sock)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("connected", "door_connections", "Clients that are connected"),
    Metric::counter(
        "cut_off_connections",
        "door_cut_off_connections",
        "Connections that the door ended because of their client",
    ),
    Metric::gauge("queues", "door_queues", "Queues in service"),
];

fn socket(arguments: &Arguments) -> Result<PathBuf> {
    let path = arguments.path("socket")?;
    let text = format!("unix:{}", path.display());
    match text.parse::<Address>() {
        Ok(_) => Ok(path),
        Err(error) => Err(arguments.refuse("socket", error.detail().to_owned())),
    }
}

fn serial(arguments: &Arguments) -> Result<String> {
    match arguments.optional_text("serial")? {
        Some(serial) if serial.len() > ID_BYTES => Err(arguments.refuse(
            "serial",
            format!("\"{serial}\" has {} bytes: expected at most {ID_BYTES}", serial.len()),
        )),
        Some(serial) => Ok(serial),
        None => {
            let name = arguments.child_names("device")?.first().copied().unwrap_or_default().to_owned();
            let end = (0..=name.len().min(ID_BYTES)).rev().find(|end| name.is_char_boundary(*end));
            Ok(name[..end.unwrap_or(0)].to_owned())
        }
    }
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    socket(arguments)?;
    unix_socket::check(arguments)?;
    serial(arguments)?;
    Ok(Shape::default())
}

fn build(arguments: &Arguments) -> Result<Built> {
    let config = VhostUserConfig {
        name: arguments.name().to_owned(),
        device: arguments.device("device")?,
        socket: socket(arguments)?,
        access: unix_socket::access(arguments)?,
        queues: arguments.integer("queues")? as usize,
        serial: serial(arguments)?,
        read_only: arguments.boolean("read_only")?,
    };
    Ok(Built::Door(Arc::new(VhostUserDoor::new(config)?)))
}
