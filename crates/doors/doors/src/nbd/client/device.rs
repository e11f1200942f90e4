//! Translation of a device's calls to requests of the protocol.

use super::ClientConfig;
use super::handshake::{RemoteExport, connect};
use super::link::Link;
use super::table::Answer;
use crate::nbd::protocol::{Request, command, command_flag, extent_flag, transmission_flag};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, DeviceGeometry, Durability, Error, Extent,
    ExtentState, Payload, ReadOutcome, Result, ZeroMode,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest WRITE_ZEROES, in bytes: some servers are slow with long ones.
const MAX_ZEROES: u64 = 64 << 20;
/// Longest BLOCK_STATUS, in bytes.
const MAX_STATUS: u64 = 1 << 30;

/// Handle of a shard on a remote device.
pub(super) struct RemoteDevice {
    geometry: DeviceGeometry,
    remote: RemoteExport,
    links: Vec<Rc<Link>>,
    next: Cell<usize>,
    /// Whether the server may have unflushed changes, through any handle.
    unflushed: Arc<AtomicBool>,
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.close());
    }
}

impl RemoteDevice {
    /// Connects this shard.
    pub(super) async fn open(
        config: &ClientConfig,
        remote: &RemoteExport,
        geometry: DeviceGeometry,
        unflushed: Arc<AtomicBool>,
    ) -> Result<RemoteDevice> {
        let (links, next) = (Vec::new(), Cell::new(0));
        let mut device = RemoteDevice { geometry, remote: *remote, links, next, unflushed };
        for _ in 0..config.connections {
            let (stream, now) = connect(config).await?;
            if now.size != remote.size || now.is_read_only() != remote.is_read_only() {
                return Err(Error::busy(format!(
                    "export \"{}\" of {} has changed: {} bytes, expected {}; open the stack again",
                    config.export, config.address, now.size, remote.size
                )));
            }
            device.remote = now;
            device.links.push(Link::start(stream, &now, config.timeout));
        }
        Ok(device)
    }

    /// Next connection in round-robin order.
    fn link(&self) -> &Link {
        let index = self.next.get();
        self.next.set(if index + 1 < self.links.len() { index + 1 } else { 0 });
        &self.links[index]
    }

    fn offset(&self, block: BlockIndex) -> u64 {
        self.geometry.block_size.offset_of(block).0
    }

    /// Largest request with data, in bytes; whole blocks.
    fn largest(&self) -> usize {
        let block = self.geometry.block_size.bytes() as usize;
        (self.remote.maximum_payload as usize / block).max(1) * block
    }

    async fn call(&self, command: u16, flags: u16, offset: u64, length: u32) -> Answer {
        let request = Request { flags, command, cookie: 0, offset, length };
        self.link().call(request, None, None).await
    }

    async fn read_part(&self, offset: u64, buffer: Buffer) -> ReadOutcome {
        let length = buffer.len() as u32;
        let request = Request { flags: 0, command: command::READ, cookie: 0, offset, length };
        let answer = self.link().call(request, None, Some(buffer)).await;
        // Part of the buffer is missing if the connection ended while data was received into it.
        let buffer = answer.buffer.filter(|buffer| buffer.len() == length as usize);
        (answer.result, buffer.unwrap_or_else(|| Buffer::new(length as usize)))
    }

    /// Reads a range that is larger than the largest request.
    async fn read_pieces(&self, offset: u64, buffer: Buffer) -> ReadOutcome {
        let (largest, length) = (self.largest(), buffer.len());
        let pieces = (0..length).step_by(largest).map(|at| (largest.min(length - at), offset + at as u64));
        runtime::read_pieces(buffer, pieces, |offset, piece| self.read_part(offset, piece)).await
    }

    /// Flag for a durable write, and whether a flush has to follow because the server doesn't support the
    /// flag.
    fn durability(&self, durability: Durability) -> (u16, bool) {
        match (durability, self.remote.has(transmission_flag::SEND_FUA)) {
            (Durability::Visible, _) => (0, false),
            (Durability::Durable, true) => (command_flag::FUA, false),
            (Durability::Durable, false) => (0, true),
        }
    }

    async fn write_pieces(&self, offset: u64, payload: Payload, durability: Durability) -> Result<()> {
        let (flags, flush_after) = self.durability(durability);
        let mut done = 0;
        while done < payload.len() {
            let end = payload.len().min(done + self.largest());
            let part = if end - done == payload.len() { payload.clone() } else { payload.slice(done..end) };
            let (offset, length) = (offset + done as u64, (end - done) as u32);
            let request = Request { flags, command: command::WRITE, cookie: 0, offset, length };
            self.link().call(request, Some(part), None).await.result?;
            self.note(durability);
            done = end;
        }
        if flush_after { self.flush_now().await } else { Ok(()) }
    }

    /// Asks the server to make all writes durable, if it supports that.
    pub(super) async fn flush_now(&self) -> Result<()> {
        if !self.remote.can_flush() {
            return Ok(());
        }
        self.unflushed.store(false, Ordering::Release);
        let flushed = self.call(command::FLUSH, 0, 0, 0).await.result;
        flushed.inspect_err(|_| self.unflushed.store(true, Ordering::Release))
    }

