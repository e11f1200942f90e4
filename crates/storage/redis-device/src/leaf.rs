//! The kind `redis`: its keys, and the part.

use crate::client::Client;
use crate::device::{Handle, Strings};
use crate::failure::shown;
use crate::slots::SlotTable;
use block::{BlockCount, BlockSize, Call, Device, DeviceGeometry, DevicePart, Error, Part, Result, Status};
use runtime::net::Address;
use serde_json::json;
use stack::password_file::{password_in, warn_of_access};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest name in bytes.
const MAX_NAME: usize = 64;
/// Most servers that are remembered for opening a handle.
const MAX_KNOWN: usize = 64;

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "redis",
    contract: Contract::Device,
    summary: "strings on a Redis or Valkey server or cluster; lost with it",
    keys: &[
        Key::required(
            "addresses",
            ValueKind::Texts,
            "some servers of a cluster, or one server: IP:PORT, or unix:PATH for one server",
        )
        .positional(),
        Key::required(
            "name",
            ValueKind::Text,
            "name of the device: its keys are NAME:0, NAME:1 and so on; up to 64 letters, digits, '.', '_' or '-'",
        ),
        Key::required("size", ValueKind::Size, "capacity; each MiB is one string"),
        Key::optional("username", ValueKind::Text, "user to log in as; default: the server's default user"),
        Key::optional("password_file", ValueKind::Path, "file whose first line is the password"),
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "redis(\"127.0.0.1:7000\", \"127.0.0.1:7001\", name=swap0, size=1GiB)",
    plan: |arguments| {
        addresses_of(arguments)?;
        check_name(&arguments.text("name")?).map_err(|error| refuse(arguments, "name", &error))?;
        geometry(arguments.size("size")?).map_err(|error| refuse(arguments, "size", &error))?;
        if arguments.given("username") && !arguments.given("password_file") {
            return Err(arguments.refuse("username", "expected password_file, too"));
        }
        Ok(Shape::new(arguments.size("size")?, BLOCK))
    },
    build: |arguments| {
        Call::new(async move {
            let config = Config {
                addresses: addresses_of(&arguments)?,
                name: arguments.text("name")?,
                size: arguments.size("size")?,
                credentials: credentials_of(&arguments)?,
            };
            Ok(Built::Device(Arc::new(RedisPart::connect(config).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::counter("connections_made", "redis_connections", "Connections to servers that were opened"),
    Metric::counter(
        "moved_replies",
        "redis_moved_replies",
        "Replies that a slot has moved to another server",
    ),
    Metric::counter("ask_replies", "redis_ask_replies", "Replies that a slot is moving to another server"),
    Metric::counter("retries", "redis_retries", "Commands that were sent again"),
];

const BLOCK: u32 = 4096;

/// Configuration of the servers and of the device on them.
#[derive(Debug, Clone)]
pub struct Config {
    /// Some servers of a cluster, or one server.
    pub addresses: Vec<Address>,
    /// Name of the device. Its keys are the name, a colon and the number of the string.
    pub name: String,
    /// Capacity in bytes.
    pub size: u64,
    /// Credentials for the login; `None` if the servers need none.
    pub credentials: Option<Credentials>,
}

/// User and password.
#[derive(Clone)]
pub struct Credentials {
    /// Name of the user; `None` for the default user.
    pub username: Option<String>,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Credentials of {}", self.username.as_deref().unwrap_or("the default user"))
    }
}

fn refuse(arguments: &Arguments, key: &'static str, error: &Error) -> Error {
    arguments.refuse(key, error.detail().to_owned())
}

/// Addresses from a stack: a relative path is resolved against the stack's folder.
fn addresses_of(arguments: &Arguments) -> Result<Vec<Address>> {
    let texts = arguments.texts("addresses")?;
    if texts.is_empty() {
        return Err(arguments.refuse("addresses", "expected at least one server"));
    }
    let address =
        |text: &String| match text.parse().map_err(|error| refuse(arguments, "addresses", &error))? {
            Address::Unix(path) => Ok(Address::Unix(arguments.absolute(Path::new(&path))?)),
            tcp => Ok(tcp),
        };
    texts.iter().map(address).collect()
}

fn credentials_of(arguments: &Arguments) -> Result<Option<Credentials>> {
    let Some(path) = arguments.optional_path("password_file")? else { return Ok(None) };
    let password = password_in(&path);
    let password = password.map_err(|error| arguments.refuse("password_file", error.detail().to_owned()))?;
    warn_of_access(&path);
    Ok(Some(Credentials { username: arguments.optional_text("username")?, password }))
}

fn check_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "name \"{}\" of a device: expected 1 to {MAX_NAME} letters, digits, '.', '_' or '-'",
            shown(name)
        ))),
    }
}

