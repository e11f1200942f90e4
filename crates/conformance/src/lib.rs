//! The suites that every implementation of a contract passes.
//!
//! [`device::run`] checks the promises of [`block::Device`], [`zones::run`] those of [`block::Zones`]: all that can
//! be seen from outside without a power cut, and for zones those after one, if the implementation brings a way
//! to cut it. [`device::run_close`] checks that a closed device has lost nothing to a power cut. A suite runs inside `runtime::run` or `runtime::simulate`, destroys what the part holds, and says
//! which promise was broken, where, and with which seed; `SILTSTONE_SEED` in the environment repeats a run.
//!
//! [`allocations`] counts what a test allocates; [`Whole`] is a stack as one device; [`check_messages`] checks the
//! messages that a kind declares.
//!
//! The suites themselves are tested: each promise is broken on purpose, and the suite has to notice.
//!
//! Left to others: crashes of devices (the crash oracle), faults below (`fault`), speed.

pub mod allocations;
pub mod budget;
pub mod device;
mod messages;
mod stamp;
mod suite;
mod whole;
pub mod zones;

pub use messages::check_messages;
pub use whole::Whole;
