//! Backing of a door, a device or zones, on all shards.

use super::device_target::DeviceTarget;
use super::protocol::Parameters;
use super::queue::{Queue, Target};
use super::zone_target::{self, ZonesExport, ZonesTarget};
use crate::served::export::Export;
use block::{Device, DevicePart, Error, Result, Status, Zones, ZonesPart};
use runtime::PerShard;
use runtime::sync::StopToken;
use runtime::ublk_driver;
use serde_json::json;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time within which the kernel refuses an invalid fetch.
const REFUSAL_TIME: Duration = Duration::from_millis(1);

/// Device or zones that are served as a block device.
#[derive(Clone)]
pub enum Backing {
    /// A device, as an ordinary block device.
    Device(Arc<dyn DevicePart>),
    /// Zones, as a zoned block device.
    Zones(Arc<dyn ZonesPart>),
}

/// The backing of a door, and its handles.
pub(super) enum OpenBacking {
    Device(OpenDevice),
    Zones(OpenZones),
}

pub(super) struct OpenDevice {
    part: Arc<dyn DevicePart>,
    read_only: bool,
    handles: PerShard<Rc<dyn Device>>,
    /// Created at the first start, when the number of shards is known.
    export: OnceLock<Export>,
}

pub(super) struct OpenZones {
    part: Arc<dyn ZonesPart>,
    read_only: bool,
    handles: PerShard<Rc<dyn Zones>>,
    /// Created at the first start.
    export: OnceLock<ZonesExport>,
}

impl OpenDevice {
    fn export(&self) -> &Export {
        self.export.get_or_init(|| Export::new(&self.part, self.read_only, runtime::shard_count()))
    }
}

impl OpenZones {
    fn export(&self) -> Result<&ZonesExport> {
        if let Some(export) = self.export.get() {
            return Ok(export);
        }
        let export = ZonesExport::new(self.part.geometry(), self.read_only)?;
        Ok(self.export.get_or_init(|| export))
    }

    fn here(&self) -> Result<Rc<Rc<dyn Zones>>> {
        self.handles.here().ok_or_else(closed)
    }
}

fn closed() -> Error {
    Error::cancelled("the door was closed")
}

impl OpenBacking {
    /// Returns a backing that isn't open yet.
    pub(super) fn new(backing: Backing, read_only: bool) -> OpenBacking {
        match backing {
            Backing::Device(part) => OpenBacking::Device(OpenDevice {
                part,
                read_only,
                handles: PerShard::new(),
                export: OnceLock::new(),
            }),
            Backing::Zones(part) => OpenBacking::Zones(OpenZones {
                part,
                read_only,
                handles: PerShard::new(),
                export: OnceLock::new(),
            }),
        }
    }

    /// Opens the backing on every shard.
    pub(super) async fn open(&self) -> Result<()> {
        match self {
            OpenBacking::Device(device) => {
                let part = device.part.clone();
                let open = move || {
                    let part = part.clone();
                    async move { part.open().await }
                };
                device.handles.open(open).await
            }
            OpenBacking::Zones(zones) => {
                let part = zones.part.clone();
                let open = move || {
                    let part = part.clone();
                    async move { part.open().await }
                };
                zones.handles.open(open).await
            }
        }
    }

    /// Drops the handles of every shard.
    pub(super) async fn close(&self) {
        match self {
            OpenBacking::Device(device) => device.handles.close(async |_| ()).await,
            OpenBacking::Zones(zones) => zones.handles.close(async |_| ()).await,
        }
    }

    /// Returns the parameters of the block device. The backing must be open.
    pub(super) async fn parameters(&self) -> Result<Parameters> {
        match self {
            OpenBacking::Device(device) => {
                let export = device.export();
                Ok(Parameters::of(export.geometry(), export.read_only))
            }
            OpenBacking::Zones(zones) => {
                let export = zones.export()?;
                let interrupted = zone_target::interrupted(&**zones.here()?).await?;
                if interrupted > 0 {
                    tracing::warn!(
                        "{interrupted} zones are interrupted by an unclean stop: the block device has them as full until they are reset"
                    );
                }
                Ok(export.layout.parameters(export.read_only))
            }
        }
    }

    /// Serves a queue on this shard until the device is stopped or the queue leaves. `fetching` receives the
    /// error if the kernel refuses a fetch.
    pub(super) async fn serve(
        &self,
        queue: ublk_driver::Queue,
        leave: StopToken,
        fetching: impl FnOnce(Result<()>),
    ) -> Result<()> {
        match self {
            OpenBacking::Device(device) => {
                let handle = device.handles.here().ok_or_else(closed)?;
                let shard = runtime::current_shard().0;
                let target = DeviceTarget::new(device.export(), &**handle, shard);
                serve(Queue::new(queue, target), leave, fetching).await
            }
            OpenBacking::Zones(zones) => {
                let handle = zones.here()?;
                let target = ZonesTarget::new(zones.export()?, &**handle);
                serve(Queue::new(queue, target), leave, fetching).await
            }
        }
    }

    /// Adds the status of the backing and the counters of its requests.
    pub(super) fn add_status(&self, status: &mut Status) {
        match self {
            OpenBacking::Device(device) => {
                let Some(export) = device.export.get() else { return };
                status.insert("read_only".into(), json!(export.read_only));
                let mut counters = export.counters.status();
                for of_other_doors in ["connections", "block_statuses"] {
                    counters.remove(of_other_doors);
                }
                status.extend(counters);
            }
            OpenBacking::Zones(zones) => {
                let Some(export) = zones.export.get() else { return };
                status.insert("read_only".into(), json!(export.read_only));
                status.insert("zone_size".into(), json!(1_u64 << export.layout.zone_shift));
                status.insert("zone_capacity".into(), json!(export.layout.capacity));
                status.extend(export.counters.status());
            }
        }
    }
}

async fn serve<T: Target>(
    mut queue: Queue<T>,
    leave: StopToken,
    fetching: impl FnOnce(Result<()>),
) -> Result<()> {
    runtime::sleep(REFUSAL_TIME).await;
    fetching(queue.take_failure());
    queue.serve(leave).await
}
