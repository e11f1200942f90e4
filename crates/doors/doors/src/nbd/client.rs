//! NBD client as a device: it measures servers, and is the leaf for disks of other machines.
//!
//! Requests of one turn of a shard are sent in one vectored send; large reads are received directly into the
//! caller's buffer; a request whose caller was dropped still ends. `discard` guarantees zeros (it is sent as
//! WRITE_ZEROES that may deallocate: TRIM guarantees nothing). When the server closes the connection,
//! requests in flight and later ones fail with [`Error::Disconnected`]; none is resent. When the server
//! doesn't answer a request within the time limit, the connection is closed, and they fail with
//! [`Error::TimedOut`]. A close waits for at most the time limit.
//!
//! Modules: `handshake` negotiates with the server, `link` is one connection, `device` translates a device's
//! calls to requests.

mod device;
mod handshake;
mod link;
mod reply_stream;
mod table;

use super::uri::{self, Uri};
use block::{BlockCount, BlockSize, Call, Device, DeviceGeometry, DevicePart, Error, Part, Result, Status};
use device::RemoteDevice;
use handshake::{RemoteExport, connect_simple, examine};
use runtime::net::Address;
use serde_json::json;
use stack::{Arguments, Built, Contract, Key, Kind, Shape, ValueKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Server, export and connections of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Address of the server.
    pub address: Address,
    /// Name of the export; empty for the server's default one.
    pub export: String,
    /// Number of connections per shard.
    pub connections: usize,
    /// Block size in bytes; by default the server's preferred one if the export is a multiple of it.
    pub block_size: Option<u64>,
    /// Time limit of the server's answer to a request.
    pub timeout: Duration,
    /// TLS, which the server then has to offer; `None` connects in plain text.
    pub tls: Option<tls::ClientConfig>,
}

/// Default of [`ClientConfig::timeout`].
pub const USUAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A device on an NBD server.
pub struct NbdClient {
    config: ClientConfig,
    remote: RemoteExport,
    geometry: DeviceGeometry,
    /// Whether the server may have unflushed changes: of this process since the last flush or, before the
    /// first one, of a process that was killed.
    unflushed: Arc<AtomicBool>,
}

impl NbdClient {
    /// Connects this shard.
    async fn open_here(&self) -> Result<RemoteDevice> {
        RemoteDevice::open(&self.config, &self.remote, self.geometry.clone(), self.unflushed.clone()).await
    }

    /// Reads the properties of the export. Connections for I/O are made when a shard opens a handle.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such export, [`Error::Protocol`] if the peer is no NBD server,
    /// [`Error::Invalid`] if the export isn't a multiple of the wanted block size.
    pub async fn connect(config: ClientConfig) -> Result<NbdClient> {
        let remote = examine(&config).await?;
        let block_size = choose_block_size(&config, &remote)?;
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(remote.size >> block_size.shift()),
            // The guarantee of every disk; the protocol can't express more.
            atomic_write: BlockSize::SMALLEST,
            volatile_cache: remote.can_flush(),
            read_only: remote.is_read_only(),
        };
        let unflushed = Arc::new(AtomicBool::new(remote.can_flush() && !remote.is_read_only()));
        Ok(NbdClient { config, remote, geometry, unflushed })
    }
}

/// Connects to an export with simple replies, as the kernel's client needs it. Returns the socket, ready for
/// requests, and the transmission flags.
///
/// # Errors
/// As [`NbdClient::connect`].
pub async fn connect_for_kernel(address: &Address, export: &str) -> Result<(OwnedFd, u16)> {
    let (stream, remote) = connect_simple(address, export).await?;
    Ok((stream.into_descriptor()?, remote.flags))
}

fn choose_block_size(config: &ClientConfig, remote: &RemoteExport) -> Result<BlockSize> {
    let smallest = u64::from(remote.minimum_block.max(BlockSize::SMALLEST));
    let preferred = u64::from(remote.preferred_block);
    let wanted = config.block_size.unwrap_or(match remote.size % preferred.max(1) {
        0 if preferred > smallest && preferred <= u64::from(BlockSize::LARGEST) => preferred,
        _ => smallest,
    });
    let block_size = BlockSize::new(wanted)?;
    if wanted < smallest || !remote.size.is_multiple_of(wanted) {
        return Err(Error::invalid(format!(
            "export \"{}\" of {}: {} bytes in blocks of {wanted}: expected a multiple, and blocks of at least {smallest}",
            config.export, config.address, remote.size
        )));
    }
    Ok(block_size)
}

impl Part for NbdClient {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        status.insert("address".into(), json!(self.config.address.to_string()));
        status.insert("export".into(), json!(self.config.export));
        status.insert("connections_per_shard".into(), json!(self.config.connections));
        status.insert("transmission_flags".into(), json!(self.remote.flags));
        Call::ready(status)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if !self.unflushed.load(Ordering::Acquire) {
                return Ok(());
            }
            // The connections of the handles are closed. A server that allows several connections makes the
            // writes of all of them durable; one that allows a single connection needs no exclusion.
            let flushed = async { self.open_here().await?.flush_now().await };
            let limited = runtime::timeout(self.config.timeout, flushed).await;
            limited
                .unwrap_or_else(|elapsed| Err(elapsed.into()))
                .map_err(|error| error.in_context("unflushed writes may not be durable on the server"))
        })
    }
}