    /// Records that a change that isn't durable by itself is about to be acknowledged.
    fn note(&self, durability: Durability) {
        if durability == Durability::Visible {
            self.unflushed.store(true, Ordering::Release);
        }
    }

    async fn zero(&self, range: BlockRange, mode: ZeroMode, durability: Durability) -> Result<()> {
        let (offset, bytes) = (self.offset(range.start), self.geometry.block_size.bytes_of(range.count));
        if !self.remote.has(transmission_flag::SEND_WRITE_ZEROES) {
            return self.write_zero_bytes(offset, bytes, durability).await;
        }
        let (mut flags, flush_after) = self.durability(durability);
        if mode == ZeroMode::KeepAllocated {
            flags |= command_flag::NO_HOLE;
        }
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(MAX_ZEROES);
            self.call(command::WRITE_ZEROES, flags, offset + done, length as u32).await.result?;
            self.note(durability);
            done += length;
        }
        if flush_after { self.flush_now().await } else { Ok(()) }
    }

    /// Writes zeros as data, for servers without WRITE_ZEROES.
    async fn write_zero_bytes(&self, offset: u64, bytes: u64, durability: Durability) -> Result<()> {
        let largest = (self.largest() as u64).min(1 << 20).min(bytes);
        let zeros: Data = Buffer::zeroed(largest as usize).freeze();
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(largest);
            let part = zeros.slice(0..length as usize).into();
            self.write_pieces(offset + done, part, Durability::Visible).await?;
            done += length;
        }
        match durability {
            Durability::Visible => Ok(()),
            Durability::Durable => self.flush_now().await,
        }
    }

    async fn describe(&self, range: BlockRange) -> Result<Vec<Extent>> {
        let block = self.geometry.block_size.bytes();
        let everything = vec![Extent { range, state: ExtentState::Data }];
        if self.remote.allocation.is_none() || range.is_empty() {
            return Ok(if range.is_empty() { Vec::new() } else { everything });
        }
        let length = self.geometry.block_size.bytes_of(range.count).min(MAX_STATUS / block * block);
        let answer = self.call(command::BLOCK_STATUS, 0, self.offset(range.start), length as u32).await;
        answer.result?;
        Ok(whole_blocks(&answer.extents, range, block))
    }
}

/// Converts a server's extents, which may begin and end anywhere and beyond the range, to extents of whole
/// blocks inside the range. A block with several extents is data.
fn whole_blocks(found: &[(u32, u32)], range: BlockRange, block: u64) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut put = |state: ExtentState, from: u64, to: u64| {
        let to = to.min(range.count.0);
        if from >= to {
            return;
        }
        match extents.last_mut() {
            Some(last) if last.state == state => last.range.count.0 += to - from,
            _ => extents.push(Extent { range: BlockRange::new(range.start.0 + from, to - from), state }),
        }
    };
    let (mut byte, mut next) = (0_u64, 0_u64);
    for (length, flags) in found {
        byte += u64::from(*length);
        let state = match (flags & extent_flag::ZERO != 0, flags & extent_flag::HOLE != 0) {
            (true, true) => ExtentState::Hole,
            (true, false) => ExtentState::Zero,
            // The contract has no state for holes that don't read as zeros.
            (false, _) => ExtentState::Data,
        };
        let whole = byte / block;
        put(state, next, whole);
        next = next.max(whole);
        if byte % block != 0 {
            put(ExtentState::Data, next, whole + 1);
            next = whole + 1;
        }
    }
    extents
}

impl Device for RemoteDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        if let Err(error) = self.geometry.range(at, buffer.len()) {
            return Call::ready((Err(error), buffer));
        }
        match buffer.len() {
            0 => Call::ready((Ok(()), buffer)),
            length if length > self.largest() => Call::new(self.read_pieces(self.offset(at), buffer)),
            _ => Call::new(self.read_part(self.offset(at), buffer)),
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.geometry.writable_range(at, payload.len()) {
            Ok(_) => Call::new(self.write_pieces(self.offset(at), payload, durability)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(self.flush_now())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            Ok(()) => Call::new(self.zero(range, mode, durability)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        match self.geometry.check(range) {
            Ok(()) => Call::new(self.describe(range)),
            Err(error) => Call::ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_bytes_become_extents_of_blocks() {
        let hole = extent_flag::HOLE | extent_flag::ZERO;
        let range = BlockRange::new(10, 8);
        let cut = |found: &[(u32, u32)]| {
            let extents = whole_blocks(found, range, 4096);
            extents
                .iter()
                .map(|extent| (extent.range.start.0, extent.range.count.0, extent.state))
                .collect::<Vec<_>>()
        };
        use ExtentState::{Data, Hole, Zero};
        assert_eq!(
            cut(&[(8192, 0), (8192, hole), (1 << 20, extent_flag::ZERO)]),
            [(10, 2, Data), (12, 2, Hole), (14, 4, Zero)]
        );
        assert_eq!(
            cut(&[(5000, hole), (200, 0), (100_000, hole)]),
            [(10, 1, Hole), (11, 1, Data), (12, 6, Hole)]
        );
        assert_eq!(cut(&[(100, hole)]), [(10, 1, Data)]);
        assert_eq!(
            cut(&[(100, hole), (100, hole), (8192, hole)]),
            [(10, 1, Data), (11, 1, Hole), (12, 1, Data)]
        );
    }
}
