//! What `linear` and `stripe` share: a device made of several, its *legs*, each of whose blocks lies on one of them.
//!
//! Promises: those of the Device contract, as weak as the weakest leg's. A request goes to all the legs that it touches at
//! once and ends when all have answered; a read that fails on one leg shows no bytes at all. Which block lies where is the
//! [`Layout`]'s. Redundancy is left to `mirror`: a device that has lost a leg answers with that leg's errors.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, ExtentState, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use stack::Shape;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// On which leg.
    pub leg: usize,
    /// Where on it, in blocks of the whole device.
    pub block: u64,
    /// How many blocks from it on lie behind each other there.
    pub run: u64,
}

/// Which block lies where.
pub(crate) trait Layout: fmt::Debug + Send + Sync {
    /// Where a block of the device lies. The block has been checked.
    fn place(&self, block: u64) -> Place;
}

/// The size of the blocks of a device made of these: the largest of theirs; none as long as one of them isn't known.
pub(crate) fn block_size_of(legs: &[Shape]) -> Option<u32> {
    let sizes: Option<Vec<u32>> = legs.iter().map(|leg| leg.block_size).collect();
    sizes.and_then(|sizes| sizes.into_iter().max())
}

/// The same of parts that are built.
pub(crate) fn block_size(legs: &[Arc<dyn DevicePart>]) -> BlockSize {
    legs.iter().map(|leg| leg.geometry().block_size).max().unwrap_or_default()
}

/// The part.
pub(crate) struct SpreadPart {
    kind: &'static str,
    geometry: DeviceGeometry,
    layout: Arc<dyn Layout>,
    legs: Vec<Arc<dyn DevicePart>>,
    status: Status,
}

impl SpreadPart {
    /// `blocks` blocks over these legs; `atomic` is what the layout leaves of the legs' atomic writes, in bytes.
    pub fn new(
        kind: &'static str,
        legs: Vec<Arc<dyn DevicePart>>,
        layout: impl Layout + 'static,
        blocks: BlockCount,
        atomic: u64,
        status: Status,
    ) -> Self {
        let own = legs.iter().map(|leg| u64::from(leg.geometry().atomic_write)).min().unwrap_or(0);
        let geometry = DeviceGeometry {
            block_size: block_size(&legs),
            blocks,
            atomic_write: own.min(atomic) as u32,
            volatile_cache: legs.iter().any(|leg| leg.geometry().volatile_cache),
            read_only: legs.iter().any(|leg| leg.geometry().read_only),
        };
        SpreadPart { kind, geometry, layout: Arc::new(layout), legs, status }
    }
}

impl Part for SpreadPart {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.status.clone())
    }
}

impl DevicePart for SpreadPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn only_in_cache(&self) -> Option<u64> {
        self.legs.iter().filter_map(|leg| leg.only_in_cache()).reduce(|one, other| one + other)
    }

    fn keeps_acknowledged(&self) -> bool {
        self.legs.iter().all(|leg| leg.keeps_acknowledged())
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let mut legs = Vec::with_capacity(self.legs.len());
            for leg in &self.legs {
                let shift = self.geometry.block_size.shift() - leg.geometry().block_size.shift();
                legs.push(Leg { device: leg.open().await?, shift });
            }
            let (geometry, layout) = (self.geometry.clone(), self.layout.clone());
            Ok(Rc::new(Spread { geometry, layout, legs }) as Rc<dyn Device>)
        })
    }
}

struct Leg {
    device: Rc<dyn Device>,
    /// How many of its blocks one of ours is, as a power of two.
    shift: u32,
}

/// A part of a request, on one leg.
struct Piece<'a> {
    leg: &'a Leg,
    /// In the leg's own blocks.
    on_leg: BlockRange,
    /// In the device's blocks.
    range: BlockRange,
}

struct Spread {
    geometry: DeviceGeometry,
    layout: Arc<dyn Layout>,
    legs: Vec<Leg>,
}

