//! Zones of the tables of a shard: appends of pieces and edits to the open zone of a class, and the classes
//! of new tables.

use super::Core;
use super::open_zones::OpenZones;
use crate::key_version::Timestamp;
use crate::log_entry::KvEntry;
use crate::policy::{Lifetimes, NewTable, Placement};
use crate::tree::manifest::TableId;
use block::{Data, Result, ZoneBlock};
use logkit::Mover;
use runtime::sync::{Permit, Semaphore};
use std::cell::RefCell;
use std::rc::Rc;

/// A piece to be moved: table, first block, place and data.
pub(super) type Move = (TableId, u32, ZoneBlock, Data);

/// Zones of the tables of a shard.
pub(crate) struct TableZones {
    /// Permit for the open zones; held while a record is appended.
    permits: Rc<Semaphore>,
    zones: RefCell<Mover>,
    open_zones: OpenZones,
    placement: Box<dyn Placement>,
    lifetimes: RefCell<Lifetimes>,
}

impl TableZones {
    /// Returns the state without open zones.
    pub fn new(classes: u8, open_zones: OpenZones, placement: Box<dyn Placement>) -> Self {
        TableZones {
            permits: Semaphore::new(1),
            zones: RefCell::new(Mover::new(classes)),
            open_zones,
            placement,
            lifetimes: RefCell::default(),
        }
    }

    /// Waits for the permit to append.
    pub async fn permit(&self) -> Permit {
        self.permits.acquire(1).await
    }

    /// Notes the end of a table of a level that was written at `created`.
    pub fn died(&self, level: u8, created: Timestamp, now: Timestamp) {
        self.lifetimes.borrow_mut().died(level.into(), created, now);
    }
}

impl Core {
    /// Waits until blocks can be appended to tables of a class: the open zone of the class has space, or more
    /// than `kept` zones are free. The permit excludes other appends to tables.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone can be freed; the failure of the log.
    pub(super) async fn space_for_tables(&self, kept: u32, class: u8, blocks: u32) -> Result<Permit> {
        let class = self.table_zones.open_zones.class(class);
        loop {
            let permit = self.table_zones.permit().await;
            self.check_running()?;
            if self.kit.pool.free() > kept
                || self.table_zones.zones.borrow().has_room(&self.kit.layout, class, blocks)
            {
                return Ok(permit);
            }
            drop(permit);
            if let Some(error) = self.kit.stuck() {
                return Err(error);
            }
            let freed = self.kit.events.freed.notified();
            self.kit.events.cleaner.notify_all();
            freed.await;
        }
    }

    /// Class of the zone for a new table.
    pub(crate) fn class_of(&self, level: usize, oldest: Option<Timestamp>) -> u8 {
        let last = self.tables.levels().0.len().saturating_sub(1);
        let due = oldest.and_then(|oldest| self.compactions.policy().due(level, last, oldest));
        self.table_zones.placement.place(
            &NewTable { level, due },
            &self.table_zones.lifetimes.borrow(),
            self.erasure.now(),
        )
    }

    /// Appends moves of blocks of this shard's tables.
    pub(crate) async fn move_here(self: Rc<Self>, class: u8, moves: Vec<Move>) -> Result<()> {
        let block = self.kit.layout.block_bytes();
        let log_entries = moves.into_iter().filter_map(|(table, first, from, data)| {
            Some(KvEntry::piece(self.tables.file(table)?, first, Some(from), data.into(), block))
        });
        let log_entries: Vec<KvEntry> = log_entries.collect();
        self.append_tables(class, log_entries).await
    }

    /// Appends entries of tables; one task appends at a time.
    pub(crate) async fn append_tables(self: &Rc<Self>, class: u8, log_entries: Vec<KvEntry>) -> Result<()> {
        let permit = self.table_zones.permit().await;
        self.append_alone(&permit, class, log_entries).await
    }

    /// Appends entries of tables; the caller holds the permit to append.
    pub(crate) async fn append_alone(
        self: &Rc<Self>,
        _permit: &Permit,
        class: u8,
        log_entries: Vec<KvEntry>,
    ) -> Result<()> {
        // The zone may have a class of another placement policy, with which the store was open before.
        let class = self.table_zones.open_zones.class(class.min(self.table_zones.placement.classes() - 1));
        let mut zones = self.table_zones.zones.replace(Mover::new(0));
        let outcome = zones.append(self, class, log_entries).await;
        zones.answer(&**self).await;
        self.table_zones.zones.replace(zones);
        outcome
    }

    /// Seals the open zones of tables; the caller holds the permit to append.
    pub(crate) async fn close_zones(&self) {
        let mut zones = self.table_zones.zones.borrow_mut().take_open();
        zones.close(self).await;
    }

    /// Seals the open zones that a task asked for; the caller holds the permit to append.
    pub(super) async fn seal_asked_zones(&self) {
        let mut zones = self.table_zones.zones.borrow_mut().take_asked(self);
        zones.close(self).await;
    }

    /// Seals those of the zones that are open.
    pub(super) async fn seal_zones(&self, zones: impl Iterator<Item = u32>) {
        let _permit = self.table_zones.permit().await;
        let mut open = self.table_zones.zones.replace(Mover::new(0));
        for zone in zones {
            open.seal(self, zone).await;
        }
        self.table_zones.zones.replace(open);
    }

    /// Seals all open zones. No append to tables may follow.
    pub(crate) async fn end_zones(&self) {
        let mut zones = self.table_zones.zones.replace(Mover::new(0));
        zones.close(self).await;
    }
}
