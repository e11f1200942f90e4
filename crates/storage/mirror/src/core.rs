//! State of a mirror on its home shard: one owner for each concern, and the decisions that need several of
//! them.
//!
//! The modules of this folder work on this state: [`change`], [`flush`] and [`read`] for clients,
//! [`membership`] (superblocks), [`bitmap`] and [`keeper`] (resync, scrubs), [`begin`] after opening,
//! [`publish`] for the other shards, [`orders`] for operators.
//!
//! No change and no flush is acknowledged while a faulty leg isn't durably recorded on the others.

mod begin;
mod bitmap;
mod change;
mod flush;
mod keeper;
mod membership;
pub mod orders;
mod publish;
mod read;

use crate::assembly::Assembly;
use crate::behind::Behind;
use crate::chunks::Chunks;
use crate::copies::Copies;
use crate::layout::Layout;
use crate::leg::{Leg, Mask, each};
use crate::loss::Loss;
use crate::members::Members;
use crate::settings::Setup;
use crate::shared::Shared;
use crate::superblocks::Superblocks;
use crate::upkeep::Upkeep;
use block::{DeviceGeometry, Result};
use runtime::range_lock::{RangeGuard, RangeLock};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// State of a mirror.
pub struct Core {
    setup: Setup,
    /// State that other shards read.
    shared: Arc<Shared>,
    /// Legs that the stack names, in its order.
    legs: Vec<Leg>,
    members: Members,
    superblocks: Superblocks,
    bitmap: bitmap::Bitmap,
    chunks: Chunks,
    copies: Copies,
    loss: Loss,
    /// Locks of the blocks of changes and copies.
    locks: RangeLock,
    /// Outstanding write-behind writes.
    behind: Rc<Behind>,
    upkeep: Upkeep,
}

impl Core {
    /// Creates the state from the result of opening.
    pub fn new(
        setup: Setup,
        geometry: DeviceGeometry,
        legs: Vec<Leg>,
        assembly: &Assembly,
        trusted: Mask,
        superblocks: Superblocks,
    ) -> Rc<Self> {
        Rc::new(Core {
            shared: Arc::new(Shared::new(geometry, legs.len())),
            legs,
            members: Members::new(assembly, setup.settings.write_mostly, trusted),
            superblocks,
            bitmap: bitmap::Bitmap::new(),
            chunks: Chunks::new(&setup.layout),
            copies: Copies::default(),
            loss: Loss::default(),
            locks: RangeLock::default(),
            behind: Behind::new(setup.settings.write_behind, setup.settings.behind_bytes),
            upkeep: Upkeep::new(),
            setup,
        })
    }

    /// State that other shards read.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Settings, layout and identity, which are fixed while the mirror is open.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Legs that the stack names, in its order.
    pub fn legs(&self) -> &[Leg] {
        &self.legs
    }

    /// Legs that may lag; none if no other active leg is left.
    pub fn lagging(&self) -> Mask {
        let lag = self.lanes() & !(1 << self.members.source());
        if self.members.active() & !lag == 0 { 0 } else { lag }
    }

    /// Legs on which changes are queued in lanes.
    pub fn lanes(&self) -> Mask {
        if self.setup.settings.write_behind == 0 { 0 } else { self.setup.settings.write_mostly }
    }

    /// Length of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        Layout::page(self.setup.layout.block_size) as usize
    }

    /// Length of these blocks in bytes.
    pub fn bytes_of(&self, blocks: &Range<u64>) -> usize {
        ((blocks.end - blocks.start) << self.setup.layout.block_size.shift()) as usize
    }

    /// All blocks.
    pub fn all_blocks(&self) -> Range<u64> {
        0..self.shared.geometry.blocks.0
    }

    /// Waits for changes in flight, makes them durable on all legs, and clears the bits of chunks that are
    /// equal.
    ///
    /// # Errors
    /// The last active leg's error; the error of a loss.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        self.upkeep.stop().await;
        drop(self.hold(&self.all_blocks()).await);
        self.behind.drained().await;
        self.write_superblocks().await?;
        self.clear_quiet(true).await?;
        self.make_durable(self.members.active()).await?;
        self.write_superblocks().await?;
        self.loss.check()
    }

    /// Locks these blocks on all legs, after all changes that were submitted before.
    pub async fn hold(&self, blocks: &Range<u64>) -> Holding {
        let mut held = vec![self.locks.ask(blocks.clone()).await];
        for leg in each(self.lanes()) {
            held.push(self.legs[leg].lane.ask(blocks.clone()).await);
        }
        Holding { _held: held }
    }
}

/// Blocks that are locked against changes and copies until this is dropped.
pub struct Holding {
    _held: Vec<RangeGuard>,
}
