//! The write cache of zones as a part, and its handles: each call is carried out on the home shard, to its
//! end.

use crate::core::{Core, Demand, Health};
use crate::counters::Counters;
use crate::format::Position;
use crate::log::Log;
use crate::message::Message;
use crate::queue::Queue;
use crate::read_cache::ReadCache;
use crate::readers::Readers;
use crate::recovery::Recovered;
use crate::settings::Options;
use crate::upload_progress::UploadProgress;
use crate::waiting::WaitingAppends;
use crate::{opening, upload, writer};
use block::{
    Buffer, Call, DevicePart, Durable, EraseGuarantee, Error, Fullness, Part, PartUse, Payload, ReadOutcome,
    Result, Status, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use runtime::sync::Notify;
use runtime::{Home, LimitedPart, TaskGroup};
use stack::Tell;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A write cache of zones.
pub struct ZoneWriteCachePart {
    home: Home<Core>,
    geometry: ZoneGeometry,
    fast: Arc<LimitedPart>,
    origin: Arc<dyn ZonesPart>,
    is_stalled: Arc<AtomicBool>,
}

/// Checks that an origin with this geometry can have a write cache.
///
/// # Errors
/// [`Error::Unsupported`] for an origin that finishes its zones at a flush.
pub fn check_origin(origin: &ZoneGeometry) -> Result<()> {
    match origin.durable {
        Durable::OnFinish => Err(Error::unsupported(
            "origin whose appends are durable once their zone is finished: every upload would finish the zones that users still \
             append to; expected zones that are durable on flush",
        )),
        Durable::OnAppend | Durable::OnFlush => Ok(()),
    }
}

/// Geometry of a write cache over an origin.
pub fn geometry(origin: &ZoneGeometry) -> ZoneGeometry {
    ZoneGeometry {
        max_append: crate::layout::max_append(origin),
        durable: Durable::OnFlush,
        // A reset returns before the origin's, and the log keeps the data until it is overwritten.
        erase: EraseGuarantee::None,
        ..origin.clone()
    }
}

impl ZoneWriteCachePart {
    /// Opens the write cache of `origin` on the device `fast`. This shard becomes its home.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Protocol`] and [`Error::Corrupt`] for a device without a cache, with one
    /// of another origin, or with a damaged one; [`Error::Invalid`] and [`Error::Unsupported`] for parts that
    /// don't fit; [`Error::ReadOnly`] for a read-only device; [`Error::Busy`] for an origin that another
    /// writer has claimed.
    pub async fn open(
        fast: Arc<dyn DevicePart>,
        origin: Arc<dyn ZonesPart>,
        options: Options,
    ) -> Result<Self> {
        check_origin(origin.geometry())?;
        if !origin.can_rewind() {
            return Err(Error::unsupported(format!(
                "origin of kind \"{}\": it can't continue a zone after an unclean stop; expected zones that can, such as \"zones\"",
                origin.kind()
            )));
        }
        if fast.geometry().read_only {
            return Err(Error::read_only(
                "the fast device of a write cache of zones is read-only; expected a writable device",
            ));
        }
        let geometry = geometry(origin.geometry());
        let fast = LimitedPart::new(fast, "the fast device", options.timeout);
        let device = fast.open().await?;
        let (recovered, zones) = opening::open(&*device, &*origin, &geometry, &options).await?;
        let is_stalled = Arc::new(AtomicBool::new(false));
        let is_unclean = recovered.is_unclean;
        let core = Core {
            flushes_atomically: origin.flushes_atomically(),
            changes_in_order: has_order(&*origin),
            is_stalled: is_stalled.clone(),
            ..new_core(recovered, geometry.clone(), options, device, zones)
        };
        let core = Rc::new(core);
        core.tasks.spawn(writer::run(core.clone())).detach();
        core.note_start(is_unclean);
        core.tasks.spawn(upload::run(core.clone())).detach();
        Ok(ZoneWriteCachePart { home: Home::here(core), geometry, fast, origin, is_stalled })
    }
}

/// Whether several batches may be in flight. With a limit of zones, one could be opened before the finish of
/// another one has ended.
fn has_order(origin: &dyn ZonesPart) -> bool {
    let geometry = origin.geometry();
    let is_unlimited = geometry.max_open == 0 && geometry.max_active == 0;
    is_unlimited && origin.flushes_atomically() && origin.keep_order()
}

fn new_core(
    recovered: Recovered,
    geometry: ZoneGeometry,
    options: Options,
    fast: Rc<dyn block::Device>,
    origin: Rc<dyn Zones>,
) -> Core {
    let Recovered { layout, superblock, cut, local, pending, index, head, flush_epoch, .. } = recovered;
    Core {
        read_cache: ReadCache::new(layout.read_cache(&geometry), geometry.zones),
        geometry,
        layout,
        max_lag: options.max_lag,
        ack: options.ack,
        fast,
        origin,
        flushes_atomically: false,
        changes_in_order: false,
        local: RefCell::new(local),
        cut: RefCell::new(cut),
        superblock: Cell::new(superblock),
        log: Log::new(head, flush_epoch),
        queue: Queue::default(),
        pending: RefCell::new(pending),
        index: RefCell::new(index),
        readers: Readers::default(),
        progress: Notify::new(),
        waiting: WaitingAppends::default(),
        waiting_flushes: Cell::new(0),
        opened: runtime::wall_clock(),
        demand: Demand::default(),
        health: Health::default(),
        upload_progress: UploadProgress::default(),
        counters: Counters::default(),
        is_stalled: Arc::default(),
        tasks: TaskGroup::default(),
    }
}

impl Core {
    fn fullness(&self) -> Fullness {
        Fullness {
            resource: "data that the origin lacks",
            used_bytes: self.pending.borrow().bytes() + self.queue.bytes(),
            limit_bytes: self.max_lag.bytes,
            can_fill: true,
            remedy: "look for errors of the origin, or write less until its lag is smaller; a larger max_lag needs a larger \
                     fast device",
        }
    }

    fn status(&self) -> Status {
        let mut status = Status::new();
        let superblock = self.superblock.get();
        let (lag_bytes, lag_age) = self.lag();
        let Position { address: head, record, .. } = self.log.head.get();
        let unflushed = record - 1 - self.log.durable().min(record - 1);
        status.extend(self.state());
        status.insert("uuid".into(), superblock.identity.uuid.to_string().into());
        status.insert("lag_bytes".into(), lag_bytes.into());
        status.insert("lag_seconds".into(), lag_age.as_secs_f64().into());
        status.insert("max_lag_bytes".into(), self.max_lag.bytes.into());
        status.insert("max_lag_seconds".into(), self.max_lag.age.as_secs_f64().into());
        status.insert("pending_operations".into(), self.pending.borrow().len().into());
        status.insert("unflushed_records".into(), unflushed.into());
        status.insert("waiting_appends".into(), self.waiting.len().into());
        status.insert("ring_bytes".into(), self.layout.ring.into());
        let used = head - superblock.checkpoint_at.address;
        status.insert("used_ring_bytes".into(), used.into());
        status.insert("extents".into(), self.index.borrow().len().into());
        for (name, value) in self.counters.all() {
            status.insert(name.into(), value.into());
        }
        self.read_cache.add_status(&mut status);
        let errors = [
            ("error", self.health.check_device().err()),
            ("origin_error", self.health.origin_error.borrow().clone()),
            ("conflict", self.health.check_conflict().err()),
        ];
        for (name, error) in errors {
            if let Some(error) = error {
                status.insert(name.into(), error.to_string().into());
            }
        }
        status
    }
}

impl Part for ZoneWriteCachePart {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(Core::status)
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(async { self.home.with(|core| async move { Ok(core.fullness()) }).await.ok() })
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&crate::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(|core: Rc<Core>| core.close()))
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        let is_origin = std::ptr::addr_eq(Arc::as_ptr(&self.origin), below);
        match is_origin && self.is_stalled.load(Ordering::Acquire) {
            true => PartUse::Stalled,
            false => LimitedPart::use_among(std::slice::from_ref(&self.fast), below),
        }
    }
}

