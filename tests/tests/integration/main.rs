//! What crosses crates: the crash oracle, simulated worlds, foreign programs, the guest machine.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod close;
mod crash_behind_log;
mod crash_cache;
mod crash_check;
mod crash_engine;
mod crash_home;
mod crash_log;
mod crash_log_on_zones;
mod crash_mirror;
mod crash_oracle;
mod crash_snapshots;
mod crash_tiers;
mod crash_writecache;
mod foreign_crash;
mod foreign_filesystems;
mod foreign_hostile;
mod foreign_kill;
mod foreign_limits;
mod foreign_lost;
mod foreign_model;
mod foreign_nbd;
mod guest_dax;
mod guest_dm;
mod guest_machine;
mod guest_vhost;
mod guest_warm;
mod status;
mod worlds_behind_log;
mod worlds_cache;
mod worlds_engine;
mod worlds_log;
mod worlds_mirror;
mod worlds_plain;
mod worlds_tiers;
mod worlds_writecache;
