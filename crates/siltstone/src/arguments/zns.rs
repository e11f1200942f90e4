//! Arguments of `siltstone zns`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Show emulated ZNS drives: zones, wear, and raw cells
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone zns status drive.zns                                 show sizes, zones by state, wear
  siltstone zns zones drive.zns --json                           list the zones
  siltstone zns wear drive.zns --svg wear.svg                    draw erases, by block and die
  siltstone zns wear drive.zns --errors --zone 3 --svg ber.svg   draw bit error rates of a zone, by block and page
  siltstone zns raw drive.zns --zone 3 --length 64KiB            show the raw cells
  siltstone zns raw drive.zns --zone 3 --out cells.bin           write the cells of a zone to a file

The drive must not be in use. It is read from its file; nothing is written. A served drive answers messages:
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
        /// Choose the zone for --errors [default: 0]
        #[arg(long, value_name = "N", requires = "errors", default_value = "0", hide_default_value = true)]
        zone: u32,
    },
    /// Show the raw cells of a zone, undecrypted, also above the write pointer and after a reset
    Raw {
        #[command(flatten)]
        drive: ZnsDrive,
        /// Show this zone
        #[arg(long, value_name = "N")]
        zone: u32,
        /// Start at this byte of the zone, such as 64KiB [default: 0]
        #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
        offset: String,
        /// Show SIZE bytes, at most 64MiB [default: to the end of the zone, at most 64MiB]
        #[arg(long, value_name = "SIZE")]
        length: Option<String>,
        /// Include bit errors, as a read of the raw cells does
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
    /// Drive: its file, or a stack with a part of kind "zns-emulator"
    #[arg(value_name = "STACK|PATH")]
    pub drive: String,
    /// Choose the part by its name, if the stack has several of kind "zns-emulator"
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}
