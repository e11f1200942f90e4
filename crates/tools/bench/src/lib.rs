//! Workloads, latencies, plans, peers and the report.
#![doc = include_str!("../DESIGN.md")]

pub mod engine;
pub mod environment;
pub mod iolog;
pub mod job;
pub mod job_file;
pub mod latency;
pub mod matrix;
pub mod peer;
pub mod plan;
pub mod report;
pub mod results;
pub mod runner;
pub mod series;
pub mod table;
pub mod units;
