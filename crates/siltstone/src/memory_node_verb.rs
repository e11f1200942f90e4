//! `siltstone memory-node`: lends the machine's memory.

use crate::address::address_with;
use crate::arguments::MemoryNodeServe;
use crate::failure::Failure;
use crate::output::print_line;
use crate::service;
use crate::stop::watch::Watch;
use crate::stop::{Further, Stop};
use memory_node::{MemoryNode, NodeConfig, PERMISSION, default_reserve, measure};
use runtime::Config;
use serde_json::json;

/// Lends memory until a signal.
///
/// # Errors
/// A wrong address, or inconsistent sizes; errors of measuring the machine, listening or closing.
pub fn memory_node(arguments: &MemoryNodeServe) -> Result<(), Failure> {
    // Clients need certificates then.
    let is_permitted = arguments.allow_remote || arguments.tls.is_some();
    let address = address_with("--listen", &arguments.listen, (is_permitted, PERMISSION))?;
    let wrong = |error: block::Error| Failure::Usage(error.detail().to_owned());
    let tls = arguments.tls.as_ref().map(|folder| tls::Folder::new(folder).server(true));
    let tls = tls.transpose()?;
    let reserve = match arguments.reserve {
        Some(reserve) => reserve,
        None => default_reserve(&measure()?),
    };
    let config = NodeConfig {
        address,
        allow_remote: arguments.allow_remote,
        tls,
        capacity: arguments.capacity,
        quota: arguments.quota.unwrap_or(arguments.capacity),
        reserve,
        pressure_limit: arguments.pressure_limit,
        max_borrowers: arguments.max_borrowers as usize,
        forget_after: arguments.forget_after,
    };
    config.check().map_err(wrong)?;
    let as_json = arguments.json;
    let shards = Config::default().with_shards(arguments.shards as usize).polling();
    runtime::run(shards, move || async move { lend(config, as_json).await })?
}

async fn lend(config: NodeConfig, as_json: bool) -> Result<(), Failure> {
    let node = MemoryNode::new(config, measure)?;
    // The handler is installed before the address is printed: a client may send a signal at once.
    let loss = "the memory of all borrowers is lost".to_owned();
    let stop = Stop::new("memory-node", loss, Further::EndsProcess, &Watch::default())?;
    node.start().await?;
    let address = node.address().to_string();
    let printed = match as_json {
        true => print_line(&json!({ "address": address }).to_string()),
        false => print_line(&address),
    };
    service::ready();
    let ended = match printed {
        Err(failure) => Err(failure),
        Ok(()) => stop.signal().await.map_err(Failure::from),
    };
    let stopped = stop.wait(&(), node.stop()).await;
    ended?;
    Ok(stopped?)
}
