//! Recopying of zones that have lost a copy, or have one on a node that reclaims its memory.
//!
//! A copy is complete if each of its blocks had every page that the map named when the block was read: pages
//! of a full zone only become stale. Invalid copies are released afterwards.

use super::cleaner::Moved;
use super::fetch::Source;
use super::{CLEANER_STREAM, Core, add};
use crate::arena::BLOCK;
use crate::nodes::{self, Node, State};
use crate::zones::{Replica, Zone};
use block::{Error, Result};
use logkit::pool::Usage;
use runtime::Instant;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Interval between two passes over the zones.
const LOOK: Duration = Duration::from_millis(200);
/// Longest pause before a zone that lacks pages is read again, unless other copies become readable.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time after which the copies of a node that is down are made on other nodes.
const RECOPY_AFTER: Duration = Duration::from_secs(5);

/// Outcome of making a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// The copy has every page that the map names.
    Whole,
    /// The readable copies lack pages: existing copies must be kept.
    Lacking,
}

/// Pause of a zone whose readable copies lack pages.
#[derive(Debug)]
struct Pause {
    since: Instant,
    length: Duration,
    generation: u32,
    sources: SmallVec<[Source; 4]>,
}

impl Pause {
    fn lasts(&self) -> bool {
        self.since.elapsed() < self.length
    }
}

impl Core {
    /// Makes missing copies, until the device is closed.
    pub(crate) async fn run_copies(self: Rc<Self>) {
        let mut pauses = BTreeMap::new();
        while !self.is_closing.get() {
            for stream in 0..=CLEANER_STREAM {
                self.leave_zone_without_copy(stream);
            }
            let mut wanted = Vec::new();
            self.zones.each(|(number, zone)| {
                let is_idle = zone.blocks > 0 && zone.is_closed && zone.pending == 0;
                if is_idle && (self.lacks_backup(zone) || self.lacks_copy(zone)) {
                    wanted.push(number as u32);
                }
            });
            pauses.retain(|zone, pause| wanted.binary_search(zone).is_ok() && self.is_paused(*zone, pause));
            let mut damaged = Vec::new();
            for zone in wanted {
                if pauses.get(&zone).is_some_and(Pause::lasts) {
                    continue;
                }
                if self.is_closing.get() {
                    return;
                }
                for outcome in [self.back_up(zone).await, self.copy_zone(zone).await] {
                    match outcome {
                        Ok(Filled::Whole) => {}
                        Ok(Filled::Lacking) => damaged.push(zone),
                        Err(error) => tracing::debug!("zone {zone}: {error}"),
                    }
                }
            }
            for zone in self.rescue(damaged).await {
                let length = pauses.get(&zone).map_or(LOOK, |pause| (2 * pause.length).min(MAX_PAUSE));
                pauses.insert(zone, self.pause(zone, length));
            }
            runtime::sleep(LOOK).await;
        }
    }

    /// A pause of a zone, from now on.
    fn pause(&self, zone: u32, length: Duration) -> Pause {
        let (generation, sources) = (self.zones.generation(zone), self.readable(zone));
        Pause { since: runtime::now(), length, generation, sources }
    }

    /// Whether a zone has the contents and the readable copies with which its pause began.
    fn is_paused(&self, zone: u32, pause: &Pause) -> bool {
        (self.zones.generation(zone), self.readable(zone)) == (pause.generation, pause.sources.clone())
    }

    /// Readable copies of a zone, in an order that doesn't depend on the latency of nodes.
    fn readable(&self, zone: u32) -> SmallVec<[Source; 4]> {
        let mut sources = self.sources(zone);
        sources.sort_unstable();
        sources
    }

    /// Moves pages of these zones that any copy has to other zones. Pages that are certainly in no copy are
    /// lost. Returns the zones with pages that are left, which may be readable later.
    async fn rescue(self: &Rc<Self>, mut zones: Vec<u32>) -> Vec<u32> {
        zones.dedup();
        zones.retain(|zone| self.idle(*zone).is_some());
        let set_copied = |zone: u32, is_copied| {
            self.zones.change(&self.arena, zone, |entry| entry.is_copied = is_copied);
        };
        // No zone is reset before its pages are marked as lost: otherwise new pages could take their places.
        zones.iter().for_each(|zone| set_copied(*zone, true));
        let (mut lost, mut left) = (Vec::new(), Vec::new());
        for zone in &zones {
            match self.move_pages(*zone).await {
                Ok(Moved::All) => {}
                Ok(Moved::Partly) => left.push(*zone),
                Ok(Moved::LackingPages) => lost.push(*zone),
                Err(error) => {
                    tracing::debug!("zone {zone}: {error}");
                    left.push(*zone);
                }
            }
        }
        self.lose(&lost).await;
        zones.iter().for_each(|zone| set_copied(*zone, false));
        self.work.notify_all();
        left
    }

    /// Whether a copy is valid: it is whole, and its node is up, or down for less than [`RECOPY_AFTER`], and
    /// isn't draining.
    fn is_valid(&self, copy: &Replica) -> bool {
        let node = &self.nodes[usize::from(copy.node)];
        copy.is_whole && node.state() != State::Draining && !node.is_down_for(RECOPY_AFTER)
    }

    pub(crate) fn lacks_copy(&self, zone: &Zone) -> bool {
        zone.copies.iter().filter(|copy| self.is_valid(copy)).count() < self.settings.copies
    }

