//! The service: an NBD server with the exports of borrowers and the export `status`, and a task that watches
//! the machine.

use crate::borrowers::{BLOCK, Borrowers};
use crate::decision::Policy;
use crate::lending::{Lending, Measure};
use crate::machine::Measurement;
use crate::status::{MAX_BORROWERS, STATUS_EXPORT, StatusPart};
use block::{Error, Result};
use doors::nbd::server::{ExportConfig, Server, ServerConfig, ServerTls};
use runtime::net::{Access, Address};
use runtime::sync::StopSource;
use runtime::{JoinHandle, blocking};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Time between two measurements of the machine.
const INTERVAL: Duration = Duration::from_millis(250);
/// Limit of connected clients: a borrower has two connections, and more with several shards.
const MAX_CONNECTIONS: usize = 1024;
/// Smallest default reserve, in bytes, unless that is more than half of the memory.
const MIN_RESERVE: u64 = 512 << 20;

/// Configuration of a node.
pub struct NodeConfig {
    /// Address to listen on.
    pub address: Address,
    /// Whether the address may be reachable from other machines.
    pub allow_remote: bool,
    /// Certificates: all clients use TLS. `None` serves plain text.
    pub tls: Option<tls::ServerConfig>,
    /// Limit of lent memory, in bytes.
    pub capacity: u64,
    /// Size of each borrower's export, in bytes.
    pub quota: u64,
    /// Bytes that remain available on the machine.
    pub reserve: u64,
    /// Share of time in which some task waits for memory above which memory is reclaimed, in percent.
    pub pressure_limit: f64,
    /// Limit of borrowers.
    pub max_borrowers: usize,
    /// Time after which the memory of a borrower without a connection is released.
    pub forget_after: Duration,
}

/// Returns the default reserve in bytes: a sixteenth of the memory, at least 512 MiB, at most half of the
/// memory.
pub fn default_reserve(measured: &Measurement) -> u64 {
    let total = measured.total();
    (total / 16).max(MIN_RESERVE).min(total / 2)
}

/// Permission of an address that other machines can reach, in error messages.
pub const PERMISSION: &str = "give --tls, or --allow-remote if you trust all machines of the network";

/// A memory node, listening or not.
pub struct MemoryNode {
    server: Server,
    borrowers: Arc<Borrowers>,
    forget_after: Duration,
    watch: RefCell<Option<(StopSource, JoinHandle<()>)>>,
}

impl MemoryNode {
    /// Checks the configuration. The machine is measured by `measure`, now and at intervals.
    ///
    /// # Errors
    /// [`Error::Invalid`] for inconsistent values of the configuration; errors of `measure`.
    pub fn new(
        config: NodeConfig,
        measure: impl Fn() -> Result<Measurement> + Send + Sync + 'static,
    ) -> Result<Self> {
        let verifies = config.tls.as_ref().is_some_and(tls::ServerConfig::verifies_clients);
        let checked = config.address.check_reach(config.allow_remote || verifies, PERMISSION);
        checked.map_err(|error| error.in_context("memory node"))?;
        check(&config)?;
        let NodeConfig { capacity, reserve, pressure_limit, quota, .. } = config;
        let measure: Measure = Box::new(measure);
        let lending = Lending::new(Policy { capacity, reserve, pressure_limit }, measure)?;
        let borrowers = Arc::new(Borrowers::new(Arc::new(lending), quota, config.max_borrowers));
        let status = ExportConfig {
            name: STATUS_EXPORT.to_owned(),
            description: "state of the memory node, as JSON".to_owned(),
            device: Arc::new(StatusPart::new(borrowers.clone())?),
            read_only: true,
        };
        let server = Server::new(ServerConfig {
            address: config.address,
            access: Access::default(),
            exports: vec![status],
            max_connections: MAX_CONNECTIONS,
            allow_remote: config.allow_remote,
            tls: config.tls.map(|config| ServerTls { config, required: true }),
        })?;
        server.set_source(borrowers.clone());
        Ok(MemoryNode { server, borrowers, forget_after: config.forget_after, watch: RefCell::default() })
    }

    /// Listens and starts measuring; returns once clients can connect.
    ///
    /// # Errors
    /// Errors of [`Server::start`].
    pub async fn start(&self) -> Result<()> {
        self.server.start().await?;
        let (stop, borrowers, forget_after) = (StopSource::new(), self.borrowers.clone(), self.forget_after);
        let token = stop.token();
        let task = runtime::spawn(async move {
            while runtime::timeout(INTERVAL, token.stopped()).await.is_err() {
                borrowers.lending.refresh();
                let forgotten = borrowers.forget(forget_after);
                for borrower in &forgotten {
                    tracing::info!(
                        "borrower {}: no client was connected for {forget_after:?}: its {} bytes are released",
                        borrower.name,
                        borrower.lent()
                    );
                }
                if !forgotten.is_empty() {
                    // The kernel takes some 50 ms to free a GiB.
                    blocking(move || drop(forgotten)).await;
                }
            }
        });
        self.watch.replace(Some((stop, task)));
        Ok(())
    }

    /// Stops serving. Borrowed memory is released when the node is dropped.
    ///
    /// # Errors
    /// Errors of [`Server::stop`].
    pub async fn stop(&self) -> Result<()> {
        let watch = self.watch.take();
        if let Some((stop, task)) = watch {
            stop.stop();
            // A cancelled task has also ended.
            let _ = task.await;
        }
        self.server.stop().await
    }

    /// Address of the server; while it is running, with the actual port.
    pub fn address(&self) -> Address {
        self.server.address()
    }
}

impl NodeConfig {
    /// Checks that the values are consistent.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of its range.
    pub fn check(&self) -> Result<()> {
        check(self)
    }
}

fn check(config: &NodeConfig) -> Result<()> {
    let blocks = |name: &str, bytes: u64| match bytes > 0 && bytes.is_multiple_of(BLOCK) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "memory node: {name} of {bytes} bytes: expected a multiple of {BLOCK}, and more than 0"
        ))),
    };
    blocks("capacity", config.capacity)?;
    blocks("quota", config.quota)?;
    if config.quota > config.capacity {
        return Err(Error::invalid(format!(
            "memory node: quota of {} bytes with a capacity of {}: expected at most the capacity",
            config.quota, config.capacity
        )));
    }
    if !(1..=MAX_BORROWERS).contains(&config.max_borrowers) {
        return Err(Error::invalid(format!(
            "memory node: {} borrowers: expected 1 to {MAX_BORROWERS}",
            config.max_borrowers
        )));
    }
    if !(config.pressure_limit > 0.0 && config.pressure_limit <= 100.0) {
        return Err(Error::invalid(format!(
            "memory node: a pressure limit of {} %: expected more than 0 and at most 100",
            config.pressure_limit
        )));
    }
    Ok(())
}
