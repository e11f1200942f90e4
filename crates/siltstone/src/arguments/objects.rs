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
  siltstone objects fence stack.toml --yes            end the volume's writer, wherever it runs
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
  siltstone objects gc stack.toml --dry-run                        count the objects and their bytes; deletes nothing
  siltstone objects gc stack.toml                                  delete them

What happens: all objects below the prefix are listed, 1000 with a request. Deleted is data that no manifest names, of writers that \
have ended, and manifests that a later one replaces. Objects of other programs are counted and left.

Who deletes: if this stack is being served here, its server does, after the time of the key grace, 60s by default; this command \
returns once all are listed. Otherwise this command does: it waits for the grace, unless the volume hasn't changed for longer, and then deletes.

Who is affected: no writer. One on another machine continues, and what it may still name or delete is left to it. A reader that \
is behind the newest manifest by more than the grace may miss objects of its older state.")]
pub struct ObjectsGc {
    #[command(flatten)]
    pub operated: Operated,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// Count the objects that would be deleted, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// End a volume's writer, wherever it runs, without opening the volume
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects fence stack.toml                  name the writer that would be fenced; writes nothing
  siltstone objects fence stack.toml --yes            fence it

What happens: one object, a seal, is created in the bucket, under the number of the writer's next manifest. The writer finds the \
number taken, and can create no manifest after it.

Who is affected: the writer that is named, on whatever machine. Its next flush, finish or reset of a zone fails with \"fenced\", and \
so do those that wait. What it has flushed stays; what it hasn't flushed is lost. Readers continue.

Afterwards the volume has no writer. The next program that opens it writes it, also the fenced server if something starts it \
again: stop that server for good. A program that opens the volume fences the last writer itself, so this is for a writer that \
must end before.")]
pub struct ObjectsFence {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    #[command(flatten)]
    pub bucket: BucketPart,
    /// Fence the writer; without it the command only names it, and exits with 2
    #[arg(long)]
    pub yes: bool,
}

/// Upload everything, end the server of a volume, and leave its bucket to another machine
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone objects drain stack.toml                  on the machine that serves the stack
  siltstone serve stack.toml                          then on the other machine

What happens: the server uploads what its write caches and the bucket's part have, in up to 8 rounds while clients write, until \
little is left. Then it ends as by siltstone stop, with the rest. At last the bucket is read: its volume must be closed.

Who is affected: clients of the server. They write until it ends, and are disconnected then; the time without writes is printed. \
If the rest couldn't be uploaded, the server has ended, the volume isn't closed, and the exit code is 1: serve the stack here again.

Afterwards the bucket alone has everything, and no machine writes the volume until one opens it.")]
pub struct ObjectsDrain {
    #[command(flatten)]
    pub operated: Operated,
    #[command(flatten)]
    pub bucket: BucketPart,
}
