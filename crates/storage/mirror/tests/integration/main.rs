//! The mirror: its promises, and races of its changes.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod promises;
mod races;

use block::Part;
use mirror::MirrorPart;
use std::time::Duration;

/// Runs a test in virtual time, which passes only while all tasks wait.
fn simulated<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send) {
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}

/// Waits until no leg misses a change, and all superblocks say so.
async fn settled(part: &MirrorPart) {
    for _ in 0..10_000 {
        if part.status().await["chunks_to_copy"] == 0 && part.status().await["state"] == "clean" {
            return;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never is clean: {:?}", part.status().await);
}
