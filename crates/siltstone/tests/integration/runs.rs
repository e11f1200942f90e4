//! Verbs that run for a while: benchmarks that end, fail and are stopped; servers; recordings.

use crate::common::{command, repository, run, signal, wait_for};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

fn results(folder: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("results.json")).unwrap()).unwrap()
}

const SMALL: &str = r#"
[plan]
title = "Small"
repetitions = 2
[stack.file]
line = "stats(file(small.img, size=1MiB))"
fill = true
[stack.memory]
line = "ram(1MiB)"
[peer.absent]
kind = "command"
command = ["no-such-program-anywhere", """
    [device.disk]
"""]
[workload.read]
rw = "randread"
bs = "4KiB"
iodepth = [1, 4]
[workload.write]
rw = "write"
bs = "64KiB"
subjects = ["file"]
[compare]
pairs = [["memory", "file"]]
"#;

#[test]
fn a_plan_gives_a_table_a_report_and_figures() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("plans")).unwrap();
    std::fs::write(folder.path().join("plans/small.toml"), SMALL).unwrap();
    let ran = run(folder.path(), &["bench", "plans/small.toml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "memory / file",
        "(2 pairs)",
        "note: absent is left out: no-such-program-anywhere is not installed",
        "report:  bench-out/small/report.html",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    assert_eq!(ran.stderr.lines().count(), 1 + 2 * (2 * 2 + 1), "a line for each run: {}", ran.stderr);
    assert!(folder.path().join("plans/small.img").exists(), "relative names begin at the plan");
    let results = results(&folder.path().join("bench-out/small"));
    assert_eq!((&results["schema"], &results["interrupted"]), (&"siltstone-results-1".into(), &false.into()));
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 10);
    let write = runs.iter().find(|run| run["name"] == "file/write/2").unwrap();
    assert_eq!(
        (&write["operations"], &write["bytes"], &write["errors"]),
        (&16.into(), &(1 << 20).into(), &0.into())
    );
    assert_eq!(write["stack"], "stats(file(small.img, size=1MiB))");
    let counted = &write["layers"]["top"]["write"]["operations"];
    assert_eq!(counted, &16, "filling isn't counted: {}", write["layers"]);
    let page = std::fs::read_to_string(folder.path().join("bench-out/small/report.html")).unwrap();
    assert!(page.contains("Small") && page.contains("</html>"));

    let ran =
        run(folder.path(), &["bench", "plans/small.toml", "--only", "write", "--json", "--out", "elsewhere"]);
    let printed: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(printed, self::results(&folder.path().join("elsewhere")));
    assert_eq!(printed["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_run_that_fails_is_a_note_and_the_others_go_on() {
    let plan = r#"
[plan]
repetitions = 2
[stack.good]
line = "ram(1MiB)"
[stack.bad]
line = 'fault(ram(1MiB), "read error=EIO after=10")'
[peer.broken]
kind = "command"
command = ["sh", "-c", "echo no disk >&2; exit 3"]
[workload.read]
rw = "read"
bs = "4KiB"
"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), plan).unwrap();
    let ran = run(folder.path(), &["bench", "p.toml", "--out", "out"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let results = results(&folder.path().join("out"));
    let notes = results["notes"].to_string();
    assert!(notes.contains("broken/read failed: sh: exit status: 3: no disk"), "{notes}");
    assert!(notes.contains("bad/read/1: 1 errors, the first: "), "{notes}");
    let good = results["runs"].as_array().unwrap().iter().filter(|run| run["subject"] == "good");
    assert_eq!(good.count(), 2);
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let plan = r#"
[plan]
repetitions = 1
[stack.memory]
line = "ram(1MiB)"
[workload.short]
rw = "read"
bs = "4KiB"
[workload.endless]
rw = "randread"
bs = "4KiB"
runtime = "1h"
time_based = true
[workload.never]
rw = "read"
bs = "4KiB"
"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), plan).unwrap();
    let mut child = command(folder.path(), &["bench", "p.toml", "--out", "out"]).spawn().unwrap();
    wait_for(child.stderr.take().unwrap(), "[1/3] memory/short/1: ");
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("stopped before the end"));
    let results = results(&folder.path().join("out"));
    assert_eq!(results["interrupted"], true);
    assert_eq!(results["runs"][0]["operations"], 256);
    assert!(!results["runs"].to_string().contains("never"));
    assert!(folder.path().join("out/report.html").exists());
}

#[test]
fn job_files_make_their_files_and_run_on_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = "[global]\nfilename=a.img\nsize=1m\nioengine=libaio\nbs=4k\n\
                [reads]\nrw=randread\nnumjobs=2\ngroup_reporting\n\
                [checked]\nstonewall\nrw=randwrite\nverify=crc32c\n";
    std::fs::write(folder.path().join("j.fio"), jobs).unwrap();
    let ran = run(folder.path(), &["bench", "j.fio", "--out", "out"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let data = std::fs::read(folder.path().join("a.img")).unwrap();
    assert!(data.len() == 1 << 20 && data.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    let made = results(&folder.path().join("out"));
    assert_eq!(
        (&made["runs"][0]["operations"], &made["runs"][1]["workload"]["name"]),
        (&512.into(), &"checked".into())
    );
    let notes = made["notes"].to_string();
    assert!(notes.contains("ioengine=libaio") && notes.contains("a.img didn't exist"), "{notes}");

    let ran =
        run(folder.path(), &["bench", "j.fio", "--on", "stats(ram(2MiB))", "--only", "reads", "--json"]);
    let printed: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(printed["runs"][0]["layers"]["top"]["read"]["operations"], 512);
    assert_eq!(std::fs::read(folder.path().join("a.img")).unwrap(), data, "the file was left alone");
}

#[test]
fn serving_until_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("disk.img"), vec![7; 1 << 20]).unwrap();
    let mut child =
        command(folder.path(), &["serve", "file(disk.img)", "--nbd", "unix:disk.sock"]).spawn().unwrap();
    let said = wait_for(child.stdout.take().unwrap(), "nbd+unix:");
    let socket = folder.path().join("disk.sock");
    assert!(said.contains(socket.to_str().unwrap()), "{said}");
    let mut greeting = [0; 8];
    UnixStream::connect(&socket).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!socket.exists(), "the socket went with the server");
    assert_eq!(std::fs::read(folder.path().join("disk.img")).unwrap(), vec![7; 1 << 20], "as it was");
}

#[test]
fn a_stack_with_doors_says_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let stack = std::fs::read_to_string(repository().join("examples/nbd.toml")).unwrap();
    std::fs::write(folder.path().join("nbd.toml"), stack).unwrap();
    let mut child =
        command(Path::new("/"), &["serve", folder.path().join("nbd.toml").to_str().unwrap(), "--json"])
            .spawn()
            .unwrap();
    let said = wait_for(child.stdout.take().unwrap(), "addresses");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(said["addresses"][0].as_str().unwrap().contains("nbd.sock"), "{said}");
    signal(&child, "INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(std::fs::metadata(folder.path().join("nbd.img")).unwrap().len(), 256 << 20);
}

#[test]
fn a_file_of_another_size_is_only_cut_when_formatted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    std::fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let refused = run(folder.path(), &["serve", "file(disk.img, size=512KiB)", "--nbd", "unix:disk.sock"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--format"), "{refused:?}");
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 1 << 20);
    let formatted = run(folder.path(), &["format", "file(disk.img, size=512KiB)"]);
    assert_eq!(formatted.code, Some(0), "{formatted:?}");
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 512 << 10);
}

#[test]
fn a_recording_gives_the_disk_back() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = "[w]\nrw=randwrite\nbs=4k\nsize=256k\nfsync=8\n";
    std::fs::write(folder.path().join("w.fio"), jobs).unwrap();
    let stack = "record(file(disk.img, size=256KiB), run.timeline)";
    let ran = run(folder.path(), &["bench", "w.fio", "--on", stack, "--out", "out"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = run(folder.path(), &["record", "show", "run.timeline", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["ending"], "ended in order");
    assert_eq!(shown["devices"][0]["submitted"]["write"]["bytes"], 256 << 10);
    let replay = &["record", "replay", "run.timeline", "--image", "after.img"];
    assert_eq!(run(folder.path(), replay).code, Some(0));
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("after.img") == read("disk.img"), "everything that was written is in the image");
    let again = run(folder.path(), replay);
    assert!(again.code == Some(1) && again.stderr.contains("after.img"), "{again:?}");
    assert_eq!(run(folder.path(), &["record", "show", "disk.img"]).code, Some(1));
}

/// Returns the requests of a log of fio, without their times.
fn requests(log: &str) -> Vec<String> {
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some("fio version 3 iolog"));
    let times = log.lines().skip(1).map(|line| line.split_once(' ').unwrap().0.parse::<u64>().unwrap());
    assert!(times.is_sorted(), "{log}");
    lines.map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn a_recorded_load_is_exported_and_replayed_on_another_stack() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let jobs = "[load]\nrw=randrw\nbsrange=4k-32k\nio_size=1m\nnorandommap\nfsync=8\n\
                [trim]\nstonewall\nrw=trim\nbs=64k\nsize=128k\n[fua]\nstonewall\nrw=write\nbs=8k\nsize=16k\nsync=1\n";
    std::fs::write(path("load.fio"), jobs).unwrap();
    std::fs::write(path("replay.fio"), "[replay]\nread_iolog=first.log\nreplay_no_stall\n").unwrap();
    let mut logs = Vec::new();
    for (jobs, name) in [("load.fio", "first"), ("replay.fio", "second")] {
        // Each group of jobs builds its stack, and so its timeline, from scratch: the whole load is one run.
        let stack = format!(
            "record(ram(512KiB), {name}.timeline, role=client, reads=true, data=false, overwrite=true)"
        );
        let only: &[&str] = if name == "first" { &["--only", "load"] } else { &[] };
        let ran = run(folder.path(), &[&["bench", jobs, "--on", &stack, "--out", "out"], only].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let (timeline, log) = (format!("{name}.timeline"), format!("{name}.log"));
        let exported = run(folder.path(), &["record", "export", &timeline, "--iolog", &log]);
        assert_eq!(exported.code, Some(0), "{exported:?}");
        logs.push((requests(&std::fs::read_to_string(path(&log)).unwrap()), exported.stdout));
    }
    let count = |what: &str| logs[0].0.iter().filter(|line| line.split(' ').nth(1) == Some(what)).count();
    assert!(
        count("read") > 10 && count("write") > 10 && count("sync") == count("write") / 8,
        "{:?}",
        logs[0].0
    );
    assert_eq!(logs[0].0, logs[1].0, "the same requests in the same order");
    let said =
        format!("first.log: device 0 \"top\": {} reads, {} writes, 0 trims, ", count("read"), count("write"));
    assert!(logs[0].1.starts_with(&said), "{} {said}", logs[0].1);
    for (only, expected) in [
        ("trim", ["trim 0 65536", "trim 65536 65536"].as_slice()),
        ("fua", &["write 0 8192", "datasync 0 0", "write 8192 8192", "datasync 0 0"]),
    ] {
        let stack = "record(ram(512KiB), small.timeline, overwrite=true)";
        let ran = run(folder.path(), &["bench", "load.fio", "--only", only, "--on", stack, "--out", "out"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let log = format!("{only}.log");
        let exported = run(folder.path(), &["record", "export", "small.timeline", "--iolog", &log]);
        assert!(
            exported.stdout.contains("0 reads (a record layer has reads with reads=true)"),
            "{exported:?}"
        );
        let lines = requests(&std::fs::read_to_string(path(&log)).unwrap());
        let expected: Vec<String> = expected.iter().map(|line| format!("top {line}")).collect();
        assert_eq!(lines[2..lines.len() - 1], expected);
    }
    let export = |timeline: &str, device: &str, log: &str| {
        run(folder.path(), &["record", "export", timeline, "--device", device, "--iolog", log])
    };
    let again = export("first.timeline", "0", "first.log");
    assert!(again.code == Some(1) && again.stderr.contains("writing first.log: File exists"), "{again:?}");
    let missing = export("first.timeline", "3", "third.log");
    assert!(
        missing.code == Some(1) && missing.stderr.contains("device 3 of the timeline: out of range 0..1"),
        "{missing:?}"
    );
    assert!(!path("third.log").exists());
}

/// Form of the plans that compare the maps: one setup for a matrix, memory that is reformatted, a table.
const MAPS: &str = r#"
[plan]
repetitions = 1
[table.alone]
title = "Alone"
command = ["{siltstone}", "map-lookups", "--map", "radix", "--blocks", "8Ki", "--time", "1", "--json"]
rows = [{ map = "published", bytes_random = "133 (224) a node" }]
[stack.radix]
line = "log(ram(48MiB), size=16MiB, map=radix)"
shards = 2
format = "always"
fill = "random"
[stack.hash]
line = "log(ram(48MiB), size=16MiB, map=hash)"
shards = 2
format = "always"
fill = "random"
[workload.maps]
one_setup = true
rw = ["randread", "randwrite"]
bs = ["4KiB", "8KiB"]
numjobs = [1, 2]
iodepth = [1, 8]
size = "1MiB"
"#;

#[test]
fn maps_are_compared_on_grids() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("maps.toml"), MAPS).unwrap();
    let ran = run(folder.path(), &["bench", "maps.toml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "133 (224) a node",
        "maps: bs=4KiB numjobs=2 iodepth=8",
        "the other points of maps are in the report",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let results = results(&folder.path().join("bench-out/maps"));
    let rows = results["tables"][0]["rows"].as_array().unwrap();
    let maps: Vec<&str> = rows.iter().map(|row| row["map"].as_str().unwrap()).collect();
    assert_eq!(maps, ["plain array", "radix", "published"]);
    assert!(rows[1]["bytes_random"].as_f64().unwrap() >= 4.0, "{:?}", rows[1]);
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * 16);
    let writes = runs.iter().filter(|run| run["workload"]["options"]["rw"] == "randwrite");
    for run in writes {
        let factor = run["write_amplification"]["data"].as_f64();
        assert!(factor.is_some_and(|factor| factor >= 1.0), "what the log says of its zones is kept: {run}");
    }
    assert!(
        runs.iter().filter(|run| run["write_amplification"].is_object()).count() == 16,
        "reads have none"
    );
    let page = std::fs::read_to_string(folder.path().join("bench-out/maps/report.html")).unwrap();
    assert!(page.contains("down: numjobs, across: iodepth") && page.contains("hash, numjobs=2 iodepth=8"));
}

#[test]
fn maps_alone_and_plans_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let lookups = ["map-lookups", "--map", "btree", "--map", "hash", "--blocks", "8Ki", "--time", "1"];
    let ran = run(folder.path(), &lookups);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let names: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["map", "plain", "hash", "btree"], "{}", ran.stdout);
    for (arguments, said) in [
        (["map-lookups", "--map", "tree"], "--map tree: unknown; expected one of radix"),
        (["map-lookups", "--blocks", "100"], "--blocks 100: expected a multiple of 1024"),
        (["map-lookups", "--blocks", "4MiB"], "expected a number of blocks, such as 4Mi"),
        (["bench", "null(size=1MiB)", "--pairs=3"], "--repetitions is for plans"),
        (["bench", "null(size=1MiB)", "--full"], "--full is for plans"),
    ] {
        let ran = run(folder.path(), &arguments);
        assert!(ran.code == Some(2) && ran.stderr.contains(said), "{said}: {ran:?}");
    }
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let ran = run(
        folder.path(),
        &["bench", "small.toml", "--repetitions", "1", "--runtime", "10ms", "--only", "read"],
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let results = results(&folder.path().join("bench-out/small"));
    assert_eq!(results["runs"].as_array().unwrap().len(), 2 * 2);
    assert_eq!(results["runs"][0]["workload"]["options"]["runtime"], "10ms");
}

const PUBLISHED: &str = r#"
[plan]
repetitions = 1
published_in = "a table of long ago"
[stack."RAM + RAM"]
line = "ram(1GiB)"
[workload.randwrite]
rw = "randwrite"
iodepth = 4
zero_buffers = true
runtime = "20ms"
time_based = true
[published."RAM + RAM"]
iops = 10
p50 = "1s"
[full.stack."RAM + RAM"]
line = "ram(16TiB)"
[full.workload.randwrite]
runtime = "250ms"
"#;

/// A plan as it is, and in full with sizes that exceed any machine.
#[test]
fn a_plan_in_full_beside_published_figures() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PUBLISHED).unwrap();
    for (full, name, line, runtime) in
        [(false, "p", "ram(1GiB)", "20ms"), (true, "p-full", "ram(16TiB)", "250ms")]
    {
        let arguments = ["bench", "p.toml", "--full"];
        let ran = run(folder.path(), &arguments[..if full { 3 } else { 2 }]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("RAM + RAM / published  IOPS ×"), "{}", ran.stdout);
        let out = folder.path().join("bench-out").join(name);
        let results = results(&out);
        let run = &results["runs"][0];
        assert_eq!((&run["stack"], &run["workload"]["options"]["runtime"]), (&line.into(), &runtime.into()));
        let published = &results["published"][0];
        assert_eq!(
            (&published["subject"], &published["workload"]),
            (&"RAM + RAM".into(), &"randwrite".into())
        );
        assert!(published["figures"]["iops"]["ratio"].as_f64().unwrap() > 1.0);
        assert!(published["figures"]["p50"]["ratio"].as_f64().unwrap() < 1.0);
        assert!(run["series"]["p99_ns"][0].as_u64().unwrap() >= run["series"]["p50_ns"][0].as_u64().unwrap());
        let layers = run["layers"].as_object().unwrap();
        assert!(layers.values().all(|layer| layer["memory_bytes"] == 0), "zeros take none: {layers:?}");
        let page = std::fs::read_to_string(out.join("report.html")).unwrap();
        assert!(page.contains("a table of long ago") && page.contains("Latency over time"));
    }
}

