//! NBD URIs, as the document "NBD URI" defines them: written for the exports of a server, and read as the
//! address of a client.

use block::{Error, Result};
use runtime::net::Address;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Port of NBD if a URI has none.
const USUAL_PORT: &str = ":10809";

/// A parsed URI.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Uri {
    pub(super) address: Address,
    /// Name of the export; empty for the default one.
    pub(super) export: String,
    /// Whether the scheme asks for TLS.
    pub(super) is_tls: bool,
    /// `tls-certificates`: folder of certificates.
    pub(super) certificates: Option<PathBuf>,
    /// `tls-hostname`: name in the server's certificate.
    pub(super) hostname: Option<String>,
}

/// URI of an export in the syntax of clients.
pub(super) fn uri(address: &Address, export: &str, is_tls: bool) -> String {
    let scheme = if is_tls { "nbds" } else { "nbd" };
    let export = percent_encoded(export.as_bytes(), b"-._~/:");
    match address {
        Address::Unix(path) => {
            let path = percent_encoded(path.as_os_str().as_bytes(), b"-._~/:");
            format!("{scheme}+unix:///{export}?socket={path}")
        }
        Address::Tcp(address) => format!("{scheme}://{address}/{export}"),
    }
}

fn percent_encoded(bytes: &[u8], kept: &[u8]) -> String {
    let encode = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || kept.contains(byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    bytes.iter().map(encode).collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut pieces = text.split('%');
    bytes.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        bytes.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Parses a URI; `None` for a text of another form, such as `IP:PORT`.
///
/// # Errors
/// [`Error::Invalid`] for a URI with another scheme or parameter, or without its socket.
pub(super) fn parse(text: &str) -> Result<Option<Uri>> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let refused = |problem: &str| {
        Error::invalid(format!(
            "address \"{text}\": {problem}; expected nbd://IP:PORT/EXPORT, nbds://IP:PORT/EXPORT, \
             nbd+unix:///EXPORT?socket=PATH or nbds+unix:///EXPORT?socket=PATH"
        ))
    };
    let (is_tls, is_unix) = match scheme {
        "nbd" => (false, false),
        "nbds" => (true, false),
        "nbd+unix" => (false, true),
        "nbds+unix" => (true, true),
        _ => return Err(refused("the scheme is none of NBD over TCP or a unix socket")),
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, export) = place.split_once('/').unwrap_or((place, ""));
    let decoded = |text: &str| percent_decoded(text).ok_or_else(|| refused("a %-sequence is malformed"));
    let (mut socket, mut certificates, mut hostname) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        match key {
            "socket" => socket = Some(value),
            "tls-certificates" => certificates = Some(PathBuf::from(value)),
            "tls-hostname" => hostname = Some(value),
            _ => return Err(refused("a parameter is none of socket, tls-certificates and tls-hostname")),
        }
    }
    let address = match (is_unix, socket) {
        (true, Some(path)) if host.is_empty() => format!("unix:{path}"),
        (false, None) => {
            let port = host.rsplit_once(':').map_or("", |(_, port)| port);
            let has_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let is_bare_ipv6 = host.ends_with(']');
            format!("{host}{}", if has_port && !is_bare_ipv6 { "" } else { USUAL_PORT })
        }
        _ => {
            return Err(refused(
                "a unix socket needs the parameter socket and no host, TCP a host and no socket",
            ));
        }
    };
    let address = address.parse()?;
    Ok(Some(Uri { address, export: decoded(export)?, is_tls, certificates, hostname }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_socket_and_export() {
        let unix = Address::Unix("/run/a b.sock".into());
        assert_eq!(uri(&unix, "disk", false), "nbd+unix:///disk?socket=/run/a%20b.sock");
        let tcp = Address::Tcp("127.0.0.1:10809".parse().expect("an address"));
        assert_eq!(uri(&tcp, "a%?#", true), "nbds://127.0.0.1:10809/a%25%3F%23");
    }

    #[test]
    fn a_uri_is_read_back() {
        for address in ["unix:/run/a b&c=.sock", "127.0.0.1:7", "[::1]:10809"] {
            let address: Address = address.parse().expect("an address");
            for (export, is_tls) in [("", false), ("a%?#/ü", true)] {
                let parsed = parse(&uri(&address, export, is_tls)).expect("valid").expect("a URI");
                assert_eq!(
                    (&parsed.address, parsed.export.as_str(), parsed.is_tls),
                    (&address, export, is_tls)
                );
            }
        }
    }

    #[test]
    fn parameters_and_the_usual_port() {
        let parsed =
            parse("nbds+unix:///x?socket=/s&tls-certificates=/etc/%70ki&tls-hostname=node").expect("valid");
        let parsed = parsed.expect("a URI");
        assert_eq!(parsed.certificates, Some("/etc/pki".into()));
        assert_eq!(parsed.hostname.as_deref(), Some("node"));
        let usual = |text| parse(text).expect("valid").expect("a URI").address.to_string();
        assert_eq!(usual("nbd://127.0.0.1"), "127.0.0.1:10809");
        assert_eq!(usual("nbds://[::1]/x"), "[::1]:10809");
        assert_eq!(parse("127.0.0.1:10809").expect("another form"), None);
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "http://127.0.0.1:1/",
            "nbd+unix:///x",
            "nbd+unix://host/x?socket=/s",
            "nbd://127.0.0.1:1/?socket=/s",
            "nbd://127.0.0.1:1/%4",
            "nbd://127.0.0.1:1/%ü",
            "nbds://127.0.0.1:1/?tls-psk-file=x",
            "nbd://name:1/",
        ] {
            assert!(matches!(parse(text), Err(Error::Invalid(_))), "{text}");
        }
    }
}
