//! The ublk door, which serves a device as a block device of the kernel, `/dev/ublkbN` (Linux 6.5 or newer, module `ublk_drv`).
//!
//! [`protocol`] has the structures and the parser of requests, sans-io; [`control`] the commands by which devices are created, started,
//! recovered and deleted; `queue` serves a hardware queue on its shard; [`door`] is the part and declares the kind. Commands and copies
//! at the kernel's border are in `runtime::ublk_driver`.

pub mod control;
pub mod door;
pub mod protocol;
mod queue;
