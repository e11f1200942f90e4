//! Cleaning: what is live in a zone is written elsewhere, so that the zone can be reset; and resetting zones.
//!
//! A move is a record like any other, of the cleaner's own stream, so users' writes never wait for one. It takes effect
//! when it commits, and only for blocks that are still where they were: a write that came in between wins.
//!
//! A zone is reset when nothing in it is live, and only after what made it so is durable, a durable checkpoint covers
//! all its records, and everybody who may be reading from it has finished.

use crate::core::{Core, Group, Item, count};
use crate::format::{CLEANER, Change, EXTENT, VersionId};
use crate::lane::{Scratch, write_group};
use crate::open_zone::OpenZone;
use crate::scan::{self, Found};
use crate::table::{CHECKPOINT_CLASS, Usage};
use block::{Buffer, Data, Error, Payload, Result, ZoneIndex};
use std::rc::Rc;
use zones::cleaning::{Arrival, Candidate, Pressure};
use zones::record::sum_of;

/// How many bytes of a zone are read at a time.
const READ: u32 = 1 << 20;
/// How many dead zones are reset together, if there is no hurry: they share a flush and a grace period.
const RESET_TOGETHER: u32 = 4;
/// After so many failures in a row, writers that wait for a zone are told.
const MOST_FAILURES: u32 = 3;
/// How long the cleaner rests after something went wrong: what failed may fail again at once.
const AFTER_A_FAILURE: std::time::Duration = std::time::Duration::from_millis(10);

/// A run of live blocks in the zone that is being cleaned.
#[derive(Debug, Clone, Copy)]
struct Run {
    position: u32,
    count: u32,
    version: VersionId,
    block: u64,
    /// Which record, and which of its data blocks: for the checksums.
    record: usize,
    first: u32,
}

/// The cleaner's task.
pub struct Cleaner {
    core: Rc<Core>,
    zones: Vec<Option<OpenZone>>,
    scratch: Scratch,
    /// Whether zones were short when a candidate was last looked for.
    was_short: bool,
}

/// Starts the cleaner.
pub fn start(core: &Rc<Core>) -> runtime::JoinHandle<()> {
    let classes = usize::from(core.policy.borrow().classes());
    let cleaner = Cleaner {
        core: core.clone(),
        zones: (0..classes).map(|_| None).collect(),
        scratch: Scratch::default(),
        was_short: false,
    };
    runtime::spawn(cleaner.run())
}

impl Core {
    fn pressure(&self) -> Pressure {
        Pressure {
            free: self.table.free() + self.table.dead(),
            total: self.layout.zones - crate::layout::ROOT_ZONES,
            low: self.settings.cleaner_reserve + self.zones_for_checkpoint() + 1,
            high: self.settings.cleaner_reserve + self.zones_for_checkpoint() + 3,
        }
    }
}

