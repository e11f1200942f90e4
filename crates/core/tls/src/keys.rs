//! Keys of parts that use TLS.

use crate::{ClientConfig, Folder, ServerConfig};
use block::Result;
use runtime::net::Address;
use stack::{Arguments, Key, ValueKind};

/// `tls`: folder of certificates of a server.
pub const SERVER_FOLDER: Key = Key::optional(
    "tls",
    ValueKind::Path,
    "folder with server-cert.pem, server-key.pem and ca-cert.pem: clients use TLS 1.3; default: no TLS",
)
.known_as(&["tls_certificates", "tls_creds"]);
/// `tls_verify_client`: whether clients need a certificate.
pub const VERIFY_CLIENT: Key = Key::optional(
    "tls_verify_client",
    ValueKind::Bool,
    "with tls: clients need a certificate that an authority of ca-cert.pem has signed",
)
.or("true")
.known_as(&["tls_verify_peer", "verify_peer", "tls_auth_clients"]);
/// `tls`: folder of certificates of a client.
pub const CLIENT_FOLDER: Key = Key::optional(
    "tls",
    ValueKind::Path,
    "folder with ca-cert.pem, and client-cert.pem and client-key.pem if the server asks for them: TLS 1.3 only; default: no TLS",
)
.known_as(&["tls_certificates", "tls_creds"]);
/// `tls_hostname`: name in the server's certificate.
pub const HOSTNAME: Key = Key::optional(
    "tls_hostname",
    ValueKind::Text,
    "with tls: DNS name or IP address in the server's certificate; default: the IP address, localhost for a unix socket",
);

/// Reads the files of a server; `None` without `tls`.
///
/// # Errors
/// [`block::Error::Invalid`] for `tls_verify_client` without `tls`; errors of [`Folder::server`].
pub fn server(arguments: &Arguments) -> Result<Option<ServerConfig>> {
    let Some(folder) = arguments.optional_path("tls")? else {
        return without(arguments, "tls_verify_client").map(|()| None);
    };
    let config = Folder::new(folder).server(arguments.boolean("tls_verify_client")?);
    config.map(Some).map_err(|error| arguments.refuse("tls", error.detail().to_owned()))
}

/// Reads the files of a client of the server at `address`; `None` without `tls`.
///
/// # Errors
/// [`block::Error::Invalid`] for `tls_hostname` without `tls`; errors of [`Folder::client`].
pub fn client(arguments: &Arguments, address: &Address) -> Result<Option<ClientConfig>> {
    client_named(arguments, address, None)
}

/// As [`client`]; `tls_hostname` precedes `hostname`, which precedes the name of the address.
///
/// # Errors
/// As [`client`].
pub fn client_named(
    arguments: &Arguments,
    address: &Address,
    hostname: Option<&str>,
) -> Result<Option<ClientConfig>> {
    let Some(folder) = arguments.optional_path("tls")? else {
        return without(arguments, "tls_hostname").map(|()| None);
    };
    let name = arguments.optional_text("tls_hostname")?.or_else(|| hostname.map(str::to_owned));
    let config = Folder::new(folder).client(&name.unwrap_or_else(|| usual_hostname(address)));
    config.map(Some).map_err(|error| arguments.refuse("tls", error.detail().to_owned()))
}

/// Refuses a key that has no effect without `tls`.
///
/// # Errors
/// [`block::Error::Invalid`] if the key is given.
pub fn without(arguments: &Arguments, key: &'static str) -> Result<()> {
    match arguments.given(key) {
        true => Err(arguments.refuse(key, format!("{key} without tls; expected tls = \"FOLDER\""))),
        false => Ok(()),
    }
}

/// Name that a server's certificate must have if none is given.
pub fn usual_hostname(address: &Address) -> String {
    match address {
        Address::Unix(_) => "localhost".to_owned(),
        Address::Tcp(address) => address.ip().to_canonical().to_string(),
    }
}
