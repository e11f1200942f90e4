//! An origin with a switch: its calls fail, or don't return until the switch changes.

use block::{
    Buffer, Call, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry,
    ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Behavior of the origin. Values of the switch.
#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
pub enum Mode {
    Works,
    Fails,
    IsFull,
    /// Calls return only once the mode has changed.
    Hangs,
    /// Reads return only once the mode has changed.
    HangsReads,
}

/// Zones with a switch.
pub struct Switched {
    inner: Arc<dyn ZonesPart>,
    geometry: ZoneGeometry,
    switch: Arc<Switch>,
}

#[derive(Default)]
pub struct Switch {
    mode: AtomicU8,
    /// Number of appends, flushes, finishes and resets that reached the zones.
    changes: AtomicU64,
}

impl Switched {
    pub fn new(inner: Arc<dyn ZonesPart>) -> (Arc<Self>, Arc<Switch>) {
        let max_append = inner.geometry().max_append;
        Self::with_max_append(inner, max_append)
    }

    /// Zones with another limit of an append.
    pub fn with_max_append(inner: Arc<dyn ZonesPart>, max_append: u64) -> (Arc<Self>, Arc<Switch>) {
        let switch = Arc::new(Switch::default());
        let geometry = ZoneGeometry { max_append, ..inner.geometry().clone() };
        (Arc::new(Switched { inner, geometry, switch: switch.clone() }), switch)
    }
}

impl Switch {
    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    async fn pass(&self, appends: bool) -> Result<()> {
        self.wait(appends, false).await?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn wait(&self, appends: bool, reads: bool) -> Result<()> {
        loop {
            match self.mode.load(Ordering::SeqCst) {
                mode if mode == Mode::Fails as u8 => {
                    return Err(Error::disconnected("the origin is switched off"));
                }
                mode if mode == Mode::IsFull as u8 && appends => {
                    return Err(Error::no_space("the bucket's quota"));
                }
                // Virtual time passes.
                mode if mode == Mode::Hangs as u8 || reads && mode == Mode::HangsReads as u8 => {
                    runtime::sleep(Duration::from_secs(1)).await;
                }
                _ => return Ok(()),
            }
        }
    }
}

impl Part for Switched {
    fn kind(&self) -> &'static str {
        "switched"
    }
}

impl ZonesPart for Switched {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn can_rewind(&self) -> bool {
        self.inner.can_rewind()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            let (geometry, switch) = (self.geometry.clone(), self.switch.clone());
            Ok(Rc::new(Handle { inner, geometry, switch }) as Rc<dyn Zones>)
        })
    }
}

struct Handle {
    inner: Rc<dyn Zones>,
    geometry: ZoneGeometry,
    switch: Arc<Switch>,
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        Call::new(async move {
            self.switch.pass(true).await?;
            self.inner.append(zone, payload).await
        })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.switch.pass(true).await?;
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
            match self.switch.wait(false, true).await {
                Ok(()) => self.inner.read(at, buffer).await,
                Err(error) => (Err(error), buffer),
            }
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::new(async move {
            self.switch.pass(false).await?;
            self.inner.flush(zones).await
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.switch.pass(false).await?;
            self.inner.finish(zone).await
        })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        Call::new(async move {
            self.switch.pass(false).await?;
            self.inner.reset(zone, erase).await
        })
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        self.inner.rewind(at)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.inner.report(first, count)
    }
}
