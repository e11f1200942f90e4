//! Arguments of `siltstone objects`.

use super::{Operated, STACK_HELP};
use crate::prices::Prices;
use clap::{Args, Subcommand};

/// Show, check and hand over zones in a bucket
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone objects status stack.toml                 show the state of the bucket, without opening the volume
  siltstone objects check stack.toml --data           read and verify everything; writes nothing
  siltstone objects gc stack.toml --dry-run           count the objects that nothing needs
  siltstone objects fence stack.toml --yes            end the writes of the volume's writer, wherever it runs
  siltstone objects drain stack.toml                  upload everything, end the server, leave the bucket to another machine

The stack names the bucket; its part is of kind \"objects\". No verb but drain needs a server, and none opens the volume: a \
writer on another machine continues, except after fence.")]
pub enum ObjectsVerb {
    Status(ObjectsStatus),
    Check(ObjectsCheck),
    Gc(ObjectsGc),
    Fence(ObjectsFence),
    Drain(ObjectsDrain),
}

/// Part of a stack, and the form of the output.
#[derive(Debug, Clone, Args)]
pub struct BucketPart {
    /// Choose the part by its name, if the stack has several of kind "objects"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the state of a volume in its bucket, and what it costs; writes nothing
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects status stack.toml
  siltstone objects status 'objects(\"http://127.0.0.1:7070\", bucket=vol, prefix=\"db1/\")'
  siltstone objects status stack.toml --garbage                    also list all objects, and count those that nothing needs
  siltstone objects status stack.toml --prices put=0.005,get=0.0004,storage=0.023,currency=EUR
  siltstone objects status stack.toml --json | jq .object_bytes

The volume isn't opened, and its writer isn't fenced. Requests are those of the server of this stack, if it is being served.

Prices are those of your contract; none is assumed: put and get for 1000 requests, storage for a GB (10^9 bytes) and a month of \
30 days. list and delete for 1000 requests are put and 0 unless given.")]
pub struct ObjectsStatus {
    #[command(flatten)]
    pub operated: Operated,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// List all objects below the prefix, and count those that nothing needs
    #[arg(long)]
    pub garbage: bool,
    /// Estimate the costs by these prices
    #[arg(long, value_name = "put=X,get=X,storage=X")]
    pub prices: Option<Prices>,
}

/// Check the objects of a volume for loss and damage; writes nothing
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects check stack.toml                               manifests, and the existence and length of all pieces
  siltstone objects check stack.toml --data                        read and verify every byte as well
  siltstone objects check stack.toml --json | jq '.damage[] | [.zone, .bytes]'

The manifests are read and verified, and all objects are listed, 1000 with a request. Works while the volume is in use, here or \
on another machine. Objects that nothing needs are counted as garbage; they are no damage.

Exit code 1 if an object is lost or damaged.")]
pub struct ObjectsCheck {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// Read and verify all data
    #[arg(long)]
    pub data: bool,
}

/// Delete objects that no manifest needs, such as those that a crash has left
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects gc stack.toml --dry-run                        only count them
  siltstone objects gc stack.toml

If the stack is being served, its server deletes them, after the grace, and this returns at once. Otherwise they are deleted \
here: after the grace, unless the volume hasn't changed for longer. That is safe while another machine writes the volume: what \
its writer may still name or delete itself isn't touched.")]
pub struct ObjectsGc {
    #[command(flatten)]
    pub operated: Operated,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// Count them, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// End the acknowledgements of a volume's writer, without opening the volume
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects fence stack.toml                               tell whom it would fence
  siltstone objects fence stack.toml --yes

From then on no flush of that writer returns, wherever it runs; what it hasn't flushed is lost. The next one that opens the \
volume writes it. Opening fences as well: this is for a writer that must end now.")]
pub struct ObjectsFence {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// Fence the writer
    #[arg(long)]
    pub yes: bool,
}

/// Upload everything, end the server of a volume, and leave its bucket to another machine
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects drain stack.toml                  here; then, on the other machine:
  siltstone serve stack.toml

The server uploads while its clients write, until little is left; then it ends as by siltstone stop, with the rest. At the end the \
bucket alone has everything, and is closed. The time without writes is printed.")]
pub struct ObjectsDrain {
    #[command(flatten)]
    pub operated: Operated,
    #[command(flatten)]
    pub bucket: BucketPart,
}
