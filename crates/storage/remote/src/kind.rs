//! The kind `remote` of stacks: its keys, and their limits.

use crate::compression::{self, Compression};
use crate::config::{Capacity, Config, Refusal, Request};
use crate::kept;
use crate::part::RemotePart;
use crate::slot::PAGE;
use crate::zones::MAX_COPIES;
use block::{Call, DevicePart, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::sync::Arc;

/// `remote(nbd(10.0.0.2:10809), nbd(10.0.0.3:10809), copies=2)`.
pub const KIND: Kind = Kind {
    name: "remote",
    contract: Contract::Device,
    summary: "memory of other machines, packed with compressed pages; lost with them",
    keys: &[
        Key::required(
            "nodes",
            ValueKind::Devices,
            "memory nodes: NBD servers, for example; their contents are overwritten",
        )
        .positional(),
        Key::optional(
            "size",
            ValueKind::Size,
            "size of the device; default, and limit without overcommit: the capacity for incompressible pages",
        ),
        Key::optional(
            "overcommit",
            ValueKind::Bool,
            "permit a larger size: writes fail once the nodes are full",
        )
        .or("false"),
        Key::optional(
            "copies",
            ValueKind::Integer { min: 1, max: MAX_COPIES as u64 },
            "copies of each page, on different nodes: with 2, the loss of a node loses no page",
        )
        .or("1"),
        Key::optional(
            "backup",
            ValueKind::Device,
            "device that also stores every page, and serves those of lost nodes",
        ),
        Key::optional(
            "cache",
            ValueKind::Size,
            "local memory for the most recently used pages, 32MiB to 1TiB",
        )
        .or("64MiB"),
        Key::optional(
            "group",
            ValueKind::Size,
            "size of a block group, which is contiguous on a node; 1MiB to 64MiB",
        )
        .or("8MiB"),
        Key::optional("compression", ValueKind::Choice(&compression::NAMES), "compression of pages")
            .or("lz4"),
        Key::optional(
            "timeout",
            ValueKind::Duration,
            "time limit of a request to a node; after it the node is down until it answers again; 10ms to 1h",
        )
        .or("5s"),
        stack::WARN_AT,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "remote(ram(256MiB), ram(256MiB), copies=2)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments).await.map(Built::Device) }),
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("pages", "remote_pages", "Pages of the device"),
    Metric::gauge("stored_pages", "remote_stored_pages", "Pages with data on nodes"),
    Metric::gauge(
        "same_filled_pages",
        "remote_same_filled_pages",
        "Pages of one repeated word, which need no memory",
    ),
    Metric::gauge("lost_pages", "remote_lost_pages", "Pages that were lost with nodes"),
    Metric::gauge("page_bytes", "remote_page_bytes", "Data of the stored pages"),
    Metric::gauge("packed_bytes", "remote_packed_bytes", "Data of the stored pages after compression"),
    Metric::gauge("live_bytes", "remote_live_bytes", "Memory of nodes that stored pages use"),
    Metric::gauge("stale_bytes", "remote_stale_bytes", "Memory of nodes that waits for the cleaner"),
    Metric::counter("reads", "remote_reads", "Pages that were read"),
    Metric::counter("hits", "remote_hits", "Pages that were read from the memory of this machine"),
    Metric::counter("writes", "remote_writes", "Pages that were written"),
    Metric::counter("discards", "remote_discards", "Pages that were discarded"),
    Metric::counter("moved_pages", "remote_moved_pages", "Pages that the cleaner moved"),
    Metric::counter("hedged_reads", "remote_hedged_reads", "Reads that were sent to a second node"),
    Metric::counter("zones_copied", "remote_copied_zones", "Zones that were copied to restore a lost copy"),
    Metric::counter("node_read_bytes", "remote_node_read_bytes", "Bytes that were read from nodes"),
    Metric::counter("node_written_bytes", "remote_node_written_bytes", "Bytes that were written to nodes"),
    Metric::gauge("copies", "remote_copies", "Wanted copies of each zone"),
    Metric::gauge("free_zones", "remote_free_zones", "Zones without data"),
    Metric::gauge("zones_with_one_copy", "remote_one_copy_zones", "Zones that one node alone has"),
    Metric::gauge(
        "survives_loss_of_a_node",
        "remote_survives_loss",
        "1 if no page is lost with any one node",
    ),
    Metric::gauge("memory_bytes", "memory_bytes", "Memory that the part has taken"),
    Metric::gauge("nodes.*.state", "remote_node_up", "1 while the node answers")
        .of_each("node", "name")
        .if_word("up"),
    Metric::gauge("nodes.*.bytes", "remote_node_bytes", "Memory that the node lends").of_each("node", "name"),
    Metric::gauge("nodes.*.used_bytes", "remote_node_used_bytes", "Memory of the node that is used")
        .of_each("node", "name"),
    Metric::gauge(
        "nodes.*.read_p99_us",
        "remote_node_read_p99_seconds",
        "99th percentile of the latency of reads from the node",
    )
    .of_each("node", "name")
    .times(1e-6),
    Metric::counter("nodes.*.losses", "remote_node_losses", "Times that the node was lost")
        .of_each("node", "name"),
    Metric::counter("nodes.*.errors", "remote_node_errors", "Failed operations of the node")
        .of_each("node", "name"),
    Metric::counter(
        "nodes.*.damaged_reads",
        "remote_node_damaged_reads",
        "Reads from the node with a wrong checksum",
    )
    .of_each("node", "name"),
];

/// Checks sizes as far as the nodes' sizes are known before they are opened.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let capacity =
        |shape: &Shape| Some(Capacity { bytes: shape.bytes?, block_size: shape.block_size?.into() });
    let (nodes, backup) = (arguments.shapes("nodes")?, arguments.shapes("backup")?);
    let size = arguments.optional_size("size")?;
    let known = |shapes: &[Shape]| shapes.iter().map(capacity).collect::<Option<Vec<Capacity>>>();
    let request = Request {
        nodes: known(&nodes).unwrap_or_default(),
        backup: known(&backup).unwrap_or_default().pop(),
        size,
        may_overcommit: arguments.boolean("overcommit")?,
        copies: arguments.integer("copies")?,
        cache: arguments.size("cache")?,
        group: arguments.size("group")?,
        timeout: arguments.duration("timeout")?,
    };
    let refused = |refusal: Refusal| arguments.refuse(refusal.key, refusal.text);
    match known(&nodes).is_some() && known(&backup).is_some() {
        true => {
            let pages = request.sizes().map_err(refused)?.pages;
            Ok(Shape::new(pages * PAGE as u64, PAGE as u32))
        }
        false => {
            request.check_keys(nodes.len() as u64).map_err(refused)?;
            Ok(Shape { bytes: size, block_size: Some(PAGE as u32), zones: None })
        }
    }
}

async fn build(arguments: &Arguments) -> Result<Arc<dyn DevicePart>> {
    let named = |(number, part): (usize, Arc<dyn DevicePart>)| (format!("node {number}"), part);
    let config = Config {
        nodes: arguments.devices("nodes")?.into_iter().enumerate().map(named).collect(),
        backup: arguments.optional_device("backup")?,
        size: arguments.optional_size("size")?,
        may_overcommit: arguments.boolean("overcommit")?,
        copies: arguments.integer("copies")?,
        cache: arguments.size("cache")?,
        group: arguments.size("group")?,
        compression: Compression::from_name(arguments.choice("compression")?).expect("a choice of the key"),
        timeout: arguments.duration("timeout")?,
        kept: kept::take(),
    };
    let part: Arc<dyn DevicePart> = RemotePart::open(config).await?;
    Ok(part)
}
