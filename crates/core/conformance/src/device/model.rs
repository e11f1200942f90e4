//! The permitted contents of each sector, and the operations that change them.

use crate::stamp::{SECTOR, ZEROES, describe, is_mixture, is_stamp, sectors_payload};
use crate::suite::{Check, ensure, fails, invalid, succeeds};
use block::{
    BlockIndex, BlockRange, Buffer, Device, DeviceGeometry, Durability, Extent, ExtentState, ZeroMode,
};
use runtime::Random;

/// Most blocks of an operation.
const LONGEST: u64 = 24;

/// One call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    Read(BlockRange),
    /// The number stamps the data.
    Write(BlockRange, Durability, u64),
    Discard(BlockRange),
    WriteZeroes(BlockRange, ZeroMode, Durability),
    Extents(BlockRange),
    Flush,
}

impl Operation {
    /// Blocks that the operation changes, and the number of their new contents.
    pub(super) fn change(&self) -> Option<(BlockRange, u64)> {
        match *self {
            Operation::Write(range, _, number) => Some((range, number)),
            Operation::Discard(range) | Operation::WriteZeroes(range, ..) => Some((range, ZEROES)),
            Operation::Read(_) | Operation::Extents(_) | Operation::Flush => None,
        }
    }
}

/// Successful result of a call.
pub(super) enum Answer {
    Done,
    Bytes(Buffer),
    Extents(Vec<Extent>),
}

/// Makes the call, which has to succeed.
pub(super) async fn perform(
    device: &dyn Device,
    operation: Operation,
    seed: u64,
    chance: u64,
) -> Check<Answer> {
    let block = device.geometry().block_size.bytes();
    let what = || format!("{operation:?}");
    match operation {
        Operation::Read(range) => {
            // Half of the reads get a reused buffer.
            let length = (range.count.0 * block) as usize;
            let buffer =
                if chance & 1 == 0 { Buffer::new(length) } else { Buffer::copy_of(&vec![0x77; length]) };
            let (outcome, buffer) = device.read(range.start, buffer).await;
            succeeds(outcome, what())?;
            let filled = buffer.filled().len();
            ensure(filled == length, || format!("{operation:?}: success with {filled} of {length} bytes"))?;
            Ok(Answer::Bytes(buffer))
        }
        Operation::Write(range, durability, number) => {
            let per_block = block / SECTOR as u64;
            let (first, count) = (range.start.0 * per_block, range.count.0 * per_block);
            let payload = sectors_payload(&mut Random::new(chance), seed, number, first, count);
            succeeds(device.write(range.start, payload, durability).await, what())?;
            Ok(Answer::Done)
        }
        Operation::Discard(range) => succeeds(device.discard(range).await, what()).map(|()| Answer::Done),
        Operation::WriteZeroes(range, mode, durability) => {
            succeeds(device.write_zeroes(range, mode, durability).await, what())?;
            Ok(Answer::Done)
        }
        Operation::Extents(range) => {
            let extents = succeeds(device.extents(range).await, what())?;
            check_cover(range, &extents).map(|()| Answer::Extents(extents))
        }
        Operation::Flush => succeeds(device.flush().await, what()).map(|()| Answer::Done),
    }
}

/// Checks that the extents cover the range, or a prefix of it, in order, without gap or overlap.
pub(super) fn check_cover(range: BlockRange, extents: &[Extent]) -> Check {
    let mut next = range.start;
    for extent in extents {
        ensure(
            extent.range.start == next && !extent.range.is_empty() && extent.range.end() <= range.end(),
            || format!("extents of {range}: {} where the next one begins at block {next}", extent.range),
        )?;
        next = extent.range.end();
    }
    ensure(range.is_empty() || next > range.start, || format!("extents of {range}: none at all"))
}

/// Sectors of the window, each with all its permitted contents.
pub(super) struct Model {
    pub(super) seed: u64,
    geometry: DeviceGeometry,
    /// Blocks of the window.
    pub(super) blocks: u64,
    /// Permitted contents of each sector, by operation number. Empty: unknown, anything is permitted.
    sectors: Vec<Vec<u64>>,
    /// Writes whose calls were dropped, with their numbers: in flight until the device is closed. They don't
    /// overlap each other.
    dropped: Vec<(BlockRange, u64)>,
    /// All changes so far, for messages.
    history: Vec<(u64, Operation)>,
    next_number: u64,
}

