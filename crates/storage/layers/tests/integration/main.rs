//! The layers: each one's promises, and the suites of their contracts.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod builder;
mod fault;
mod model;
mod observation;
mod record;
mod replay;
mod stats;
mod suite;
mod timeline;

use conformance::requests::geometry;
use layers::record::replay::ImageDisk;
use std::sync::Arc;

fn disk() -> Arc<ImageDisk> {
    Arc::new(ImageDisk::empty(geometry()))
}
