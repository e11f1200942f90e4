//! A device with modelled latencies: each call is passed to the inner device at once, and completes at the
//! time that the model gives.

use super::disk::{DiskServer, Wait};
use super::profile::Profile;
use super::solid::SolidServer;
use crate::clear_stats::Message;
use block::layer::DeviceLayer;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Extent, Part,
    Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::{Instant, now};
use stack::Tell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Delay after the modelled time from which an operation is counted as late.
const LATE: Duration = Duration::from_micros(50);

#[derive(Debug)]
enum Server {
    Solid(SolidServer),
    Disk(DiskServer),
}

/// State that all shards share.
#[derive(Debug)]
struct Shared {
    /// Locked for one computation, never across an await.
    server: Mutex<Server>,
    operations: AtomicU64,
    late: AtomicU64,
    latest_nanoseconds: AtomicU64,
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut Server) -> T) -> T {
        act(&mut self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts an operation that was due at `due` and completes now.
    fn answered(&self, due: Instant) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let now = now();
        if now > due {
            let late = now - due;
            self.latest_nanoseconds.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
            if late > LATE {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A device with modelled latencies.
pub struct ModelPart {
    name: String,
    profile: Profile,
    inner: Arc<dyn DevicePart>,
    geometry: DeviceGeometry,
    shared: Arc<Shared>,
}

impl ModelPart {
    /// Gives `inner` the latencies of a profile; `name` is the profile's name. Random choices depend on
    /// `seed`.
    pub fn new(inner: Arc<dyn DevicePart>, name: &str, profile: Profile, seed: u64) -> Self {
        let volatile_cache = profile.volatile_cache() || inner.geometry().volatile_cache;
        let geometry = DeviceGeometry { volatile_cache, ..inner.geometry().clone() };
        let server = match &profile {
            Profile::SolidState(profile) => Server::Solid(SolidServer::new(profile.clone(), seed)),
            Profile::Disk(profile) => Server::Disk(DiskServer::new(profile.clone(), geometry.bytes())),
        };
        let shared = Shared {
            server: Mutex::new(server),
            operations: AtomicU64::new(0),
            late: AtomicU64::new(0),
            latest_nanoseconds: AtomicU64::new(0),
        };
        ModelPart { name: name.to_owned(), profile, inner, geometry, shared: Arc::new(shared) }
    }
}

impl Part for ModelPart {
    fn kind(&self) -> &'static str {
        super::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut status = Status::new();
        status.insert("profile".into(), self.name.as_str().into());
        status.insert("title".into(), self.profile.title().into());
        status.insert("operations".into(), count(&self.shared.operations).into());
        status.insert("late".into(), count(&self.shared.late).into());
        status.insert("latest_ns".into(), count(&self.shared.latest_nanoseconds).into());
        Call::ready(status)
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&super::KIND, message)
    }
}

impl Tell for ModelPart {
    type Message = Message;

    fn tell(&self, Message::ClearStats: Message) -> Call<'_, Result<String>> {
        for counter in [&self.shared.operations, &self.shared.late, &self.shared.latest_nanoseconds] {
            counter.store(0, Ordering::Relaxed);
        }
        Call::ready(Ok("cleared".into()))
    }
}

impl DeviceLayer for ModelPart {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.inner
    }

    fn own_geometry(&self) -> Option<&DeviceGeometry> {
        Some(&self.geometry)
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        Rc::new(Model { inner: below, geometry: self.geometry.clone(), shared: self.shared.clone() })
    }
}

struct Model {
    inner: Rc<dyn Device>,
    geometry: DeviceGeometry,
    shared: Arc<Shared>,
}

/// Time or operation that a call waits for.
enum Due {
    At(Instant),
    /// This operation of a disk.
    Operation(u64),
    /// All operations of a disk before this one, for a flush.
    Before(u64),
}

impl Model {
    /// Submits an operation on these blocks to the model.
    fn arrive(&self, range: BlockRange, is_write: bool) -> Due {
        let (now, block_size) = (now(), self.geometry.block_size);
        let (at, bytes) = (block_size.offset_of(range.start).0, block_size.bytes_of(range.count));
        self.shared.with(|server| match server {
            Server::Solid(server) if is_write => Due::At(server.write(now, bytes)),
            Server::Solid(server) => Due::At(server.read(now, bytes)),
            Server::Disk(server) => Due::Operation(server.arrive(now, at, bytes, is_write)),
        })
    }

    /// Waits until the modelled device would have completed the operation.
    async fn done(&self, due: Due) {
        let at = match due {
            Due::At(at) => at,
            Due::Operation(ticket) => self.by_arm(|server, now| server.wait(now, ticket)).await,
            Due::Before(ticket) => self.by_arm(|server, now| server.flush(now, ticket)).await,
        };
        runtime::sleep_until_precisely(at).await;
        self.shared.answered(at);
    }

    /// Waits for a disk's arm until the completion time is known.
    async fn by_arm(&self, look: impl Fn(&mut DiskServer, Instant) -> Wait) -> Instant {
        loop {
            let wait = self.shared.with(|server| match server {
                Server::Disk(server) => look(server, now()),
                Server::Solid(_) => Wait::Until(now()),
            });
            match wait {
                Wait::Until(at) => return at,
                Wait::LookAgain(at) => runtime::sleep_until(at).await,
            }
        }
    }

    /// Carries out a change with the latency of a write.
    async fn change(
        &self,
        range: BlockRange,
        bytes: bool,
        durable: bool,
        call: Call<'_, Result<()>>,
    ) -> Result<()> {
        let passed = if bytes { range } else { BlockRange { count: block::BlockCount(0), ..range } };
        let due = self.arrive(passed, true);
        let outcome = call.await;
        self.done(due).await;
        if durable && outcome.is_ok() {
            self.done(self.flush_due()).await;
        }
        outcome
    }

    fn flush_due(&self) -> Due {
        let now = now();
        self.shared.with(|server| match server {
            Server::Solid(server) => Due::At(server.flush(now)),
            Server::Disk(server) => Due::Before(server.next_ticket()),
        })
    }
}

impl Device for Model {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        match self.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => Call::new(async move {
                let due = self.arrive(range, false);
                let outcome = self.inner.read(at, buffer).await;
                self.done(due).await;
                outcome
            }),
            other => {
                buffer.clear();
                Call::ready((other.map(drop), buffer))
            }
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.geometry.writable_range(at, payload.len()) {
            Ok(range) if !range.is_empty() => {
                let durable = durability == Durability::Durable && self.geometry.volatile_cache;
                Call::new(self.change(range, true, durable, self.inner.write(at, payload, durability)))
            }
            other => Call::ready(other.map(drop)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let due = self.flush_due();
            let outcome = self.inner.flush().await;
            if self.geometry.volatile_cache {
                self.done(due).await;
            }
            outcome
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        match self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            Ok(()) if !range.is_empty() => {
                Call::new(self.change(range, false, false, self.inner.discard(range)))
            }
            other => Call::ready(other),
        }
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            Ok(()) if !range.is_empty() => {
                let durable = durability == Durability::Durable && self.geometry.volatile_cache;
                Call::new(self.change(
                    range,
                    false,
                    durable,
                    self.inner.write_zeroes(range, mode, durability),
                ))
            }
            other => Call::ready(other),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.inner.extents(range)
    }
}
