//! Borrowed memory as a device of a stack: an NBD client of `memory/NAME` that also reads the node's status.
//!
//! It is volatile. When the node ends or can't be reached, requests of a handle fail, and so do all later
//! ones through it. A handle that is opened later reads the current memory of the node: zeros, and another
//! `epoch` in the status, if the memory was lost meanwhile.

use crate::borrowers::{PREFIX, check_name};
use crate::status::{BorrowerState, Document, STATUS_BYTES, STATUS_EXPORT};
use block::{BlockIndex, Buffer, Call, Device, DeviceGeometry, DevicePart, Error, Part, Result, Status};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use runtime::Instant;
use runtime::net::Address;
use runtime::sync::{StopSource, StopToken};
use serde_json::json;
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two reads of the status.
const INTERVAL: Duration = Duration::from_millis(500);
/// Longest time between two attempts to reach a node that doesn't answer.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit of reading the status.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "memory-node",
    contract: Contract::Device,
    summary: "memory borrowed from a memory node; lost with it",
    keys: &[
        Key::required("address", ValueKind::Text, "address of the node: unix:PATH or IP:PORT").positional(),
        Key::required(
            "name",
            ValueKind::Text,
            "name of the borrower: the memory of one name is the same for all its clients; up to 64 letters, digits, '.', '_' or '-'",
        ),
        Key::optional(
            "connections",
            ValueKind::Integer { min: 1, max: 64 },
            "number of connections per shard",
        )
        .or("1"),
        tls::keys::CLIENT_FOLDER,
        tls::keys::HOSTNAME,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "memory-node(\"127.0.0.1:10810\", name=swap0)",
    plan: |arguments| {
        let (address, name) = (address_of(arguments)?, arguments.text("name")?);
        tls::keys::client(arguments, &address)?;
        check_name(&name).map_err(|error| arguments.refuse("name", error.detail().to_owned()))?;
        Ok(Shape::default())
    },
    build: |arguments| {
        Call::new(async move {
            let (address, name) = (address_of(&arguments)?, arguments.text("name")?);
            let connections = arguments.integer("connections")? as usize;
            let tls = tls::keys::client(&arguments, &address)?;
            Ok(Built::Device(Arc::new(MemoryNodePart::connect(address, name, connections, tls).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge("lent_bytes", "memory_node_lent_bytes", "Memory that the node lends to this device"),
    Metric::gauge(
        "reclaim_bytes",
        "memory_node_reclaim_bytes",
        "Memory that the node asks this device to return",
    ),
    Metric::gauge("free_bytes", "memory_node_free_bytes", "Memory that the node can still lend"),
    Metric::gauge("capacity_bytes", "memory_node_capacity_bytes", "Memory that the node lends at most"),
    Metric::gauge(
        "mem_available_bytes",
        "memory_node_available_bytes",
        "Available memory of the node's machine",
    ),
    Metric::gauge(
        "some_avg10",
        "memory_node_pressure_ratio",
        "Share of the last 10 s in which a task of the node's machine waited for memory",
    )
    .times(0.01),
    Metric::gauge("status_age_ms", "memory_node_status_age_seconds", "Age of the newest status of the node")
        .times(1e-3),
];

/// Address from a stack: a relative path is resolved against the stack's folder.
fn address_of(arguments: &Arguments) -> Result<Address> {
    let refused = |error: Error| arguments.refuse("address", error.detail().to_owned());
    match arguments.text("address")?.parse().map_err(refused)? {
        Address::Unix(path) => Ok(Address::Unix(arguments.absolute(Path::new(&path))?)),
        tcp => Ok(tcp),
    }
}

/// Memory borrowed from a node.
pub struct MemoryNodePart {
    client: NbdClient,
    address: Address,
    name: String,
    known: Arc<Mutex<Known>>,
    stop: StopSource,
    /// Raised once the task that reads the status has ended.
    ended: StopToken,
}

/// The last status, and the failures since.
struct Known {
    document: Document,
    at: Instant,
    /// Error of later reads of the status.
    failure: Option<Error>,
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    // Nothing panics while the lock is held.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryNodePart {
    /// Connects as the borrower with this name, and starts reading the node's status.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the address has no memory node of this version; [`Error::PermissionDenied`] if
    /// the node accepts no more borrowers; errors of the connection.
    pub async fn connect(
        address: Address,
        name: String,
        connections: usize,
        tls: Option<tls::ClientConfig>,
    ) -> Result<Self> {
        check_name(&name)?;
        let mut reader = Reader::new(address.clone(), tls.clone());
        // The status is read first: another kind of server may also have an export with this name.
        let document = reader.read().await?;
        let export = format!("{PREFIX}{name}");
        let config = ClientConfig {
            address: address.clone(),
            export,
            connections,
            block_size: None,
            timeout: USUAL_TIMEOUT,
            tls,
        };
        let client = NbdClient::connect(config).await?;
        let known = Arc::new(Mutex::new(Known { document, at: runtime::now(), failure: None }));
        let (stop, ended) = (StopSource::new(), StopSource::new());
        let part = MemoryNodePart {
            client,
            address,
            name,
            known: known.clone(),
            stop: stop.clone(),
            ended: ended.token(),
        };
        let token = stop.token();
        runtime::spawn(async move {
            watch(reader, &known, &token).await;
            ended.stop();
        })
        .detach();
        Ok(part)
    }
}

/// Reads the status until the stop signal.
async fn watch(mut reader: Reader, known: &Mutex<Known>, stop: &StopToken) {
    let mut interval = INTERVAL;
    while runtime::timeout(interval, stop.stopped()).await.is_err() {
        // A close doesn't wait for a node that doesn't answer.
        let Some(read) = stop.unless_stopped(reader.read()).await else { return };
        let mut known = locked(known);
        match read {
            Ok(document) => {
                (known.document, known.at, known.failure) = (document, runtime::now(), None);
                interval = INTERVAL;
            }
            Err(error) => {
                if known.failure.is_none() {
                    tracing::warn!("{error}; the state of this memory node is unknown until it answers");
                }
                known.failure = Some(error);
                interval = (interval * 2).min(MAX_INTERVAL);
            }
        }
    }
}

/// Connection to the status of a node, opened again after a failure.
struct Reader {
    address: Address,
    tls: Option<tls::ClientConfig>,
    device: Option<Rc<dyn Device>>,
}

impl Reader {
    fn new(address: Address, tls: Option<tls::ClientConfig>) -> Self {
        Reader { address, tls, device: None }
    }

    async fn read(&mut self) -> Result<Document> {
        let device = self.device.take();
        let reading =
            runtime::timeout(READ_LIMIT, read_status(&self.address, self.tls.clone(), device)).await;
        let outcome = reading.unwrap_or_else(|_| {
            Err(Error::timed_out(format!("its status took longer than {} s", READ_LIMIT.as_secs())))
        });
        let (document, device) =
            outcome.map_err(|error| error.in_context(format_args!("memory node {}", self.address)))?;
        self.device = Some(device);
        Ok(document)
    }
}

async fn read_status(
    address: &Address,
    tls: Option<tls::ClientConfig>,
    device: Option<Rc<dyn Device>>,
) -> Result<(Document, Rc<dyn Device>)> {
    let device = match device {
        Some(device) => device,
        None => {
            let config = ClientConfig {
                address: address.clone(),
                export: STATUS_EXPORT.to_owned(),
                connections: 1,
                block_size: None,
                timeout: USUAL_TIMEOUT,
                tls,
            };
            let client = NbdClient::connect(config).await?;
            let bytes = client.geometry().bytes();
            if bytes == 0 || bytes > STATUS_BYTES as u64 * 16 {
                return Err(Error::protocol(format!(
                    "its status has {bytes} bytes: expected {STATUS_BYTES}; is it a memory node?"
                )));
            }
            client.open().await?
        }
    };
    let bytes = device.geometry().bytes() as usize;
    let (read, buffer) = device.read(BlockIndex(0), Buffer::new(bytes)).await;
    read?;
    Ok((Document::parse(buffer.filled())?, device))
}

impl Drop for MemoryNodePart {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

impl Part for MemoryNodePart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let known = locked(&self.known);
        let node = &known.document;
        let nothing = BorrowerState::default();
        let own = node.borrowers.get(&self.name).unwrap_or(&nothing);
        let mut status = Status::new();
        status.insert("address".into(), json!(self.address.to_string()));
        status.insert("name".into(), json!(self.name));
        status.insert("bytes".into(), json!(self.client.geometry().bytes()));
        status.insert("lent_bytes".into(), json!(own.lent_bytes));
        status.insert("reclaim_bytes".into(), json!(own.reclaim_bytes.min(own.lent_bytes)));
        status.insert("free_bytes".into(), json!(node.free_bytes));
        status.insert("capacity_bytes".into(), json!(node.capacity_bytes));
        status.insert("node_lent_bytes".into(), json!(node.lent_bytes));
        status.insert("some_avg10".into(), json!(node.pressure.some_avg10));
        status.insert("mem_available_bytes".into(), json!(node.pressure.mem_available_bytes));
        status.insert("epoch".into(), json!(own.epoch));
        status.insert("status_age_ms".into(), json!(known.at.elapsed().as_millis() as u64));
        let failure = known.failure.as_ref().map(ToString::to_string);
        status.insert("status_error".into(), json!(failure));
        Call::ready(status)
    }

    /// Stops reading the status. Durability isn't possible: the memory is lost with the node.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.stop.stop();
            self.ended.stopped().await;
            Ok(())
        })
    }
}

impl DevicePart for MemoryNodePart {
    fn geometry(&self) -> &DeviceGeometry {
        self.client.geometry()
    }

    /// Returns false: the node releases the memory of borrowers that have been disconnected for some time.
    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.client.open()
    }
}
