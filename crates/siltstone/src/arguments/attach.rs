//! Arguments of `siltstone attach`, `list`, `reload` and `detach`.

use super::{MetricsAddress, STACK_HELP, Warnings};
use clap::Args;

/// Give a stack a block device node, and print its path
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone attach stack.toml                        print /dev/siltstone/stack, a link to the node
  siltstone attach stack.toml --name vol --json      choose the name; print what is attached as JSON
  mkfs.ext4 /dev/siltstone/vol && mount /dev/siltstone/vol /mnt
  umount /mnt && siltstone detach vol
  siltstone attach stack.toml --systemd              print a unit and an example of a mount

The node is a ublk device, an NBD device, or a loop device over a file of a FUSE server. If the server is killed, another one takes over, and mounts on the node continue. Needs root, and ublk, the kernel's NBD client, or /dev/fuse and loop devices. siltstone list lists attachments; status, message and others work as with serve.")]
pub struct Attach {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Set the name of the attachment: up to 64 letters, digits, '.', '_' or '-' [default: the stack file's
    /// name without ending, or the top device's]
    #[arg(long)]
    pub name: Option<String>,
    /// Choose the kernel's driver [default: the first of ublk, nbd and fuse that the kernel has]
    #[arg(long, value_name = "DRIVER")]
    pub via: Option<crate::attach::machine::Driver>,
    /// Set the logical block size of the node in bytes: 512, 1024, 2048 or 4096 [default: that of the device,
    /// up to 4096]
    #[arg(long, value_name = "BYTES", value_parser = sector_size)]
    pub sector_size: Option<u32>,
    /// Set the time for which requests wait for a new server before they fail, such as 500ms or 60s
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = bench::job_file::number::time)]
    pub recover_within: std::time::Duration,
    #[command(flatten)]
    pub metrics: MetricsAddress,
    /// Permit an address of --metrics that other machines can reach; for networks of trusted machines only
    #[arg(long, requires = "metrics")]
    pub allow_remote: bool,
    /// Format the stack; its contents are lost
    #[arg(long)]
    pub format: bool,
    /// Stay in the foreground until SIGINT or SIGTERM, and notify systemd when the node exists
    #[arg(long)]
    pub foreground: bool,
    /// Print a systemd unit and an example of a mount instead
    #[arg(long, conflicts_with_all = ["foreground", "json", "format"])]
    pub systemd: bool,
    /// Print the attachment as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub warnings: Warnings,
    /// Be the holder of an attachment
    #[arg(long, hide = true)]
    pub background: bool,
    /// Be the holder of swap space
    #[arg(long, hide = true)]
    pub swap: bool,
}

fn sector_size(text: &str) -> Result<u32, String> {
    let sizes = crate::attach::node::SECTOR_SIZES;
    let found = sizes.into_iter().find(|size| size.to_string() == text);
    found.ok_or_else(|| "expected 512, 1024, 2048 or 4096".to_owned())
}

/// List attached stacks
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone list
  siltstone list --json | jq -r '.[].node'

States: attached; recovering (the server was lost, requests wait for the next one); failed (no server could be started in time, requests fail); lost (the holder has ended: unmount the node, and detach it); unknown (only root may read the state).")]
pub struct List {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Remove a node that siltstone attach made, and close its stack
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone detach vol
  siltstone detach /dev/siltstone/vol
  siltstone detach /dev/loop0

A node that is mounted, is a swap area, has devices on it or is open is not detached.")]
pub struct Detach {
    /// Name of the attachment, its link or its node
    pub name: String,
}

/// Replace the server of an attachment by one of the installed program, while the node stays in use
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dpkg -i siltstone_0.2.0_amd64.deb && siltstone reload vol
  systemctl reload siltstone-attach@vol

Ends when the next server serves. Requests to the node wait meanwhile. If the new program doesn't start, a server of the former one continues, and this is an error. Stacks that keep acknowledged writes in the memory of their server, or serve zones, can't be reloaded.")]
pub struct Reload {
    /// Name of the attachment, its link or its node
    pub name: String,
}
