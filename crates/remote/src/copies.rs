//! Copies that are made again: of zones of which a copy was lost, or is on a node that reclaims its memory; and nodes that come back.

use crate::arena::BLOCK;
use crate::core::{Core, add};
use crate::fetch::Source;
use crate::nodes::{self, Node, State};
use crate::slot::{PAGE, Slot};
use crate::staging::Use;
use crate::zones::{Copy, Zone};
use block::Result;
use logkit::pool::Usage;
use smallvec::SmallVec;
use std::rc::Rc;
use std::time::Duration;

/// Time between two looks at the nodes.
const LOOK: Duration = Duration::from_millis(200);
/// Time after which the copies on a node that is down are made again elsewhere.
const RECOPY_AFTER: Duration = Duration::from_secs(5);

impl Core {
    /// Asks nodes whether they reclaim memory, and connects to those that are down, until the device is closed.
    pub(crate) async fn run_nodes(self: Rc<Self>) {
        while !self.is_closing.get() {
            for (number, node) in (0..).zip(&self.nodes) {
                if node.is_up() {
                    node.ask().await;
                } else if self.reconnect(node).await {
                    self.look_at(number).await;
                }
            }
            if let Some(backup) = self.backup.as_ref().filter(|backup| !backup.is_up()) {
                self.reconnect(backup).await;
            }
            runtime::sleep(LOOK).await;
        }
    }

    /// Connects to a node that is down. Returns whether it answers.
    async fn reconnect(&self, node: &Node) -> bool {
        let is_open = node.open().await.is_ok();
        if is_open {
            tracing::info!("node {} answers again", node.name);
            self.stuck.replace(None);
            self.work.notify_all();
            self.freed.notify_all();
        }
        is_open
    }

    /// Makes copies again that are missing, until the device is closed.
    pub(crate) async fn run_copies(self: Rc<Self>) {
        while !self.is_closing.get() {
            let mut wanted = Vec::new();
            self.zones.each(|(number, zone)| {
                let is_idle = zone.blocks > 0 && zone.is_closed && zone.pending == 0;
                if is_idle && (self.lacks_backup(zone) || self.lacks_copy(zone)) {
                    wanted.push(number as u32);
                }
            });
            for zone in wanted {
                if self.is_closing.get() {
                    return;
                }
                for outcome in [self.back_up(zone).await, self.copy_zone(zone).await] {
                    outcome.unwrap_or_else(|error| tracing::debug!("zone {zone}: {error}"));
                }
            }
            runtime::sleep(LOOK).await;
        }
    }

    /// Whether a copy is valid: it is whole, and its node is up, or down for less than [`RECOPY_AFTER`], and isn't draining.
    fn is_valid(&self, copy: &Copy) -> bool {
        let node = &self.nodes[usize::from(copy.node)];
        copy.is_whole && node.state() != State::Draining && !node.is_down_for(RECOPY_AFTER)
    }

    fn lacks_copy(&self, zone: &Zone) -> bool {
        zone.copies.iter().filter(|copy| self.is_valid(copy)).count() < self.settings.copies
    }

    fn lacks_backup(&self, zone: &Zone) -> bool {
        !zone.has_backup && self.backup.as_ref().is_some_and(Node::is_up)
    }

    /// A zone, if none of its blocks is written or moved now.
    fn idle(&self, zone: u32) -> Option<Zone> {
        let known = self.zones.get(zone);
        (self.pool.get(zone).usage == Usage::Full && known.pending == 0).then_some(known)
    }

    /// Makes one more copy of a zone, and releases those that aren't valid.
    async fn copy_zone(self: &Rc<Self>, zone: u32) -> Result<()> {
        let Some(known) = self.idle(zone).filter(|known| self.lacks_copy(known)) else { return Ok(()) };
        let others: SmallVec<[u8; 4]> =
            known.copies.iter().filter(|copy| self.is_valid(copy)).map(|copy| copy.node).collect();
        let chosen = nodes::choose(&self.nodes, &others, &mut self.random.borrow_mut());
        let node = chosen.ok_or_else(|| self.no_region())?;
        let region = self.nodes[usize::from(node)].take_region().ok_or_else(|| self.no_region())?;
        self.zones.change(&self.arena, zone, |entry| entry.is_copied = true);
        let outcome = self.fill_copy(zone, known.blocks, (Some(node), region)).await;
        let mut released: SmallVec<[(u8, u32); 4]> = SmallVec::new();
        self.zones.change(&self.arena, zone, |entry| {
            entry.is_copied = false;
            match outcome {
                Ok(()) => {
                    entry.copies.retain(|copy| {
                        let is_valid = self.is_valid(copy);
                        if !is_valid {
                            released.push((copy.node, copy.region));
                        }
                        is_valid
                    });
                    entry.copies.push(Copy { node, region, is_whole: true });
                }
                Err(_) => released.push((node, region)),
            }
        });
        for (node, region) in released {
            self.nodes[usize::from(node)].free_region(region).await;
        }
        self.work.notify_all();
        self.freed.notify_all();
        outcome.inspect(|()| add(&self.counters.copied, 1))
    }

    /// Writes a zone to the backup device that isn't there.
    async fn back_up(self: &Rc<Self>, zone: u32) -> Result<()> {
        let Some(known) = self.idle(zone).filter(|known| self.lacks_backup(known)) else { return Ok(()) };
        self.zones.change(&self.arena, zone, |entry| entry.is_copied = true);
        let outcome = self.fill_copy(zone, known.blocks, (None, zone)).await;
        self.zones.change(&self.arena, zone, |entry| {
            (entry.is_copied, entry.has_backup) = (false, outcome.is_ok());
        });
        self.work.notify_all();
        outcome
    }

    /// Copies the blocks of a zone.
    ///
    /// # Errors
    /// [`block::Error::Io`] if the source lacks a page that the map names: the copies that exist must stay then.
    async fn fill_copy(self: &Rc<Self>, zone: u32, blocks: u32, target: Source) -> Result<()> {
        let mut live = 0;
        for block in self.blocks_of(zone, blocks) {
            let bytes = self.block(block, 0).await?;
            live += self.live_granules(block, &bytes);
            let payload = block::Data::copy_of(&bytes).into();
            self.node_of(target).write(target.1, self.zone_of(block).1, payload).await?;
            add(&self.counters.node_written, BLOCK as u64);
        }
        match live < self.pool.live(zone) {
            true => Err(block::Error::io(format!("zone {zone}: the copy that was read lacks pages"))),
            false => Ok(()),
        }
    }

    /// Looks whether a node that answers again has what it had: copies of which it has nothing are made again.
    async fn look_at(&self, number: u8) {
        let node = &self.nodes[usize::from(number)];
        let mut there = Vec::new();
        self.zones.each(|(zone, known)| {
            let copies = known.copies.iter().filter(|copy| copy.node == number && copy.is_whole);
            there.extend(copies.filter(|_| known.blocks > 0).map(|copy| (zone as u32, copy.region)));
        });
        for (zone, region) in there {
            let staged = self.staging.borrow().place(self.blocks_of(zone, 0).start);
            if staged.is_some_and(|staged| self.staging.borrow().get(staged).usage != Use::Written) {
                continue;
            }
            let generation = self.zones.generation(zone);
            let Ok(found) = node.read(region, 0, 2 * PAGE).await else { return };
            let is_there = Slot::parse(found.filled(), generation).is_some();
            if !is_there && self.zones.generation(zone) == generation {
                self.set_not_whole(zone, (Some(number), region));
            }
        }
    }
}
