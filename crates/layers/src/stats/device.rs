//! `stats` over a device.

use super::counters::{PartCounters, ShardCounters};
use crate::clear_stats::Message;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Extent, Part,
    Payload, ReadOutcome, Result, Status, ZeroMode,
};
use stack::Tell;
use std::rc::Rc;
use std::sync::Arc;

const READ: usize = 0;
const WRITE: usize = 1;
const WRITE_FUA: usize = 2;
const FLUSH: usize = 3;
const DISCARD: usize = 4;
const WRITE_ZEROES: usize = 5;
const EXTENTS: usize = 6;
const NAMES: &[&str] = &["read", "write", "write_fua", "flush", "discard", "write_zeroes", "extents"];

/// A device whose calls are counted and timed.
pub struct StatsDevicePart {
    inner: Arc<dyn DevicePart>,
    counters: Arc<PartCounters>,
}

impl StatsDevicePart {
    /// Counts the calls to `inner`.
    pub fn new(inner: Arc<dyn DevicePart>) -> Self {
        StatsDevicePart { inner, counters: PartCounters::new(NAMES) }
    }
}

impl Part for StatsDevicePart {
    fn kind(&self) -> &'static str {
        "stats"
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.counters.status())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&super::KIND, message)
    }
}

impl Tell for StatsDevicePart {
    type Message = Message;

    fn tell(&self, Message::ClearStats: Message) -> Call<'_, Result<String>> {
        self.counters.clear();
        Call::ready(Ok("cleared".into()))
    }
}

impl DevicePart for StatsDevicePart {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn only_in_cache(&self) -> Option<u64> {
        self.inner.only_in_cache()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn keeps_flushed(&self) -> bool {
        self.inner.keeps_flushed()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Rc::new(StatsDevice { inner, counters: self.counters.open() }) as Rc<dyn Device>)
        })
    }
}

struct StatsDevice {
    inner: Rc<dyn Device>,
    counters: Arc<ShardCounters>,
}

impl StatsDevice {
    fn bytes_of(&self, range: BlockRange) -> u64 {
        self.inner.geometry().block_size.bytes_of(range.count)
    }
}

impl Device for StatsDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    #[inline]
    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let bytes = buffer.len() as u64;
            let running = self.counters.begin(READ);
            let outcome = self.inner.read(at, buffer).await;
            running.end(bytes, outcome.0.is_ok());
            outcome
        })
    }

    #[inline]
    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            let bytes = payload.len() as u64;
            let kind = if durability == Durability::Durable { WRITE_FUA } else { WRITE };
            let running = self.counters.begin(kind);
            let result = self.inner.write(at, payload, durability).await;
            running.end(bytes, result.is_ok());
            result
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(FLUSH);
            let result = self.inner.flush().await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(DISCARD);
            let result = self.inner.discard(range).await;
            running.end(self.bytes_of(range), result.is_ok());
            result
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(WRITE_ZEROES);
            let result = self.inner.write_zeroes(range, mode, durability).await;
            running.end(self.bytes_of(range), result.is_ok());
            result
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(async move {
            let running = self.counters.begin(EXTENTS);
            let result = self.inner.extents(range).await;
            running.end(0, result.is_ok());
            result
        })
    }
}
