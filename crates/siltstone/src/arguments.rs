//! Command line: verbs, options, and help with examples.

mod attach;
mod fs;
mod kv;
mod memory_node;
mod metrics;
mod objects;
mod report;
mod spi;
mod swap;
mod top;
mod trace;
mod warm;
mod zns;

pub use attach::{Attach, Detach, List, Reload};
pub use fs::{
    FsCheck, FsDefrag, FsFormat, FsMount, FsScrub, FsSnapshot, FsSnapshotVerb, FsSnapshots, FsStatus,
    FsUnmount, FsVerb,
};
pub use kv::{
    KvAudit, KvBackup, KvCheck, KvCompact, KvDelete, KvGet, KvLogin, KvPut, KvScan, KvServe, KvStatus,
    KvStore, KvVerb,
};
pub use memory_node::MemoryNodeServe;
pub use metrics::{Metrics, MetricsAddress};
pub use objects::{
    BucketPart, ObjectsCheck, ObjectsDrain, ObjectsFence, ObjectsGc, ObjectsStatus, ObjectsVerb,
};
pub use report::Report;
pub use spi::{ServerChoice, SpiServe, SpiVerb, TraceForm};
pub use swap::{SwapOff, SwapOn, SwapStatus, SwapVerb};
pub use top::{Top, parse_interval};
pub use trace::Trace;
pub use warm::{Pace, WarmVerb, Where, WhichCache};
pub use zns::{ZnsDrive, ZnsVerb};

use crate::log_target::LogTarget;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

/// A storage stack in user space.
#[derive(Debug, Parser)]
#[command(
    name = "siltstone",
    version,
    about = "A storage stack in user space: composed in one small file, measured, and served to programs",
    after_help = "Examples:
  siltstone bench examples/quick.toml                         run a plan and write its report
  siltstone bench 'file(disk.img, size=1GiB)'                 measure reads of a stack
  siltstone serve 'ram(1GiB)' --nbd unix:ram.sock             serve a stack to NBD clients
  siltstone attach stack.toml                                 give a stack a block device node
  siltstone status stack.toml                                 show the status of a stack, served or not
  siltstone top                                               show what each part of a server is doing
  siltstone trace stack.toml --slow 10ms                      print a line for each slow request
  siltstone snapshot create stack.toml monday                 create a snapshot of a log device
  siltstone warm list stack.toml                              list cached blocks with their heat
  siltstone stack show 'stats(file(disk.img, size=1GiB))'     draw a stack
  siltstone stack kinds                                       list the kinds of parts
  siltstone spi serve --chip W25Q128JV --serprog 127.0.0.1:4025    emulate a flash chip for flashrom
  siltstone fs format vol.img --size 8GiB                     create a log-structured file system
  siltstone fs mount vol.img /mnt                             mount it
  siltstone kv serve kv.toml --format                         create a key-value store for redis clients
  siltstone memory-node --capacity 8GiB --listen unix:node.sock    lend memory to other machines

Exit codes: 0 success; 1 failure; 2 usage error; 130 stopped by Ctrl-C."
)]
pub struct CommandLine {
    /// Set the log level of standard error
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn")]
    pub log: LogLevel,
    /// Write messages to stderr, to syslog, or to a file, which SIGHUP makes the program open again
    #[arg(long, global = true, value_name = "stderr|syslog|FILE", default_value = "stderr")]
    pub log_to: LogTarget,
    /// Start a session of its own, for a server in the background
    #[arg(long, global = true, hide = true)]
    pub own_session: bool,
    /// Verb
    #[command(subcommand)]
    pub verb: Verb,
}

/// Log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Verb {
    /// Whether this is a server that is wanted in the background.
    pub fn is_in_background(&self) -> bool {
        match self {
            Verb::Serve(serve) => serve.background,
            Verb::Kv(KvVerb::Serve(serve)) => serve.background,
            Verb::Fs(FsVerb::Mount(mount)) => mount.background,
            Verb::Spi(SpiVerb::Serve(serve)) => serve.background,
            Verb::MemoryNode(node) => node.background,
            _ => false,
        }
    }
}

