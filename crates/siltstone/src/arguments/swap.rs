//! Arguments of `siltstone swap`.

use clap::{Args, Subcommand};
use std::time::Duration;

/// Use a stack as swap space, for example memory of other machines
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone swap on swap.toml                        attach a stack as swap space
  siltstone swap status                              show used space, priorities and memory nodes
  siltstone swap off swap                            move all pages back to memory, and detach it

swap.toml, with two memory nodes and each page on both:
  [device.one]
  kind = \"memory-node\"
  address = \"10.0.0.2:10810\"
  name = \"swap0\"
  [device.two]
  kind = \"memory-node\"
  address = \"10.0.0.3:10810\"
  name = \"swap0\"
  [device.swap]
  kind = \"remote\"
  nodes = [\"one\", \"two\"]
  copies = 2

on and off need root, and mkswap, swapon and swapoff of util-linux.")]
pub enum SwapVerb {
    On(SwapOn),
    Off(SwapOff),
    Status(SwapStatus),
}

/// Attach a stack as a block device, make it swap space, and use it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone swap on swap.toml
  siltstone swap on 'remote(memory-node(10.0.0.2:10810, name=swap0))' --name far --priority 50

Pages that programs no longer need are discarded one by one (swapon --discard=pages). If the server of the stack is killed, another one replaces it: \
requests wait meanwhile, and a part of kind remote keeps its pages.")]
pub struct SwapOn {
    #[arg(help = super::STACK_HELP)]
    pub stack: String,
    /// Set the name of the attachment [default: the stack file's name without ending, or the top device's]
    #[arg(long)]
    pub name: Option<String>,
    /// Set the priority, 0 to 32767: the kernel uses swap space of a higher one first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(0..=32767))]
    pub priority: u16,
    /// Choose the kernel's driver [default: the first of ublk, nbd and fuse that the kernel has]
    #[arg(long, value_name = "DRIVER")]
    pub via: Option<crate::attach::machine::Driver>,
    /// Set the time for which requests wait for a new server before they fail, such as 500ms or 60s
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = bench::job_file::number::time)]
    pub recover_within: Duration,
    /// Permit a stack that isn't of kind remote or ram; its contents are lost
    #[arg(long)]
    pub overwrite: bool,
}

/// Stop swapping to an attachment, and detach it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone swap off swap

Moves every page back to memory first, which takes as long as reading all of them. Without enough memory the kernel refuses, and nothing changes.")]
pub struct SwapOff {
    /// Name of the attachment, its link or its node
    pub name: String,
}

/// Show the attachments that are used as swap space
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone swap status
  siltstone swap status --json | jq '.[].device.nodes'")]
pub struct SwapStatus {
    /// Print the status as JSON
    #[arg(long)]
    pub json: bool,
}
