//! The suite of the contract, with crashes: a new writer takes the volume over while the old one's requests
//! are still in flight.

use crate::common::{create, reopen};
use block::{Call, ZonesPart};
use conformance::zones::{Options, run};
use object_store::testing::{Bucket, Faults};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

async fn on_the_store(faults: Faults, crashes: usize) -> Result<(), String> {
    let bucket = Bucket::start(Faults::default());
    let is_formatted = Cell::new(false);
    let make = async || {
        let part = match is_formatted.replace(true) {
            true => reopen().await,
            false => create().await,
        };
        bucket.faults.set(faults);
        Arc::new(part) as Arc<dyn ZonesPart>
    };
    let crash = |_: Arc<dyn ZonesPart>| Call::new(async { Arc::new(reopen().await) as Arc<dyn ZonesPart> });
    run(
        make,
        Options { persistent: true, crash: Some(Rc::new(crash)), crashes, rounds: 150, ..Options::default() },
    )
    .await
}

#[test]
fn zones_in_a_bucket_keep_the_promises() {
    for (seed, shards, faults) in [
        (1, 1, Faults::default()),
        (2, 2, Faults::default()),
        (
            3,
            2,
            Faults {
                lost_answer: 0.05,
                lost_request: 0.05,
                internal: 0.05,
                duplicate: 0.1,
                ..Faults::default()
            },
        ),
    ] {
        let simulation =
            runtime::Simulation { shards, most_events: 400_000_000, ..runtime::Simulation::new(seed) };
        let judged = runtime::simulate(simulation, move || on_the_store(faults, 12));
        judged.unwrap().value.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}
