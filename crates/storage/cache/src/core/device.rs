//! The cache as a device: requests in blocks become requests in bytes of the origin.

use super::{Core, zero::Zeroing};
use block::{BlockRange, Buffer, Call, Durability, Extent, Payload, ReadOutcome, Result, ZeroMode};
use runtime::{HomeDevice, TaskGroup};
use std::rc::Rc;

impl Core {
    fn begin_zero(
        self: &Rc<Self>,
        range: BlockRange,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let (from, to) = (range.start.0 << self.shape.shift, range.end().0 << self.shape.shift);
        runtime::carry_in(self.calls.group(), self.clone().zero(from, to, zeroing, durability))
    }
}

impl HomeDevice for Core {
    fn calls(&self) -> Option<&TaskGroup> {
        Some(self.calls.group())
    }

    fn read(self: &Rc<Self>, range: BlockRange, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.read_bytes(range.start.0 << self.shape.shift, buffer)
    }

    fn write(
        self: &Rc<Self>,
        range: BlockRange,
        payload: Payload,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.write_bytes(range.start.0 << self.shape.shift, payload, durability)
    }

    fn flush(self: &Rc<Self>) -> Call<'_, Result<()>> {
        let core = self.clone();
        runtime::carry_in(self.calls.group(), async move { core.make_durable().await })
    }

    fn discard(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<()>> {
        self.begin_zero(range, Zeroing::Discard, Durability::Visible)
    }

    fn write_zeroes(
        self: &Rc<Self>,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.begin_zero(range, Zeroing::Zeroes(mode), durability)
    }

    fn extents(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(self.known_extents(range))
    }
}
