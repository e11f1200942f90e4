//! A life: from an opening of the stack to a stop; and the files that are its disks.

use super::loss::Loss;
use block::{DevicePart, Error, Result};
use layers::fault::{FaultDevicePart, parse_rules};
use runtime::{Random, SimulatedFaults};
use stack::{Contract, Registry, Stack};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Files of the simulated world, with their contents.
pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// A file that is a disk of the stack.
#[derive(Debug, Clone)]
pub struct File {
    /// Path, such as `/disk`.
    pub path: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// Size of its blocks, in bytes.
    pub sector: u64,
}

/// End of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All clients end, the stack is closed, and then the power is cut.
    Closed,
    /// All clients end, then the power is cut.
    Cut,
    /// All clients end, then the process is killed: the kernel loses nothing.
    Killed,
}

/// Plan of a life, from an opening to a stop.
#[derive(Debug, Clone)]
pub struct Life {
    /// Decides everything that happens.
    pub seed: u64,
    /// Whether the stack is formatted.
    pub format: bool,
    /// Number of operations that clients begin.
    pub operations: u64,
    /// Number of clients.
    pub depth: u64,
    /// End of the life.
    pub end: End,
    /// Time at which the power is cut, unless the life has ended before.
    pub cut_after: Option<Duration>,
    /// Faults of all files.
    pub faults: SimulatedFaults,
    /// Rules of the layer `fault`, by file.
    pub rules: Vec<Vec<String>>,
    /// Loss before this life.
    pub lost: Option<Loss>,
}

impl Life {
    pub(super) fn draw(random: &mut Random, format: bool, files: usize) -> Life {
        let is_faulty = random.chance(0.15);
        let mut fault = |probability: f64| if random.chance(0.4) { probability } else { 0.0 };
        let mut faults =
            SimulatedFaults { slow: fault(0.02), short: fault(0.05), ..SimulatedFaults::default() };
        if is_faulty {
            faults.read_error = fault(0.01);
            faults.sync_error = fault(0.005);
            faults.write_error = fault(0.005);
        }
        // A failed write leaves a part of its data, in whole sectors: the simulated world would tear sectors
        // as well.
        let possible = [
            "write torn error=EIO probability=0.01",
            "write error=EIO probability=0.02",
            "flush error=EIO probability=0.02",
        ];
        let mut rules = Vec::new();
        for _ in 0..files {
            let drawn = possible.iter().filter(|_| is_faulty && random.chance(0.4));
            rules.push(drawn.map(|rule| (*rule).to_owned()).collect());
        }
        let shift = 17 + random.below(11);
        Life {
            seed: random.next_u64(),
            format,
            // After a few operations, records of an earlier life are still there beyond the end of a log.
            operations: if random.chance(0.2) { random.below(8) } else { 20 + random.below(300) },
            depth: [1, 1, 2, 4, 8, 32][random.below(6) as usize],
            end: [End::Closed, End::Cut, End::Cut, End::Killed][random.below(4) as usize],
            cut_after: random.chance(0.6).then(|| Duration::from_nanos(random.below(1 << shift))),
            faults,
            rules,
            lost: None,
        }
    }

    /// A short life without clients and faults, which shows the contents after a loss.
    pub(super) fn inquest(seed: u64, files: usize, lost: Loss) -> Life {
        Life {
            seed,
            format: false,
            operations: 0,
            depth: 0,
            end: End::Closed,
            cut_after: None,
            faults: SimulatedFaults::default(),
            rules: vec![Vec::new(); files],
            lost: Some(lost),
        }
    }

    /// Whether any operation may fail.
    pub fn may_fail(&self) -> bool {
        self.faults.read_error + self.faults.sync_error + self.faults.write_error > 0.0
            || self.rules.iter().any(|rules| !rules.is_empty())
    }
}

/// Files of a life as devices.
#[derive(Debug)]
pub struct Disks {
    pub(super) files: Vec<File>,
    pub(super) life: Life,
}

impl Disks {
    /// Opens a file as a device, by its position in the list, with the faults of the life.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a file that is lost.
    pub async fn open(&self, number: usize) -> Result<Arc<dyn DevicePart>> {
        let File { path, sector, .. } = &self.files[number];
        let registry = Registry::new(vec![&disks::file::KIND]);
        let stack = Stack::from_line("test", &format!("file({path}, block_size={sector})"), &registry)
            .map_err(|error| Error::invalid(error.to_string()))?;
        let plan = stack.check(false).map_err(|error| Error::invalid(error.to_string()))?;
        let file = plan.build().await?.top()?;
        let rules = parse_rules(&self.life.rules[number], Contract::Device)?;
        Ok(Arc::new(FaultDevicePart::new(file, rules, self.life.seed ^ (number as u64) << 32)?))
    }
}