impl Spread {
    /// The piece that a range, which isn't empty, begins with.
    fn first_piece(&self, range: BlockRange) -> Piece<'_> {
        let place = self.layout.place(range.start.0);
        let leg = &self.legs[place.leg];
        let count = range.count.0.min(place.run);
        let on_leg = BlockRange::new(place.block << leg.shift, count << leg.shift);
        Piece { leg, on_leg, range: BlockRange::new(range.start.0, count) }
    }

    /// All pieces of a range, in order.
    fn pieces(&self, range: BlockRange) -> impl Iterator<Item = Piece<'_>> {
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let piece = self.first_piece(rest);
            rest = BlockRange { start: piece.range.end(), count: rest.end() - piece.range.end() };
            Some(piece)
        })
    }

    /// Does the same to every piece of a range, at once.
    async fn each<'a>(
        &'a self,
        range: BlockRange,
        mut act: impl FnMut(Piece<'a>) -> Call<'a, Result<()>>,
    ) -> Result<()> {
        let first = self.first_piece(range);
        if first.range == range {
            return act(first).await;
        }
        runtime::join_all(self.pieces(range).map(act)).await.into_iter().collect()
    }

    fn bytes_of(&self, count: BlockCount) -> usize {
        self.geometry.block_size.bytes_of(count) as usize
    }
}

impl Device for Spread {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let range = match self.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => range,
            other => {
                buffer.clear();
                return Call::ready((other.map(drop), buffer));
            }
        };
        let first = self.first_piece(range);
        match first.range == range {
            true => first.leg.device.read(first.on_leg.start, buffer),
            false => {
                let pieces = self.pieces(range).map(|piece| (self.bytes_of(piece.range.count), piece));
                Call::new(runtime::read_pieces(buffer, pieces, |piece, buffer| {
                    piece.leg.device.read(piece.on_leg.start, buffer)
                }))
            }
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let range = match self.geometry.writable_range(at, payload.len()) {
            Ok(range) if !range.is_empty() => range,
            other => return Call::ready(other.map(drop)),
        };
        let first = self.first_piece(range);
        if first.range == range {
            return first.leg.device.write(first.on_leg.start, payload, durability);
        }
        Call::new(self.each(range, move |piece| {
            let from = self.bytes_of(piece.range.start - range.start);
            let bytes = from..from + self.bytes_of(piece.range.count);
            piece.leg.device.write(piece.on_leg.start, payload.slice(bytes), durability)
        }))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let flushes = self.legs.iter().map(|leg| leg.device.flush());
            runtime::join_all(flushes).await.into_iter().collect()
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        match self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            Ok(()) if !range.is_empty() => {}
            other => return Call::ready(other),
        }
        Call::new(self.each(range, |piece| piece.leg.device.discard(piece.on_leg)))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            Ok(()) if !range.is_empty() => {}
            other => return Call::ready(other),
        }
        Call::new(
            self.each(range, move |piece| piece.leg.device.write_zeroes(piece.on_leg, mode, durability)),
        )
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(async move {
            self.geometry.check(range)?;
            if range.is_empty() {
                return Ok(Vec::new());
            }
            let piece = self.first_piece(range);
            let found = piece.leg.device.extents(piece.on_leg).await?;
            Ok(whole_blocks(&piece, &found))
        })
    }
}

/// What a leg says of a piece, in blocks of the device. A block inside of which the leg's extents change may be anything.
fn whole_blocks(piece: &Piece<'_>, found: &[Extent]) -> Vec<Extent> {
    let mut extents = Vec::with_capacity(found.len());
    let mut known = 0;
    let mut push = |blocks: std::ops::Range<u64>, state| {
        if !blocks.is_empty() {
            let range = BlockRange::new(piece.range.start.0 + blocks.start, blocks.end - blocks.start);
            extents.push(Extent { range, state });
        }
    };
    for extent in found {
        let from = extent.range.start.0 - piece.on_leg.start.0;
        let end = (extent.range.end().0 - piece.on_leg.start.0) >> piece.leg.shift;
        if end > known && from > known << piece.leg.shift {
            push(known..known + 1, ExtentState::Data);
            known += 1;
        }
        push(known..end, extent.state);
        known = end.max(known);
    }
    if known == 0 {
        push(0..1, ExtentState::Data);
    }
    extents
}