impl Model {
    pub(super) fn new(geometry: &DeviceGeometry, seed: u64, window_bytes: u64) -> Model {
        let blocks = (window_bytes / geometry.block_size.bytes()).max(16).min(geometry.blocks.0);
        let sectors = blocks * geometry.block_size.bytes() / SECTOR as u64;
        Model {
            seed,
            geometry: geometry.clone(),
            blocks,
            sectors: vec![Vec::new(); sectors as usize],
            dropped: Vec::new(),
            history: Vec::new(),
            next_number: 1,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn per_block(&self) -> u64 {
        self.geometry.block_size.bytes() / SECTOR as u64
    }

    fn sectors_of(&self, range: BlockRange) -> std::ops::Range<u64> {
        range.start.0 * self.per_block()..range.end().0 * self.per_block()
    }

    /// Random blocks of the window. Half of them are among the first 40, so that operations overlap.
    pub(super) fn any_range(&self, random: &mut Random) -> BlockRange {
        let area = if random.below(2) == 0 { self.blocks } else { self.blocks.min(40) };
        let start = random.below(area);
        let count = 1 + random.below(LONGEST.min(self.blocks - start));
        BlockRange::new(start, count)
    }

    /// Random blocks of part `index` of `count` equal parts of the window, which don't overlap.
    pub(super) fn range_in_stretch(&self, random: &mut Random, index: u64, count: u64) -> BlockRange {
        let (from, to) = (self.blocks * index / count, self.blocks * (index + 1) / count);
        let start = from + random.below(to - from);
        BlockRange::new(start, 1 + random.below(LONGEST.min(to - start)))
    }

    pub(super) fn any_operation(&mut self, random: &mut Random) -> Operation {
        let range = self.any_range(random);
        let durability = if random.below(4) == 0 { Durability::Durable } else { Durability::Visible };
        let mode = if random.below(2) == 0 { ZeroMode::MayDeallocate } else { ZeroMode::KeepAllocated };
        match random.below(20) {
            0..=7 => Operation::Read(range),
            8..=13 => Operation::Write(range, durability, self.number()),
            14..=15 => Operation::Discard(range),
            16..=17 => Operation::WriteZeroes(range, mode, durability),
            18 => Operation::Extents(range),
            _ => Operation::Flush,
        }
    }

    /// Judges the answers to operations that were in flight at the same time, and adds their changes to the
    /// model.
    pub(super) fn judge(&mut self, answers: &[(Operation, Answer)]) -> Check {
        let changes: Vec<(BlockRange, u64)> = answers.iter().filter_map(|(call, _)| call.change()).collect();
        self.history
            .extend(answers.iter().filter_map(|(call, _)| call.change().map(|change| (change.1, *call))));
        for (operation, answer) in answers {
            match (operation, answer) {
                (Operation::Read(range), Answer::Bytes(buffer)) => {
                    self.check_bytes(*range, buffer.filled(), &changes)?;
                }
                (Operation::Extents(_), Answer::Extents(extents)) => self.check_extents(extents, &changes)?,
                _ => {}
            }
        }
        self.apply(&changes);
        Ok(())
    }

    fn apply(&mut self, changes: &[(BlockRange, u64)]) {
        for (range, _) in changes {
            for sector in self.sectors_of(*range) {
                // A dropped write may still take effect after a change that it overlaps.
                let dropped = self.dropped_write_of(sector);
                let numbers = &mut self.sectors[sector as usize];
                numbers.clear();
                numbers.extend(dropped);
            }
        }
        for (range, number) in changes {
            for sector in self.sectors_of(*range) {
                self.sectors[sector as usize].push(*number);
            }
        }
    }

    /// Records a write whose call was dropped: it may take effect until the close.
    pub(super) fn dropped(&mut self, write: Operation) {
        let Some((range, number)) = write.change() else { return };
        self.history.push((number, write));
        for sector in self.sectors_of(range) {
            let numbers = &mut self.sectors[sector as usize];
            // Unknown contents remain unknown.
            if !numbers.is_empty() {
                numbers.push(number);
            }
        }
        self.dropped.push((range, number));
    }

    /// Records a close of the device. It ends the dropped writes: older contents are no longer permitted.
    pub(super) fn closed(&mut self) {
        for (range, number) in std::mem::take(&mut self.dropped) {
            for sector in self.sectors_of(range) {
                let numbers = &mut self.sectors[sector as usize];
                let before = numbers.iter().position(|other| *other == number).unwrap_or(0);
                numbers.drain(..before);
            }
        }
    }

    fn dropped_write_of(&self, sector: u64) -> Option<u64> {
        let block = BlockIndex(sector / self.per_block());
        self.dropped.iter().find(|(range, _)| range.contains(block)).map(|(_, number)| *number)
    }

    /// Reads the blocks of a write. Returns whether all of them hold its data.
    pub(super) async fn sees(&mut self, device: &dyn Device, write: Operation) -> Check<bool> {
        let Some((range, number)) = write.change() else { return Ok(true) };
        let Answer::Bytes(buffer) = perform(device, Operation::Read(range), self.seed, 0).await? else {
            return Ok(false);
        };
        self.check_bytes(range, buffer.filled(), &[])?;
        let mut sectors = self.sectors_of(range).zip(buffer.filled().chunks(SECTOR));
        Ok(sectors.all(|(sector, found)| is_stamp(found, self.seed, number, sector)))
    }

    /// Contents that a sector may have while `changes` are in flight.
    fn candidates<'a>(
        &'a self,
        sector: u64,
        changes: &'a [(BlockRange, u64)],
    ) -> impl Iterator<Item = u64> + Clone + 'a {
        let block = BlockIndex(sector / self.per_block());
        let concurrent =
            changes.iter().filter(move |(range, _)| range.contains(block)).map(|(_, number)| *number);
        self.sectors[sector as usize].iter().copied().chain(concurrent)
    }

