//! A device over several devices, its *legs*, for `linear` and `stripe`: each block is on one leg.
//!
//! Promises: those of the Device contract, with the weakest guarantees of any leg. A request is sent to all
//! legs that it touches at once, and completes when all have answered; a read that fails on one leg returns
//! no bytes. A [`Layout`] maps blocks to legs. There is no redundancy: requests to a lost leg fail with its
//! errors.

use block::extents;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Location of a block on a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnLeg {
    /// The leg.
    pub leg: usize,
    /// Block on the leg, in blocks of the whole device.
    pub block: u64,
    /// Number of blocks, beginning with this one, that are contiguous on the leg.
    pub run: u64,
}

/// Mapping of blocks to legs.
pub(crate) trait Layout: fmt::Debug + Send + Sync {
    /// Maps a block of the device, which is in range.
    fn map(&self, block: u64) -> OnLeg;
}

/// Returns the block size of a device over these parts, the largest of theirs.
pub(crate) fn block_size(legs: &[Arc<dyn DevicePart>]) -> BlockSize {
    legs.iter().map(|leg| leg.geometry().block_size).max().unwrap_or_default()
}

/// Part of a device over several legs.
pub(crate) struct SpreadPart {
    kind: &'static str,
    geometry: DeviceGeometry,
    layout: Arc<dyn Layout>,
    legs: Vec<Arc<dyn DevicePart>>,
    status: Status,
}

impl SpreadPart {
    /// Creates a device of `blocks` blocks over these legs; `atomic` is the largest atomic write that the
    /// layout allows, in bytes.
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

    fn keeps_flushed(&self) -> bool {
        self.legs.iter().all(|leg| leg.keeps_flushed())
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
    /// Binary logarithm of the number of the leg's blocks per block of the device.
    shift: u32,
}

/// A part of a request, on one leg.
struct Piece<'a> {
    /// Number of the leg.
    number: usize,
    leg: &'a Leg,
    /// Range in the leg's blocks.
    on_leg: BlockRange,
    /// Range in the device's blocks.
    range: BlockRange,
}

struct Spread {
    geometry: DeviceGeometry,
    layout: Arc<dyn Layout>,
    legs: Vec<Leg>,
}

impl Spread {
    /// Returns the first piece of a non-empty range.
    fn first_piece(&self, range: BlockRange) -> Piece<'_> {
        let found = self.layout.map(range.start.0);
        let leg = &self.legs[found.leg];
        let count = range.count.0.min(found.run);
        let on_leg = BlockRange::new(found.block << leg.shift, count << leg.shift);
        Piece { number: found.leg, leg, on_leg, range: BlockRange::new(range.start.0, count) }
    }

    /// Returns all pieces of a range, in order.
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

    /// Calls `act` for every piece of a range, and waits for all.
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
            // Each leg gets one request, for all its blocks from the first piece to the last.
            let mut parts: Vec<Option<BlockRange>> = vec![None; self.legs.len()];
            for piece in self.pieces(range).take(MAX_PIECES) {
                let part = parts[piece.number].get_or_insert(piece.on_leg);
                *part = BlockRange { start: part.start, count: piece.on_leg.end() - part.start };
            }
            let asked = self.legs.iter().zip(parts).map(async |(leg, part)| match part {
                Some(part) => leg.device.extents(part).await,
                None => Ok(Vec::new()),
            });
            let found = runtime::join_all(asked).await.into_iter().collect::<Result<Vec<_>>>()?;
            let mut next = vec![0; self.legs.len()];
            let mut extents = Vec::new();
            for piece in self.pieces(range).take(MAX_PIECES) {
                let (here, covered) = of_piece(&found[piece.number], &mut next[piece.number], piece.on_leg);
                if here.is_empty() {
                    break;
                }
                let here = extents::in_blocks(piece.range, piece.on_leg.start.0, piece.leg.shift, &here);
                here.into_iter().for_each(|extent| extents::push(&mut extents, extent));
                if !covered || extents.len() >= extents::MAX_EXTENTS {
                    break;
                }
            }
            Ok(extents)
        })
    }
}

/// Limit of the pieces of one answer about extents: 4 GiB of chunks of 64 KiB.
const MAX_PIECES: usize = 1 << 16;

/// Returns a leg's extents inside of a piece, and whether they cover it. The pieces of a leg are passed in
/// order; `next` is the first extent that may belong to this piece.
fn of_piece(found: &[Extent], next: &mut usize, piece: BlockRange) -> (Vec<Extent>, bool) {
    while found.get(*next).is_some_and(|extent| extent.range.end() <= piece.start) {
        *next += 1;
    }
    let inside = found[*next..].iter().take_while(|extent| extent.range.start < piece.end());
    let cut = inside.map(|extent| {
        let (start, end) = (extent.range.start.max(piece.start), extent.range.end().min(piece.end()));
        Extent { range: BlockRange { start, count: end - start }, state: extent.state }
    });
    let cut: Vec<Extent> = cut.collect();
    let covered = cut.last().is_some_and(|last| last.range.end() == piece.end());
    (cut, covered)
}
