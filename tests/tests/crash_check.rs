//! Checking a log after a power cut: whatever state the oracle cuts, nothing in it is damage, because the log can be
//! opened from it with everything that was promised.

use block::{BlockCount, DevicePart, Error};
use log::check::check_device;
use log::kind::{Options, open};
use siltstone_tests::oracle::{Opening, Oracle, seed};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

fn silent(name: &str, usual_seed: u64, disk_blocks: u64, volume_blocks: u64, operations: u64) {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(disk_blocks);
    oracle.workload.operations = operations;
    let main = move || async move {
        let checked = Rc::new(Cell::new((0_u64, 0_u64)));
        let counted = checked.clone();
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let options = Options {
                format: opening == Opening::Format,
                size: Some(volume_blocks * 4096),
                zone_size: Some(32 << 10),
                checkpoint_after: 64 << 10,
                ..Options::default()
            };
            if opening == Opening::Recover {
                // Until the log is made there is none.
                match check_device(disk.clone(), &|_, _| {}).await {
                    Ok(report) if report.is_damaged() => {
                        return Err(Error::corrupt(format!("the check says: {:#?}", report.damage)));
                    }
                    Ok(report) => {
                        let (states, notes) = counted.get();
                        counted.set((states + 1, notes + report.notes.len() as u64));
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(Arc::new(open(disk, &options).await?) as Arc<dyn DevicePart>)
        };
        (oracle.run(open).await, checked.get())
    };
    let (report, (states, notes)) =
        runtime::run(runtime::Config::default(), main).expect("the runtime starts");
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}; {states} states checked, {notes} notes");
    assert!(states > 1000, "{name}: only {states} states were checked");
}

#[test]
fn a_log_that_is_cut_is_not_damaged() {
    silent("checking after a cut", 31, 640, 40, 200);
}

#[test]
fn a_log_that_is_cleaned_and_cut_is_not_damaged() {
    silent("checking a cleaned log", 32, 256, 60, 400);
}
