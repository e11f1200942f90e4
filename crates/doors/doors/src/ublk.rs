//! The ublk door, which serves a device as a block device of the kernel, `/dev/ublkbN` (Linux 6.5 or newer,
//! module `ublk_drv`), and zones as a zoned block device (Linux 6.6 or newer).
//!
//! [`protocol`] has the structures and the parser of requests to a device, [`zoned`] the layout, requests and
//! reports of zones, both sans-io; [`control`] the commands by which devices are created, started, recovered
//! and deleted; `queue` serves a hardware queue on its shard; `device_target` and `zone_target` execute its
//! requests; [`backing`] is either on all shards; [`door`] is the part and declares the kind.
//! `runtime::ublk_driver` has the commands and copies at the kernel's border.

pub mod backing;
pub mod control;
mod device_target;
pub mod door;
pub mod protocol;
mod queue;
mod zone_target;
pub mod zoned;
