//! Zones with a fixed bandwidth in simulated time.

use block::{
    Buffer, Call, Part, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry, ZoneIndex, Zones, ZonesPart,
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
    conformance::pass_on!(inner: geometry, open, close, flush, finish, reset, report);

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

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            self.link.transfer(buffer.len().max(buffer.missing())).await;
            self.inner.read(at, buffer).await
        })
    }
}