    fn lacks_backup(&self, zone: &Zone) -> bool {
        !zone.has_backup && self.backup.as_ref().is_some_and(Node::is_up)
    }

    /// Number of copies of a zone that are known to be whole now, including the one on the backup device.
    pub(crate) fn sure_copies(&self, zone: &Zone) -> usize {
        let is_sure = |node: &Node| node.is_up() && node.is_checked();
        let copies =
            zone.copies.iter().filter(|copy| copy.is_whole && is_sure(&self.nodes[usize::from(copy.node)]));
        copies.count() + usize::from(zone.has_backup && self.backup.as_ref().is_some_and(is_sure))
    }

    /// Whether a page that is written now gets a second copy.
    pub(crate) fn can_protect(&self) -> bool {
        let up = self.nodes.iter().filter(|node| node.state() == State::Up).count();
        let on_backup = self.backup.as_ref().is_some_and(Node::is_up);
        up.min(self.settings.copies) + usize::from(on_backup) > 1
    }

    /// Returns a zone if none of its blocks is being written or moved.
    fn idle(&self, zone: u32) -> Option<Zone> {
        let known = self.zones.get(zone);
        (self.pool.get(zone).usage == Usage::Full && known.pending == 0).then_some(known)
    }

    /// Chooses a node for one more copy of a zone.
    pub(crate) fn node_for_copy(&self, zone: &Zone) -> Option<u8> {
        let valid = zone.copies.iter().filter(|copy| self.is_valid(copy));
        let others: SmallVec<[u8; 4]> = valid.map(|copy| copy.node).collect();
        nodes::choose(&self.nodes, &others, u32::MAX, &mut self.random.borrow_mut())
    }

    /// Makes one more copy of a zone, and releases invalid ones.
    async fn copy_zone(self: &Rc<Self>, zone: u32) -> Result<Filled> {
        let Some(known) = self.idle(zone).filter(|known| self.lacks_copy(known)) else {
            return Ok(Filled::Whole);
        };
        let node = self.node_for_copy(&known).ok_or_else(|| self.no_region())?;
        let region = self.nodes[usize::from(node)].reserve_region().ok_or_else(|| self.no_region())?;
        self.zones.change(&self.arena, zone, |entry| entry.is_copied = true);
        let outcome = self.fill_copy(zone, known.blocks, (Some(node), region)).await;
        let mut released: SmallVec<[(u8, u32); 4]> = SmallVec::new();
        self.zones.change(&self.arena, zone, |entry| {
            entry.is_copied = false;
            match outcome {
                Ok(Filled::Whole) => {
                    entry.copies.retain(|copy| {
                        let is_valid = self.is_valid(copy);
                        if !is_valid {
                            released.push((copy.node, copy.region));
                        }
                        is_valid
                    });
                    entry.copies.push(Replica { node, region, is_whole: true });
                }
                Ok(Filled::Lacking) | Err(_) => released.push((node, region)),
            }
        });
        for (node, region) in released {
            self.nodes[usize::from(node)].free_region(region).await;
        }
        self.work.notify_all();
        self.freed.notify_all();
        outcome.inspect(|filled| add(&self.counters.copied, u64::from(*filled == Filled::Whole)))
    }

    /// Writes a zone to the backup device if that lacks it.
    async fn back_up(self: &Rc<Self>, zone: u32) -> Result<Filled> {
        let Some(known) = self.idle(zone).filter(|known| self.lacks_backup(known)) else {
            return Ok(Filled::Whole);
        };
        self.zones.change(&self.arena, zone, |entry| entry.is_copied = true);
        let outcome = self.fill_copy(zone, known.blocks, (None, zone)).await;
        self.zones.change(&self.arena, zone, |entry| {
            (entry.is_copied, entry.has_backup) = (false, outcome == Ok(Filled::Whole));
        });
        self.work.notify_all();
        outcome
    }

    /// Copies the blocks of a zone in which pages are live.
    ///
    /// # Errors
    /// Errors of the nodes; [`block::Error::Disconnected`] if the target's connection was lost meanwhile, so
    /// that it may lack earlier blocks.
    async fn fill_copy(self: &Rc<Self>, zone: u32, blocks: u32, target: Source) -> Result<Filled> {
        let node = self.node_of(target);
        let epoch = node.epoch();
        for block in self.blocks_of(zone, blocks) {
            if self.block_live(block) == 0 {
                continue;
            }
            let Some(bytes) = self.whole_block(block).await? else { return Ok(Filled::Lacking) };
            let payload = block::Data::copy_of(&bytes).into();
            node.write(target.1, self.zone_of(block).1, payload).await?;
            add(&self.counters.node_written, BLOCK as u64);
        }
        match node.epoch() == epoch && node.is_up() {
            true => Ok(Filled::Whole),
            false => Err(Error::disconnected(format!("node {}: its connection was lost", node.name))),
        }
    }

    /// Bytes of a block from a copy that has every page that the map names there; `None` if no readable copy
    /// has.
    async fn whole_block(&self, block: u64) -> Result<Option<Vec<u8>>> {
        for copy in 0..self.sources(self.zone_of(block).0).len().max(1) {
            let bytes = self.block(block, copy).await?;
            if self.live_granules(block, &bytes) == self.block_live(block) {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}
