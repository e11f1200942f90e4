//! Arguments of `siltstone metrics`, and of the servers that serve metrics.

use super::Operated;
use clap::Args;
use std::path::PathBuf;

/// Address of a server for monitoring systems
#[derive(Debug, Clone, Default, Args)]
pub struct MetricsAddress {
    /// Serve metrics to Prometheus at this address: GET /metrics
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub metrics: Option<String>,
    /// Serve metrics in TLS 1.3 to clients with a certificate, by the certificates in this folder
    #[arg(long, value_name = "FOLDER", requires = "metrics")]
    pub metrics_tls: Option<PathBuf>,
}

/// Print the metrics of a stack once, as text for Prometheus
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone metrics stack.toml
  siltstone metrics stack.toml | promtool check metrics
  siltstone metrics stack.toml > vol.prom.new && mv vol.prom.new /var/lib/prometheus/node-exporter/vol.prom
  siltstone metrics vol.img                                   a file system that siltstone fs mount serves

If the stack is being served, its server answers, and counts calls from the first request on, until 15 minutes after the last one. If \
not, the stack is opened as by siltstone status, and closed again: then there are no counts of calls. Servers with --metrics serve \
the same to Prometheus.")]
pub struct Metrics {
    #[command(flatten)]
    pub operated: Operated,
    /// Print in the format OpenMetrics 1.0 instead of Prometheus' own
    #[arg(long)]
    pub openmetrics: bool,
}
