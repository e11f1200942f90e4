//! The NBD door as a part of a stack.

use super::client::address_of;
use super::server::{ExportConfig, PERMISSION, Server, ServerConfig, ServerTls};
use crate::served::metrics::{request_bytes, requests};
use crate::served::unix_socket;
use block::{Call, Part, Result, Status};
use runtime::net::Address;
use stack::{Arguments, Built, Contract, Door, Key, Kind, Metric, Shape, ValueKind};
use std::sync::Arc;

/// Door that serves devices over NBD.
pub struct NbdDoor {
    server: Server,
}

impl NbdDoor {
    /// Creates a door that isn't open yet.
    ///
    /// # Errors
    /// Errors of [`Server::new`].
    pub fn new(config: ServerConfig) -> Result<NbdDoor> {
        Ok(NbdDoor { server: Server::new(config)? })
    }

    /// Server of the door.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Part for NbdDoor {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.server.status())
    }
}

impl Door for NbdDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        Call::new(self.server.start())
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(self.server.stop())
    }

    fn addresses(&self) -> Vec<String> {
        self.server.addresses()
    }
}

/// Declaration of the kind.
pub const KIND: Kind = Kind {
    name: "nbd",
    contract: Contract::Door,
    summary: "serves devices to NBD clients over a unix or TCP socket",
    keys: &[
        Key::optional("device", ValueKind::Device, "device to serve").positional(),
        Key::optional("exports", ValueKind::Devices, "several devices; the first one is the default export"),
        Key::optional("socket", ValueKind::Path, "path of a unix socket to listen on"),
        unix_socket::MODE,
        unix_socket::OWNER,
        Key::optional(
            "address",
            ValueKind::Text,
            "TCP address to listen on: IP:PORT, such as 127.0.0.1:10809",
        ),
        Key::optional(
            "allow_remote",
            ValueKind::Bool,
            "permit an address that other machines can reach, without authentication",
        )
        .or("false"),
        Key::optional(
            "max_connections",
            ValueKind::Integer { min: 1, max: 65536 },
            "limit of connected clients",
        )
        .or("256"),
        Key::optional("read_only", ValueKind::Bool, "refuse writes").or("false"),
        Key::optional("description", ValueKind::Text, "text that clients can show").or(""),
        tls::keys::SERVER_FOLDER,
        tls::keys::VERIFY_CLIENT,
        Key::optional(
            "tls_mode",
            ValueKind::Choice(&["require", "allow"]),
            "with tls: require refuses clients without TLS, allow serves them in plain text",
        )
        .or("require"),
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "nbd(ram(size=64MiB), socket=vol.sock)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("connections", "door_connections", "Clients that are connected"),
    Metric::gauge(
        "max_connections",
        "door_connections_limit",
        "Clients that may be connected at the same time",
    ),
    Metric::counter(
        "refused_connections",
        "door_refused_connections",
        "Clients that were refused because of the limit",
    ),
    Metric::counter(
        "cut_off_connections",
        "door_cut_off_connections",
        "Connections that the door ended because of their client",
    ),
    Metric::gauge("buffer_bytes", "door_buffer_bytes", "Memory of the buffers of requests"),
    Metric::gauge("max_buffer_bytes", "door_buffer_limit_bytes", "Memory that buffers of requests may take"),
    Metric::gauge("waiting_connections", "door_waiting_connections", "Clients that wait for memory"),
    requests("exports.*.reads", "read").of_each("export", ""),
    request_bytes("exports.*.read_bytes", "read").of_each("export", ""),
    requests("exports.*.writes", "write").of_each("export", ""),
    request_bytes("exports.*.written_bytes", "write").of_each("export", ""),
    requests("exports.*.flushes", "flush").of_each("export", ""),
    requests("exports.*.trims", "trim").of_each("export", ""),
    request_bytes("exports.*.trimmed_bytes", "trim").of_each("export", ""),
    requests("exports.*.write_zeroes", "write_zeroes").of_each("export", ""),
    request_bytes("exports.*.zeroed_bytes", "write_zeroes").of_each("export", ""),
    requests("exports.*.block_statuses", "block_status").of_each("export", ""),
    Metric::counter("exports.*.errors", "door_errors", "Requests of clients that failed")
        .of_each("export", ""),
];

fn address(arguments: &Arguments) -> Result<Address> {
    match (arguments.optional_path("socket")?, arguments.optional_text("address")?) {
        (Some(path), None) => {
            let text = format!("unix:{}", path.display());
            text.parse().map_err(|error: block::Error| arguments.refuse("socket", error.detail().to_owned()))
        }
        (None, Some(text)) => address_of(arguments, "address", &text),
        (Some(_), Some(_)) => {
            Err(arguments.refuse("address", "socket and address are both given: expected one of them"))
        }
        (None, None) => Err(block::Error::invalid(format!(
            "door \"{}\": expected where to listen: socket = \"PATH\" or address = \"IP:PORT\"",
            arguments.name()
        ))),
    }
}

/// Names of the exports, which are the names of the devices.
fn names(arguments: &Arguments) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in arguments.child_names("device")?.into_iter().chain(arguments.child_names("exports")?) {
        if names.iter().any(|other| other == name) {
            return Err(
                arguments.refuse("exports", format!("\"{name}\" is exported twice: expected it once"))
            );
        }
        names.push(name.to_owned());
    }
    match names.is_empty() {
        true => Err(block::Error::invalid(format!(
            "door \"{}\": expected what to serve: device = \"NAME\" or exports = [\"NAME\", …]",
            arguments.name()
        ))),
        false => Ok(names),
    }
}

/// TLS of the server; reads the certificates.
fn tls_of(arguments: &Arguments) -> Result<Option<ServerTls>> {
    let Some(config) = tls::keys::server(arguments)? else {
        return tls::keys::without(arguments, "tls_mode").map(|()| None);
    };
    Ok(Some(ServerTls { config, required: arguments.choice("tls_mode")? == "require" }))
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    unix_socket::check(arguments)?;
    let address = address(arguments)?;
    let (keys, other): (&[&str], _) = match address {
        Address::Tcp(_) => (&["mode", "owner"], "a TCP address: expected it with socket = \"PATH\""),
        Address::Unix(_) => (&["allow_remote"], "a unix socket: expected it with address = \"IP:PORT\""),
    };
    if let Some(key) = keys.iter().find(|key| arguments.given(key)) {
        return Err(arguments.refuse(key, format!("{key} with {other}")));
    }
    let is_protected = tls_of(arguments)?.is_some_and(|tls| tls.keeps_strangers_out());
    let reached = address.check_reach(arguments.boolean("allow_remote")? || is_protected, PERMISSION);
    reached.map_err(|error| arguments.refuse("address", error.detail().to_owned()))?;
    names(arguments)?;
    Ok(Shape::default())
}

fn build(arguments: &Arguments) -> Result<Built> {
    let devices = arguments.optional_device("device")?.into_iter().chain(arguments.devices("exports")?);
    let (read_only, description) = (arguments.boolean("read_only")?, arguments.text("description")?);
    let exports = names(arguments)?.into_iter().zip(devices).map(|(name, device)| ExportConfig {
        name,
        description: description.clone(),
        device,
        read_only,
    });
    let config = ServerConfig {
        address: address(arguments)?,
        access: unix_socket::access(arguments)?,
        exports: exports.collect(),
        max_connections: arguments.integer("max_connections")? as usize,
        allow_remote: arguments.boolean("allow_remote")?,
        tls: tls_of(arguments)?,
    };
    Ok(Built::Door(Arc::new(NbdDoor::new(config)?)))
}
