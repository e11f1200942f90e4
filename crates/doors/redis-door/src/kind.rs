//! Kind `kv` of a stack: a key-value store on a device or on zones, served to redis clients if it has an
//! address.
//!
//! Elsewhere: the storage of the store (`storage`), the server (`server`).

use crate::server::{PERMISSION, Server, ServerConfig};
use crate::storage::{open, refuse, settings, settings_of_new, zones_to_be};
use crate::users::Users;
use block::{Call, Fullness, Part, Result, Status};
use kv::{COMPACTIONS, MAX_SHARDS, PLACEMENTS, Store};
use runtime::net::Address;
use serde_json::json;
use stack::password_file::warn_of_access;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `kv(zns-emulator(drive.zns), listen=unix:kv.sock)`.
pub const KIND: Kind = Kind {
    name: "kv",
    contract: Contract::Door,
    summary: "a key-value store, served to redis clients",
    keys: &[
        Key::required(
            "on",
            ValueKind::DeviceOrZones,
            "the storage of the store: a device, which it divides into zones, or zones, which it uses as they are",
        )
        .positional()
        .holds_contents(),
        Key::optional(
            "listen",
            ValueKind::Text,
            "address for redis clients: unix:PATH or IP:PORT; default: none, and siltstone kv opens the store itself",
        ),
        Key::optional(
            "allow_remote",
            ValueKind::Bool,
            "permit an address that other machines can reach, without TLS or authentication",
        )
        .or("false"),
        tls::keys::SERVER_FOLDER,
        tls::keys::VERIFY_CLIENT,
        Key::optional(
            "password_file",
            ValueKind::Path,
            "file whose first line is the password of the user default (redis: requirepass); default: none is needed",
        )
        .known_as(&["requirepass"]),
        Key::optional(
            "users_file",
            ValueKind::Path,
            "file of users: lines such as \"user reader on >PASSWORD ~* +@read\" (redis: aclfile)",
        )
        .known_as(&["aclfile"]),
        Key::optional(
            "shards",
            ValueKind::Integer { min: 1, max: MAX_SHARDS as u64 },
            "number of shards of a new store, by hash of the key; default: those of the stack, limited by the numbers of zones and of open zones",
        ),
        Key::optional(
            "acknowledge",
            ValueKind::Choice(&["buffered", "written", "flushed"]),
            "answer a write when it is in memory, in the log, or durable (redis: appendfsync always)",
        )
        .or("written"),
        Key::optional(
            "buffer",
            ValueKind::Size,
            "memory of the write buffers of all shards; default: 64MiB, at most 1/32 of the zones",
        )
        .known_as(&["write_buffer_size", "memtable"]),
        Key::optional("cache", ValueKind::Size, "memory of the block cache").or("64MiB").known_as(&["block_cache"]),
        Key::optional(
            "table_size",
            ValueKind::Size,
            "size at which a table is completed; default: 32MiB, at most half a zone and 1/64 of all zones",
        )
        .known_as(&["target_file_size_base"]),
        Key::optional("level_size", ValueKind::Size, "size of level 1; default: 256MiB, at most 1/16 of the zones")
            .known_as(&["max_bytes_for_level_base"]),
        Key::optional("multiplier", ValueKind::Integer { min: 2, max: 100 }, "ratio of the sizes of a level and the one before")
            .or("10")
            .known_as(&["max_bytes_for_level_multiplier"]),
        Key::optional("compression", ValueKind::Choice(&["none", "lz4"]), "compression of blocks of new tables").or("lz4"),
        Key::optional(
            "compaction",
            ValueKind::Choice(&COMPACTIONS),
            "policy that chooses the tables to compact; default: saturation, with delete_persistence: zap",
        ),
        Key::optional(
            "placement",
            ValueKind::Choice(&PLACEMENTS),
            "policy that chooses zones for tables; default: lifetime, with delete_persistence: zap",
        ),
        Key::optional(
            "delete_persistence",
            ValueKind::DurationOrCount,
            "time, such as 10m, or number of writes, within which every copy of a deleted or expired key is erased from the zones; default: no promise",
        ),
        Key::optional(
            "erase",
            ValueKind::Choice(&["none", "deallocated", "erased", "key"]),
            "guarantee of a reset, with delete_persistence; default: the strongest that the zones give",
        ),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "the size of a zone, for a store on a device; default: 1/256 of a new one, 128KiB to 64MiB",
        ),
        Key::optional(
            "salvage",
            ValueKind::Bool,
            "open a damaged store to copy what can be read: nothing is written to its storage, and writes are refused",
        )
        .or("false"),
        stack::WARN_AT,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "kv(zns-emulator(zones=32, zone_size=4MiB), listen=\"unix:kv.sock\")",
    plan,
    build: |arguments| Call::new(async move { build(&arguments).await }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("clients.connections", "door_connections", "Clients that are connected"),
    Metric::gauge(
        "clients.max_connections",
        "door_connections_limit",
        "Clients that may be connected at the same time",
    ),
    Metric::counter(
        "clients.refused_connections",
        "door_refused_connections",
        "Clients that were refused because of the limit",
    ),
    Metric::counter(
        "clients.cut_off_connections",
        "door_cut_off_connections",
        "Connections that the door ended because of their client",
    ),
    Metric::counter("clients.accepted_connections", "kv_accepted_connections", "Clients that were accepted"),
    Metric::counter("clients.failed_logins", "kv_failed_logins", "Logins with a wrong name or password"),
    Metric::counter("clients.commands", "kv_commands", "Commands of clients"),
    Metric::gauge("clients.buffer_bytes", "door_buffer_bytes", "Memory of the buffers of requests"),
    Metric::gauge("tables", "kv_tables", "Tables"),
    Metric::gauge("table_bytes", "kv_table_bytes", "Size of all tables"),
    Metric::gauge("entries", "kv_entries", "Entries of tables, with tombstones and old versions"),
    Metric::gauge("tombstones", "kv_tombstones", "Tombstones in tables"),
    Metric::gauge("buffer_bytes", "kv_buffer_bytes", "Memory of the write buffers"),
    Metric::counter("client_bytes", "kv_client_bytes", "Keys and values that clients wrote"),
    Metric::counter("flushed_bytes", "kv_flushed_bytes", "Size of the tables that write buffers became"),
    Metric::counter("compacted_bytes", "kv_compacted_bytes", "Size of the tables that compactions read"),
    Metric::counter("written_bytes", "kv_written_bytes", "Size of the tables that compactions wrote"),
    Metric::counter("moved_bytes", "kv_moved_bytes", "Bytes that the cleaner moved"),
    Metric::counter("compactions", "kv_compactions", "Compactions"),
    Metric::counter("stalls", "kv_stalls", "Writes that waited for flushes or compactions"),
    Metric::counter("slowed_writes", "kv_slowed_writes", "Writes that were slowed down for compactions"),
    Metric::gauge("cache_bytes", "kv_cache_bytes", "Memory of the block cache"),
    Metric::counter("cache_hits", "kv_cache_hits", "Blocks that were found in the block cache"),
    Metric::counter("cache_misses", "kv_cache_misses", "Blocks that were read from storage"),
    Metric::gauge("snapshots", "kv_snapshots", "Snapshots and iterators that are open"),
    Metric::gauge("zones", "kv_zones", "Zones of the store"),
    Metric::gauge("free_zones", "kv_free_zones", "Zones that can be written"),
    Metric::gauge("damaged_zones", "kv_damaged_zones", "Zones that can't be read, written or reset"),
    Metric::counter("reset_zones", "kv_reset_zones", "Zones that were reset"),
    Metric::counter("checkpoints", "kv_checkpoints", "Checkpoints"),
    Metric::counter("log_bytes", "kv_log_bytes", "Bytes of the log's entries"),
    Metric::counter("overhead_bytes", "kv_overhead_bytes", "Bytes of the log's metadata"),
    Metric::gauge(
        "delete_persistence.tombstones_overdue",
        "kv_overdue_tombstones",
        "Tombstones that are older than the deadline of deletes",
    ),
    Metric::gauge(
        "delete_persistence.zones_overdue",
        "kv_overdue_zones",
        "Zones that hold deleted data beyond the deadline",
    ),
    Metric::counter(
        "delete_persistence.zones_late",
        "kv_late_zones",
        "Zones that were reset after the deadline",
    ),
    Metric::gauge(
        "delete_persistence.longest_zone_seconds",
        "kv_longest_zone_seconds",
        "Longest time for which a zone held deleted data",
    ),
];

/// Parses the address of the key `listen`; `absolute` resolves the path of a unix socket.
///
/// # Errors
/// [`block::Error::Invalid`] for any other text; errors of `absolute`.
pub fn parse_listen(text: &str, absolute: impl Fn(&Path) -> Result<PathBuf>) -> Result<Address> {
    let Some(path) = text.strip_prefix("unix:") else { return text.parse() };
    format!("unix:{}", absolute(Path::new(path))?.display()).parse()
}

/// Address for redis clients; `None` if there is no key `listen`.
fn listen(arguments: &Arguments) -> Result<Option<Address>> {
    let Some(text) = arguments.optional_text("listen")? else { return Ok(None) };
    let address = parse_listen(&text, |path| arguments.absolute(path));
    address.map(Some).map_err(|error| arguments.refuse("listen", error.detail().to_owned()))
}

/// Configuration of the server; reads certificates and passwords. `None` if there is no key `listen`.
fn server_config(arguments: &Arguments) -> Result<Option<ServerConfig>> {
    let Some(address) = listen(arguments)? else { return Ok(None) };
    let (password, users) =
        (arguments.optional_path("password_file")?, arguments.optional_path("users_file")?);
    let read = Users::read(password.as_deref(), users.as_deref());
    let key = if users.is_some() { "users_file" } else { "password_file" };
    let users = read.map_err(|error| arguments.refuse(key, error.detail().to_owned()))?;
    let (allow_remote, tls) = (arguments.boolean("allow_remote")?, tls::keys::server(arguments)?);
    let config = ServerConfig { allow_remote, tls, users, ..ServerConfig::new(address) };
    let checked = config.addresses.iter().try_for_each(|address| {
        address.check_reach(config.allow_remote || config.is_protected(), PERMISSION)
    });
    checked.map_err(|error| arguments.refuse("listen", error.detail().to_owned()))?;
    Ok(Some(config))
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let is_on_zones = arguments.contract("on")? == Some(Contract::Zones);
    if is_on_zones && arguments.given("zone_size") {
        let text = "the store is on zones, which have a size; expected no zone_size; leave the key out";
        return refuse(arguments, "zone_size", text.to_owned());
    }
    if server_config(arguments)?.is_none()
        && let Some(key) = ["allow_remote", "tls", "tls_verify_client", "password_file", "users_file"]
            .into_iter()
            .find(|key| arguments.given(key))
    {
        return refuse(arguments, key, format!("{key} without listen; expected both"));
    }
    match zones_to_be(arguments)? {
        Some(geometry) if arguments.format() => drop(settings_of_new(arguments, &geometry)?),
        geometry => drop(settings(arguments, geometry.as_ref())?),
    }
    Ok(Shape::default())
}

async fn build(arguments: &Arguments) -> Result<Built> {
    for key in ["password_file", "users_file"] {
        if let Some(path) = arguments.optional_path(key)? {
            warn_of_access(&path);
        }
    }
    let server = server_config(arguments)?.map(Server::new).transpose()?;
    Ok(Built::Door(Arc::new(KvDoor { store: open(arguments).await?, server })))
}

/// The store and its server.
struct KvDoor {
    store: Store,
    server: Option<Server>,
}

impl Part for KvDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::new(async move {
            let mut status = Status::new();
            if let Some(server) = &self.server {
                status.insert("clients".into(), json!(server.status()));
            }
            match self.store.status().await {
                Ok(of_store) => status.extend(of_store),
                Err(error) => {
                    status.insert("error".into(), json!(error.to_string()));
                }
            }
            status
        })
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(self.store.fullness())
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.store.close())
    }
}

impl Door for KvDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            match &self.server {
                Some(server) => server.start(&self.store).await,
                None => Ok(()),
            }
        })
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            match &self.server {
                Some(server) => server.stop().await,
                None => Ok(()),
            }
        })
    }

    fn addresses(&self) -> Vec<String> {
        let is_tls = self.server.as_ref().is_some_and(Server::is_tls);
        // In the form that libraries of redis use.
        let shown = |address: Address| match address {
            Address::Unix(path) => format!("unix://{}", path.display()),
            Address::Tcp(tcp) if is_tls => format!("rediss://{tcp}"),
            Address::Tcp(tcp) => format!("redis://{tcp}"),
        };
        self.server.iter().flat_map(Server::addresses).map(shown).collect()
    }
}
