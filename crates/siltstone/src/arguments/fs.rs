//! Arguments of `siltstone fs`.

use super::{MetricsAddress, Warnings, size};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Levels of warnings in percent.
pub type Levels = Vec<u8>;

fn levels(text: &str) -> Result<Levels, String> {
    stack::parse_percentages(text).map_err(|error| error.detail().to_owned())
}

const IMAGE_HELP: &str =
    "File, block device, or stack file (*.toml) whose only part on top is a device or zones";

/// Format, mount, check and show log-structured file systems
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone fs format vol.img --size 8GiB        create a file with an empty file system
  siltstone fs mount vol.img /mnt                mount it, until Ctrl-C, SIGTERM or umount /mnt
  siltstone fs unmount /mnt                      unmount it, and wait until everything is durable
  siltstone fs status vol.img                    show the sizes of a file system that isn't mounted
  siltstone fs status /mnt                       show the sizes of a mounted file system
  siltstone fs check vol.img --data              check the metadata and all data for damage
  siltstone fs scrub /mnt                        compare all data of a mounted file system with its checksums
  siltstone fs defrag /mnt/database              rewrite files of a mounted file system in fewer pieces
  siltstone fs snapshot create /mnt before       take a snapshot, which is read in /mnt/.snapshots/before

A stack mounts a file system with a door of the kind fs, served by siltstone serve. siltstone stack kinds fs lists its keys.")]
pub enum FsVerb {
    Format(FsFormat),
    Mount(FsMount),
    Unmount(FsUnmount),
    Status(FsStatus),
    Check(FsCheck),
    Scrub(FsScrub),
    Defrag(FsDefrag),
    #[command(subcommand)]
    Snapshot(FsSnapshotVerb),
}

/// Take, list and delete snapshots of a file system, mounted or not
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone fs snapshot create /mnt before       take a snapshot of a mounted file system, as mkdir /mnt/.snapshots/before does
  siltstone fs snapshot list vol.img             list the snapshots of a file system that isn't mounted
  siltstone fs snapshot delete /mnt before       delete a snapshot, as rmdir /mnt/.snapshots/before does

A snapshot is the whole file system at one moment, read-only, in the directory .snapshots/NAME of the mount; a listing of the root doesn't show .snapshots. It takes space for files that are changed or removed afterwards. At most 256 exist.")]
pub enum FsSnapshotVerb {
    /// Take a snapshot; it is durable when the command ends
    Create(FsSnapshot),
    /// List snapshots, the oldest first
    List(FsSnapshots),
    /// Delete a snapshot, and free the space that only it uses
    Delete(FsSnapshot),
}

/// A snapshot of a file system
#[derive(Debug, Args)]
pub struct FsSnapshot {
    /// Image of a file system that isn't mounted, or mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Name of the snapshot
    pub name: String,
}

