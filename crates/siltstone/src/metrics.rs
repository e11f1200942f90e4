//! Metrics of a stack as text for Prometheus and others: the counts of calls, and numbers of the status.
//!
//! # Promises
//! - Nothing is counted before the first request for metrics, or by another reader. Calls are then counted
//!   until [`LOOK_TIME`] after the last request, as [`layers::observation`] says.
//! - A text is made on a thread of its own, so that it doesn't delay the calls of a shard.
//! - Each series is in a text once, and its name and labels are those of the formats, whatever the names of
//!   parts are.
//!
//! `text` collects the series and `encoder` writes them; `latency` has buckets and quantiles; `http` parses
//! requests without waiting; `server` has the sockets. The kinds declare which numbers of a status are
//! metrics ([`stack::Metric`]).

mod encoder;
mod http;
mod latency;
pub mod server;
mod text;

pub use encoder::Format;
pub use text::Scraper;

use crate::address::address_with;
use crate::arguments::MetricsAddress;
use crate::failure::Failure;
use runtime::net::Address;
use std::time::Duration;

/// Time for which calls are counted after a request for metrics: longer than intervals between them.
pub const LOOK_TIME: Duration = Duration::from_secs(15 * 60);

/// Advice for an address that other machines can reach.
const PERMISSION: &str = "give --metrics-tls, or --allow-remote if you trust all machines of the network";

/// Address at which metrics are served, and its TLS.
#[derive(Debug, Clone)]
pub struct Endpoint {
    address: Address,
    tls: Option<tls::ServerConfig>,
}

impl Endpoint {
    /// Reads the options of a verb; `None` without `--metrics`.
    ///
    /// # Errors
    /// An invalid address; one that other machines can reach, without TLS and `allow_remote`; errors of
    /// [`tls::Folder::server`].
    pub fn of(options: &MetricsAddress, allow_remote: bool) -> Result<Option<Endpoint>, Failure> {
        let Some(text) = &options.metrics else { return Ok(None) };
        // Clients need certificates in TLS.
        let is_permitted = allow_remote || options.metrics_tls.is_some();
        let address = address_with("--metrics", text, (is_permitted, PERMISSION))?;
        let tls =
            options.metrics_tls.as_ref().map(|folder| tls::Folder::new(folder).server(true)).transpose();
        let tls = tls.map_err(|error| Failure::Usage(format!("--metrics-tls: {}", error.detail())))?;
        Ok(Some(Endpoint { address, tls }))
    }

    /// Returns the address.
    pub fn address(&self) -> &Address {
        &self.address
    }
}
