//! `fault` over a device.

use super::decide::{Decider, Faults, Plan, flip_bits, torn_length};
use super::rule::{Action, Distance, Operation, Rule};
use super::{FaultDevicePart, FaultPart};
use block::layer::DeviceLayer;
use block::{
    BlockIndex, BlockRange, Buffer, CachedBytes, Call, Device, DeviceGeometry, DevicePart, Durability,
    Extent, Payload, ReadOutcome, Result, ZeroMode,
};
use runtime::range_lock::SharedRangeLock;
use std::rc::Rc;
use std::sync::Arc;

impl FaultDevicePart {
    /// Applies the rules to the calls to `inner`; random choices depend on `seed`.
    ///
    /// # Errors
    /// [`block::Error::Invalid`] if a rule doesn't fit the device.
    pub fn new(inner: Arc<dyn DevicePart>, rules: Vec<Rule>, seed: u64) -> Result<Self> {
        let block_size = inner.geometry().block_size.bytes();
        rules.iter().try_for_each(|rule| rule.check_block_size(block_size))?;
        let tears = rules.iter().any(|rule| matches!(rule.action, Some(Action::Torn { .. })));
        let changing = tears.then(SharedRangeLock::default);
        Ok(FaultPart { inner, faults: Faults::new(rules, seed), changing })
    }
}

impl DeviceLayer for FaultDevicePart {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.inner
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        Rc::new(FaultDevice { inner: below, decider: self.faults.open(), changing: self.changing.clone() })
    }
}

struct FaultDevice {
    inner: Rc<dyn Device>,
    decider: Decider,
    changing: Option<SharedRangeLock>,
}

/// The inner device, with the locks of blocks being changed.
struct Below {
    inner: Rc<dyn Device>,
    changing: Option<SharedRangeLock>,
}

impl Below {
    /// Changes these blocks once they are locked.
    async fn change(
        &self,
        blocks: BlockRange,
        how: impl AsyncFnOnce(&dyn Device) -> Result<()>,
    ) -> Result<()> {
        let _held = match &self.changing {
            Some(changing) => Some(changing.ask(blocks.start.0..blocks.end().0).await),
            None => None,
        };
        how(&*self.inner).await
    }
}

impl FaultDevice {
    /// Decides about an operation. Invalid or empty requests aren't counted by rules.
    fn decide(&self, operation: Operation, range: Result<BlockRange>) -> Option<(Plan, BlockRange)> {
        let range = range.ok().filter(|range| !range.is_empty())?;
        let size = self.inner.geometry().block_size;
        let touched = size.offset_of(range.start).0..size.offset_of(range.end()).0;
        Some((self.decider.decide(operation, Some(touched))?, range))
    }

    /// Checks a range that is to be changed.
    fn writable(&self, range: BlockRange) -> Result<BlockRange> {
        let geometry = self.inner.geometry();
        geometry.check_writable().and_then(|()| geometry.check(range)).map(|()| range)
    }

    fn below(&self) -> Below {
        Below { inner: self.inner.clone(), changing: self.changing.clone() }
    }

