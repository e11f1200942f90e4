//! The command line as people type it: verbs, options, and help that teaches by example.

mod warm;

pub use warm::{Pace, WarmVerb, Where, WhichCache};

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
  siltstone status stack.toml                                 what a stack says about itself, served or not
  siltstone snapshot create stack.toml monday                 keep a log device as it is now
  siltstone warm list stack.toml                              what a cache holds, and how hot it is
  siltstone stack show 'stats(file(disk.img, size=1GiB))'     draw a stack
  siltstone stack kinds                                       what stacks are made of

Exit codes: 0 done; 1 it went wrong; 2 it was asked for wrongly; 130 stopped by Ctrl-C."
)]
pub struct CommandLine {
    /// What is logged to standard error
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn")]
    pub log: LogLevel,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    Bench(Bench),
    Serve(Serve),
    Status(Status),
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
    #[command(subcommand)]
    Model(ModelVerb),
    MapLookups(MapLookups),
    /// Print a script that completes this program's arguments
    #[command(after_help = "Examples:
  siltstone completions bash > ~/.local/share/bash-completion/completions/siltstone
  siltstone completions zsh > ~/.zfunc/_siltstone
  siltstone completions fish > ~/.config/fish/completions/siltstone.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

const STACK_HELP: &str =
    "A stack: a file (stack.toml), or one line such as 'stats(file(disk.img, size=1GiB))'";

/// Run a plan, a fio job file, or the usual workloads on a stack; print a table, write a report
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  siltstone bench examples/quick.toml                a plan: stacks, workloads, peers, repetitions
  siltstone bench examples/quick.toml --only write   only the workloads with \"write\" in their names
  siltstone bench randread.fio                       a fio job file, on the files that it names
  siltstone bench randread.fio --on 'ram(1GiB)'      the same jobs on a stack
  siltstone bench 'file(disk.img, size=1GiB)'        reads of a stack
  siltstone bench 'ram(1GiB)' --writes               reads and writes; what is on the stack is lost
  siltstone bench bench/plans/log.toml --repetitions 1 --runtime 500ms     try a long plan out
  siltstone bench bench/plans/tiers.toml --full      as long, and on as much, as the plan's [full] says
  siltstone bench examples/quick.toml --json | jq '.runs[].iops'

DIR/report.html needs nothing but a browser; DIR/results.json holds every figure.
Ctrl-C ends it with what was measured by then.")]
pub struct Bench {
    /// Plans (.toml), fio job files (.fio) or stacks, one after the other
    #[arg(required = true, value_name = "PLAN|JOB.fio|STACK")]
    pub what: Vec<String>,
    /// Where the report goes; without it, bench-out/NAME here. Several each get a folder in it
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run a job file's jobs on this stack instead of its filename=
    #[arg(long, value_name = "STACK")]
    pub on: Option<String>,
    /// Create that stack anew whenever it is built, which each group of jobs does: for stacks on memory. What is on it is lost
    #[arg(long, requires = "on")]
    pub format: bool,
    /// Let the usual workloads of a stack write, too: everything on it is overwritten
    #[arg(long)]
    pub writes: bool,
    /// Only the workloads whose names have this in them; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Do each workload of a plan so often, instead of what it says
    #[arg(long, visible_alias = "pairs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Measure each workload of a plan so long, such as 500ms or 10s, instead of what it says
    #[arg(long, value_name = "TIME", value_parser = bench::job_file::number::time)]
    pub runtime: Option<std::time::Duration>,
    /// Run a plan as long and on as much as its table `full` says
    #[arg(long)]
    pub full: bool,
    /// Print results.json instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Open a stack and its doors until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone serve stack.toml                              a stack with doors of its own
  siltstone serve 'ram(1GiB)' --nbd unix:ram.sock         one without: its top over NBD
  siltstone serve 'file(disk.img, size=4GiB)' --nbd 127.0.0.1:10809
  nbdinfo 'nbd+unix:///?socket=ram.sock'                  ask it what it serves

It prints an address per line once clients can connect. Opening destroys nothing: a file that isn't there is
made, one that is there is left as it is, unless --format says otherwise.

Operators reach it meanwhile with siltstone status STACK, siltstone message STACK PART TEXT and others. They find \
it by its stack, through a unix socket in XDG_RUNTIME_DIR/siltstone or /tmp/siltstone-UID that only its user may \
use.")]
pub struct Serve {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Serve the device on top over NBD here; may be given several times
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub nbd: Vec<String>,
    /// Listen for operators on this unix socket, rather than where they look by themselves
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Don't listen for operators
    #[arg(long, conflicts_with = "control")]
    pub no_control: bool,
    /// Create the stack anew: what is on it is lost
    #[arg(long)]
    pub format: bool,
    /// Print the addresses, and the control socket, as one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// A stack that is asked something, served or not
#[derive(Debug, Args)]
pub struct Operated {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Ask the server that listens on this control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// Show what every part of a stack says about itself
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone status stack.toml
  siltstone status 'stats(file(disk.img, size=1GiB))'
  siltstone status stack.toml --json | jq .devices
  siltstone status stack.toml --control vol.control       a server that was started with --control vol.control

If the stack is being served, its server answers. If not, the stack is opened as serve opens it, without its \
doors, asked, and closed again. Standard error says which. A stack of one line is known by what it says and by the \
folder where it was typed: ask where the server was started.")]
pub struct Status {
    #[command(flatten)]
    pub operated: Operated,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Send a message to a part of a stack
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone message stack.toml disk rules off             to the part that the stack calls \"disk\"
  siltstone message 'fault(ram(1GiB))' fault rules off    to the only part of kind \"fault\"
  siltstone message stack.toml counted clear_stats

stats takes clear_stats; fault takes rules on and rules off. siltstone stack show says what the parts of a stack \
are called. If the stack is being served, its server passes the message on; if not, the stack is opened for it, \
without its doors, and closed again.")]
pub struct Message {
    #[command(flatten)]
    pub operated: Operated,
    /// The part: its name, or its kind if there is only one of it
    pub part: String,
    /// What to tell it; several words are joined by spaces
    #[arg(required = true)]
    pub text: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Which part of a stack a verb is for, and how it is shown.
#[derive(Debug, Args)]
pub struct LogPart {
    /// The part, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print the part's answer as it is, which is JSON
    #[arg(long)]
    pub json: bool,
}

/// Make, list, compare and delete snapshots of a log device
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone snapshot create stack.toml monday
  siltstone snapshot list stack.toml
  siltstone snapshot diff stack.toml monday           what was written since
  siltstone snapshot clone stack.toml monday experiment
  siltstone snapshot delete stack.toml monday

They work on a stack that is being served, through its server, and on one that is not.")]
pub enum SnapshotVerb {
    /// Keep the device as it is now, under a name
    #[command(after_help = "Examples:
  siltstone snapshot create stack.toml monday
  siltstone snapshot create stack.toml monday --part vol       a stack with several log devices")]
    Create {
        #[command(flatten)]
        operated: Operated,
        /// What it is to be called
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
    /// Delete a snapshot or clone; what only it has is lost
    #[command(after_help = "Examples:
  siltstone snapshot delete stack.toml monday")]
    Delete {
        #[command(flatten)]
        operated: Operated,
        /// Which one
        name: String,
        #[command(flatten)]
        log: LogPart,
    },
    /// Make a clone of a snapshot: it begins as the snapshot is, and can be written to
    #[command(after_help = "Examples:
  siltstone snapshot clone stack.toml monday experiment")]
    Clone {
        #[command(flatten)]
        operated: Operated,
        /// The snapshot
        name: String,
        /// What the clone is to be called
        new: String,
        #[command(flatten)]
        log: LogPart,
    },
    /// Show which blocks differ between a snapshot and another one, or the device as it is now
    #[command(after_help = "Examples:
  siltstone snapshot diff stack.toml monday                    what was written since
  siltstone snapshot diff stack.toml monday tuesday
  siltstone snapshot diff stack.toml monday --json | jq '.ranges[]'")]
    Diff {
        #[command(flatten)]
        operated: Operated,
        /// The snapshot
        name: String,
        /// The other one; without it, the device as it is now
        other: Option<String>,
        #[command(flatten)]
        log: LogPart,
    },
}

/// Change the size of a log device
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone resize stack.toml 20GiB
  siltstone resize stack.toml 20GiB --part vol                 a stack with several log devices

A cache's devices and a write cache's origin grow otherwise: make the file or the disk larger, change its size in the stack, and \
start it again, without --format.")]
pub struct Resize {
    #[command(flatten)]
    pub operated: Operated,
    /// Its new size, such as 20GiB
    pub size: String,
    #[command(flatten)]
    pub log: LogPart,
}

/// Look at a whole log device for damage; nothing is written
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone check stack.toml
  siltstone check 'log(file(disk.img))'
  siltstone check stack.toml --part vol                        a stack with several log devices
  siltstone check stack.toml --json | jq '.damage[].hits'

Everything that has a checksum is read, and the maps are held against it: this takes as long as reading the disk. It \
works on a log that was not closed cleanly, too. A stack that is being served can't be checked.

Damage is what is lost; a note is something wrong that nothing needs. Exit code 1 if there is damage.")]
pub struct Check {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// The part, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Show what a log device keeps on its disk; nothing is written
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone dump stack.toml
  siltstone dump stack.toml --zone 17                          also each record of this zone
  siltstone dump stack.toml --json | jq '.zone_list[] | select(.live == 0)'

A stack that is being served can't be dumped.")]
pub struct Dump {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// The part, if the stack has several of kind "log"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Also show each record of this zone
    #[arg(long, value_name = "N")]
    pub zone: Option<u32>,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Create a stack, or some of its parts, anew: what they hold is lost
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone format 'zones(file(disk.img, size=1GiB), zone_size=16MiB)'
  siltstone format stack.toml
  siltstone format stack.toml writecache        an empty cache in front of what is there

Files keep what is in them as far as nothing writes over it.")]
pub struct Format {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Only these parts, by name, or by kind where there is one of it; all others are opened as they are
    #[arg(value_name = "PART")]
    pub parts: Vec<String>,
    /// Print the stack's status as JSON
    #[arg(long)]
    pub json: bool,
}

/// Read, check, draw and convert stacks; nothing is opened
#[derive(Debug, Subcommand)]
pub enum StackVerb {
    /// Check a stack: errors name the file, line and column, and what was expected
    #[command(after_help = "Examples:
  siltstone stack check stack.toml
  siltstone stack check 'stats(file(disk.img, size=1GiB))' --json
  siltstone stack check - < stack.toml")]
    Check {
        #[arg(help = STACK_HELP)]
        stack: String,
        /// As it would be created anew, rather than opened
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
        /// As JSON
        #[arg(long, conflicts_with_all = ["line", "toml"])]
        json: bool,
        /// As one line
        #[arg(long, conflicts_with = "toml")]
        line: bool,
        /// As TOML
        #[arg(long)]
        toml: bool,
    },
    /// List what stacks are made of, or explain one kind
    #[command(after_help = "Examples:
  siltstone stack kinds
  siltstone stack kinds file")]
    Kinds {
        /// One kind
        kind: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Look at what a record layer wrote down, and make the states that a power cut could have left
#[derive(Debug, Subcommand)]
pub enum RecordVerb {
    /// Show what was recorded
    #[command(after_help = "Examples:
  siltstone record show run.timeline
  siltstone record show run.timeline --events | less")]
    Show {
        /// The file that a record layer wrote
        file: PathBuf,
        /// Every event, one a line
        #[arg(long)]
        events: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Make the image that a power cut could have left
    #[command(after_help = "Examples:
  siltstone record replay run.timeline --image after.img                 everything that was submitted
  siltstone record replay run.timeline --at 120 --image cut.img          a power cut before event 120
  siltstone record replay run.timeline --at 120 --choice torn:7 --image torn.img

Choices: nothing (only what must have survived), everything, only:EVENT, all-but:EVENT, subset:SEED,
torn:SEED, scattered:SEED.")]
    Replay {
        /// The file that a record layer wrote
        file: PathBuf,
        /// The image to make; it must not be there
        #[arg(long, value_name = "PATH")]
        image: PathBuf,
        /// The number of the device, as `record show` lists it
        #[arg(long, default_value_t = 0)]
        device: u16,
        /// The power cut comes before this event; without it, after the last
        #[arg(long, value_name = "EVENT")]
        at: Option<u64>,
        /// Which of the unflushed writes got there
        #[arg(long, default_value = "everything")]
        choice: String,
    },
    /// Make a log of fio (read_iolog) of what a device was asked for
    #[command(after_help = "Examples:
  siltstone record export run.timeline --iolog load.log
  siltstone bench replay.fio --on 'cache(ram(1GiB), ram(64MiB))' --format        with read_iolog=load.log in replay.fio

The log is of version 3. Reads are in it where the layer recorded them: record(…, role=client, reads=true, data=false).
A write with FUA is a write and a datasync.")]
    Export {
        /// The file that a record layer wrote
        file: PathBuf,
        /// The log to make; it must not be there
        #[arg(long, value_name = "PATH")]
        iolog: PathBuf,
        /// The number of the device, as `record show` lists it; without it, the first that clients used
        #[arg(long)]
        device: Option<u16>,
    },
}

/// Profiles of devices, for the kind `model`: known ones, and new ones fitted to a run of fio
#[derive(Debug, Subcommand)]
pub enum ModelVerb {
    /// List the profiles that are known by name
    #[command(after_help = "Examples:
  siltstone model list
  siltstone bench 'model(null(size=256GiB), optane-900p)'")]
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print one as TOML
    #[command(after_help = "Examples:
  siltstone model show wd43purz")]
    Show {
        /// Its name
        name: String,
    },
    /// Print the fio job that `model fit` wants to see the report of; carried out, it OVERWRITES the device
    #[command(after_help = "Examples:
  siltstone model job > fit.fio
  fio --filename=/dev/sdX --output-format=json --output=fit.json fit.fio
  siltstone model job --fill > fill.fio
  fio --filename=/dev/sdX fill.fio                          writes fill_bw.log; Ctrl-C once it has been slow for a while

Carry the second one out first, or let the device rest between them: it wants its write buffer empty.")]
    Job {
        /// The job that fills the write buffer of a device without moving parts, up to ten minutes, for `model fit --fill`
        #[arg(long)]
        fill: bool,
    },
    Fit(ModelFit),
}

/// Fit a profile to fio's report of that job, and print it as TOML
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone model fit fit.json --name mine >> profiles.toml
  siltstone model fit fit.json --fill fill_bw.log --name mine >> profiles.toml
  siltstone model fit fit.json --name old --rpm 7200 --title 'the disk from the attic' >> profiles.toml
  siltstone bench 'model(null(size=1TiB), mine, profiles=profiles.toml)'

What each job came to on the device, and on the model of it without its write buffer, in operations a second, goes to \
standard error.")]
pub struct ModelFit {
    /// fio's report, as JSON
    pub report: PathBuf,
    /// What the profile is called
    #[arg(long)]
    pub name: String,
    /// What it is, for people
    #[arg(long)]
    pub title: Option<String>,
    /// For a disk that turns: so often a minute
    #[arg(long)]
    pub rpm: Option<u32>,
    /// fio's log of bandwidths of `model job --fill`: how much is written fast, and how fast it goes on
    #[arg(long, value_name = "LOG")]
    pub fill: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Measure the maps of the log device alone: memory per block, and lookups a second
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone map-lookups                                  every map, of a volume of 4Mi blocks (16 GiB)
  siltstone map-lookups --map radix --blocks 256Mi       a volume of 1 TiB; takes 2 GiB of memory
  siltstone map-lookups --json | jq '.rows[] | [.map, .lookups_dependent]'

A map is filled with single blocks at random places; all lookups are of random blocks, on one thread. The row \
\"plain array\" is what the memory allows: 4 bytes per block, and nothing to search. Bytes per block are also given \
for a map of what sequential writes leave behind.")]
pub struct MapLookups {
    /// Only this map; may be given several times
    #[arg(long, value_name = "MAP")]
    pub map: Vec<String>,
    /// How many blocks the volume has, all of them mapped; Ki, Mi and Gi may follow the number
    #[arg(long, value_name = "N", default_value = "4Mi", value_parser = blocks)]
    pub blocks: u64,
    /// How long each kind of lookup is measured, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub time: u64,
    /// Print it as JSON: columns and rows
    #[arg(long)]
    pub json: bool,
}

/// A number of blocks: `4Mi`.
fn blocks(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (digits, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    let number: Option<u64> = digits.trim().parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected a number of blocks, such as 4Mi or 1000000".to_owned())
}
