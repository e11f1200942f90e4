//! Profiles of `model`, fitted to what fio says of a real file.

use siltstone_tests::foreign::{Finished, binary, run};
use siltstone_tests::need;
use std::path::Path;

fn siltstone(arguments: &[&str]) -> Finished {
    run(&binary().display().to_string(), arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a folder for tests has a plain name")
}

#[test]
fn a_profile_is_fitted_to_what_fio_says() {
    need!("fio");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (job, report, profiles) = (path("fit.fio"), path("fit.json"), path("profiles.toml"));
    // Shorter, and buffered where the folder's file system knows no direct access.
    let text_of_job = siltstone(&["model", "job"]).ok().replace("runtime=20", "runtime=1");
    let text_of_job = text_of_job.replace("ramp_time=2", "ramp_time=0").replace("direct=1", "direct=0");
    std::fs::write(&job, text_of_job).expect("a file");
    let filename = format!("--filename={}", text(&path("disk.img")));
    let output = format!("--output={}", text(&report));
    run("fio", &[&filename, "--size=64M", "--output-format=json", &output, text(&job)]).ok();

    let fitted = siltstone(&["model", "fit", text(&report), "--name", "mine"]);
    assert!(fitted.err.contains("read-deep"), "{fitted:#?}");
    std::fs::write(&profiles, fitted.ok()).expect("a file");
    let stack = format!("model(ram(16MiB), mine, profiles=\"{}\")", text(&profiles));
    let out = path("out");
    let reads = path("reads.fio");
    std::fs::write(&reads, "[reads]\nrw=randread\nruntime=50ms\ntime_based\n").expect("a file");
    siltstone(&["bench", text(&reads), "--on", &stack, "--out", text(&out)]).ok();
    let refused = siltstone(&["model", "show", "mine"]).refused();
    assert!(refused.contains("expected one of as2280p4u, optane-900p"), "{refused}");
    // As one of a disk that turns, in JSON.
    let turns = siltstone(&["model", "fit", text(&report), "--name", "mine", "--rpm", "7200", "--json"]).ok();
    assert!(turns.contains("\"toml\"") && turns.contains("rpm = 7200"), "{turns}");
}
