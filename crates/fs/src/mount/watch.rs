//! Watch over the requests to the zones of a file system: how long the storage has left one unanswered. The end of a server depends on it.
//!
//! Time is counted in turns, which the caller begins ([`Watch::next_turn`]) while it wants to know. Until then a request costs two changes of a
//! counter.

use block::{
    Buffer, Call, EraseGuarantee, Part, PartUse, Payload, ReadOutcome, Result, Status, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most turns that are told apart.
const TURNS: u64 = 128;

/// Requests in flight, by the turn in which they began. Clones are the same watch.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Turns>);

#[derive(Debug)]
struct Turns {
    turn: AtomicU64,
    in_flight: [AtomicU64; TURNS as usize],
}

/// A request in flight, until this is dropped.
#[derive(Debug)]
pub struct Watched<'a> {
    in_flight: &'a AtomicU64,
}

impl Drop for Watched<'_> {
    #[inline]
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Watch {
    fn default() -> Self {
        let in_flight = std::array::from_fn(|_| AtomicU64::new(0));
        Watch(Arc::new(Turns { turn: AtomicU64::new(0), in_flight }))
    }
}

impl Watch {
    /// Watches the requests to these zones.
    pub fn over(&self, zones: Arc<dyn ZonesPart>) -> Arc<dyn ZonesPart> {
        Arc::new(WatchedPart { inner: zones, watch: self.clone() })
    }

    /// Notes that a request begins.
    #[inline]
    pub fn begin(&self) -> Watched<'_> {
        let turn = self.0.turn.load(Ordering::Relaxed);
        let in_flight = &self.0.in_flight[(turn % TURNS) as usize];
        in_flight.fetch_add(1, Ordering::Relaxed);
        Watched { in_flight }
    }

    /// Begins the next turn. Returns the age in turns of the oldest request in flight, at most 126; 0 without one.
    pub fn next_turn(&self) -> u64 {
        let turn = self.0.turn.load(Ordering::Relaxed);
        let has_some = |age: &u64| {
            let of_turn = &self.0.in_flight[((turn + TURNS - age) % TURNS) as usize];
            of_turn.load(Ordering::Relaxed) > 0
        };
        let oldest = (0..TURNS - 1).rev().find(has_some).unwrap_or(0);
        // The turn of a request that is older than all that are told apart isn't used again.
        if oldest < TURNS - 2 {
            self.0.turn.store(turn + 1, Ordering::Relaxed);
        }
        oldest
    }
}

struct WatchedPart {
    inner: Arc<dyn ZonesPart>,
    watch: Watch,
}

impl Part for WatchedPart {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn status(&self) -> Call<'_, Status> {
        self.inner.status()
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.inner.message(message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let _watched = self.watch.begin();
            self.inner.close().await
        })
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        self.inner.use_of(below)
    }
}

impl ZonesPart for WatchedPart {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Rc::new(WatchedZones { inner, watch: self.watch.clone() }) as Rc<dyn Zones>)
        })
    }
}

struct WatchedZones {
    inner: Rc<dyn Zones>,
    watch: Watch,
}

impl WatchedZones {
    #[inline]
    fn watched<'a, T: 'a>(&'a self, request: Call<'a, T>) -> Call<'a, T> {
        Call::new(async move {
            let _watched = self.watch.begin();
            request.await
        })
    }
}

impl Zones for WatchedZones {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        self.watched(self.inner.append(zone, payload))
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        self.watched(self.inner.append_at(at, payload))
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.watched(self.inner.open(zone))
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.watched(self.inner.close(zone))
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.watched(self.inner.read(at, buffer))
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        self.watched(self.inner.flush(zones))
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.watched(self.inner.finish(zone))
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        self.watched(self.inner.reset(zone, erase))
    }

    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        self.watched(self.inner.reserve(zone, bytes))
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.watched(self.inner.report(first, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_in_flight_tells_for_how_long_nothing_was_answered() {
        let watch = Watch::default();
        assert_eq!((watch.next_turn(), watch.next_turn()), (0, 0), "without a request");
        let first = watch.begin();
        assert_eq!((0..4).map(|_| watch.next_turn()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let second = watch.begin();
        assert_eq!(watch.next_turn(), 4);
        drop(first);
        assert_eq!(watch.next_turn(), 1, "the second one began four turns later");
        let oldest = (0..1000).map(|_| watch.next_turn()).max();
        assert_eq!(oldest, Some(TURNS - 2));
        drop(second);
        assert_eq!(watch.next_turn(), 0);
    }
}
