//! Watch over the requests to the storage of a file system: whether some are in flight, whether any
//! completes, and whether the oldest ones do. The end of a server depends on it.
//!
//! Requests are watched at the bottom of the stack: one call of a layer above may be many requests to its
//! devices, and a cache answers without them.
//!
//! # Age
//! A request costs two changes of a counter and no look at a clock: it belongs to the generation in which it
//! begins. There are counters for two generations, the current one and the one before. An
//! [observation](Watch::observe) starts a new generation if no request of the one before is in flight. So if
//! observations see the same generation for a time, a request has been in flight for longer. A request that
//! hangs stops the generations after at most one more, however many others complete.

use block::layer::{Observed, Observer};
use block::{
    Call, Device, DeviceGeometry, DevicePart, Part, PartUse, Result, Status, ZoneGeometry, Zones, ZonesPart,
};
use stack::Built;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that have begun and completed. Clones are the same watch.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// Number of the current generation.
    generation: AtomicU64,
    /// Requests of the generations with an even number, and of those with an odd one.
    counts: [Counts; 2],
}

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    /// Requests that have completed, or were cancelled.
    completed: AtomicU64,
}

impl Counts {
    /// Returns how many requests have completed, and whether some are in flight.
    fn progress(&self) -> (u64, bool) {
        // In this order a request that begins meanwhile isn't taken for one that has completed.
        let completed = self.completed.load(Ordering::Acquire);
        (completed, self.begun.load(Ordering::Relaxed) != completed)
    }
}

/// Observation of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of requests that have completed.
    pub completed: u64,
    /// Whether requests are in flight.
    pub in_flight: bool,
    /// Number of the generation. It stays the same while a request that had begun before the generation is in
    /// flight.
    pub generation: u64,
}

/// A request in flight; dropping it ends the request.
#[derive(Debug)]
pub struct Watched<'a>(&'a Counts);

impl Drop for Watched<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.completed.fetch_add(1, Ordering::Release);
    }
}

impl Watch {
    /// Watches the requests to a device or zones. Other parts are returned as they are.
    pub fn over(&self, part: Built) -> Built {
        match part {
            Built::Device(inner) => Built::Device(Arc::new(WatchedPart { inner, watch: self.clone() })),
            Built::Zones(inner) => Built::Zones(Arc::new(WatchedPart { inner, watch: self.clone() })),
            door @ Built::Door(_) => door,
        }
    }

    /// Begins a request.
    #[inline]
    fn request(&self) -> Watched<'_> {
        let counts = self.0.counts_of(self.0.generation.load(Ordering::Relaxed));
        counts.begun.fetch_add(1, Ordering::Relaxed);
        Watched(counts)
    }

    #[inline]
    fn watched<'a, T: 'a>(&'a self, request: Call<'a, T>) -> Call<'a, T> {
        Call::new(async move {
            let _watched = self.request();
            request.await
        })
    }

    /// Observes the requests, and starts a new generation if none of the one before is in flight. One task at
    /// a time calls it.
    pub fn observe(&self) -> Progress {
        let generation = self.0.generation.load(Ordering::Relaxed);
        let (before, is_before_in_flight) = self.0.counts_of(generation + 1).progress();
        let (current, is_current_in_flight) = self.0.counts_of(generation).progress();
        let generation = generation + u64::from(!is_before_in_flight);
        self.0.generation.store(generation, Ordering::Relaxed);
        Progress {
            completed: before + current,
            in_flight: is_before_in_flight || is_current_in_flight,
            generation,
        }
    }
}

impl Requests {
    #[inline]
    fn counts_of(&self, generation: u64) -> &Counts {
        &self.counts[(generation % 2) as usize]
    }
}

struct WatchedPart<P: ?Sized> {
    inner: Arc<P>,
    watch: Watch,
}

impl<P: Part + ?Sized> Part for WatchedPart<P> {
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
        self.watch.watched(self.inner.close())
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        self.inner.use_of(below)
    }
}

impl DevicePart for WatchedPart<dyn DevicePart> {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Observed::new(inner, self.watch.clone()) as Rc<dyn Device>)
        })
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

    fn version<'a>(&'a self, name: &'a str) -> Call<'a, Result<Arc<dyn DevicePart>>> {
        self.inner.version(name)
    }
}

impl ZonesPart for WatchedPart<dyn ZonesPart> {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Observed::new(inner, self.watch.clone()) as Rc<dyn Zones>)
        })
    }
}

impl<C> Observer<C> for Watch {
    type InFlight<'a> = Watched<'a>;

    #[inline]
    fn begin(&self, _: C) -> Watched<'_> {
        self.request()
    }

    #[inline]
    fn end(&self, request: Watched<'_>, _: u64, _: bool) {
        drop(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(watch: &Watch) -> (u64, bool) {
        let Progress { completed, in_flight, .. } = watch.observe();
        (completed, in_flight)
    }

    #[test]
    fn requests_are_in_flight_until_they_complete_or_are_cancelled() {
        let watch = Watch::default();
        assert_eq!(seen(&watch), (0, false));
        let mut stuck = watch.watched(Call::<()>::new(std::future::pending()));
        assert_eq!(seen(&watch), (0, false), "it hasn't begun");
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::Pin::new(&mut stuck).poll(&mut context).is_pending());
        assert_eq!(seen(&watch), (0, true));
        let mut quick = watch.watched(Call::ready(()));
        assert!(std::pin::Pin::new(&mut quick).poll(&mut context).is_ready());
        drop(quick);
        assert_eq!(seen(&watch), (1, true), "another one is in flight");
        drop(stuck);
        assert_eq!(seen(&watch), (2, false));
    }

    /// Requests that always overlap leave some in flight at every moment.
    #[test]
    fn generations_go_on_until_a_request_hangs() {
        let watch = Watch::default();
        let mut overlapping = watch.request();
        for generation in 1..10 {
            let next = watch.request();
            drop(std::mem::replace(&mut overlapping, next));
            // A request that has begun in the generation before is replaced by one of this generation.
            assert_eq!(watch.observe().generation, generation);
        }
        let hung = watch.request();
        let stopped = watch.observe().generation;
        for completed in 10..20 {
            let next = watch.request();
            drop(std::mem::replace(&mut overlapping, next));
            let seen = watch.observe();
            assert!(seen.generation <= stopped + 1, "{seen:?}");
            assert_eq!((seen.completed, seen.in_flight), (completed, true));
        }
        drop(hung);
        assert!(watch.observe().generation > stopped);
    }
}