fn geometry(bytes: u64) -> Result<DeviceGeometry> {
    let block_size = BlockSize::new(BLOCK.into())?;
    if bytes == 0 || !bytes.is_multiple_of(block_size.bytes()) {
        return Err(Error::invalid(format!(
            "size {bytes}: expected a multiple of {block_size} bytes that is greater than 0"
        )));
    }
    Ok(DeviceGeometry {
        block_size,
        blocks: BlockCount(bytes >> block_size.shift()),
        atomic_write: BlockSize::SMALLEST,
        volatile_cache: false,
        read_only: false,
    })
}

/// A device on redis servers.
pub struct RedisPart {
    shared: Arc<Shared>,
    geometry: DeviceGeometry,
}

/// State that the handles of all shards share.
pub(crate) struct Shared {
    pub config: Config,
    pub counters: Counters,
    /// Servers of the last table.
    known: Mutex<Vec<Address>>,
}

/// Counters of all handles since the part was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub connections: AtomicU64,
    pub moved: AtomicU64,
    pub asked: AtomicU64,
    pub retries: AtomicU64,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, Vec<Address>> {
        // Nothing panics while the lock is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Servers that may have the table: the masters and replicas of the last one, then those of the
    /// configuration.
    pub fn known(&self) -> Vec<Address> {
        self.locked().iter().chain(&self.config.addresses).cloned().collect()
    }

    /// Remembers the servers of a table.
    pub fn set_known(&self, table: &SlotTable) {
        let servers = table.masters().iter().chain(&table.replicas);
        *self.locked() = servers.take(MAX_KNOWN).cloned().collect();
    }
}

impl RedisPart {
    /// Checks that all servers can be reached. Each shard makes its own connections when it opens a handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid configuration, and for servers that evict data;
    /// [`Error::PermissionDenied`]; [`Error::Protocol`] if a peer is no redis server; errors of the
    /// connections.
    pub async fn connect(config: Config) -> Result<Self> {
        check_name(&config.name)?;
        let geometry = geometry(config.size)?;
        if config.addresses.is_empty() {
            return Err(Error::invalid("a device on redis servers: expected at least one address"));
        }
        let shared = Arc::new(Shared { config, counters: Counters::default(), known: Mutex::default() });
        Client::open(shared.clone()).await?;
        Ok(RedisPart { shared, geometry })
    }
}

impl Part for RedisPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let Shared { config, counters, .. } = &*self.shared;
        let servers: Vec<String> = self.shared.locked().iter().map(ToString::to_string).collect();
        let value = json!({
            "name": config.name,
            "bytes": config.size,
            "servers": servers,
            "connections_made": counters.connections.load(Relaxed),
            "moved_replies": counters.moved.load(Relaxed),
            "ask_replies": counters.asked.load(Relaxed),
            "retries": counters.retries.load(Relaxed),
        });
        Call::ready(value.as_object().cloned().unwrap_or_default())
    }
}

impl DevicePart for RedisPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    /// Returns false: a failover may lose writes that the servers had acknowledged.
    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async {
            let client = Client::open(self.shared.clone()).await?;
            let Config { name, size, .. } = &self.shared.config;
            let strings = Rc::new(Strings { client, name: name.clone(), bytes: *size });
            Ok(Rc::new(Handle { geometry: self.geometry.clone(), strings }) as Rc<dyn Device>)
        })
    }
}