    /// Compares the bytes of a read with the permitted contents. Without writes in flight, the contents that
    /// were read become the only permitted ones.
    fn check_bytes(&mut self, range: BlockRange, bytes: &[u8], changes: &[(BlockRange, u64)]) -> Check {
        for (sector, found) in self.sectors_of(range).zip(bytes.chunks(SECTOR)) {
            if self.sectors[sector as usize].is_empty() {
                continue;
            }
            let matching =
                self.candidates(sector, changes).find(|number| is_stamp(found, self.seed, *number, sector));
            let Some(number) = matching else {
                // Overlapping requests may leave a mixture, where every byte is from one of them. The
                // sector's contents then remain undecided until the next write.
                let candidates = self.candidates(sector, changes);
                if is_mixture(found, self.seed, candidates, sector) {
                    continue;
                }
                return Err(self.wrong_sector(sector, found, changes));
            };
            let block = BlockIndex(sector / self.per_block());
            let in_flight = changes.iter().chain(&self.dropped);
            if !in_flight.into_iter().any(|(range, _)| range.contains(block)) {
                self.sectors[sector as usize] = vec![number];
            }
        }
        Ok(())
    }

    fn wrong_sector(&self, sector: u64, found: &[u8], changes: &[(BlockRange, u64)]) -> String {
        let expected: Vec<String> =
            self.candidates(sector, changes).map(|number| self.in_words(number)).collect();
        format!(
            "block {} (sector {sector}) must hold {}, and holds {}",
            sector / self.per_block(),
            expected.join(", or "),
            describe(found, self.seed)
        )
    }

    fn in_words(&self, number: u64) -> String {
        if number == ZEROES {
            return "zeros".into();
        }
        let call = self.history.iter().rev().find(|(other, _)| *other == number);
        match call {
            Some((_, Operation::Write(range, ..))) => format!("operation {number} (a write of {range})"),
            _ => format!("operation {number}"),
        }
    }

    /// Checks that extents reported as holes or zeros may hold zeros.
    fn check_extents(&self, extents: &[Extent], changes: &[(BlockRange, u64)]) -> Check {
        for extent in extents.iter().filter(|extent| extent.state != ExtentState::Data) {
            for sector in self.sectors_of(extent.range).filter(|sector| *sector < self.sectors.len() as u64) {
                let known = !self.sectors[sector as usize].is_empty();
                if known && !self.candidates(sector, changes).any(|number| number == ZEROES) {
                    let block = sector / self.per_block();
                    return Err(format!("block {block} is said to be {:?}, and holds data", extent.state));
                }
            }
        }
        Ok(())
    }

    /// Makes one call and judges it.
    pub(super) async fn step(&mut self, device: &dyn Device, operation: Operation, chance: u64) -> Check {
        let answer = perform(device, operation, self.seed, chance).await?;
        self.judge(&[(operation, answer)])
    }

    /// Reads the window and the extents that are reported as zeros, and compares them.
    pub(super) async fn check_all(&mut self, device: &dyn Device) -> Check {
        let mut start = 0;
        while start < self.blocks {
            let range = BlockRange::new(start, (self.blocks - start).min(LONGEST));
            self.step(device, Operation::Read(range), 0).await?;
            self.step(device, Operation::Extents(range), 0).await?;
            start = range.end().0;
        }
        Ok(())
    }
}

/// Checks that a read is refused and returns no bytes.
pub(super) async fn refused_read(device: &dyn Device, at: u64, length: usize) -> Check {
    let what = format!("a read of {length} bytes at block {at}");
    let buffer = Buffer::copy_of(&vec![0x77; length]);
    let (outcome, buffer) = device.read(BlockIndex(at), buffer).await;
    fails(outcome, &invalid(), &what)?;
    ensure(buffer.len() == length, || format!("{what}: the buffer came back with {} bytes", buffer.len()))?;
    ensure(buffer.filled().is_empty(), || {
        format!("{what}: a failed read shows {} bytes; expected none", buffer.filled().len())
    })
}
