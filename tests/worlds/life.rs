//! A life: from an opening of the stack to a stop; and the files that it has for disks.

use super::loss::Loss;
use block::{DevicePart, Error, Result};
use layers::fault::{FaultDevicePart, parse_rules};
use runtime::{Random, SimulatedFaults};
use stack::{Contract, Registry, Stack};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Files of the simulated world, and what is in them.
pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// A file that is a disk of the stack.
#[derive(Debug, Clone)]
pub struct File {
    /// Its path, such as `/disk`.
    pub path: &'static str,
    /// Its size.
    pub bytes: u64,
    /// The size of its blocks, in bytes.
    pub sector: u64,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All clients end, the stack is closed, and then the power is cut.
    Closed,
    /// All clients end, then the power is cut.
    Cut,
    /// All clients end, then the process is killed: nothing that the kernel has is lost.
    Killed,
}

/// From an opening to a stop.
#[derive(Debug, Clone)]
pub struct Life {
    /// Decides all of it.
    pub seed: u64,
    /// The stack is made anew.
    pub format: bool,
    /// How many operations clients begin.
    pub operations: u64,
    /// How many clients there are.
    pub depth: u64,
    /// How it ends.
    pub end: End,
    /// The power is cut at this time, if it isn't over by then.
    pub cut_after: Option<Duration>,
    /// What goes wrong with all files.
    pub faults: SimulatedFaults,
    /// Rules of the layer `fault`, by file.
    pub rules: Vec<Vec<String>>,
    /// What was lost before it.
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
        // A write that fails leaves part of itself, in whole sectors: the simulated world would tear those, too.
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
            // After a few, what an earlier life left behind the end of a log is still there.
            operations: if random.chance(0.2) { random.below(8) } else { 20 + random.below(300) },
            depth: [1, 1, 2, 4, 8, 32][random.below(6) as usize],
            end: [End::Closed, End::Cut, End::Cut, End::Killed][random.below(4) as usize],
            cut_after: random.chance(0.6).then(|| Duration::from_nanos(random.below(1 << shift))),
            faults,
            rules,
            lost: None,
        }
    }

    /// A short one without clients and faults, to see what a loss has left.
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

    /// Whether anything may fail in it.
    pub fn may_fail(&self) -> bool {
        self.faults.read_error + self.faults.sync_error + self.faults.write_error > 0.0
            || self.rules.iter().any(|rules| !rules.is_empty())
    }
}

/// The files of a life as devices.
#[derive(Debug)]
pub struct Disks {
    pub(super) files: Vec<File>,
    pub(super) life: Life,
}

impl Disks {
    /// A file as a device, by its place in the list, with the faults of the life.
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
