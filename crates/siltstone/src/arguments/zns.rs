//! Arguments of `siltstone zns`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Look at emulated ZNS drives: zones, wear, and the cells themselves
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone zns status drive.zns                                 show sizes, zones by state, wear
  siltstone zns zones drive.zns --json                           list the zones
  siltstone zns wear drive.zns --svg wear.svg                    draw erases, by block and die
  siltstone zns wear drive.zns --errors --zone 3 --svg ber.svg   draw bit error rates of a zone, by block and page
  siltstone zns raw drive.zns --zone 3 --length 64KiB            show the cells, as they are
  siltstone zns raw drive.zns --zone 3 --out cells.bin           write the cells of a zone to a file

The drive must not be in use: it is read from its file, and nothing is changed. A served drive answers messages:
siltstone message STACK PART wear")]
pub enum ZnsVerb {
    /// Show sizes, zones by state, and wear
    Status {
        #[command(flatten)]
        drive: ZnsDrive,
    },
    /// List the zones
    Zones {
        #[command(flatten)]
        drive: ZnsDrive,
    },
    /// List the blocks with erases, reads and bit error rates; or draw them
    Wear {
        #[command(flatten)]
        drive: ZnsDrive,
        /// Write a picture as SVG to this file: erases, by block and die
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Draw bit error rates of one zone instead, by block and page
        #[arg(long, requires = "svg")]
        errors: bool,
        /// Zone whose bit error rates are drawn [default: 0]
        #[arg(long, value_name = "N", requires = "errors", default_value = "0", hide_default_value = true)]
        zone: u32,
    },
    /// Show the cells of a zone as they are: also above the write pointer, after a reset, and as ciphertext
    Raw {
        #[command(flatten)]
        drive: ZnsDrive,
        /// Zone
        #[arg(long, value_name = "N")]
        zone: u32,
        /// First byte within the zone, such as 64KiB [default: 0]
        #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
        offset: String,
        /// Number of bytes, at most 64MiB [default: to the end of the zone, at most 64MiB]
        #[arg(long, value_name = "SIZE")]
        length: Option<String>,
        /// Flip the bits that a read of the raw cells would find flipped
        #[arg(long)]
        with_errors: bool,
        /// Write the bytes to this file instead of printing them
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// Choice of a drive.
#[derive(Debug, Args)]
pub struct ZnsDrive {
    /// The drive: its file, or a stack with a part of kind "zns-emulator"
    #[arg(value_name = "STACK|PATH")]
    pub drive: String,
    /// Name of the part, if the stack has several of kind "zns-emulator"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
