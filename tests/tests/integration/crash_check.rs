//! Checking a log after a power cut: no state that the oracle cuts is reported as damaged, because the log
//! can be opened from it with everything that was promised.

use block::{BlockCount, DevicePart, Error};
use log::check::check_device;
use log::kind::{Options, open};
use logkit::Counters;
use siltstone_tests::oracle::{Opening, Oracle, in_simulation, seed};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn silent(name: &str, usual_seed: u64, disk_blocks: u64, volume_blocks: u64, operations: u64) -> u64 {
    let mut oracle = Oracle::limited(seed(name, usual_seed), 1);
    oracle.disk.blocks = BlockCount(disk_blocks);
    oracle.workload.operations = operations;
    let seed = oracle.seed;
    let main = move || async move {
        let checked = Cell::new((0_u64, 0_u64));
        let counters: RefCell<Arc<Counters>> = RefCell::default();
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let options = Options {
                format: opening == Opening::Format,
                size: Some(volume_blocks * 4096),
                zone_size: Some(32 << 10),
                checkpoint_after: 64 << 10,
                ..Options::default()
            };
            if opening == Opening::Recover {
                match check_device(disk.clone(), &|_, _| {}).await {
                    Ok(report) if report.is_damaged() => {
                        return Err(Error::corrupt(format!("the check says: {:#?}", report.damage)));
                    }
                    Ok(report) => {
                        let (states, notes) = checked.get();
                        checked.set((states + 1, notes + report.notes.len() as u64));
                    }
                    Err(error) => return Err(error),
                }
            }
            let part = open(disk, &options).await?;
            if opening == Opening::Format {
                *counters.borrow_mut() = part.counters().clone();
            }
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        };
        let report = oracle.run(open).await;
        (report, checked.get(), counters.take())
    };
    let (report, (states, notes), counters) = in_simulation(seed, main);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}; {states} states checked, {notes} notes");
    assert!(report.states > 1000 && states > 0, "{name}: only {states} states were checked");
    counters.moved_blocks.load(Ordering::Relaxed)
}

#[test]
fn a_log_that_is_cut_is_not_damaged() {
    silent("checking after a cut", 31, 640, 40, 200);
}

#[test]
fn a_log_that_is_cleaned_and_cut_is_not_damaged() {
    let moved = silent("checking a cleaned log", 32, 320, 60, 250);
    assert!(moved > 0, "the cleaner had nothing to do");
}