impl DevicePart for NbdClient {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    /// Returns false. The server has all acknowledged writes, but it may carry out a request of a killed
    /// process after requests of its successor, which can't find out when the requests of the old connection
    /// have ended.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let several = self.config.connections > 1 || runtime::shard_count() > 1;
            if several && !self.remote.can_share() {
                return Err(Error::unsupported(format!(
                    "export \"{}\" of {}: the server doesn't allow several connections; use one shard and \
                     connections = 1",
                    self.config.export, self.config.address
                )));
            }
            Ok(Rc::new(self.open_here().await?) as Rc<dyn Device>)
        })
    }
}

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "nbd-client",
    contract: Contract::Device,
    summary: "a device on an NBD server",
    keys: &[
        Key::required("address", ValueKind::Text, "address of the server: unix:PATH, IP:PORT or an NBD URI")
            .positional(),
        Key::optional("export", ValueKind::Text, "name of the export; empty is the server's default export")
            .or(""),
        Key::optional(
            "connections",
            ValueKind::Integer { min: 1, max: 64 },
            "number of connections per shard",
        )
        .or("1"),
        Key::optional("block_size", ValueKind::Size, "block size; default: the server's preferred one"),
        Key::optional(
            "timeout",
            ValueKind::Duration,
            "time limit of a request; after it the connection is closed; 10ms to 24h",
        )
        .or("30s"),
        tls::keys::CLIENT_FOLDER,
        tls::keys::HOSTNAME,
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "nbd-client(unix:vol.sock)",
    plan,
    build: |arguments| Call::new(build(arguments)),
};

fn config_of(arguments: &Arguments) -> Result<ClientConfig> {
    let timeout = arguments.time_limit()?;
    let refused = |error: Error| arguments.refuse("address", error.detail().to_owned());
    let text = arguments.text("address")?;
    let (address, export, tls) = match uri::parse(&text).map_err(refused)? {
        None => {
            let address = address_of(arguments, "address", &text)?;
            let tls = tls::keys::client(arguments, &address)?;
            (address, arguments.text("export")?, tls)
        }
        Some(uri) => {
            if arguments.given("export") {
                return Err(arguments.refuse("export", "export with a URI: expected the name in the URI"));
            }
            let address = absolute(arguments, uri.address.clone())?;
            let tls = tls_of(arguments, &uri, &address)?;
            (address, uri.export, tls)
        }
    };
    Ok(ClientConfig {
        address,
        export,
        tls,
        connections: arguments.integer("connections")? as usize,
        block_size: arguments.optional_size("block_size")?,
        timeout,
    })
}

/// Address from a stack: a relative path is resolved against the stack's folder.
pub(super) fn address_of(arguments: &Arguments, key: &'static str, text: &str) -> Result<Address> {
    let refused = |error: Error| arguments.refuse(key, error.detail().to_owned());
    absolute(arguments, text.parse().map_err(refused)?)
}

/// Resolves the path of a unix socket against the stack's folder.
fn absolute(arguments: &Arguments, address: Address) -> Result<Address> {
    match address {
        Address::Unix(path) => Ok(Address::Unix(arguments.absolute(&path)?)),
        tcp => Ok(tcp),
    }
}

/// TLS of a URI; the keys of the stack precede its parameters.
fn tls_of(arguments: &Arguments, uri: &Uri, address: &Address) -> Result<Option<tls::ClientConfig>> {
    let has_tls_words = uri.certificates.is_some() || uri.hostname.is_some() || arguments.given("tls");
    let folder = match &uri.certificates {
        _ if !uri.is_tls && has_tls_words => {
            return Err(arguments.refuse("address", "TLS with nbd: in the URI: expected nbds: or nbds+unix:"));
        }
        Some(folder) if !arguments.given("tls") => folder,
        None if uri.is_tls && !arguments.given("tls") => {
            let text =
                "a URI with TLS needs certificates: expected tls = \"FOLDER\" or ?tls-certificates=FOLDER";
            return Err(arguments.refuse("address", text));
        }
        _ => return tls::keys::client_named(arguments, address, uri.hostname.as_deref()),
    };
    let name = arguments.optional_text("tls_hostname")?.or_else(|| uri.hostname.clone());
    let name = name.unwrap_or_else(|| tls::keys::usual_hostname(address));
    let config = tls::Folder::new(arguments.absolute(folder)?).client(&name);
    config.map(Some).map_err(|error| arguments.refuse("address", error.detail().to_owned()))
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let config = config_of(arguments)?;
    if let Some(bytes) = config.block_size {
        BlockSize::new(bytes).map_err(|error| arguments.refuse("block_size", error.detail().to_owned()))?;
    }
    Ok(Shape { block_size: config.block_size.map(|bytes| bytes as u32), ..Shape::default() })
}

async fn build(arguments: Arguments) -> Result<Built> {
    let client = NbdClient::connect(config_of(&arguments)?).await?;
    Ok(Built::Device(Arc::new(client)))
}
