//! A mirror as a device: a part, and a handle per shard.
//!
//! A shard reads from a leg directly while legs are equal and none of the readable ones lags; other reads,
//! and retries after errors, go to the home shard. Changes and flushes are carried out on the home shard.

use crate::KIND;
use crate::balance::{Timed, choose, probe};
use crate::core::Core;
use crate::leg::{Change, LegDevice, Mask};
use crate::message::Message;
use crate::missing::{open_leg, stand_in};
use crate::open::{Plan, open};
use crate::shared::Shared;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Extent,
    Part, PartUse, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::{Home, LimitedPart};
use stack::Tell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A mirror.
pub struct MirrorPart {
    home: Home<Core>,
    shared: Arc<Shared>,
    /// Legs, each with the error by which it couldn't be opened.
    legs: Vec<(Arc<LimitedPart>, Option<Error>)>,
    layout: crate::layout::Layout,
    first_leg: bool,
}

impl MirrorPart {
    /// Formats the mirror if requested, and opens it; the calling shard becomes the home shard.
    ///
    /// # Errors
    /// An error with the reason, and the remedy.
    pub async fn open(plan: Plan) -> Result<Self> {
        let core = open(plan).await?;
        let legs = core.legs().iter().map(|leg| (leg.limited.clone(), leg.missing.clone())).collect();
        core.start();
        let (shared, setup) = (core.shared().clone(), core.setup());
        let (layout, first_leg) = (setup.layout, setup.settings.first_leg);
        Ok(MirrorPart { home: Home::here(core), shared, legs, layout, first_leg })
    }

    /// Legs that could be opened.
    fn present(&self) -> impl Iterator<Item = &Arc<dyn DevicePart>> {
        self.legs.iter().filter(|(_, missing)| missing.is_none()).map(|(leg, _)| leg.part())
    }
}

impl Part for MirrorPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let legs: Vec<Option<u64>> = self.legs.iter().map(|(leg, _)| leg.part().only_in_cache()).collect();
        Call::ready(self.shared.status(&legs))
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(Core::close))
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        let used = self.shared.used();
        let its = self.legs.iter().enumerate().filter(|(_, (leg, _))| leg.is(below));
        let uses = its.map(|(leg, (limited, _))| match () {
            () if limited.is_stalled() => PartUse::Stalled,
            () if used & 1 << leg == 0 => PartUse::Unneeded,
            () => PartUse::Needed,
        });
        uses.max().unwrap_or(PartUse::Needed)
    }
}

impl Tell for MirrorPart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        Call::new(self.home.with(|core: Rc<Core>| async move { core.carry_out(message).await }))
    }
}

impl DevicePart for MirrorPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.present().all(|leg| leg.keeps_acknowledged())
    }

    fn keeps_flushed(&self) -> bool {
        self.present().all(|leg| leg.keeps_flushed())
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let mut legs = Vec::with_capacity(self.legs.len());
            for (leg, missing) in &self.legs {
                let device = match missing {
                    Some(error) => stand_in(leg.part(), error),
                    // Reads through a leg that can't be opened here go to the home shard.
                    None => open_leg(leg).await.0,
                };
                legs.push(LegDevice::new(device, self.layout.block_size, self.layout.data_offset));
            }
            let core = if self.home.is_here() { Some(self.home.get()?) } else { None };
            Ok(Rc::new(Handle {
                shared: self.shared.clone(),
                home: self.home.clone(),
                core,
                legs: legs.into(),
                first_leg: self.first_leg,
            }) as Rc<dyn Device>)
        })
    }
}

/// The handle of one shard.
struct Handle {
    shared: Arc<Shared>,
    home: Home<Core>,
    /// State of the mirror; set on the home shard.
    core: Option<Rc<Core>>,
    legs: Rc<[LegDevice]>,
    first_leg: bool,
}

fn blocks_of(range: BlockRange) -> Range<u64> {
    range.start.0..range.end().0
}

