//! Address of a server: its URL, and the resolution of its name.
//!
//! A name is resolved by the system's resolver on a thread of its own, since that blocks: at most one at a
//! time for each endpoint, so a resolver that hangs costs one thread. Its addresses are resolved again after
//! [`NAME_LIFETIME`], beside the requests, which use the known ones until there are others.

use block::{Error, Result};
use runtime::Instant;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;
use url::{Host, Url};

/// Time after which a name is resolved again.
pub const NAME_LIFETIME: Duration = Duration::from_secs(60);

/// A server by its URL.
pub(crate) struct Endpoint {
    /// URL without a query; its host has no user.
    pub url: Url,
    /// Value of the header `host`.
    pub host: String,
    port: u16,
    /// Address; `None` if the host is a name.
    address: Option<IpAddr>,
    names: Rc<Names>,
}

#[derive(Default)]
struct Names {
    found: RefCell<Option<(Instant, Result<Vec<SocketAddr>>)>>,
    is_resolving: Cell<bool>,
    is_found: Notify,
}

impl Endpoint {
    /// Parses a URL, such as `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything but a URL of a server in http or https.
    pub fn parse(text: &str) -> Result<Endpoint> {
        let refused = |what: &str| {
            // A user's password would be in the text.
            let shown = if text.contains('@') { "(not shown, as it has a user)" } else { text };
            Error::invalid(format!(
                "endpoint \"{shown}\": {what}; expected a URL such as http://127.0.0.1:7070 or https://s3.example.com"
            ))
        };
        let url: Url = text.parse().map_err(|_| refused("it is no URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused("unknown scheme"));
        }
        let is_plain = url.username().is_empty() && url.password().is_none();
        if !is_plain || url.query().is_some() || url.fragment().is_some() {
            return Err(refused("it has a user, a query or a fragment"));
        }
        let Some(host) = url.host() else { return Err(refused("it has no host")) };
        let address = match host {
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
            Host::Domain(_) => None,
        };
        // As rusty-s3 signs it: without the port that the scheme has by default.
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        let host = format!("{host}{port}");
        let port = url.port_or_known_default().unwrap_or_default();
        Ok(Endpoint { url, host, port, address, names: Rc::default() })
    }

    /// Whether connections are in TLS.
    pub fn is_secure(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Returns the addresses of the server; there is at least one.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a name without an address; [`Error::TimedOut`] if the resolver takes longer
    /// than `limit`.
    pub async fn addresses(&self, limit: Duration) -> Result<Vec<SocketAddr>> {
        if let Some(address) = self.address {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let known = match &*self.names.found.borrow() {
            Some((resolved, Ok(addresses))) => Some((addresses.clone(), resolved.elapsed() < NAME_LIFETIME)),
            _ => None,
        };
        let is_new = known.as_ref().is_some_and(|(_, is_new)| *is_new);
        let is_found = self.names.is_found.notified();
        if !is_new && !self.names.is_resolving.replace(true) {
            let (names, host, port) =
                (self.names.clone(), self.url.host_str().unwrap_or_default().to_owned(), self.port);
            runtime::spawn(async move { names.resolve(host, port).await }).detach();
        }
        if let Some((addresses, _)) = known {
            return Ok(addresses);
        }
        match (runtime::timeout(limit, is_found).await, &*self.names.found.borrow()) {
            (Ok(()), Some((_, found))) => found.clone(),
            _ => Err(Error::timed_out(format!("resolving {}: not within {limit:?}", self.host))),
        }
    }
}

/// Host of an endpoint, and whether its connections are in TLS.
///
/// # Errors
/// [`Error::Invalid`] for anything but a URL of a server in http or https.
pub fn host_of(endpoint: &str) -> Result<(String, bool)> {
    let endpoint = Endpoint::parse(endpoint)?;
    let host = endpoint.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    Ok((host, endpoint.is_secure()))
}

impl Names {
    async fn resolve(&self, host: String, port: u16) {
        let name = host.clone();
        let looked_up = runtime::try_blocking(move || {
            (&*name, port).to_socket_addrs().map(|addresses| addresses.collect::<Vec<_>>())
        });
        let found = match looked_up.await {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_)) => Err(Error::not_found(format!("host {host}: it has no address"))),
            Ok(Err(error)) => Err(Error::not_found(format!("host {host}: {error}"))),
            Err(error) => Err(error.in_context(format!("resolving {host}"))),
        };
        let mut known = self.found.borrow_mut();
        let found = match (found, known.take()) {
            (Err(_), Some((_, Ok(earlier)))) => Ok(earlier),
            (found, _) => found,
        };
        *known = Some((runtime::now(), found));
        drop(known);
        self.is_resolving.set(false);
        self.is_found.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_servers() {
        let host =
            |text: &str| Endpoint::parse(text).map(|endpoint| (endpoint.host.clone(), endpoint.is_secure()));
        assert_eq!(host("http://127.0.0.1:7070"), Ok(("127.0.0.1:7070".into(), false)));
        assert_eq!(host("https://s3.example.com"), Ok(("s3.example.com".into(), true)));
        assert_eq!(host("http://[::1]:80/base"), Ok(("[::1]".into(), false)));
        for refused in ["", "127.0.0.1:7070", "ftp://host", "http://", "http://host?a", "http://host/#a"] {
            let error = host(refused).unwrap_err().to_string();
            assert!(error.contains(&format!("endpoint \"{refused}\"")), "{error}");
        }
        let error = host("http://user:hidden@host").unwrap_err().to_string();
        assert!(!error.contains("hidden"), "{error}");
    }

    #[test]
    fn names_are_resolved_on_another_thread() {
        runtime::run(runtime::Config::default(), || async {
            let endpoint = Endpoint::parse("http://localhost:7").unwrap();
            let limit = Duration::from_secs(20);
            let both = runtime::join_all([endpoint.addresses(limit), endpoint.addresses(limit)]).await;
            for addresses in both {
                let addresses = addresses.unwrap();
                assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
            }
            // A label of a name has at most 63 letters, so the resolver asks no server.
            let name = format!("{}.invalid", "x".repeat(64));
            let missing = Endpoint::parse(&format!("http://{name}")).unwrap();
            let error = missing.addresses(limit).await.unwrap_err();
            assert!(matches!(error, Error::NotFound(_)) && error.to_string().contains(&name), "{error}");
        })
        .unwrap();
    }
}
