//! Profiles of `model`, fitted to fio's results for a real file.

use layers::model::profile::{Profile, WriteBuffer, parse};
use siltstone_tests::foreign::{Finished, Server, binary, run};
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
    // Shorter, and buffered because not every file system has direct access.
    let text_of_job = siltstone(&["model", "job"]).ok().replace("runtime=20", "runtime=300ms");
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
    a_write_buffer_is_found_again(folder.path(), &report);
    // Fitted as a rotating disk, in JSON.
    let turns = siltstone(&["model", "fit", text(&report), "--name", "mine", "--rpm", "7200", "--json"]).ok();
    assert!(turns.contains("\"toml\"") && turns.contains("rpm = 7200"), "{turns}");
}

/// fio fills the write buffer of a served model, and the buffer's size and speed are derived from fio's log.
fn a_write_buffer_is_found_again(folder: &Path, report: &Path) {
    if !run("fio", &["--enghelp"]).ok().contains("nbd") {
        siltstone_tests::foreign::skip("this fio has no nbd engine: no write buffer is fitted");
        return;
    }
    let path = |name: &str| folder.join(name);
    let profile = "[buffered]\ntitle = \"with a buffer\"\nmedium = \"solid-state\"\nparallelism = 32\nspread = 0.2\n\
                   volatile_cache = false\nflush = \"0us\"\nread = { latency = \"50us\", bandwidth = \"1GiB\" }\n\
                   write = { latency = \"50us\", bandwidth = \"96MiB\" }\n\
                   write_buffer = { size = \"64MiB\", drain = \"24MiB\" }\n";
    std::fs::write(path("buffered.toml"), profile).expect("a file");
    let stack = format!("model(ram(256MiB), buffered, profiles=\"{}\")", text(&path("buffered.toml")));
    let job = siltstone(&["model", "job", "--fill"]).ok();
    let job = job.replace("runtime=600", "runtime=3").replace("log_avg_msec=250", "log_avg_msec=100");
    let job = job.replace("write_bw_log=fill", &format!("write_bw_log={}", text(&path("fill"))));
    let attempt = || {
        // A new server has an empty buffer.
        let server = Server::start(folder, &stack);
        let job = job.replace("ioengine=io_uring", &format!("ioengine=nbd\nuri={}", server.uri()));
        std::fs::write(path("fill.fio"), job).expect("a file");
        run("fio", &[text(&path("fill.fio"))]).ok();
        server.stop();
        let log = path("fill_bw.log");
        let fitted = siltstone(&["model", "fit", text(report), "--name", "again", "--fill", text(&log)]);
        print!("{}", fitted.err);
        let profile = parse(&fitted.ok()).expect("a profile").remove("again").expect("its name");
        let Profile::SolidState(profile) = profile else { panic!("it has no arm") };
        profile.write_buffer.expect("writes became slower")
    };
    let is_near = |found: &WriteBuffer| {
        let near = |found: u64, mebibytes: u64| found.abs_diff(mebibytes << 20) * 10 <= mebibytes << 20;
        near(found.size, 64) && near(found.drain, 24)
    };
    // The speeds are far below those of a busy machine; if the machine stalls for a while, the test tries
    // again.
    let mut found = Vec::new();
    while !found.last().is_some_and(is_near) {
        assert!(found.len() < 3, "expected 64 MiB and 24 MiB a second, within 10 %: {found:?}");
        found.push(attempt());
    }
}