impl Tell for ZoneWriteCachePart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        let home = self.home.clone();
        runtime::carry(async move {
            home.with(|core: Rc<Core>| async move {
                let _call = core.tasks.enter();
                message.carry_out(&core).await
            })
            .await
        })
    }
}

impl ZonesPart for ZoneWriteCachePart {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.fast.part().keeps_acknowledged()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::ready(Ok(Rc::new(Handle { geometry: self.geometry.clone(), home: self.home.clone() })))
    }
}

/// A handle of any shard.
struct Handle {
    geometry: ZoneGeometry,
    home: Home<Core>,
}

impl Handle {
    /// Makes a call on the home shard. A call whose future is dropped completes.
    fn call<R: Send + 'static, F>(
        &self,
        checked: Result<()>,
        call: impl FnOnce(Rc<Core>) -> F + Send + 'static,
    ) -> Call<'_, Result<R>>
    where
        F: Future<Output = Result<R>> + 'static,
    {
        if let Err(error) = checked {
            return Call::new(async move { Err(error) });
        }
        let home = self.home.clone();
        runtime::carry(async move {
            home.with(move |core| async move {
                let _call = core.tasks.enter();
                call(core).await
            })
            .await
        })
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        let checked = self.geometry.check_append(zone, payload.len());
        self.call(checked, move |core| async move { core.append(zone, None, payload).await })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_append_at(at, payload.len());
        self.call(checked, move |core| async move {
            core.append(at.zone, Some(at.offset.0), payload).await.map(drop)
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_zone(zone);
        self.call(checked, move |core| async move { core.open_zone(zone).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_zone(zone);
        self.call(checked, move |core| async move { core.close_zone(zone).await })
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let home = self.home.clone();
        let length = buffer.len();
        runtime::carry(async move {
            let read = move |core: Result<Rc<Core>>| async move {
                match core {
                    Ok(core) => {
                        let _call = core.tasks.enter();
                        core.read(at, buffer).await
                    }
                    Err(error) => {
                        buffer.clear();
                        (Err(error), buffer)
                    }
                }
            };
            // The buffer is lost only if the home shard has ended.
            home.visit(read).await.unwrap_or_else(|error| (Err(error), Buffer::new(length)))
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        let checked = zones.iter().try_for_each(|zone| self.geometry.check_zone(*zone));
        self.call(checked, move |core| async move { core.flush().await })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_zone(zone);
        self.call(checked, move |core| async move { core.finish_zone(zone).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        let checked = self.geometry.check_zone(zone).and_then(|()| match erase {
            EraseGuarantee::None => Ok(()),
            _ => Err(Error::unsupported(format!(
                "resetting zone {zone} with the guarantee \"{erase}\": a write cache of zones gives \"{}\", because its log keeps \
                 the data",
                self.geometry.erase
            ))),
        });
        self.call(checked, move |core| async move { core.reset_zone(zone).await })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.call(Ok(()), move |core| async move { core.report(first, count) })
    }
}
