//! Monitoring of nodes, with a task for each: whether the node answers even without requests, whether it
//! reclaims memory, and whether it still has its contents after a lost connection. Nodes that are down are
//! connected again, with growing pauses.

use super::Core;
use super::fetch::Source;
use crate::nodes::Node;
use crate::slot::{PAGE, Slot};
use crate::staging::Use;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Interval between two checks of a node.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Number of blocks of a node that are checked at a time.
const BLOCKS_AT_ONCE: usize = 16;

impl Core {
    /// Monitors a node, or the backup device, until the device is closed.
    pub(crate) async fn run_node(self: Rc<Self>, number: Option<u8>) {
        let node = self.node_of((number, 0));
        let mut pause = LOOK;
        while !self.is_closing.get() {
            if node.is_up() {
                pause = LOOK;
                node.ask().await;
                node.probe().await;
                if node.is_up() && !node.is_checked() {
                    self.look_at(number).await;
                }
            } else if self.reconnect(node).await {
                continue;
            } else {
                pause = (pause * 2).min(MAX_PAUSE);
            }
            runtime::sleep(pause).await;
        }
    }

    /// Connects to a node that is down. Returns whether it answers.
    async fn reconnect(&self, node: &Node) -> bool {
        let since = node.down_since();
        let is_open = node.open().await.is_ok();
        if is_open {
            let seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            tracing::warn!("node {} answers again, after {seconds:.1} s", node.name);
            self.stuck.replace(None);
            self.work.notify_all();
            self.freed.notify_all();
        }
        is_open
    }

    /// Checks whether a node has the data that was written to it before its connection was lost: copies that
    /// lack a block are made again. Every block with live pages is checked, since some may have been written
    /// before a restart and some after it.
    async fn look_at(&self, number: Option<u8>) {
        let node = self.node_of((number, 0));
        let mut there: Vec<(u32, u32, u64)> = Vec::new();
        self.zones.each(|(zone, known)| {
            let zone = zone as u32;
            let region = match number {
                Some(number) => {
                    let mut copies = known.copies.iter().filter(|copy| copy.node == number && copy.is_whole);
                    copies.next().map(|copy| copy.region)
                }
                None => known.has_backup.then_some(zone),
            };
            let blocks = self.blocks_of(zone, known.blocks).filter(|block| self.is_on_nodes(*block));
            there.extend(
                region.into_iter().flat_map(|region| blocks.clone().map(move |block| (zone, region, block))),
            );
        });
        let lost = Cell::new(0_u64);
        let look = |(zone, region, block): (u32, u32, u64)| {
            let lost = &lost;
            async move {
                let is_whole = self.has_block(zone, (number, region), block).await;
                if is_whole == Some(false) && self.has_copy(zone, (number, region)) {
                    self.set_not_whole(zone, (number, region));
                    lost.set(lost.get() + 1);
                }
            }
        };
        runtime::join_limited(BLOCKS_AT_ONCE, there.into_iter().map(look)).await;
        if node.is_up() {
            node.set_checked(true);
        }
        if lost.get() > 0 {
            tracing::warn!("node {} has lost its memory: {} groups are copied again", node.name, lost.get());
            self.work.notify_all();
        }
    }

    /// Whether a block has live pages and was written to the nodes.
    fn is_on_nodes(&self, block: u64) -> bool {
        let staging = self.staging.borrow();
        let is_written =
            staging.of_block(block).is_none_or(|staged| staging.get(staged).usage == Use::Written);
        is_written && self.block_live(block) > 0
    }

    /// Whether a zone has a whole copy in this region.
    fn has_copy(&self, zone: u32, (number, region): Source) -> bool {
        let known = self.zones.get(zone);
        match number {
            Some(node) => known
                .copies
                .iter()
                .any(|copy| (copy.node, copy.region, copy.is_whole) == (node, region, true)),
            None => known.has_backup,
        }
    }

    /// Whether a node has a block, judged by its first slot; `None` if that is unknown.
    async fn has_block(&self, zone: u32, source: Source, block: u64) -> Option<bool> {
        let (node, region) = (self.node_of(source), source.1);
        let generation = self.zones.generation(zone);
        let found = match node.read(region, self.zone_of(block).1, 2 * PAGE).await {
            Ok(found) => found,
            Err(_) if node.is_up() => {
                self.set_damaged(zone, source);
                return None;
            }
            Err(_) => return None,
        };
        // The result is unknown if the zone was reset, or all pages of the block were rewritten, meanwhile.
        let is_there = Slot::parse(found.filled(), generation).is_some();
        let is_same = self.zones.generation(zone) == generation && self.is_on_nodes(block);
        is_same.then_some(is_there)
    }
}
