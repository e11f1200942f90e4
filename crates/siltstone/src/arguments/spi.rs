//! Arguments of `siltstone spi`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Emulate SPI NOR flash chips for flashrom, firmware and boot loaders
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone spi list                                                        list the chips
  siltstone spi serve --chip W25Q128JV --image flash.bin --create --serprog 127.0.0.1:4025
  flashrom -p serprog:ip=127.0.0.1:4025 -c W25Q128.V -w firmware.bin        write to it, as to a real chip
  siltstone spi status                                                      show state, registers and counters
  siltstone spi power off                                                   cut the power, in the middle of a program if one runs
  siltstone spi trace                                                       list the last transactions
  siltstone spi trace --form vcd --out bus.vcd                              write a waveform for PulseView or GTKWave

status, power, pin, dump, trace, wear, age and sync reach the served chip; if several are served, name one by its image.")]
pub enum SpiVerb {
    Serve(Box<SpiServe>),
    /// List the chips that come with the program
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a chip: geometry, times, registers, commands; or draw its states
    #[command(after_help = "Examples:
  siltstone spi show W25Q128JV
  siltstone spi show W25Q128JV --svg states.svg      draw the state machine
  siltstone spi show W25Q128JV --toml > my.toml      begin a chip file of your own
  siltstone spi show --sfdp dump.bin --name NEW --toml > new.toml    create a generic chip from an SFDP dump")]
    Show {
        /// Show this chip: a name of spi list, or the path of a chip file
        #[arg(required_unless_present = "sfdp")]
        chip: Option<String>,
        /// Create a generic chip from this SFDP dump instead
        #[arg(long, value_name = "FILE", conflicts_with = "chip")]
        sfdp: Option<PathBuf>,
        /// Set the name of the chip from an SFDP dump
        #[arg(long, default_value = "GENERIC", requires = "sfdp")]
        name: String,
        /// Write the state machine as SVG to this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Print the chip file
        #[arg(long, conflicts_with = "json")]
        toml: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show state, registers, counters and wear of a served chip, and make its image durable
    Status {
        #[command(flatten)]
        chip: ServerChoice,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Switch the supply of a served chip off or on, or set its voltage
    #[command(after_help = "Examples:
  siltstone spi power off        interrupt a running program or erase
  siltstone spi power on         start the chip
  siltstone spi power 1800       lower the voltage: below its write inhibit voltage the chip loses power")]
    Power {
        /// Set the supply: off, on, or a voltage in millivolts
        supply: String,
        #[command(flatten)]
        chip: ServerChoice,
    },
    /// Drive a pin of a served chip
    #[command(after_help = "Examples:
  siltstone spi pin wp low       protect the status register, where SRP = 1
  siltstone spi pin hold low     pause the bus, or reset the chip, by the function of the pin")]
    Pin {
        /// Drive this pin: wp, hold or reset
        pin: String,
        /// Set this level: low or high
        level: String,
        #[command(flatten)]
        chip: ServerChoice,
    },
    /// Print the array of a served chip from its cells, without read faults
    #[command(after_help = "Examples:
  siltstone spi dump --length 256
  siltstone spi dump --raw --out cells.bin")]
    Dump {
        #[command(flatten)]
        chip: ServerChoice,
        /// Start at this byte
        #[arg(long, value_name = "BYTE", default_value = "0", value_parser = number)]
        offset: u64,
        /// Print at most BYTES bytes [default: to the end]
        #[arg(long, value_name = "BYTES", value_parser = number)]
        length: Option<u64>,
        /// Write the bytes unchanged
        #[arg(long)]
        raw: bool,
        /// Write to this file instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Print the last transactions of a served chip
    Trace {
        #[command(flatten)]
        chip: ServerChoice,
        /// Choose the form
        #[arg(long, value_name = "FORM", default_value = "text")]
        form: TraceForm,
        /// Write to this file instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Show how often the sectors of a served chip were erased, and which bits are worn or unstable
    Wear {
        #[command(flatten)]
        chip: ServerChoice,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Age the cells of a served chip: programmed bits lose charge
    #[command(after_help = "Examples:
  siltstone spi age 10 --celsius 85

The model: the rate is the fraction of programmed bits that an unworn sector loses per year at 55 °C; it follows the Arrhenius law with 1.1 eV (JEDEC JEP122) and grows with the erase count.")]
    Age {
        /// Age the cells by this number of years
        years: f64,
        #[command(flatten)]
        chip: ServerChoice,
        /// Set the temperature in degrees Celsius
        #[arg(long, default_value_t = 55.0, allow_negative_numbers = true)]
        celsius: f64,
        /// Set the rate per year at 55 °C
        #[arg(long, default_value_t = 1e-6)]
        rate: f64,
    },
    /// Write the whole state of a served chip to its image, and make it durable
    Sync {
        #[command(flatten)]
        chip: ServerChoice,
    },
}

/// Serve an emulated chip to programmers until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone spi serve --chip W25Q128JV --image flash.bin --create --serprog 127.0.0.1:4025
  flashrom -p serprog:ip=127.0.0.1:4025 -c W25Q128.V -r read.bin
  siltstone spi serve --chip ./my.toml --pty                       print the path of a serial port
  flashrom -p serprog:dev=/dev/pts/3:115200 -c W25Q128.V -r read.bin
  siltstone spi serve --chip W25Q64JV --serprog 127.0.0.1:4025 --time fast --assert rules.toml
  siltstone spi serve --chip W25Q64JV --pty --fault cut-operation=3:0.5    cut the power in the middle of the fourth operation

Prints an address per line once programmers can connect. With --image the array is in that file, and registers, security \
registers, unique ID and wear in FILE.state; both are written within 0.2 s of a change, at a status and at the end. \
Without it the chip is in memory. Ends with 1 if a rule of --assert was violated.")]
pub struct SpiServe {
    #[command(flatten)]
    pub chip: ChipChoice,
    /// Keep the array in this file of the chip's size [default: in memory]
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Create the image, erased, if it is missing or empty
    #[arg(long, requires = "image")]
    pub create: bool,
    /// Listen for serprog at this address; may be given several times
    #[arg(long, value_name = "IP:PORT|unix:PATH")]
    pub serprog: Vec<String>,
    /// Permit addresses of --serprog that other machines can reach; for networks of trusted machines only
    #[arg(long, requires = "serprog")]
    pub allow_remote: bool,
    /// Listen for serprog on this unix socket; may be given several times
    #[arg(long, value_name = "PATH")]
    pub unix: Vec<PathBuf>,
    /// Serve serprog on a pseudo-terminal, and print its path
    #[arg(long)]
    pub pty: bool,
    /// Choose how long operations take: real or real:maximum as in the datasheet; fast or fast:N, until N
    /// polls of the status
    #[arg(long, value_name = "TIME", default_value = "real")]
    pub time: spi::Time,
    /// Check the transactions against the rules of this file
    #[arg(long = "assert", value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Add a fault: wear, read-disturb=BYTES, flip-in=PROBABILITY, flip-out=PROBABILITY, stuck-busy=N,
    /// cut-bus-byte=N, cut-operation=N:FRACTION; may be given several times, and the cuts repeatedly
    #[arg(long, value_name = "FAULT")]
    pub fault: Vec<String>,
    /// Set the seed of unique ID and faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Keep the last N transactions for spi trace
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub trace: u32,
    /// Listen for operators on this unix socket [default: derived from the image]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Don't listen for operators
    #[arg(long, conflicts_with = "control")]
    pub no_control: bool,
    /// Print the addresses, and the control socket, as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Return once clients are served, and continue in the background; siltstone stop unix:PATH ends it
    #[arg(long)]
    pub background: bool,
}

/// Choice of a chip.
#[derive(Debug, Args)]
pub struct ChipChoice {
    /// Emulate this chip: a name of spi list, or the path of a chip file
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub chip: String,
}

/// Choice of the server of a chip.
#[derive(Debug, Args)]
pub struct ServerChoice {
    /// Reach the chip with this image, if several are served
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Reach the chip through this control socket of its server
    #[arg(long, value_name = "PATH", conflicts_with = "image")]
    pub control: Option<PathBuf>,
}

/// Form of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceForm {
    /// Print a line of text per transaction
    Text,
    /// Print a line of JSON per transaction
    Json,
    /// Print a value change dump of the bus (IEEE 1364)
    Vcd,
}

impl TraceForm {
    /// Returns the form as on the command line.
    pub fn word(self) -> &'static str {
        match self {
            TraceForm::Text => "text",
            TraceForm::Json => "json",
            TraceForm::Vcd => "vcd",
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    spi::operator::parse_number(text).ok_or_else(|| "expected a number, decimal or as 0x…".to_owned())
}
