//! Conformance suites, which every implementation of a contract passes.
//!
//! [`device::run`] checks the promises of [`block::Device`] and [`zones::run`] those of [`block::Zones`]: all
//! that can be observed without a power cut, and for zones those after one, if the implementation can
//! simulate it. [`device::run_close`] checks that a closed device loses nothing in a power cut. A suite runs
//! inside `runtime::run` or `runtime::simulate` and destroys the part's data. It reports the broken promise,
//! its place and the seed; `SILTSTONE_SEED` in the environment repeats a run.
//!
//! [`requests`] has reads and writes of single blocks; [`allocations`] counts allocations of a test;
//! [`Seeds`] and [`budget`] say which seeds a test tries; [`images`] searches disks for bytes; [`Whole`]
//! is a stack as one device; [`check_messages`] checks the messages that a kind declares; [`pass_on`]
//! writes the methods of zones that a test doesn't change.
//!
//! [`certificates`] makes folders of certificates for tests of TLS; [`fuse_transport`] selects how the
//! requests of a mount come.
//!
//! Tests of the suites break each promise on purpose, and the suite has to report it.
//!
//! Not covered: crashes of devices (see the crash oracle), faults below a device (see `fault`), performance.

pub mod allocations;
pub mod budget;
pub mod certificates;
pub mod device;
pub mod fuse_transport;
pub mod images;
mod messages;
mod pass_on;
pub mod requests;
mod seeds;
mod stamp;
mod suite;
mod whole;
pub mod zones;

pub use messages::check_messages;
pub use seeds::Seeds;
pub use whole::Whole;