impl LogLevel {
    /// Returns the level as on the command line.
    pub fn word(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// Verb of the command line.
#[derive(Debug, Subcommand)]
pub enum Verb {
    Bench(Bench),
    Serve(Serve),
    Attach(Attach),
    List(List),
    Reload(Reload),
    Detach(Detach),
    Stop(StopServer),
    Status(Status),
    Top(Top),
    Trace(Trace),
    Metrics(Metrics),
    Message(Message),
    #[command(subcommand)]
    Snapshot(SnapshotVerb),
    Resize(Resize),
    #[command(subcommand)]
    Warm(WarmVerb),
    Check(Check),
    Dump(Dump),
    Format(Format),
    #[command(subcommand)]
    Stack(StackVerb),
    #[command(subcommand)]
    Record(RecordVerb),
    Report(Report),
    #[command(subcommand)]
    Model(ModelVerb),
    #[command(subcommand)]
    Spi(SpiVerb),
    #[command(subcommand)]
    Zns(ZnsVerb),
    #[command(subcommand)]
    Objects(ObjectsVerb),
    #[command(subcommand)]
    Fs(FsVerb),
    #[command(subcommand)]
    Kv(KvVerb),
    MemoryNode(MemoryNodeServe),
    #[command(subcommand)]
    Swap(SwapVerb),
    MapLookups(MapLookups),
    /// Print a script that completes this program's arguments
    #[command(after_help = "Examples:
  siltstone completions bash > ~/.local/share/bash-completion/completions/siltstone
  siltstone completions zsh > ~/.zfunc/_siltstone
  siltstone completions fish > ~/.config/fish/completions/siltstone.fish")]
    Completions {
        /// Shell that runs the script
        shell: Shell,
    },
    /// Write the manual pages of all verbs
    #[command(after_help = "Examples:
  siltstone man-pages /usr/local/share/man/man1       man siltstone-fs-mount shows one of them")]
    ManPages {
        /// Existing directory to write them to
        directory: PathBuf,
    },
}

const STACK_HELP: &str = "Stack: a file (stack.toml), or one line such as 'stats(file(disk.img, size=1GiB))'";

/// Run a plan, a fio job file, or the default workloads on a stack; print a table and write a report
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  siltstone bench examples/quick.toml                run a plan: stacks, workloads, peers, repetitions
  siltstone bench examples/quick.toml --only write   run only the workloads with \"write\" in their names
  siltstone bench randread.fio                       run a fio job file on the files that it names
  siltstone bench randread.fio --on 'ram(1GiB)'      run the same jobs on a stack
  siltstone bench 'file(disk.img, size=1GiB)'        measure reads of a stack
  siltstone bench 'ram(1GiB)' --writes               measure reads and writes; the contents of the stack are lost
  siltstone bench bench/plans/log.toml --repetitions 1 --runtime 500ms     shorten a long plan
  siltstone bench bench/plans/tiers.toml --full      run the plan in full, with the changes of its [full]
  siltstone bench examples/quick.toml --json | jq '.runs[].iops'

DIR/report.html is self-contained; DIR/results.json has every figure.
Ctrl-C stops it; the report has the completed runs.")]
pub struct Bench {
    /// Plans (.toml), fio job files (.fio) or stacks, run one after the other
    #[arg(required = true, value_name = "PLAN|JOB.fio|STACK")]
    pub what: Vec<String>,
    /// Write the report to this directory; several arguments each get a folder in it [default:
    /// bench-out/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run a job file's jobs on this stack instead of its filename=
    #[arg(long, value_name = "STACK")]
    pub on: Option<String>,
    /// Format the stack of --on for each group of jobs, for stacks on memory; its contents are lost
    #[arg(long, requires = "on")]
    pub format: bool,
    /// Include writes in the default workloads of a stack; its contents are overwritten
    #[arg(long)]
    pub writes: bool,
    /// Run only the workloads whose names contain this; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Set the number of repetitions of each workload of a plan
    #[arg(long, visible_alias = "pairs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Set the measured time of each workload of a plan, such as 500ms or 10s
    #[arg(long, value_name = "TIME", value_parser = bench::job_file::number::time)]
    pub runtime: Option<std::time::Duration>,
    /// Run a plan in full, with the changes of its table `full`
    #[arg(long)]
    pub full: bool,
    /// Print results.json instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Open a stack and its doors until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone serve stack.toml                              serve a stack with doors of its own
  siltstone serve 'ram(1GiB)' --nbd unix:ram.sock         serve the top of a stack without doors over NBD
  siltstone serve 'file(disk.img, size=4GiB)' --nbd 127.0.0.1:10809
  siltstone serve 'file(disk.img)' --nbd 10.0.0.2:10809 --allow-remote    serve other machines of a closed network
  siltstone serve stack.toml --vhost-user vm.sock         serve the top to QEMU as a virtio disk
  siltstone serve stack.toml --metrics 127.0.0.1:9870     also serve metrics to Prometheus
  nbdinfo 'nbd+unix:///?socket=ram.sock'                  list its exports
  nbdinfo -- [ siltstone serve -s 'ram(64MiB)' ]          let a client start its own server

Prints an address per line once clients can connect. Opening keeps all contents: a missing file is created, an
existing one is left unchanged, unless --format is given.

With -s, as nbdkit -s, standard input is a socket that is connected to a client, or standard input and output are pipes: for \
nbd_connect_command of libnbd, inetd and ssh. Nothing else is printed there. When the client disconnects, everything is made \
durable, and the exit status is 0.

SIGTERM or Ctrl-C makes all acknowledged changes durable. If the storage completes no request for 10 minutes, the server ends \
without it, with exit status 1. A second signal ends it at once; with a mount it shortens the limit to 10 s. Changes that \
weren't durable are lost then.

Operators use siltstone status STACK, siltstone message STACK PART TEXT and others meanwhile. These find the server \
by its stack, through a unix socket in XDG_RUNTIME_DIR/siltstone, /run/siltstone-control (root), /run/user/UID/siltstone or \
/tmp/siltstone-UID that only its user and root may use.")]
#[command(group = clap::ArgGroup::new("reachable").args(["nbd", "metrics"]).multiple(true))]
pub struct Serve {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Serve the device on top over NBD at this address; may be given several times
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub nbd: Vec<String>,
    /// Permit addresses of --nbd and --metrics that other machines can reach; for networks of trusted
    /// machines only
    #[arg(long, requires = "reachable")]
    pub allow_remote: bool,
    #[command(flatten)]
    pub metrics: MetricsAddress,
    /// Serve the device on top to virtual machines at this unix socket (vhost-user-blk)
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,
    /// Serve the device on top to one NBD client on standard input and output, until it disconnects
    #[arg(short = 's', long, conflicts_with_all = ["nbd", "vhost_user", "background", "json", "holder"])]
    pub stdio: bool,
    /// Listen for operators on this unix socket [default: derived from the stack; none with -s]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Don't listen for operators
    #[arg(long, conflicts_with = "control")]
    pub no_control: bool,
    /// Format the stack; its contents are lost
    #[arg(long)]
    pub format: bool,
    /// Print the addresses, and the control socket, as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Return once clients are served, and continue in the background; siltstone stop ends it
    #[arg(long)]
    pub background: bool,
    #[command(flatten)]
    pub warnings: Warnings,
    /// Serve the holder of an attachment, which is connected to standard input
    #[arg(long, hide = true)]
    pub holder: bool,
    /// Never wait for memory that swapping out would free
    #[arg(long, hide = true, requires = "holder")]
    pub swap: bool,
}

/// Warnings of a server.
#[derive(Debug, Clone, Default, Args)]
pub struct Warnings {
    /// Run this program when a part reaches a level of its key warn_at, with the arguments PART PERCENT USED
    /// LIMIT (bytes); it may run for 60 s
    #[arg(long, value_name = "PROGRAM")]
    pub warn_command: Option<PathBuf>,
}

/// Parses a size in bytes, such as 64KiB.
fn size(text: &str) -> Result<u64, String> {
    stack::parse_size(text).map_err(|error| error.detail().to_owned())
}

/// Parses a duration, such as 10ms.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    stack::parse_duration(text).map_err(|error| error.detail().to_owned())
}

/// Stack of a request, served or not
#[derive(Debug, Args)]
pub struct Operated {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Send the request to the server that listens on this control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Show the status of every part of a stack
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone status stack.toml
  siltstone status 'stats(file(disk.img, size=1GiB))'
  siltstone status stack.toml --json | jq .devices
  siltstone status stack.toml --control vol.control       a server that was started with --control vol.control

If the stack is being served, its server answers. If not, the stack is opened as by serve, without its \
doors, and closed again. Standard error names the way. A stack of one line is identified by its text and the \
working directory: use the one in which the server was started.")]
pub struct Status {
    #[command(flatten)]
    pub operated: Operated,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Stop the server of a stack or a socket, and wait until everything is durable and it has ended
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone stop stack.toml                          end siltstone serve stack.toml
  siltstone stop 'ram(1GiB)'                         in the working directory in which the server was started
  siltstone stop unix:node.sock                      end the server of siltstone that listens there

Sends SIGTERM to the server, which is found as by siltstone status. siltstone detach ends attachments, and siltstone fs unmount \
mounts of siltstone fs mount.")]
pub struct StopServer {
    #[command(flatten)]
    pub operated: Operated,
}

/// Send a message to a part of a stack
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone message stack.toml disk rules off             send to the part named \"disk\"
  siltstone message 'fault(ram(1GiB))' fault rules off    send to the only part of kind \"fault\"
  siltstone message stack.toml counted clear_stats

stats takes clear_stats; fault takes rules on and rules off. siltstone stack show lists the names of the parts \
of a stack. If the stack is being served, its server forwards the message; if not, the stack is opened for it, \
without its doors, and closed again.")]
pub struct Message {
    #[command(flatten)]
    pub operated: Operated,
    /// Name of the part, or its kind if there is only one of it
    pub part: String,
    /// Text of the message; several words are joined by spaces
    #[arg(required = true)]
    pub text: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Part of a stack, and the form of its answer.
#[derive(Debug, Args)]
pub struct LogPart {
    /// Choose the part by its name, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print the part's answer unchanged, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Create, list, compare and delete snapshots of a log device
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone snapshot create stack.toml monday
  siltstone snapshot list stack.toml
  siltstone snapshot diff stack.toml monday           show the blocks written since
  siltstone snapshot clone stack.toml monday experiment
  siltstone snapshot delete stack.toml monday

These work on a stack that is being served, through its server, and on one that is not.")]
pub enum SnapshotVerb {
    /// Create a snapshot of the device
    #[command(after_help = "Examples:
  siltstone snapshot create stack.toml monday
  siltstone snapshot create stack.toml monday --part vol       for a stack with several log devices")]
    Create {
        #[command(flatten)]
        operated: Operated,
        /// Name of the snapshot
        name: String,
        #[command(flatten)]
        log: LogPart,
    },
    /// List snapshots and clones
    #[command(after_help = "Examples:
  siltstone snapshot list stack.toml
  siltstone snapshot list stack.toml --json | jq -r '.snapshots[].name'")]
    List {
        #[command(flatten)]
        operated: Operated,
        #[command(flatten)]
        log: LogPart,
    },
    /// Delete a snapshot or clone; blocks that only it refers to are lost
    #[command(after_help = "Examples:
  siltstone snapshot delete stack.toml monday")]
    Delete {
        #[command(flatten)]
        operated: Operated,
        /// Name of the snapshot or clone
        name: String,
        #[command(flatten)]
        log: LogPart,
    },
    /// Create a writable clone of a snapshot
    #[command(after_help = "Examples:
  siltstone snapshot clone stack.toml monday experiment")]
    Clone {
        #[command(flatten)]
        operated: Operated,
        /// Name of the snapshot
        name: String,
        /// Name of the clone
        new: String,
        #[command(flatten)]
        log: LogPart,
    },
    /// Show the blocks that differ between a snapshot and another one, or the present device
    #[command(after_help = "Examples:
  siltstone snapshot diff stack.toml monday                    show the blocks written since
  siltstone snapshot diff stack.toml monday tuesday
  siltstone snapshot diff stack.toml monday --json | jq '.ranges[]'")]
    Diff {
        #[command(flatten)]
        operated: Operated,
        /// Name of the snapshot
        name: String,
        /// Name of the other snapshot [default: the present device]
        other: Option<String>,
        #[command(flatten)]
        log: LogPart,
    },
}

/// Grow a log device or a file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone resize stack.toml 20GiB
  siltstone resize stack.toml 20GiB --part vol                 for a stack with several log devices
  siltstone resize stack.toml 20GiB --part disk                for a file, by its name: clients see the new size at once

A cache's devices and a write cache's origin grow in another way: enlarge the file or the disk, change its size in the stack, and \
restart it, without --format.")]
pub struct Resize {
    #[command(flatten)]
    pub operated: Operated,
    /// New size, such as 20GiB
    pub size: String,
    #[command(flatten)]
    pub log: LogPart,
}

/// Check a whole log device for damage; writes nothing
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone check stack.toml
  siltstone check 'log(file(disk.img))'
  siltstone check stack.toml --part vol                        for a stack with several log devices
  siltstone check stack.toml --json | jq '.damage[].hits'

Reads everything that has a checksum, and compares the maps with it: takes as long as reading the disk. A log \
that was not closed cleanly can be checked; a served stack can't.

Damage is lost data; a note is an error in unused data. Exit code 1 if there is damage.")]
pub struct Check {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Choose the part by its name, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Open all parts as a server does, write caches included: they continue their logs, and upload
    #[arg(long)]
    pub writable: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the contents of a log device's disk; writes nothing
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone dump stack.toml
  siltstone dump stack.toml --zone 17                          also show each record of this zone
  siltstone dump stack.toml --json | jq '.zone_list[] | select(.live == 0)'

A served stack can't be dumped.")]
pub struct Dump {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Choose the part by its name, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Open all parts as a server does, write caches included: they continue their logs, and upload
    #[arg(long)]
    pub writable: bool,
    /// Also show each record of this zone
    #[arg(long, value_name = "N")]
    pub zone: Option<u32>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Format a stack, or some of its parts; their contents are lost
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone format 'zones(file(disk.img, size=1GiB), zone_size=16MiB)'
  siltstone format stack.toml
  siltstone format stack.toml writecache        format the cache only, with its origin unchanged

Bytes of files that formatting doesn't overwrite are kept. A file or device with a foreign file system, swap area, partition table or the like is refused without --force.")]
pub struct Format {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Format only these parts, by name, or by kind if there is one of it; all others are opened unchanged
    #[arg(value_name = "PART")]
    pub parts: Vec<String>,
    /// Overwrite foreign file systems, swap areas, partition tables and the like
    #[arg(long)]
    pub force: bool,
    /// Print the stack's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// Check, draw and convert stacks; opens nothing
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone stack check stack.toml                           find problems of a stack
  siltstone stack show 'stats(file(disk.img, size=1GiB))'    draw a stack
  siltstone stack show stack.toml --line                     write a stack file as one line
  siltstone stack kinds log                                  list the keys of a kind")]
pub enum StackVerb {
    /// Check a stack; problems have file, line and column, and what was expected
    #[command(after_help = "Examples:
  siltstone stack check stack.toml
  siltstone stack check 'stats(file(disk.img, size=1GiB))' --json
  siltstone stack check - < stack.toml")]
    Check {
        #[arg(help = STACK_HELP)]
        stack: String,
        /// Check the stack for formatting instead of opening
        #[arg(long)]
        format: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Draw a stack, or write it in another form
    #[command(after_help = "Examples:
  siltstone stack show stack.toml
  siltstone stack show 'stats(file(disk.img, size=1GiB))' --toml > stack.toml
  siltstone stack show stack.toml --line
  siltstone stack show --line stack.toml | siltstone stack show --toml -")]
    Show {
        #[arg(help = STACK_HELP)]
        stack: String,
        /// Print as JSON
        #[arg(long, conflicts_with_all = ["line", "toml"])]
        json: bool,
        /// Print as one line
        #[arg(long, conflicts_with = "toml")]
        line: bool,
        /// Print as TOML
        #[arg(long)]
        toml: bool,
    },
    /// List the kinds of parts, or explain one
    #[command(after_help = "Examples:
  siltstone stack kinds
  siltstone stack kinds file")]
    Kinds {
        /// Kind to explain
        kind: Option<String>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Show and export recorded timelines, and create the images that a power cut could have left
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone record show run.timeline                                   list devices and operations
  siltstone record replay run.timeline --at 120 --image cut.img        create the image after a power cut
  siltstone record export run.timeline --iolog load.log                convert the requests to a log of fio")]
pub enum RecordVerb {
    /// Show a recorded timeline
    #[command(after_help = "Examples:
  siltstone record show run.timeline
  siltstone record show run.timeline --events | less")]
    Show {
        /// Timeline file of a record layer
        file: PathBuf,
        /// Print every event, one per line
        #[arg(long)]
        events: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Create an image that a power cut could have left
    #[command(after_help = "Examples:
  siltstone record replay run.timeline --image after.img                 with everything that was submitted
  siltstone record replay run.timeline --at 120 --image cut.img          with a power cut before event 120
  siltstone record replay run.timeline --at 120 --choice torn:7 --image torn.img

Choices: nothing (only durable writes), everything, only:EVENT, all-but:EVENT, subset:SEED,
torn:SEED, scattered:SEED.")]
    Replay {
        /// Timeline file of a record layer
        file: PathBuf,
        /// Create the image at this path; must not exist
        #[arg(long, value_name = "PATH")]
        image: PathBuf,
        /// Choose the device by its number in `record show`
        #[arg(long, default_value_t = 0)]
        device: u16,
        /// Cut the power before this event [default: after the last one]
        #[arg(long, value_name = "EVENT")]
        at: Option<u64>,
        /// Choose the unflushed writes that survive
        #[arg(long, default_value = "everything")]
        choice: String,
    },
    /// Convert the requests to a device to a log of fio (read_iolog)
    #[command(after_help = "Examples:
  siltstone record export run.timeline --iolog load.log
  siltstone bench replay.fio --on 'cache(ram(1GiB), ram(64MiB))' --format        with read_iolog=load.log in replay.fio

The log is of version 3. It has reads if the layer recorded them: record(…, role=client, reads=true, data=false).
A write with FUA is a write and a datasync.")]
    Export {
        /// Timeline file of a record layer
        file: PathBuf,
        /// Create the log at this path; must not exist
        #[arg(long, value_name = "PATH")]
        iolog: PathBuf,
        /// Choose the device by its number in `record show` [default: the first that clients used]
        #[arg(long)]
        device: Option<u16>,
    },
}

/// Show device profiles of the kind `model`, and fit new ones to a run of fio
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone model list                                     list the profiles
  siltstone model show wd43purz                            print a profile as TOML
  siltstone model job > fit.fio                            write the job that measures a device
  siltstone model fit fit.json --name mine                 fit a profile to its report")]
pub enum ModelVerb {
    /// List the named profiles
    #[command(after_help = "Examples:
  siltstone model list
  siltstone bench 'model(null(size=256GiB), optane-900p)'")]
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a profile as TOML
    #[command(after_help = "Examples:
  siltstone model show wd43purz")]
    Show {
        /// Name of the profile
        name: String,
    },
    /// Print the fio job whose report `model fit` needs; running it OVERWRITES the device
    #[command(after_help = "Examples:
  siltstone model job > fit.fio
  fio --filename=/dev/sdX --output-format=json --output=fit.json fit.fio
  siltstone model job --fill > fill.fio
  fio --filename=/dev/sdX fill.fio                          write fill_bw.log; stop with Ctrl-C once it has been slow for a while

Run the fill job first, or let the device idle before it: it needs an empty write buffer.")]
    Job {
        /// Print the job that fills the write buffer of a flash device in up to ten minutes, for `model
        /// fit --fill`
        #[arg(long)]
        fill: bool,
    },
    Fit(ModelFit),
}

/// Fit a profile to fio's report of the job of `model job`, and print it as TOML
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone model fit fit.json --name mine >> profiles.toml
  siltstone model fit fit.json --fill fill_bw.log --name mine >> profiles.toml
  siltstone model fit fit.json --name old --rpm 7200 --title 'the disk from the attic' >> profiles.toml
  siltstone bench 'model(null(size=1TiB), mine, profiles=profiles.toml)'

Operations per second of each job on the device, and on its model without the write buffer, are printed to \
standard error.")]
pub struct ModelFit {
    /// Report of fio, as JSON
    pub report: PathBuf,
    /// Set the name of the profile
    #[arg(long)]
    pub name: String,
    /// Set the title of the profile, for display
    #[arg(long)]
    pub title: Option<String>,
    /// Set the rotational speed of a hard disk, in revolutions per minute
    #[arg(long)]
    pub rpm: Option<u32>,
    /// Fit the write buffer to fio's bandwidth log of the job of `model job --fill`
    #[arg(long, value_name = "LOG")]
    pub fill: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Measure the maps of the log device alone: memory per block, and lookups per second
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone map-lookups                                  measure every map, for a volume of 4Mi blocks (16 GiB)
  siltstone map-lookups --map radix --blocks 256Mi       use a volume of 1 TiB; takes 2 GiB of memory
  siltstone map-lookups --json | jq '.rows[] | [.map, .lookups_dependent]'

A map is filled with single blocks in random order; all lookups are of random blocks, on one thread. The row \
\"plain array\" shows the limit of memory accesses: 4 bytes per block, without a search. Bytes per block are also given \
for a map after sequential writes.")]
pub struct MapLookups {
    /// Measure only this map; may be given several times
    #[arg(long, value_name = "MAP")]
    pub map: Vec<String>,
    /// Set the number of blocks of the volume, all of them mapped; suffixes Ki, Mi and Gi
    #[arg(long, value_name = "N", default_value = "4Mi", value_parser = blocks)]
    pub blocks: u64,
    /// Set the time for which each kind of lookup is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub time: u64,
    /// Print as JSON: columns and rows
    #[arg(long)]
    pub json: bool,
}

/// Parses a number of blocks, such as 4Mi.
fn blocks(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (digits, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    let number: Option<u64> = digits.trim().parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected a number of blocks, such as 4Mi or 1000000".to_owned())
}