    /// Passes an operation that changes blocks and gets no fault.
    async fn pass(
        &self,
        range: Result<BlockRange>,
        how: impl AsyncFnOnce(&dyn Device) -> Result<()> + 'static,
    ) -> Result<()> {
        match range.ok().filter(|range| !range.is_empty() && self.changing.is_some()) {
            Some(range) => {
                let below = self.below();
                runtime::carry(async move { below.change(range, how).await }).await
            }
            None => how(&*self.inner).await,
        }
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        if self.decider.is_idle() {
            return self.inner.read(at, buffer);
        }
        Call::new(async move {
            let range = self.inner.geometry().range(at, buffer.len());
            let Some((plan, range)) = self.decide(Operation::Read, range) else {
                return self.inner.read(at, buffer).await;
            };
            let inner = self.inner.clone();
            let read = move |action, buffer| async move {
                inner.read(elsewhere(&*inner, action, range).start, buffer).await
            };
            runtime::spawn(faulty_read(plan, buffer, read)).await
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.write(at, payload, durability);
        }
        Call::new(async move {
            let range = self.inner.geometry().writable_range(at, payload.len());
            let Some((plan, range)) = self.decide(Operation::Write, range.clone()) else {
                return self.pass(range, async move |inner| inner.write(at, payload, durability).await).await;
            };
            runtime::spawn(faulty_write(self.below(), plan, range, payload, durability)).await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.flush();
        }
        Call::new(async move {
            let Some(plan) = self.decider.decide(Operation::Flush, None) else {
                return self.inner.flush().await;
            };
            let inner = self.inner.clone();
            runtime::spawn(async move {
                let (action, error) = begin(&plan).await?;
                if action.is_none() {
                    inner.flush().await?;
                }
                error
            })
            .await
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.discard(range);
        }
        Call::new(async move {
            let checked = self.writable(range);
            let Some((plan, range)) = self.decide(Operation::Discard, checked.clone()) else {
                return self.pass(checked, async move |inner| inner.discard(range).await).await;
            };
            let below = self.below();
            runtime::spawn(async move {
                let (action, error) = begin(&plan).await?;
                if let Some(Action::Drop) = action {
                    return error;
                }
                let range = elsewhere(&*below.inner, action, range);
                below.change(range, async |inner| inner.discard(range).await).await?;
                error
            })
            .await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.write_zeroes(range, mode, durability);
        }
        Call::new(async move {
            let checked = self.writable(range);
            let Some((plan, range)) = self.decide(Operation::WriteZeroes, checked.clone()) else {
                let how = async move |inner: &dyn Device| inner.write_zeroes(range, mode, durability).await;
                return self.pass(checked, how).await;
            };
            let below = self.below();
            runtime::spawn(async move {
                let (action, error) = begin(&plan).await?;
                let durability = match action {
                    Some(Action::Drop) => return error,
                    Some(Action::Lie) => Durability::Visible,
                    _ => durability,
                };
                let range = elsewhere(&*below.inner, action, range);
                let how = async |inner: &dyn Device| inner.write_zeroes(range, mode, durability).await;
                below.change(range, how).await?;
                error
            })
            .await
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.inner.extents(range)
    }

    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        let inner = self.inner.open_cached(range)?;
        let start = self.inner.geometry().block_size.offset_of(range.start).0;
        Some(Box::new(FaultyBytes { inner, decider: self.decider.again(), start }))
    }
}

/// Synchronous access to a range of the device: an operation of its own for the rules, which count it by
/// itself. It has errors, dropped and torn writes; delays and other actions have no effect.
struct FaultyBytes {
    inner: Box<dyn CachedBytes>,
    decider: Decider,
    /// Offset of the range in the device.
    start: u64,
}

impl FaultyBytes {
    fn decide(&self, operation: Operation, offset: u64, length: usize) -> Option<Plan> {
        let begin = self.start.saturating_add(offset);
        self.decider.decide(operation, Some(begin..begin.saturating_add(length as u64)))
    }
}

impl CachedBytes for FaultyBytes {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self.decide(Operation::Read, offset, bytes.len()).and_then(|plan| plan.error) {
            Some(error) => Err(error),
            None => self.inner.read(offset, bytes),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(mut plan) = self.decide(Operation::Write, offset, bytes.len()) else {
            return self.inner.write(offset, bytes);
        };
        let error = plan.error.clone().map_or(Ok(()), Err);
        let length = match plan.action {
            None if error.is_err() => return error,
            Some(Action::Drop) => return error,
            Some(Action::Torn { at }) => torn_length(at, bytes.len() as u64, &mut plan.random) as usize,
            _ => bytes.len(),
        };
        self.inner.write(offset, &bytes[..length])?;
        error
    }
}

/// Waits for the plan's delay. Returns the action, and the result of the call after it; fails if the plan is
/// an error without an action.
pub(super) async fn begin(plan: &Plan) -> Result<(Option<Action>, Result<()>)> {
    if !plan.delay.is_zero() {
        runtime::sleep(plan.delay).await;
    }
    match (plan.action, plan.error.clone()) {
        (None, Some(error)) => Err(error),
        (action, error) => Ok((action, error.map_or(Ok(()), Err))),
    }
}

/// Returns the range of a misdirected operation: at the rule's distance, wrapping around the end of the
/// device.
fn elsewhere(inner: &dyn Device, action: Option<Action>, range: BlockRange) -> BlockRange {
    let Some(Action::Misdirect { by }) = action else { return range };
    let geometry = inner.geometry();
    let by = match by {
        Distance::Units(blocks) => blocks,
        Distance::Bytes(bytes) => bytes >> geometry.block_size.shift(),
    };
    let places = geometry.blocks.0 - range.count.0 + 1;
    let start = (u128::from(range.start.0) + u128::from(by)) % u128::from(places);
    BlockRange::new(start as u64, range.count.0)
}

/// Reads with the faults of a plan. `read` applies its action to the place.
pub(super) async fn faulty_read<F: Future<Output = ReadOutcome>>(
    mut plan: Plan,
    mut buffer: Buffer,
    read: impl FnOnce(Option<Action>, Buffer) -> F,
) -> ReadOutcome {
    buffer.clear();
    let (action, error) = match begin(&plan).await {
        Ok(begun) => begun,
        Err(error) => return (Err(error), buffer),
    };
    let (result, mut buffer) = read(action, buffer).await;
    if let Some(Action::Corrupt { bits }) = action {
        flip_bits(buffer.filled_mut(), bits, &mut plan.random);
    }
    let result = result.and(error);
    if result.is_err() {
        buffer.clear();
    }
    (result, buffer)
}

async fn faulty_write(
    below: Below,
    mut plan: Plan,
    range: BlockRange,
    payload: Payload,
    durability: Durability,
) -> Result<()> {
    let (action, error) = begin(&plan).await?;
    if let Some(Action::Torn { at }) = action {
        let length = torn_length(at, payload.len() as u64, &mut plan.random) as usize;
        let tear = async |inner: &dyn Device| torn_write(inner, range, payload, length, durability).await;
        below.change(range, tear).await?;
        return error;
    }
    let (payload, durability) = match action {
        Some(Action::Drop) => return error,
        Some(Action::Lie) => (payload, Durability::Visible),
        Some(Action::Corrupt { bits }) => (corrupted(&payload, bits, &mut plan)?, durability),
        _ => (payload, durability),
    };
    let range = elsewhere(&*below.inner, action, range);
    let write = async |inner: &dyn Device| inner.write(range.start, payload, durability).await;
    below.change(range, write).await?;
    error
}

/// Returns a copy of the payload with bits flipped; the payload itself is shared with the caller.
pub(super) fn corrupted(payload: &Payload, bits: u64, plan: &mut Plan) -> Result<Payload> {
    let mut copy = Buffer::zeroed(payload.len());
    payload.copy_to(copy.filled_mut())?;
    flip_bits(copy.filled_mut(), bits, &mut plan.random);
    Ok(Payload::from(copy))
}

/// Writes only the first `length` bytes. If they end inside a block, the rest of the block keeps its
/// contents; the caller has locked the block.
async fn torn_write(
    inner: &dyn Device,
    range: BlockRange,
    payload: Payload,
    length: usize,
    durability: Durability,
) -> Result<()> {
    let size = inner.geometry().block_size.bytes() as usize;
    let whole = length / size * size;
    let mut arrives = payload.slice(0..whole);
    if whole < length {
        let block = BlockIndex(range.start.0 + (whole / size) as u64);
        let (result, mut old) = inner.read(block, Buffer::new(size)).await;
        result?;
        payload.slice(whole..length).copy_to(&mut old.filled_mut()[..length - whole])?;
        arrives.push(old.freeze());
    }
    inner.write(range.start, arrives, durability).await
}
