//! Command line of `siltstone warm`.

use super::{Operated, size};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// List, save, load, prefetch and evict the hot blocks of a cache
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone warm list stack.toml                           list cached blocks with their heat
  siltstone warm save stack.toml monday.warm               save before a move, or for another cache
  siltstone warm load stack.toml monday.warm               load there, or after a restart
  siltstone warm prefetch stack.toml --range 1GiB..2GiB    prefetch blocks that will be needed soon
  siltstone warm prefetch stack.toml --file /mnt/db/index  prefetch a file of a file system on the device
  siltstone warm evict stack.toml --range 1GiB..2GiB       evict blocks that won't be needed

STACK has a part of kind \"cache\"; if it has several, the name of one follows. A served stack is reached through \
its server; another one is opened for the request.")]
pub enum WarmVerb {
    /// Show the contents of a cache: amount, position in the origin, heat
    #[command(after_help = "Examples:
  siltstone warm list stack.toml
  siltstone warm list stack.toml fast --top 100            show the 100 hottest ranges of the cache \"fast\"
  siltstone warm list stack.toml --file /mnt/db/index      show the cached part of a file
  siltstone warm list stack.toml --json | jq '.ranges[] | select(.dirty)'

The picture shows the origin from start to end: O is all cached, o partly, a space \
not at all; below it the hottest level of each column, from 1 (requested once) to 7 (requested often). \
Levels are those of the policy: lower ones are evicted first.")]
    List {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// Limit the list to the N hottest ranges; --json has all
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Save the heat of the cached blocks to a file, the hottest first
    #[command(allow_missing_positional = true)]
    #[command(after_help = "Examples:
  siltstone warm save stack.toml monday.warm
  siltstone warm save stack.toml fast monday.warm          save the cache \"fast\"
  siltstone warm save stack.toml monday.warm --most 10GiB  save only the hottest 10 GiB

The file is text: ranges of the origin with their heat, no data. It fits any cache of the same origin, or of a copy \
of it, with any size and block size.")]
    Save {
        #[command(flatten)]
        which: WhichCache,
        /// File to write; an existing one is replaced once the new one is complete
        file: PathBuf,
        /// Limit to the hottest SIZE bytes
        #[arg(long, value_name = "SIZE", value_parser = size)]
        most: Option<u64>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Fetch saved blocks into the cache, the hottest first, with their saved heat
    #[command(allow_missing_positional = true)]
    #[command(after_help = "Examples:
  siltstone warm load stack.toml monday.warm
  siltstone warm load stack.toml monday.warm --rate 50MiB  at most 50 MiB per second
  siltstone warm load stack.toml monday.warm --json

Only colder blocks are evicted for it: a cache full of hotter blocks stays unchanged. Dirty blocks stay. Clients are \
served meanwhile. Ctrl-Z pauses it, fg resumes; Ctrl-C ends it, and the same command continues, because cached \
blocks are skipped.")]
    Load {
        #[command(flatten)]
        which: WhichCache,
        /// File of `siltstone warm save`
        file: PathBuf,
        #[command(flatten)]
        pace: Pace,
    },
    /// Fetch ranges of the device, or the blocks of files on it, into the cache
    #[command(after_help = "Examples:
  siltstone warm prefetch stack.toml --range 1GiB..2GiB --range 5GiB+64MiB
  siltstone warm prefetch stack.toml fast --range ..       fetch everything, as far as there is space
  siltstone warm prefetch stack.toml --file /mnt/db/index --device /dev/nbd0
  siltstone warm prefetch stack.toml --range 1GiB.. --heat main/1/0

Fetched blocks count as requested twice (small/1/0): only blocks that were requested once are evicted for them. \
--heat main/1/0 up to main/3/0 evicts more.")]
    Prefetch {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// Set the heat of the fetched blocks: QUEUE/HITS/AGE, from small/0/0 to main/3/0
        #[arg(long, value_name = "HEAT", default_value = "small/1/0", value_parser = heat)]
        heat: cache::Heat,
        #[command(flatten)]
        pace: Pace,
    },
    /// Evict clean blocks; dirty ones stay
    #[command(after_help = "Examples:
  siltstone warm evict stack.toml --range 1GiB..2GiB
  siltstone warm evict stack.toml --range ..               evict everything that is clean
  siltstone warm evict stack.toml --file /mnt/db/old

Whole blocks are evicted, even if the range has only some of their bytes. `siltstone message STACK CACHE detach` writes \
dirty blocks back, and evicts everything.")]
    Evict {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Cache of a request.
#[derive(Debug, Args)]
pub struct WhichCache {
    #[command(flatten)]
    pub operated: Operated,
    /// Name of the cache, if the stack has several
    pub cache: Option<String>,
}

/// Ranges of the device.
#[derive(Debug, Args)]
pub struct Where {
    /// Choose a range of the cache's device: FROM..TO, FROM+LENGTH, FROM.., ..TO or ..; may be given several
    /// times
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub range: Vec<ByteRange>,
    /// Choose the blocks of this file, on a file system on the device; may be given several times
    #[arg(long, value_name = "PATH")]
    pub file: Vec<PathBuf>,
    /// Set the kernel's block device for the cache's device, such as /dev/nbd0 [default: the one with the
    /// file]
    #[arg(long, value_name = "PATH", requires = "file")]
    pub device: Option<PathBuf>,
}

/// Rate of a transfer, and the form of its result.
#[derive(Debug, Args)]
pub struct Pace {
    /// Limit the rate to SIZE bytes per second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Range in bytes, with or without an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub from: u64,
    /// Byte after the last one.
    pub to: Option<u64>,
}

fn rate(text: &str) -> Result<u64, String> {
    // Users also write 50MiB/s.
    match size(text.strip_suffix("/s").unwrap_or(text))? {
        0 => Err("expected more than 0".to_owned()),
        bytes => Ok(bytes),
    }
}

fn heat(text: &str) -> Result<cache::Heat, String> {
    cache::Heat::parse(text)
        .ok_or_else(|| "expected QUEUE/HITS/AGE, such as main/1/0: small or main; 0 to 3; 0 to 32".to_owned())
}

fn range(text: &str) -> Result<ByteRange, String> {
    let expected = "expected FROM..TO, FROM+LENGTH, FROM.., ..TO or .., as in 1GiB..2GiB";
    let range = match (text.split_once(".."), text.split_once('+')) {
        (Some((from, to)), _) => {
            let from = if from.is_empty() { 0 } else { size(from)? };
            let to = if to.is_empty() { None } else { Some(size(to)?) };
            ByteRange { from, to }
        }
        (None, Some((from, length))) => {
            let from = size(from)?;
            let to = from.checked_add(size(length)?).ok_or("more than 2^64 bytes")?;
            ByteRange { from, to: Some(to) }
        }
        _ => return Err(expected.to_owned()),
    };
    match range.to.is_none_or(|to| to > range.from) {
        true => Ok(range),
        false => Err(format!("no bytes: {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let of = |text: &str| range(text).map(|range| (range.from, range.to));
        assert_eq!(of("1KiB..2KiB"), Ok((1024, Some(2048))));
        assert_eq!(of("1KiB+3"), Ok((1024, Some(1027))));
        assert_eq!((of(".."), of("5..")), (Ok((0, None)), Ok((5, None))));
        assert_eq!(of("..5"), Ok((0, Some(5))));
        for wrong in ["", "5", "2..2", "3..2", "1+0", "1..x", "-1..2", "18446744073709551615+2"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
