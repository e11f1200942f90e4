//! Zones with a fixed bandwidth in simulated time.

use block::{
    Buffer, Call, EraseGuarantee, Part, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry, ZoneIndex,
    ZoneReport, Zones, ZonesPart,
};
use runtime::Instant;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Duration of a request in addition to its transfer.
const LATENCY: Duration = Duration::from_micros(100);

/// Zones whose reads and appends share one link.
pub struct SlowZones {
    inner: Arc<dyn ZonesPart>,
    link: Arc<Link>,
}

struct Link {
    bytes_per_second: u64,
    /// Time at which the link has transferred all requests, in nanoseconds.
    free: AtomicU64,
}

impl Link {
    async fn transfer(&self, bytes: usize) {
        let now = runtime::now();
        let took = bytes as u64 * 1_000_000_000 / self.bytes_per_second;
        let end = self.free.load(Ordering::Relaxed).max(now.nanoseconds()) + took;
        self.free.store(end, Ordering::Relaxed);
        runtime::sleep(Instant::from_nanoseconds(end) - now + LATENCY).await;
    }
}

impl SlowZones {
    pub fn with_bandwidth(inner: Arc<dyn ZonesPart>, bytes_per_second: u64) -> Arc<dyn ZonesPart> {
        Arc::new(SlowZones { inner, link: Arc::new(Link { bytes_per_second, free: AtomicU64::new(0) }) })
    }
}

impl Part for SlowZones {
    fn kind(&self) -> &'static str {
        "slow-zones"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.inner.close()
    }
}

impl ZonesPart for SlowZones {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Rc::new(Handle { inner, link: self.link.clone() }) as Rc<dyn Zones>)
        })
    }
}

struct Handle {
    inner: Rc<dyn Zones>,
    link: Arc<Link>,
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        Call::new(async move {
            self.link.transfer(payload.len()).await;
            self.inner.append(zone, payload).await
        })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.link.transfer(payload.len()).await;
            self.inner.append_at(at, payload).await
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.open(zone)
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.close(zone)
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            self.link.transfer(buffer.len().max(buffer.missing())).await;
            self.inner.read(at, buffer).await
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        self.inner.flush(zones)
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.finish(zone)
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        self.inner.reset(zone, erase)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.inner.report(first, count)
    }
}