impl Handle {
    async fn read_at_home(
        &self,
        blocks: Range<u64>,
        buffer: Buffer,
        failed: Option<(usize, Error)>,
    ) -> ReadOutcome {
        if let Some(core) = &self.core {
            return core.clone().read(blocks, buffer, failed).await;
        }
        let length = buffer.len();
        let read = move |core: Rc<Core>| async move { Ok(core.read(blocks, buffer, failed).await) };
        match self.home.with(read).await {
            Ok(outcome) => outcome,
            Err(error) => (Err(error), Buffer::new(length)),
        }
    }

    /// Chooses a leg to read from, and now and then probes another one.
    fn choose(&self, among: Mask, blocks: &Range<u64>) -> usize {
        if self.first_leg || among & (among - 1) == 0 {
            return among.trailing_zeros() as usize;
        }
        let chosen = choose(&self.shared.legs, among, blocks.start);
        let reads = self.shared.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(probed) = probe(reads, among, chosen) {
            self.probe(probed, blocks.clone());
        }
        chosen
    }

    /// Reads from a leg to measure its latency; the data is dropped.
    fn probe(&self, leg: usize, blocks: Range<u64>) {
        let (legs, shared) = (self.legs.clone(), self.shared.clone());
        let read = async move {
            let counters = &shared.legs[leg];
            let timed = Timed::begin(counters, counters.next.load(Ordering::Relaxed));
            let bytes = shared.geometry.block_size.bytes() * (blocks.end - blocks.start);
            let (outcome, _) = legs[leg].read(blocks.start, Buffer::new(bytes as usize)).await;
            timed.end(&outcome);
        };
        runtime::spawn(read).detach();
    }

    fn change(&self, range: BlockRange, change: Change, durability: Durability) -> Call<'_, Result<()>> {
        let blocks = blocks_of(range);
        match &self.core {
            Some(core) => runtime::carry(core.clone().change(change, blocks, durability)),
            None => {
                let work = move |core: Rc<Core>| async move { core.change(change, blocks, durability).await };
                Call::new(self.home.with(work))
            }
        }
    }

    fn check_change(&self, range: BlockRange) -> Result<()> {
        self.shared.geometry.check_writable()?;
        self.shared.geometry.check(range)
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        let blocks = match self.shared.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => blocks_of(range),
            other => return Call::ready((other.map(drop), buffer)),
        };
        let readable = self.shared.readable.load(Ordering::Acquire);
        if readable == 0 {
            return Call::new(self.read_at_home(blocks, buffer, None));
        }
        let leg = self.choose(readable, &blocks);
        Call::new(async move {
            let timed = Timed::begin(&self.shared.legs[leg], blocks.end);
            let (outcome, buffer) = self.legs[leg].read(blocks.start, buffer).await;
            timed.end(&outcome);
            match outcome {
                Ok(()) => (Ok(()), buffer),
                Err(error) => {
                    tracing::warn!("leg {leg} of a mirror: {error}");
                    self.read_at_home(blocks, buffer, Some((leg, error))).await
                }
            }
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.shared.geometry.writable_range(at, payload.len()) {
            Ok(range) if !range.is_empty() => self.change(range, Change::Write(payload), durability),
            other => Call::ready(other.map(drop)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        match &self.core {
            Some(core) => runtime::carry(core.clone().flush()),
            None => Call::new(self.home.with(|core: Rc<Core>| async move { core.flush().await })),
        }
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        match self.check_change(range) {
            Ok(()) if !range.is_empty() => self.change(range, Change::Discard, Durability::Visible),
            other => Call::ready(other),
        }
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.check_change(range) {
            Ok(()) if !range.is_empty() => self.change(range, Change::Zeroes(mode), durability),
            other => Call::ready(other),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(async move {
            self.shared.geometry.check(range)?;
            let readable = self.shared.readable.load(Ordering::Acquire);
            if range.is_empty() || readable == 0 {
                // While legs may differ, all blocks are reported as data.
                let extent = Extent { range, state: block::ExtentState::Data };
                return Ok(if range.is_empty() { Vec::new() } else { vec![extent] });
            }
            let leg = &self.legs[readable.trailing_zeros() as usize];
            match leg.extents(&blocks_of(range)).await {
                Ok(found) => Ok(leg.in_own_blocks(range, &found)),
                // Another leg has the data.
                Err(_) => Ok(vec![Extent { range, state: block::ExtentState::Data }]),
            }
        })
    }
}
