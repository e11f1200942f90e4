//! The layers as a stack names them: declarations, examples, errors, and a stack that is built and runs.
#![allow(clippy::unwrap_used)] // All of this is tests.

mod common;

use common::{on_a_shard, write};
use layers::record::Timeline;
use layers::record::timeline::Ending;
use layers::{fault, record, stats};
use stack::{Registry, Stack};

fn registry() -> Registry {
    Registry::new(vec![
        &stats::KIND,
        &stats::ZONES_KIND,
        &fault::KIND,
        &fault::ZONES_KIND,
        &record::KIND,
        &record::ZONES_KIND,
        &disks::ram::KIND,
        &zones::on_device::KIND,
    ])
}

#[test]
fn declarations_and_examples_are_right() {
    registry().verify().unwrap();
}

#[test]
fn a_wrong_rule_is_refused_before_anything_is_built() {
    let line = "fault(ram(1MiB), \"read eror=EIO\")";
    let problems = Stack::from_line("line", line, &registry()).unwrap().check(false).unwrap_err().to_string();
    assert!(problems.contains("column 6") && problems.contains("\"error\""), "{problems}");
}

#[test]
fn a_stack_of_all_three_records_at_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    on_a_shard(move || async move {
        let line = "record(stats(fault(record(ram(1MiB), run.timeline), \"write drop after=1\", seed=3)), \
                    run.timeline, role=client)";
        let parsed = Stack::from_line("line", line, &registry()).unwrap().with_base_directory(folder.path());
        let built = parsed.check(false).unwrap().build().await.unwrap();
        let handle = built.device("top").unwrap().open().await.unwrap();
        write(&*handle, 0, 1).await.unwrap();
        write(&*handle, 1, 1).await.unwrap();
        drop(handle);
        built.close().await.unwrap();
        let timeline = Timeline::read(&folder.path().join("run.timeline")).await.unwrap();
        assert_eq!(timeline.ending, Ending::Clean);
        // Two devices join; the first write passes both, the second only the client's; the end.
        assert_eq!((timeline.devices.len(), timeline.events.len()), (2, 2 + 4 + 2 + 1));
    });
}
