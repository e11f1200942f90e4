//! `siltstone warm`, as people type it.

use super::Operated;
use clap::{Args, Subcommand};
use stack::parse_size;
use std::path::PathBuf;

/// Look at what a cache holds as hot, save it, load it elsewhere, bring blocks in beforehand
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone warm list stack.toml                           what is cached, where, and how hot
  siltstone warm save stack.toml monday.warm               before a move, or another cache
  siltstone warm load stack.toml monday.warm               there, or after a restart
  siltstone warm prefetch stack.toml --range 1GiB..2GiB    what will be asked for soon
  siltstone warm prefetch stack.toml --file /mnt/db/index  a file on a file system that is on the device
  siltstone warm evict stack.toml --range 1GiB..2GiB       what won't

They are for parts of kind \"cache\". STACK alone will do where it has one; else its name follows. They work on a stack \
that is being served, through its server, and on one that is not, which is opened for it.")]
pub enum WarmVerb {
    /// Show what a cache holds: how much, which part of the origin, how hot
    #[command(after_help = "Examples:
  siltstone warm list stack.toml
  siltstone warm list stack.toml fast --top 100            the cache \"fast\"; its 100 hottest ranges
  siltstone warm list stack.toml --file /mnt/db/index      how much of a file is cached
  siltstone warm list stack.toml --json | jq '.ranges[] | select(.dirty)'

The picture goes from the beginning of the origin to its end: O where all is cached, o where some of it is, a space \
where nothing is; below it the hottest level of each place, from 1 (asked for once) to 7 (asked for again and again). \
Levels are the policy's own: what is on a lower one leaves first.")]
    List {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// How many of the hottest ranges are shown; --json has all
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write down what a cache holds, the hottest first
    #[command(allow_missing_positional = true)]
    #[command(after_help = "Examples:
  siltstone warm save stack.toml monday.warm
  siltstone warm save stack.toml fast monday.warm          the cache \"fast\"
  siltstone warm save stack.toml monday.warm --most 10GiB  only the hottest 10 GiB

The file is text: which bytes of the origin, and how hot, no data. It is for any cache of the same origin, or of a copy \
of it, whatever its size and the size of its blocks.")]
    Save {
        #[command(flatten)]
        which: WhichCache,
        /// The file; one that is there is replaced when all of it is written
        file: PathBuf,
        /// Only the hottest so many bytes
        #[arg(long, value_name = "SIZE", value_parser = size)]
        most: Option<u64>,
        /// Say what was saved as JSON
        #[arg(long)]
        json: bool,
    },
    /// Bring in what was saved, the hottest first, and make it as hot as it was
    #[command(allow_missing_positional = true)]
    #[command(after_help = "Examples:
  siltstone warm load stack.toml monday.warm
  siltstone warm load stack.toml monday.warm --rate 50MiB  at most 50 MiB in a second
  siltstone warm load stack.toml monday.warm --json

Only what is less hot makes room: a cache that is full of hotter blocks stays as it is. What is dirty stays. Clients go \
on meanwhile. Ctrl-Z pauses it, fg goes on; Ctrl-C ends it, and the same command goes on from there, because what is \
there already costs nothing.")]
    Load {
        #[command(flatten)]
        which: WhichCache,
        /// What `siltstone warm save` wrote
        file: PathBuf,
        #[command(flatten)]
        pace: Pace,
    },
    /// Bring in ranges of the device, or the blocks of files on it
    #[command(after_help = "Examples:
  siltstone warm prefetch stack.toml --range 1GiB..2GiB --range 5GiB+64MiB
  siltstone warm prefetch stack.toml fast --range ..       everything, as far as there is room
  siltstone warm prefetch stack.toml --file /mnt/db/index --device /dev/nbd0
  siltstone warm prefetch stack.toml --range 1GiB.. --heat main/1/0

What comes in counts as asked for again once (small/1/0): only what was asked for a single time makes room for it. \
--heat main/1/0 and up to main/3/0 make room among more.")]
    Prefetch {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// How hot it is to be: QUEUE/HITS/AGE, from small/0/0 to main/3/0
        #[arg(long, value_name = "HEAT", default_value = "small/1/0", value_parser = heat)]
        heat: layers::cache::Heat,
        #[command(flatten)]
        pace: Pace,
    },
    /// Let clean blocks go; dirty ones stay
    #[command(after_help = "Examples:
  siltstone warm evict stack.toml --range 1GiB..2GiB
  siltstone warm evict stack.toml --range ..               everything that is clean
  siltstone warm evict stack.toml --file /mnt/db/old

Blocks go whole, also where the range has only some of their bytes. `siltstone message STACK CACHE detach` writes what \
is dirty back, and lets everything go.")]
    Evict {
        #[command(flatten)]
        which: WhichCache,
        #[command(flatten)]
        where_: Where,
        /// Say what went as JSON
        #[arg(long)]
        json: bool,
    },
}

/// The cache that is meant.
#[derive(Debug, Args)]
pub struct WhichCache {
    #[command(flatten)]
    pub operated: Operated,
    /// The cache, if the stack has several
    pub cache: Option<String>,
}

/// Bytes of the device.
#[derive(Debug, Args)]
pub struct Where {
    /// Bytes of the cache's device: FROM..TO, FROM+LENGTH, FROM.., ..TO or ..; may be given several times
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub range: Vec<ByteRange>,
    /// The blocks of this file, which lies on a file system on the device; may be given several times
    #[arg(long, value_name = "PATH")]
    pub file: Vec<PathBuf>,
    /// The block device as which the kernel sees the device, such as /dev/nbd0; without it, the one that the file is on
    #[arg(long, value_name = "PATH", requires = "file")]
    pub device: Option<PathBuf>,
}

/// How fast it goes, and how it is shown.
#[derive(Debug, Args)]
pub struct Pace {
    /// At most so many bytes in a second, such as 50MiB
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Say what came of it as JSON
    #[arg(long)]
    pub json: bool,
}

/// A range in bytes, perhaps without an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// The first one.
    pub from: u64,
    /// The one behind the last.
    pub to: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.detail().to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    // People write 50MiB/s, too.
    match size(text.strip_suffix("/s").unwrap_or(text))? {
        0 => Err("expected more than nothing".to_owned()),
        bytes => Ok(bytes),
    }
}

fn heat(text: &str) -> Result<layers::cache::Heat, String> {
    layers::cache::Heat::parse(text)
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
