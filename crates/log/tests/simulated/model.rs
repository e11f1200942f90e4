//! What a device may hold: who submitted what, what was acknowledged, what was flushed.
//!
//! Time is a counter that every step raises. Of two operations on a block, the one that had completed before the other was
//! submitted is older; else they are concurrent, and either may be the last.

use std::collections::BTreeMap;

/// What a block holds: the number of the write that it came with; 0 is zeros.
pub type Version = u64;

#[derive(Debug)]
struct Operation {
    version: Version,
    submitted: u64,
    completed: Option<u64>,
    /// It survives a power cut.
    certain: bool,
}

/// See the module's head.
#[derive(Debug)]
pub struct Model {
    time: u64,
    next_version: Version,
    operations: Vec<Operation>,
    /// By block, in the order of their submissions.
    blocks: Vec<Vec<usize>>,
}

/// What happened to the device before it was looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The power was cut: what was flushed is there, and what is there is a prefix of the log.
    PowerCut,
    /// It was closed, or its process was killed: everything that was acknowledged is there.
    Orderly,
}

impl Model {
    /// A device of so many blocks of zeros.
    pub fn new(blocks: u64) -> Self {
        let mut model = Model { time: 0, next_version: 1, operations: Vec::new(), blocks: Vec::new() };
        model.restart(&vec![0; blocks as usize]);
        model
    }

    /// How many blocks there are.
    pub fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The device holds this, and it is durable.
    pub fn restart(&mut self, found: &[Version]) {
        self.operations = found
            .iter()
            .map(|version| Operation { version: *version, submitted: 0, completed: Some(0), certain: true })
            .collect();
        self.blocks = (0..found.len()).map(|number| vec![number]).collect();
        self.time = 0;
    }

    /// Its own numbers begin here, so that no other device's contents pass for its own.
    pub fn number_from(&mut self, version: Version) {
        self.next_version = version;
    }

    /// It may have become larger, by zeros.
    pub fn grow(&mut self, blocks: u64) {
        while self.len() < blocks {
            self.operations.push(Operation { version: 0, submitted: 0, completed: Some(0), certain: true });
            self.blocks.push(vec![self.operations.len() - 1]);
        }
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// A number for a write.
    pub fn draw_version(&mut self) -> Version {
        self.next_version += 1;
        self.next_version - 1
    }

    /// These blocks are to hold this version. Returns what `completed` is told.
    pub fn submit(&mut self, block: u64, count: u64, version: Version) -> usize {
        let submitted = self.tick();
        self.operations.push(Operation { version, submitted, completed: None, certain: false });
        let number = self.operations.len() - 1;
        for block in block..block + count {
            self.blocks[block as usize].push(number);
        }
        number
    }

    /// The operation was acknowledged.
    pub fn completed(&mut self, number: usize, durable: bool) {
        let time = self.tick();
        let operation = &mut self.operations[number];
        operation.completed = Some(time);
        operation.certain |= durable;
    }

    /// A flush, or a read, begins: what the other function of it is told.
    pub fn begin(&mut self) -> u64 {
        self.tick()
    }

    /// A flush that began then has returned.
    pub fn flushed(&mut self, began: u64) {
        let done = |operation: &&mut Operation| operation.completed.is_some_and(|time| time < began);
        self.operations.iter_mut().filter(done).for_each(|operation| operation.certain = true);
    }

    /// Whether a block holds one of the versions that it may hold if operations that count surely happened; says which
    /// it may hold, if not.
    fn check_block(
        &self,
        block: u64,
        found: Version,
        counts: impl Fn(&Operation) -> bool,
    ) -> Result<(), String> {
        let all = &self.blocks[block as usize];
        let may_be = |number: &&usize| {
            let operation = &self.operations[**number];
            let is_gone = |later: &Operation| {
                counts(later) && operation.completed.is_some_and(|time| time < later.submitted)
            };
            !all.iter().any(|other| is_gone(&self.operations[*other]))
        };
        let legal: BTreeMap<Version, &Operation> = all
            .iter()
            .filter(may_be)
            .map(|number| (self.operations[*number].version, &self.operations[*number]))
            .collect();
        if legal.contains_key(&found) {
            return Ok(());
        }
        let history: Vec<&Operation> = all.iter().map(|number| &self.operations[*number]).collect();
        Err(format!(
            "block {block} holds version {found}; legal: {legal:?}; all that happened to it: {history:?}"
        ))
    }

    /// Checks what a read that began then found in a block.
    ///
    /// # Errors
    /// What could be there.
    pub fn check_read(&self, block: u64, found: Version, began: u64) -> Result<(), String> {
        self.check_block(block, found, |operation| operation.completed.is_some_and(|time| time < began))
    }

    /// Checks what a device holds that was stopped so, and opened again.
    ///
    /// # Errors
    /// The first block that can't be so.
    pub fn check_stopped(&self, found: &[Version], stop: Stop) -> Result<(), String> {
        assert_eq!(found.len(), self.blocks.len(), "all blocks");
        // Prefix consistency: where something is there, so is everything that had completed before it was submitted.
        // Zeros may come from several operations, and say nothing.
        let of_block = |(block, version): (usize, &Version)| {
            let operations = self.blocks[block].iter().map(|number| &self.operations[*number]);
            let submitted = operations.filter(|operation| operation.version == *version);
            submitted.map(|operation| operation.submitted).max().filter(|_| *version != 0)
        };
        let last = found.iter().enumerate().filter_map(of_block).max().unwrap_or(0);
        for (block, version) in found.iter().enumerate() {
            self.check_block(block as u64, *version, |operation| match stop {
                Stop::PowerCut => operation.certain || operation.completed.is_some_and(|time| time < last),
                Stop::Orderly => operation.completed.is_some(),
            })
            .map_err(|broken| format!("{broken}; after {stop:?}; something submitted at {last} is there"))?;
        }
        Ok(())
    }
}