impl Cleaner {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let core = self.core.clone();
            let kicked = core.cleaner.notified();
            // What is queued when the log is closed may still need zones.
            if core.failure().is_some() || core.is_closing.get() && !core.has_work() {
                break;
            }
            match self.step().await {
                Ok(true) => {
                    failures = 0;
                    *core.stuck.borrow_mut() = None;
                    core.freed.notify_all();
                    runtime::yield_now().await;
                    continue;
                }
                Ok(false) => {
                    // Nothing to do: whoever waits for a zone is told.
                    failures = 0;
                    let is_short = core.pressure().is_urgent();
                    if is_short && !self.was_short {
                        // It became so while something else was done.
                        continue;
                    }
                    *core.stuck.borrow_mut() = is_short.then(|| {
                        Error::no_space(
                            "the log has no free zone and nothing to clean: discard some data, or delete snapshots",
                        )
                    });
                    core.freed.notify_all();
                    kicked.await;
                }
                Err(error) => {
                    tracing::warn!("cleaning: {error}");
                    failures += 1;
                    // What is dead doesn't help as long as it can't be reset.
                    let is_stuck = failures >= MOST_FAILURES && core.table.free() < core.pressure().low;
                    *core.stuck.borrow_mut() = is_stuck.then(|| error.in_context("no zone can be freed"));
                    core.freed.notify_all();
                    // What the attempt itself has set off doesn't count, or it would be repeated at once.
                    let kicked = core.cleaner.notified();
                    runtime::sleep(AFTER_A_FAILURE).await;
                    kicked.await;
                }
            }
        }
        for zone in self.zones.iter_mut().filter_map(Option::take) {
            self.core.seal_now(zone).await;
        }
    }

    /// Does what is most needed; returns whether there was anything.
    async fn step(&mut self) -> Result<bool> {
        let core = self.core.clone();
        let pressure = core.pressure();
        let is_urgent = core.table.free() <= pressure.low;
        if core.table.dead() >= if is_urgent { 1 } else { RESET_TOGETHER }
            && core.reset_dead(is_urgent).await?
        {
            return Ok(true);
        }
        if core.wants_checkpoint() {
            core.take_checkpoint(false).await?;
            return Ok(true);
        }
        // Zones were taken meanwhile.
        let pressure = core.pressure();
        self.was_short = pressure.is_urgent();
        let is_urgent = core.table.free() <= pressure.low;
        let now = core.clock.get();
        let candidates = core.table.candidates(core.layout.data_blocks());
        let chosen = core.policy.borrow_mut().choose(&mut candidates.iter().copied(), pressure, now);
        if let Some(candidate) =
            chosen.and_then(|zone| candidates.iter().find(|candidate| candidate.zone == zone))
        {
            core.policy.borrow_mut().cleaned(*candidate, now);
            self.clean(*candidate).await?;
            return Ok(true);
        }
        // A checkpoint makes pages of the one before free, and lets zones be reset that it covers.
        let waiting = core.table.dead() > 0 || core.has_superseded();
        if is_urgent && waiting && core.since_checkpoint.get() > 0 {
            core.take_checkpoint(false).await?;
            return core.reset_dead(true).await;
        }
        Ok(false)
    }

    /// Moves what is live in a zone.
    async fn clean(&mut self, candidate: Candidate) -> Result<()> {
        let core = self.core.clone();
        let zone = candidate.zone.0;
        let entry = core.table.get(zone);
        core.table.change(zone, |entry| entry.usage = Usage::Cleaning);
        let outcome = self.move_all(zone, entry.class, entry.opened).await;
        // Users' overwrites and our moves together leave nothing; unless something could not be read.
        let left = core.table.get(zone).live;
        match &outcome {
            Ok(()) if left == 0 => {
                core.table.set_full(zone);
                count(&core.counters.cleaned_zones, 1);
            }
            Ok(()) => {
                tracing::error!("zone {zone}: {left} live blocks can't be moved; the zone is left as it is");
                core.table.change(zone, |entry| entry.usage = Usage::Damaged);
            }
            Err(Error::NoSpace(_)) => {
                core.table.set_full(zone);
            }
            Err(error) => {
                tracing::error!("zone {zone} can't be cleaned and is left as it is: {error}");
                core.table.change(zone, |entry| entry.usage = Usage::Damaged);
                return Ok(());
            }
        }
        outcome
    }

    async fn move_all(&mut self, zone: u32, class: u8, opened: u64) -> Result<()> {
        let core = self.core.clone();
        let report = core.zones.report(ZoneIndex(zone), 1).await?;
        let report = report.first().ok_or_else(|| Error::invalid(format!("zone {zone} isn't there")))?;
        let scanned = scan::scan(&*core.zones, &core.layout, &core.identity, report, 0, false).await?;
        let mut runs = live_runs(&core, zone, &scanned.records)?;
        runs.sort_unstable_by_key(|run| run.position);
        let mut pieces: Vec<(Run, Data)> = Vec::new();
        let mut gathered = 0;
        let mut at = 0;
        while at < runs.len() {
            let (next, read) = self.read_some(zone, &runs[at..], &scanned.records).await?;
            at += next;
            gathered += read.iter().map(|(run, _)| run.count).sum::<u32>();
            pieces.extend(read);
            if gathered >= core.layout.single_blocks() || at == runs.len() {
                gathered = 0;
                self.write(zone, std::mem::take(&mut pieces), class, opened).await?;
            }
        }
        Ok(())
    }

    /// Reads the first runs, as many as one read takes, gaps included where they are small; checks every block.
    async fn read_some(
        &self,
        zone: u32,
        runs: &[Run],
        records: &[Found],
    ) -> Result<(usize, Vec<(Run, Data)>)> {
        let core = &self.core;
        let block = core.layout.block_bytes();
        let most = READ / block as u32;
        let start = runs[0].position;
        let mut taken = 0;
        let mut end = start;
        for run in runs {
            let stop = run.position + run.count;
            // A gap that takes longer to read than a request of its own isn't read.
            if taken > 0 && (stop - start > most || run.position - end > 16) {
                break;
            }
            end = stop;
            taken += 1;
        }
        let buffer = Buffer::new((end - start) as usize * block);
        let (outcome, buffer) = core.zones.read(core.layout.address(zone, start), buffer).await;
        outcome?;
        let data = buffer.freeze();
        let mut pieces = Vec::with_capacity(taken);
        for run in &runs[..taken] {
            let from = (run.position - start) as usize * block;
            let piece = data.slice(from..from + run.count as usize * block);
            for (number, bytes) in piece.chunks_exact(block).enumerate() {
                if sum_of(bytes) != records[run.record].sums[run.first as usize + number] {
                    return Err(Error::corrupt(format!(
                        "block {} of the volume is damaged: zone {zone}, block {}",
                        run.block + number as u64,
                        run.position + number as u32
                    )));
                }
            }
            pieces.push((*run, piece));
        }
        Ok((taken, pieces))
    }

    /// Writes pieces that were read, in the order of the volume, as few records as they fit into.
    async fn write(
        &mut self,
        source: u32,
        mut pieces: Vec<(Run, Data)>,
        class: u8,
        opened: u64,
    ) -> Result<()> {
        let core = self.core.clone();
        let age = core.clock.get().saturating_sub(opened);
        let class = core.policy.borrow().place(Arrival::Moved { age, class });
        pieces.sort_by_key(|(run, _)| (run.version, run.block));
        let block = core.layout.block_bytes();
        let mut rest = pieces.into_iter().peekable();
        while rest.peek().is_some() {
            let zone = match self.zones[usize::from(class)].take() {
                Some(zone) => zone,
                None => self.open_zone(class).await?,
            };
            let mut group = Group::default();
            let (mut blocks, mut meta) = (0, 0);
            while let Some((run, data)) = rest.peek_mut() {
                let room = zone.room(&core.layout, blocks + run.count, |_| meta + EXTENT);
                let taken = room.saturating_sub(blocks);
                if taken == 0 {
                    break;
                }
                let from = core.layout.physical(source, run.position);
                group.items.push(Item {
                    change: Change::Move { version: run.version, block: run.block, count: taken, from },
                    payload: Payload::from(data.slice(0..taken as usize * block)),
                    request: None,
                    growth: 0,
                    ticket: 0,
                });
                blocks += taken;
                meta += EXTENT;
                if taken == run.count {
                    rest.next();
                } else {
                    *data = data.slice(taken as usize * block..data.len());
                    run.position += taken;
                    run.first += taken;
                    run.block += u64::from(taken);
                    run.count -= taken;
                }
            }
            if group.items.is_empty() {
                core.seal(zone).detach();
                continue;
            }
            self.zones[usize::from(class)] =
                write_group(&core, CLEANER, group, zone, &mut self.scratch).await;
            if let Some(error) = core.failure() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Opens a zone for what is moved. The last free zones are for this.
    async fn open_zone(&self, class: u8) -> Result<OpenZone> {
        let keep = self.core.zones_for_checkpoint();
        if let Some(zone) = self.core.try_open_zone(class, keep) {
            return Ok(zone);
        }
        // What was cleaned before may be waiting to be reset.
        self.core.reset_dead(true).await?;
        self.core
            .try_open_zone(class, self.core.zones_for_checkpoint())
            .ok_or_else(|| Error::no_space("no zone is free for what the cleaner moves"))
    }
}

/// The live blocks of a zone, run by run.
fn live_runs(core: &Core, zone: u32, records: &[Found]) -> Result<Vec<Run>> {
    let versions = core.versions.borrow();
    let mut runs = Vec::new();
    for (record, found) in records.iter().enumerate() {
        let mut first = 0;
        for change in Change::decode_all(&found.meta)? {
            let (Change::Write { version, block, count } | Change::Move { version, block, count, .. }) =
                change
            else {
                continue;
            };
            let position = found.header.position + 1 + first;
            let at = core.layout.physical(zone, position);
            versions.live(block, u64::from(count), at, &mut |offset, length| {
                runs.push(Run {
                    position: position + offset as u32,
                    count: length as u32,
                    version,
                    block: block + offset,
                    record,
                    first: first + offset as u32,
                });
            });
            first += count;
        }
    }
    Ok(runs)
}

impl Core {
    /// Whether a checkpoint would make pages free.
    pub fn has_superseded(&self) -> bool {
        self.table.count(|zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full) > 1
    }

    /// Resets dead zones that may be; with `is_urgent`, a checkpoint is taken if it takes one. Returns whether any was.
    ///
    /// # Errors
    /// What flushing, writing the checkpoint and resetting say.
    pub async fn reset_dead(self: &Rc<Self>, is_urgent: bool) -> Result<bool> {
        let dead = self.table.take_dead();
        if dead.is_empty() {
            return Ok(false);
        }
        let mut left = dead;
        let outcome = self.reset_zones(&mut left, is_urgent).await;
        self.table.return_dead(left);
        outcome
    }

    async fn reset_zones(self: &Rc<Self>, dead: &mut Vec<u32>, is_urgent: bool) -> Result<bool> {
        let is_covered = |zone: &u32| {
            let covered = self.checkpoint.borrow().root.covered;
            self.table.get(*zone).last.iter().zip(covered).all(|(last, covered)| *last <= covered)
        };
        if is_urgent && !dead.iter().any(is_covered) {
            self.take_checkpoint(false).await?;
        }
        // A zone may be full before its last record has committed, behind one that took longer: it looked dead, and has
        // come to life since. Once all its records are covered, all of them have committed, and what is live can only die.
        dead.retain(|zone| {
            let is_alive = is_covered(zone) && self.table.get(*zone).live > 0;
            if is_alive {
                self.table.set_full(*zone);
            }
            !is_alive
        });
        let ready: Vec<u32> = dead.iter().copied().filter(is_covered).collect();
        if ready.is_empty() {
            return Ok(false);
        }
        // What made these zones dead has committed; from here on it is durable.
        self.flush().await?;
        self.demand_home().await?;
        let maps: Vec<_> = self.versions.borrow().list.iter().map(|version| version.map.clone()).collect();
        let graces: Vec<u64> = maps.iter().map(|map| map.begin_grace()).collect();
        self.readers.grace().await?;
        maps.iter().zip(graces).for_each(|(map, grace)| map.end_grace(grace));
        for zone in ready {
            dead.retain(|other| *other != zone);
            match self.zones.reset(ZoneIndex(zone), block::EraseGuarantee::None).await {
                Ok(generation) => {
                    self.table.set_free(zone, generation);
                    count(&self.counters.reset_zones, 1);
                }
                Err(error) => {
                    tracing::warn!(
                        "resetting zone {zone}: {error}; it isn't used again before the log is reopened"
                    );
                    self.table.change(zone, |entry| entry.usage = Usage::Damaged);
                }
            }
        }
        self.freed.notify_all();
        Ok(true)
    }
}