/// A write cache is inserted in front of a disk with contents, and removed again.
#[test]
fn only_the_named_parts_are_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let works = |arguments: &[&str]| {
        let ran = run(folder.path(), arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.stdout
    };
    let log = "log(file(disk.img), ack=buffer)";
    works(&["format", "log(file(disk.img, size=8MiB), size=2MiB)"]);
    works(&["snapshot", "create", log, "monday"]);
    let cached = format!("writecache({log}, file(fast.img, size=1MiB))");
    let refused = run(folder.path(), &["format", &cached, "log1", "writecaches"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("PART writecaches"), "{refused:?}");
    works(&["format", &cached, "writecache"]);
    // The log is unchanged. Only the cache is new, and is formatted again only by another command.
    let opened = |again: bool| {
        if again {
            works(&["format", &cached, "writecache"]);
        }
        let status: serde_json::Value = serde_json::from_str(&works(&["status", &cached, "--json"])).unwrap();
        status["devices"]["top"]["uuid"].as_str().unwrap().to_owned()
    };
    let uuid = opened(false);
    assert_eq!((opened(false), opened(true) == uuid), (uuid.clone(), false));
    assert!(works(&["snapshot", "list", log]).contains("monday"));
}

/// All files of a stack are locked before the first is created, truncated or formatted: disks, and the file
/// of a map.
#[test]
fn a_stack_with_a_file_in_use_leaves_all_of_them_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let plain = "mirror(file(a.img, size=16MiB), file(b.img, size=16MiB))";
    let at_home = "log(file(a.img, size=16MiB), map_home=\"pmem:b.img\")";
    for line in [plain, at_home] {
        for name in ["a.img", "b.img"] {
            std::fs::write(path(name), vec![7; 8 << 20]).unwrap();
        }
        let taken = std::fs::File::open(path("b.img")).unwrap();
        taken.try_lock().unwrap();
        for arguments in [&["format", line][..], &["serve", line, "--format", "--nbd", "unix:vol.sock"]] {
            let ran = run(folder.path(), arguments);
            assert_eq!(ran.code, Some(1), "{ran:?}");
            assert!(ran.stderr.contains("b.img is in use"), "{}", ran.stderr);
            for name in ["a.img", "b.img"] {
                assert!(
                    std::fs::read(path(name)).unwrap() == vec![7; 8 << 20],
                    "{arguments:?} changed {name}"
                );
            }
        }
    }
}

/// A server continues to write to the image that it locked.
#[test]
fn an_image_in_place_of_a_served_one_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let line = "log(file(disk.img, size=16MiB))";
    assert_eq!(run(folder.path(), &["format", line]).code, Some(0));
    let mut server = command(folder.path(), &["serve", line, "--nbd", "unix:vol.sock"]).spawn().unwrap();
    wait_for(server.stdout.take().unwrap(), "nbd+unix");
    let image = folder.path().join("disk.img");
    std::fs::rename(&image, folder.path().join("moved.img")).unwrap();
    std::fs::write(&image, vec![7; 16 << 20]).unwrap();
    signal(&server, "TERM");
    assert!(server.wait().unwrap().success());
    assert!(std::fs::read(&image).unwrap() == vec![7; 16 << 20], "the new image was written to");
    let moved = "log(file(moved.img))";
    let ran = run(folder.path(), &["check", moved]);
    assert_eq!(ran.code, Some(0), "the moved image was closed in order: {ran:?}");
}
