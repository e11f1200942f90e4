//! One executor per shard over io_uring; with the same API, a simulated one with seeded order and virtual
//! time.
//!
//! A *shard* is one thread with one ring and one run queue. Its tasks reach it through a thread-local, so the
//! API is free functions: [`spawn`], [`sleep`], [`now`], [`file::File`], [`net::Stream`]. Futures stay on
//! their shard; work for another shard is sent there as a message ([`spawn_on`]).
//!
//! # Promises
//! - The kernel writes into memory only while the ring owns it: an operation owns its buffers, paths and
//!   descriptors until its last completion, even if the future that waits for it is dropped. A dropped future
//!   abandons the operation: reads and writes of files complete, waiting on a socket is cancelled.
//! - [`run`] returns after every shard has dropped its tasks and the ring has returned all memory and
//!   descriptors.
//! - Under [`simulate`], time, order and randomness never come from the machine: the same seed gives the same
//!   run.
//! - In steady state an operation allocates nothing.
//!
//! The callers interpret the bytes.
//!
//! ```
//! use std::time::Duration;
//!
//! // Two shards; the task on the second one sleeps, and the first one waits for its result.
//! let sum = runtime::run(runtime::Config::default().with_shards(2), || async {
//!     let distant = runtime::spawn_on(runtime::ShardIndex(1), || async {
//!         runtime::sleep(Duration::from_millis(1)).await;
//!         40
//!     });
//!     distant.await.unwrap_or(0) + runtime::spawn(async { 2 }).await
//! })?;
//! assert_eq!(sum, 42);
//! # Ok::<(), block::Error>(())
//! ```
#![doc = include_str!("../DESIGN.md")]

mod address;
mod busy_wait;
mod carry;
pub mod clock;
mod config;
pub mod embedded;
pub mod event;
pub mod extents;
mod failure_run;
pub mod file;
pub mod fuse_ring;
pub mod histogram;
mod home;
mod home_device;
mod in_flight;
mod kernel_memory;
mod limited_part;
pub mod locked_memory;
mod mailbox;
pub mod mapping;
pub mod message_device;
mod metadata;
pub mod net;
mod operation;
mod per_shard;
mod pieces;
mod polling;
mod random;
pub mod range_lock;
mod remote;
mod requester;
mod requests;
mod ring;
mod ring_entry;
mod run;
mod shard;
pub mod shared_memory;
mod signal;
mod simulated;
mod slots;
pub mod sync;
mod task;
mod task_group;
mod time_limit;
mod timer;
mod timers;
pub mod ublk_driver;
mod warning_limit;
mod world;
pub mod write_back;

pub use busy_wait::BusyWait;
pub use carry::{carry, carry_in};
pub use clock::{
    Instant, boot_clock, now, process_cpu_time, step_simulated_wall_clock, thread_cpu_time, wall_clock,
};
pub use config::{Config, ShardIndex};
pub use failure_run::FailureRun;
pub use home::Home;
pub use home_device::HomeDevice;
pub use limited_part::LimitedPart;
pub use per_shard::PerShard;
pub use pieces::read_pieces;
pub use random::Random;
pub use remote::{Answering, RemoteHandle, answer, blocking, spawn_on, try_blocking};
pub use requester::{ProcessName, Requester, attributed, requester};
pub use requests::{RequestKey, Requests, Waiting};
pub use run::run;
pub use shard::{current_shard, fill_secret, is_on_shard, is_simulated, random_u64, shard_count, submit_now};
pub use signal::{AbortOnHang, HangLimits, StopSignals, catch_hangup, peer_process, serve_write_back};
pub use simulated::{Simulated, power_cut, simulate};
pub use task::{JoinHandle, join_all, join_limited, spawn, yield_now};
pub use task_group::{GroupMember, TaskGroup};
pub use time_limit::{LimitedRequest, TimeLimit};
pub use timer::{Elapsed, retry_while_busy, sleep, sleep_until, sleep_until_precisely, timeout};
pub use warning_limit::WarningLimit;
pub use world::{SimulatedFaults, Simulation};
