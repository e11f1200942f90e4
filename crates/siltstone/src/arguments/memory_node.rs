//! Arguments of `siltstone memory-node`.

use super::{duration, size};
use clap::Args;
use std::time::Duration;

/// Lend this machine's memory to other machines over NBD, until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone memory-node --capacity 8GiB --listen unix:node.sock
  siltstone memory-node --capacity 8GiB --listen 10.0.0.2:10810 --allow-remote    lend to other machines of a closed network
  siltstone memory-node --capacity 8GiB --listen 10.0.0.2:10810 --tls /etc/siltstone/pki      lend to clients with a certificate
  siltstone memory-node --capacity 8GiB --quota 2GiB --listen 127.0.0.1:10810     give each borrower 2GiB at most
  siltstone serve 'memory-node(\"10.0.0.2:10810\", name=swap0)' --nbd unix:vol.sock    borrow, on the other machine
  nbdcopy nbd://10.0.0.2:10810/status - | jq          show the state of the node
  nbdinfo nbd://10.0.0.2:10810/memory/swap0           show what a borrower gets

The export memory/NAME is created when a client opens it. Its memory is allocated when it is written, and released when it is \
discarded. The node lends available memory above the reserve only: a write that needs more fails with \"no space\". When less than the reserve \
is available, or tasks of the machine wait for memory, the export status has the number of bytes that each borrower has to discard. Borrowed \
memory is lost when the node ends.

Without --tls there is no authentication and no encryption: every client that reaches the address can read and change all borrowed \
memory. With it, every client that has a certificate of the authority can. The kernel's out-of-memory killer may end the node: the programs of this machine have priority.

Prints the address once clients can connect.")]
pub struct MemoryNodeServe {
    /// Lend at most this much memory, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub capacity: u64,
    /// Listen at this address
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub listen: String,
    /// Serve clients with a certificate in TLS 1.3, by the certificates in this folder
    #[arg(long, value_name = "FOLDER")]
    pub tls: Option<std::path::PathBuf>,
    /// Permit an address that other machines can reach; for networks of trusted machines only
    #[arg(long)]
    pub allow_remote: bool,
    /// Keep this much memory available for the machine's own programs [default: 1/16 of its memory, 512MiB at
    /// least]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub reserve: Option<u64>,
    /// Set the size of each borrower's export [default: the capacity]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub quota: Option<u64>,
    /// Limit the number of borrowers, 1 to 128
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=memory_node::MAX_BORROWERS as i64))]
    pub max_borrowers: u32,
    /// Release the memory of a borrower after this time without a connection, such as 30s, 10m or 12h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub forget_after: Duration,
    /// Reclaim memory when tasks wait for memory for more than this share of ten seconds (PSI some avg10), in
    /// percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub pressure_limit: f64,
    /// Set the number of threads that serve clients, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: u32,
    /// Print the address as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Return once clients are served, and continue in the background; siltstone stop unix:PATH ends it
    #[arg(long)]
    pub background: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim_end_matches('%').parse().ok();
    let is_share = |number: &f64| *number > 0.0 && *number <= 100.0;
    number.filter(is_share).ok_or_else(|| "expected more than 0 and at most 100".to_owned())
}
