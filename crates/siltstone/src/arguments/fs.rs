//! Arguments of `siltstone fs`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

const IMAGE_HELP: &str =
    "A file, a block device, or a stack file (*.toml) whose only part on top is a device or zones";

/// Format, mount and look at the log-structured file system
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone fs format vol.img --size 8GiB        create a file with an empty file system
  siltstone fs mount vol.img /mnt                mount it, until Ctrl-C, SIGTERM or umount /mnt
  siltstone fs status vol.img                    show sizes, of one that isn't mounted
  siltstone fs status /mnt                       show sizes, of a mounted one
  siltstone fs check vol.img --data              look for damage, in the metadata and in all data
  siltstone fs scrub /mnt                        compare all data with its checksums, of a mounted one
  siltstone fs defrag /mnt/database              write files of a mounted one in fewer pieces
  siltstone fs snapshot create /mnt before       keep the file system as it is now, to be read in /mnt/.snapshots/before

A stack may mount one, too: a door of the kind fs, served by siltstone serve. siltstone stack kinds fs lists its keys.")]
pub enum FsVerb {
    Format(FsFormat),
    Mount(FsMount),
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
  siltstone fs snapshot create /mnt before       of a mounted one: the same as mkdir /mnt/.snapshots/before
  siltstone fs snapshot list vol.img             of one that isn't mounted
  siltstone fs snapshot delete /mnt before       the same as rmdir /mnt/.snapshots/before

A snapshot is the whole file system at one moment, and can only be read: in the directory .snapshots/NAME of the mount, which ls of the root doesn't show. It takes space for what is changed or removed afterwards. At most 256 exist.")]
pub enum FsSnapshotVerb {
    /// Take a snapshot, which is durable when this ends
    Create(FsSnapshot),
    /// List snapshots, the oldest first
    List(FsSnapshots),
    /// Delete a snapshot, and free what it alone has
    Delete(FsSnapshot),
}

/// A snapshot of a file system
#[derive(Debug, Args)]
pub struct FsSnapshot {
    /// The image of a file system that isn't mounted, or the mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Name of the snapshot
    pub name: String,
}

/// Snapshots of a file system
#[derive(Debug, Args)]
pub struct FsSnapshots {
    /// The image of a file system that isn't mounted, or the mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Make an empty file system
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs format vol.img --size 8GiB                      create vol.img, which takes space as it is written
  siltstone fs format vol.img --size 8GiB --block-size 64KiB   programs are told to prefer requests of 64 KiB
  siltstone fs format /dev/sdx                                 take a whole block device
  siltstone fs format /dev/sdx --force                         although it holds something, which is lost
  siltstone fs format stack.toml                               on a stack that exists: a log, a cache, a mirror

An image that holds anything is refused without --force. Whatever the block size is, what is rewritten and checked are 4 KiB, and \
long runs take no more metadata than short ones, so that larger blocks are only a hint to programs (st_blksize). Zones are the unit that is cleaned; the default is 1/256 of the image, from 128KiB to 64MiB.")]
pub struct FsFormat {
    #[arg(help = IMAGE_HELP)]
    pub image: String,
    /// Set the size of a new image file, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Set the size of requests that programs are told to prefer: a power of two from 4KiB to 64KiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = size)]
    pub block_size: u64,
    /// Set the size of a zone [default: 1/256 of the image, 128KiB to 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub zone_size: Option<u64>,
    /// Format an image that holds something; its contents are lost
    #[arg(long)]
    pub force: bool,
}

/// Mount a file system, until SIGINT, SIGTERM or an unmount
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs mount vol.img /mnt            prints a line once it is mounted
  siltstone fs mount vol.img /mnt &          leave the shell to its user
  umount /mnt                                make everything durable, close the image and end the server

Stays in the foreground. While files are open, Ctrl-C waits for 10 s; then their users get errors. fsync makes a file durable; \
everything else becomes durable within 5 s. After a kill or a power cut the next mount has everything that was durable. Needs \
/dev/fuse, and root or fusermount3.")]
pub struct FsMount {
    #[arg(help = IMAGE_HELP)]
    pub image: String,
    /// Mount point, an existing directory
    pub directory: PathBuf,
    /// Let other users use it, as permissions allow [default: if mounted by root]
    #[arg(long)]
    pub allow_other: bool,
    /// Set the number of shards
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub shards: u32,
    /// Set the most memory for metadata, such as 2GiB; a file system that needs more isn't mounted [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Set the shares of the cleaner, scrub and defragmentation in the I/O, beside 100 of everything else
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub background_shares: u32,
}

/// Show sizes of a file system
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs status vol.img          opens it as a mount does, and closes it again
  siltstone fs status /mnt --json")]
pub struct FsStatus {
    /// The image of a file system that isn't mounted, or the mount point of one that is
    #[arg(value_name = "IMAGE|DIRECTORY")]
    pub what: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Look for damage in a file system that isn't mounted
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs check vol.img            names, link counts, blocks of files, space
  siltstone fs check vol.img --data     reads every block of every file, too

Nothing is written, and nothing is repaired. A file system that wasn't closed is checked as the next mount finds it. Exits with 0 \
if nothing is wrong, with 1 if anything is.")]
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

/// Compare everything in a mounted file system with its checksums
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs scrub /mnt           reads all data and metadata, while the file system is used
  siltstone fs scrub /mnt --json

As root. Nothing is repaired; a damaged block is named with its file. Exits with 0 if nothing is damaged, with 1 if anything is. \
siltstone fs check looks at a file system that isn't mounted, and at the rules of its metadata, too.")]
pub struct FsScrub {
    /// The mount point
    pub directory: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Write files of a mounted file system in fewer pieces
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone fs defrag /mnt/data.db      one file
  siltstone fs defrag /mnt              all files

As root. Neighbouring blocks of a file that lie in several places are written again as one, up to 1MiB at a time; contents, times and \
holes stay. Files may be in use. The cleaner does the same to what it moves.")]
pub struct FsDefrag {
    /// A file, or a directory with all files below it
    pub path: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    stack::parse_size(text).map_err(|error| error.detail().to_owned())
}
