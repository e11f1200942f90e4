//! Compares a zoned device of the kernel with the state machine of the emulated drive
//! (`siltstone_tests::zoned`).
//!
//! `siltstone-guest-zones nvme PATH SHAPE known=qemu|qemu-auto SEED STEPS` sends the commands of the Zoned
//! Namespace Command Set to `/dev/ngXnY` by passthrough: answers are NVMe status codes.
//!
//! `siltstone-guest-zones block PATH SHAPE known=null_blk|door SEED STEPS [failures=FOLDER]` uses the block
//! layer: answers are success and failure. FOLDER is the one of a null_blk device in configfs, by which zones
//! are made read-only and offline.
//!
//! SHAPE is `ZONES:SIZE:CAPACITY:MAX-OPEN:MAX-ACTIVE`, lengths in blocks of 4 KiB. All zones are reset at
//! first. Standard output is one line of JSON that says what was compared; a device that differs is an error.

mod block_device;
mod ioctl;
mod nvme;

use block::{Error, Result};
use siltstone_tests::zoned::differences::{self, Difference};
use siltstone_tests::zoned::model::{Draw, Shape};
use siltstone_tests::zoned::{Comparison, Subject};
use zns::machine::{Command, State};

/// Longest read and write, in blocks: no device and no layer divides it.
const LONGEST: u64 = 16;

/// States in which zones of null_blk may be made to fail. It finishes such zones first. At the limits it
/// refuses to finish an empty or closed zone, but makes it read-only all the same and counts it as active for
/// ever.
const BEFORE_FAILURES: [State; 3] = [State::ImplicitlyOpened, State::ExplicitlyOpened, State::Full];

const USAGE: &str = "expected nvme|block PATH ZONES:SIZE:CAPACITY:MAX-OPEN:MAX-ACTIVE known=NAME SEED STEPS [failures=FOLDER]";

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|error| Error::invalid(format!("\"{text}\": {error}")))
}

fn shape(text: &str) -> Result<Shape> {
    let numbers = text.split(':').map(number).collect::<Result<Vec<u64>>>()?;
    let [zones, size, capacity, max_open, max_active] = numbers[..] else {
        return Err(Error::invalid(USAGE));
    };
    Ok(Shape {
        zones: zones as u32,
        size,
        capacity,
        max_open: max_open as u32,
        max_active: max_active as u32,
    })
}

fn known(text: &str) -> Result<&'static [Difference]> {
    match text {
        "known=qemu" => Ok(differences::QEMU),
        "known=qemu-auto" => Ok(differences::QEMU_AUTO_TRANSITION),
        "known=null_blk" => Ok(differences::NULL_BLK),
        "known=door" => Ok(differences::DOOR),
        _ => Err(Error::invalid(format!("\"{text}\": {USAGE}"))),
    }
}

async fn compare(
    mut subject: impl Subject,
    shape: Shape,
    draw: Draw,
    known: &[Difference],
    [seed, steps]: [u64; 2],
) -> Result<()> {
    for zone in 0..shape.zones {
        // An earlier run may have left the zone in another state.
        subject.command(zone, Command::Reset, 0).await.map_err(Error::io)?;
    }
    let mut comparison = Comparison::new(seed, shape, draw, known);
    let compared = comparison.run(&mut subject, steps).await;
    compared.map_err(|why| Error::invalid(format!("seed {seed}: {why}")))?;
    println!("{}", comparison.summary());
    Ok(())
}

async fn run(words: Vec<String>) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (words, folder) = match words[..] {
        [ref before @ .., last] if last.starts_with("failures=") => (before, last.strip_prefix("failures=")),
        ref all => (all, None),
    };
    let [kind, path, shape_text, differences, seed, steps] = *words else {
        return Err(Error::invalid(USAGE));
    };
    let (shape, known, counts) = (shape(shape_text)?, known(differences)?, [number(seed)?, number(steps)?]);
    let nvme = kind == "nvme";
    let draw = Draw {
        appends: nvme,
        nvme,
        crossing: nvme,
        failures: if folder.is_some() { &BEFORE_FAILURES } else { &[] },
        longest: LONGEST,
    };
    match kind {
        "nvme" => compare(nvme::Namespace::open(path, shape)?, shape, draw, known, counts).await,
        "block" => {
            let device = block_device::ZonedDevice::open(path, shape, folder)?;
            compare(device, shape, draw, known, counts).await
        }
        _ => Err(Error::invalid(USAGE)),
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    runtime::run(runtime::Config::default(), move || run(words))?
}