/// Snapshots of a file system
#[derive(Debug, Args)]
pub struct FsSnapshots {
    /// Image of a file system that isn't mounted, or mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Create an empty file system
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs format vol.img --size 8GiB                      create the sparse file vol.img
  siltstone fs format vol.img --size 8GiB --block-size 64KiB   tell programs to prefer requests of 64 KiB
  siltstone fs format /dev/sdx                                 use a whole block device
  siltstone fs format /dev/sdx --force                         overwrite a device that isn't empty
  siltstone fs format stack.toml                               use an existing stack: a log, a cache, a mirror

An image that isn't empty is refused without --force. The block size is only a hint to programs (st_blksize): blocks of 4 KiB are \
written and checked, and a long run of blocks takes no more metadata than a short one. Zones are the unit of cleaning.")]
pub struct FsFormat {
    #[arg(help = IMAGE_HELP)]
    pub image: String,
    /// Set the size of a new image file, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Set the size of requests that programs should prefer (st_blksize), a power of two from 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = size)]
    pub block_size: u64,
    /// Set the size of a zone [default: 1/256 of the image, 128KiB to 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub zone_size: Option<u64>,
    /// Format an image that isn't empty; its contents are lost
    #[arg(long)]
    pub force: bool,
}

/// Unmount a file system, and wait until everything is durable and its server has ended
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs unmount /mnt                  unmount it; the image is closed when the command ends

Without the package's helper umount.fuse.siltstone, umount(8) ends before the server has made everything durable and closed the image. Needs what fs mount needed.")]
pub struct FsUnmount {
    /// Mount point
    pub directory: PathBuf,
}

/// Mount a file system, until SIGINT, SIGTERM or an unmount
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs mount vol.img /mnt            mount it, and print a line when it is mounted
  siltstone fs mount vol.img /mnt --background     return when it is mounted
  siltstone fs unmount /mnt                  make everything durable, close the image and end the server
  siltstone fs mount bad.img /mnt --salvage  mount a damaged file system read-only; losses are listed

Stays in the foreground without --background. While files are open, Ctrl-C waits for 10 s; then their users get errors. fsync makes a file durable; \
everything else becomes durable within 5 s. If the storage completes no request for 10 minutes after Ctrl-C, the server ends without \
it, with exit status 1; a second Ctrl-C shortens that to 10 s. After a kill or a power cut the next mount recovers everything that was durable. Needs \
/dev/fuse, and root or fusermount3.")]
pub struct FsMount {
    #[arg(help = IMAGE_HELP)]
    pub image: String,
    /// Mount point, an existing directory
    pub directory: PathBuf,
    /// Set options in the words of mount(8): ro, noexec, noatime, allow_other; uid=N and gid=N, which all
    /// files are shown with
    #[arg(short = 'o', value_name = "OPTION,...")]
    pub options: Option<String>,
    /// Let users other than the mounting one use the mount, as permissions allow [default: true if root
    /// mounts it, else false]
    #[arg(long)]
    pub allow_other: bool,
    /// Set the number of shards, the threads of the server; the file system uses at most 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub shards: u32,
    /// Limit the memory for metadata, such as 2GiB; a file system that needs more isn't mounted [default:
    /// half of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Mount a damaged file system read-only, to copy what can be read; nothing is written to the image
    #[arg(long)]
    pub salvage: bool,
    /// Set the I/O shares of the cleaner, scrub and defragmentation, 1 to 1000; all other I/O has 100
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub background_shares: u32,
    /// Set the levels at which it warns once, in percent of its space, such as "80%, 90%"; never: no warning
    #[arg(long, value_name = "PERCENT,...", default_value = stack::warning::DEFAULT_LEVELS, value_parser = levels)]
    pub warn_at: Levels,
    #[command(flatten)]
    pub warnings: Warnings,
    #[command(flatten)]
    pub metrics: MetricsAddress,
    /// Permit an address of --metrics that other machines can reach; for networks of trusted machines only
    #[arg(long, requires = "metrics")]
    pub allow_remote: bool,
    /// Listen for operators on this unix socket [default: derived from the image]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Don't listen for operators
    #[arg(long, conflicts_with = "control")]
    pub no_control: bool,
    /// Return once it is mounted, and continue in the background; siltstone fs unmount ends it
    #[arg(long)]
    pub background: bool,
}

/// Show sizes of a file system
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs status vol.img          open the image as a mount does, show it, and close it
  siltstone fs status /mnt --json      ask the server of the mount")]
pub struct FsStatus {
    /// Image of a file system that isn't mounted, or mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Check a file system that isn't mounted for damage
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs check vol.img            check names, link counts, blocks of files, space
  siltstone fs check vol.img --data     also read every block of every file

Nothing is written, and nothing is repaired. A file system that wasn't closed is checked as the next mount finds it. A write cache or a bucket below it is \
opened as a server does, and so written to. Exits with 0 \
without problems, with 1 otherwise.")]
pub struct FsCheck {
    #[arg(help = IMAGE_HELP)]
    pub image: String,
    /// Read all data of files and compare it with its checksums
    #[arg(long)]
    pub data: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Compare all data and metadata of a mounted file system with its checksums
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs scrub /mnt           read all data and metadata, while the file system is in use
  siltstone fs scrub /mnt --json    print the result as JSON

Needs root. Nothing is repaired; a damaged block is named with its inode. Exits with 0 without damage, with 1 otherwise. \
siltstone fs check also checks the consistency of metadata, for a file system that isn't mounted.")]
pub struct FsScrub {
    /// Mount point
    pub directory: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Rewrite files of a mounted file system in fewer pieces
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs defrag /mnt/data.db      defragment one file
  siltstone fs defrag /mnt              defragment all files

Needs root. Adjacent blocks of a file that are stored in several places are rewritten as one run, up to 1MiB at a time. Contents, times \
and holes don't change. Files may be in use. The cleaner does the same to the blocks that it moves.")]
pub struct FsDefrag {
    /// File, or directory with all files below it
    pub path: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
