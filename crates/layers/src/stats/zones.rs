//! `stats` over zones.

use super::counters::{PartCounters, ShardCounters};
use crate::clear_stats::Message;
use block::{
    Buffer, Call, EraseGuarantee, Part, Payload, ReadOutcome, Result, Status, ZoneAddress, ZoneGeometry,
    ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use stack::Tell;
use std::rc::Rc;
use std::sync::Arc;

const APPEND: usize = 0;
const READ: usize = 1;
const FLUSH: usize = 2;
const FINISH: usize = 3;
const RESET: usize = 4;
const REPORT: usize = 5;
const OPEN: usize = 6;
const CLOSE: usize = 7;
/// Names of the kinds of call. `append_at` is counted as `append`.
const NAMES: &[&str] = &["append", "read", "flush", "finish", "reset", "report", "open", "close"];

/// Zones whose calls are counted and timed.
pub struct StatsZonesPart {
    inner: Arc<dyn ZonesPart>,
    counters: Arc<PartCounters>,
}

impl StatsZonesPart {
    /// Counts the calls to `inner`.
    pub fn new(inner: Arc<dyn ZonesPart>) -> Self {
        StatsZonesPart { inner, counters: PartCounters::new(NAMES) }
    }
}

impl Part for StatsZonesPart {
    fn kind(&self) -> &'static str {
        super::ZONES_NAME
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.counters.status())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&super::ZONES_KIND, message)
    }
}

impl Tell for StatsZonesPart {
    type Message = Message;

    fn tell(&self, Message::ClearStats: Message) -> Call<'_, Result<String>> {
        self.counters.clear();
        Call::ready(Ok("cleared".into()))
    }
}

impl ZonesPart for StatsZonesPart {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Rc::new(StatsZones { inner, counters: self.counters.open() }) as Rc<dyn Zones>)
        })
    }
}

struct StatsZones {
    inner: Rc<dyn Zones>,
    counters: Arc<ShardCounters>,
}

impl Zones for StatsZones {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        Call::new(async move {
            let bytes = payload.len() as u64;
            let running = self.counters.begin(APPEND);
            let result = self.inner.append(zone, payload).await;
            running.end(bytes, result.is_ok());
            result
        })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        Call::new(async move {
            let bytes = payload.len() as u64;
            let running = self.counters.begin(APPEND);
            let result = self.inner.append_at(at, payload).await;
            running.end(bytes, result.is_ok());
            result
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(OPEN);
            let result = self.inner.open(zone).await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(CLOSE);
            let result = self.inner.close(zone).await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let bytes = buffer.len() as u64;
            let running = self.counters.begin(READ);
            let outcome = self.inner.read(at, buffer).await;
            running.end(bytes, outcome.0.is_ok());
            outcome
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(FLUSH);
            let result = self.inner.flush(zones).await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            let running = self.counters.begin(FINISH);
            let result = self.inner.finish(zone).await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        Call::new(async move {
            let running = self.counters.begin(RESET);
            let result = self.inner.reset(zone, erase).await;
            running.end(0, result.is_ok());
            result
        })
    }

    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        self.inner.reserve(zone, bytes)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        Call::new(async move {
            let running = self.counters.begin(REPORT);
            let result = self.inner.report(first, count).await;
            running.end(0, result.is_ok());
            result
        })
    }
}
