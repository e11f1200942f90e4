//! fio's logs: a device gets exactly their requests, and fio accepts the logs that this program writes.

use bench::job_file::JobFile;
use bench::peer::fio::Fio;
use bench::peer::{Context, Peer, PeerKind, find_program};
use bench::plan::Plan;
use bench::results::{Measurement, Results};
use bench::runner::{Benchmark, Observer, On, Outcome, Setting, Step, Stop};
use stack::Registry;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

struct Nobody;

impl Observer for Nobody {
    fn begin(&self, _: &Step, _: &Arc<bench::engine::Progress>) {}
    fn end(&self, _: &Step, _: &block::Result<Option<Measurement>>) {}
}

/// A folder, and the runs in it.
struct World {
    folder: tempfile::TempDir,
    registry: Registry,
}

impl World {
    fn new() -> World {
        let kinds = vec![
            &disks::file::KIND,
            &disks::ram::KIND,
            &disks::null::KIND,
            &layers::stats::KIND,
            &cache::KIND,
        ];
        World { folder: tempfile::tempdir().expect("a folder"), registry: Registry::new(kinds) }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("it can be written");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).expect("it can be read")
    }

    fn setting(&self) -> Setting<'_> {
        Setting { registry: &self.registry, directory: self.folder.path(), program: Path::new("siltstone") }
    }

    fn try_jobs(&self, text: &str, on: Option<&str>) -> Result<Outcome, String> {
        let jobs = JobFile::parse("j.fio", text, &|_| None).expect("the job file is right");
        let observer: Arc<dyn Observer> = Arc::new(Nobody);
        let on = on.map(|stack| On { stack, format: stack.starts_with("cache") });
        Ok(Benchmark::of_job_file("j.fio", jobs, on, self.setting())?.run(&observer, &Stop::new()))
    }

    /// Measurements of a job file's jobs.
    fn jobs(&self, text: &str, on: Option<&str>) -> Vec<Measurement> {
        let outcome = self.try_jobs(text, on).expect("it can be run");
        assert_eq!((outcome.failures, &outcome.results.notes), (0, &usual_notes(&outcome.results)));
        outcome.results.runs.into_iter().map(|run| run.measurement).collect()
    }

    fn refused(&self, text: &str, on: Option<&str>) -> String {
        self.try_jobs(text, on).expect_err("it is refused")
    }

    fn plan(&self, text: &str) -> Outcome {
        let plan = Plan::parse("p.toml", text).expect("the plan is right");
        let observer: Arc<dyn Observer> = Arc::new(Nobody);
        Benchmark::of_plan(plan, self.setting()).expect("it can be run").run(&observer, &Stop::new())
    }

    /// fio's measurement of the same job, on this file.
    fn fio(&self, text: &str, filename: &str) -> Measurement {
        let mut job = JobFile::parse("j.fio", text, &|_| None).expect("the job file is right").jobs.remove(0);
        job.prepare(self.folder.path()).expect("its logs are right");
        let fio = Fio {
            filename: Some(filename.into()),
            // With asynchronous engines fio 3.33 counts all requests of a log, but not all of their bytes.
            ioengine: "psync".into(),
            direct: false,
            options: Vec::new(),
        };
        let peer = Peer {
            name: "fio".into(),
            kind: PeerKind::Fio(fio),
            server: None,
            requires: Vec::new(),
            ours: false,
        };
        let stop = AtomicBool::new(false);
        let context = Context { directory: self.folder.path(), program: Path::new("siltstone"), stop: &stop };
        peer.run(&job, None, &context).expect("fio runs")
    }

    /// Runs fio in the folder.
    fn run_fio(&self, arguments: &[&str]) {
        let output = std::process::Command::new("fio")
            .args(arguments)
            .arg("--output=/dev/null")
            .current_dir(self.folder.path())
            .output()
            .expect("fio starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Notes that the engine replaces fio's and that a file was created.
fn usual_notes(results: &Results) -> Vec<String> {
    results
        .notes
        .iter()
        .filter(|note| note.contains("ioengine=") || note.contains("didn't exist"))
        .cloned()
        .collect()
}

fn has_fio() -> bool {
    let found = find_program("fio").is_some();
    if !found {
        println!("SKIPPED: fio is not installed");
    }
    found
}

const REPLAY: &str = "[replay]\nread_iolog=trace.log\nreplay_redirect=x.img\nreplay_no_stall=1\niodepth=4\n";

/// A log of version 2 with these requests.
fn version_2(requests: &str) -> String {
    format!("fio version 2 iolog\n/d add\n/d open\n{requests}/d close\n")
}

#[test]
fn what_fio_wrote_is_replayed_as_fio_replays_it() {
    if !has_fio() {
        return;
    }
    let world = World::new();
    world.run_fio(&[
        "--name=w",
        "--filename=w.img",
        "--size=4m",
        "--io_size=8m",
        "--rw=randrw",
        "--rwmixread=70",
        "--bsrange=512-64k",
        "--bs_unaligned=0",
        "--fsync=16",
        "--norandommap",
        "--write_iolog=trace.log",
    ]);
    let requests =
        |what: &str| world.read("trace.log").lines().filter(|line| line.contains(what)).count() as u64;
    let count = requests(" read ") + requests(" write ");
    assert!(count > 100 && requests(" sync ") > 5, "{count} requests");
    world.write("x.img", &"x".repeat(4 << 20));
    let ours = world.jobs(REPLAY, None).remove(0);
    let fio = world.fio(REPLAY, "x.img");
    assert_eq!((ours.operations, ours.errors), (count, 0));
    assert_eq!((ours.operations, ours.bytes), (fio.operations, fio.bytes));
    // At their times, which take some milliseconds: the same number.
    let timed = world.jobs(&REPLAY.replace("replay_no_stall=1", "replay_time_scale=400"), None).remove(0);
    assert_eq!((timed.operations, timed.bytes), (fio.operations, fio.bytes));
}

#[test]
fn version_2_and_scaled_places_are_as_fios() {
    if !has_fio() {
        return;
    }
    let world = World::new();
    let requests = "/d read 1000000 4096\n/d write 70000 8192\n/d wait 30 0\n/d write 8388608 512\n/d sync 0 0\n\
                    /d datasync 0 0\n/d read 0 65536\n";
    world.write("trace.log", &version_2(requests));
    world.write("x.img", &"x".repeat(4 << 20));
    let text =
        REPLAY.replace("replay_no_stall=1", "replay_scale=4\nreplay_align=4096\nbuffer_pattern=\"ab\"");
    let fio = world.fio(&text, "x.img");
    let by_fio = world.read("x.img");
    world.write("x.img", &"x".repeat(4 << 20));
    let ours = world.jobs(&text, None).remove(0);
    assert_eq!((ours.operations, ours.bytes), (fio.operations, fio.bytes));
    assert_eq!((ours.operations, ours.bytes), (4, 4096 + 8192 + 512 + 65536));
    // The same bytes in the same places.
    assert!(world.read("x.img") == by_fio && by_fio.contains("abab"), "the files differ");
}

#[test]
fn fio_replays_what_we_wrote() {
    if !has_fio() {
        return;
    }
    let world = World::new();
    let write = "[w]\nfilename=w.img\nsize=2m\nrw=randrw\nbsrange=4k-16k\nio_size=3m\nnorandommap\niodepth=8\nfsync=32\n\
                 write_iolog=trace.log\n";
    let written = world.jobs(write, None).remove(0);
    let log = world.read("trace.log");
    assert!(log.starts_with("fio version 3 iolog\n1 ") && log.ends_with("close\n"), "{log:.200}");
    assert!(log.contains("/w.img add\n") && log.contains(" sync 0 0\n"), "{log:.200}");
    let times: Vec<u64> = log
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next().expect("a time").parse().expect("a number"))
        .collect();
    assert!(times.is_sorted(), "{log:.500}");
    world.write("x.img", &"x".repeat(2 << 20));
    let fio = world.fio(REPLAY, "x.img");
    assert_eq!((fio.operations, fio.bytes), (written.operations, written.bytes));
    let ours = world.jobs(REPLAY, None).remove(0);
    assert_eq!((ours.operations, ours.bytes), (written.operations, written.bytes));
    // Without a redirection, the log names the files.
    let named = world.jobs("[replay]\nread_iolog=trace.log\niodepth=8\n", None).remove(0);
    assert_eq!((named.operations, named.bytes), (written.operations, written.bytes));
}

#[test]
fn times_are_kept_and_scaled() {
    let world = World::new();
    let log = "fio version 3 iolog\n10 d add\n10 d open\n10 d read 0 4096\n150010 d read 4096 4096\n\
               300010 d write 8192 4096\n";
    world.write("trace.log", log);
    let seconds = |options: &str| {
        let job = format!("[r]\nread_iolog=trace.log\n{options}");
        let measured = world.jobs(&job, Some("ram(1MiB)")).remove(0);
        assert_eq!(measured.operations, 3);
        measured.seconds
    };
    let (plain, fast) = (seconds("iodepth=4"), seconds("replay_time_scale=200\n"));
    assert!(plain >= 0.299 && fast >= 0.149 && fast < plain, "{plain} {fast}");
    // Without stalls an hour takes no time; with them, the job's runtime ends the wait.
    world.write("trace.log", &log.replace("300010", "3600000000"));
    assert!(seconds("replay_no_stall\n") < 60.0);
    let cut = world.jobs("[r]\nread_iolog=trace.log\nruntime=400ms\n", Some("ram(1MiB)")).remove(0);
    assert_eq!(cut.operations, 2);
    // In version 2, `wait` ends some milliseconds after the start.
    world
        .write("trace.log", &version_2("/d read 0 4096\n/d wait 120 0\n/d read 0 4096\n/d read 4096 4096\n"));
    assert!(seconds("") >= 0.119);
}

#[test]
fn a_large_log_is_streamed_through_many_in_flight() {
    let world = World::new();
    let mut log = String::from("fio version 3 iolog\n0 d add\n0 d open\n");
    for number in 0..200_000_u64 {
        let (action, place) = (["read", "write", "trim"][number as usize % 3], number * 4096 % (1 << 30));
        log.push_str(&format!("{number} d {action} {place} {}\n", 4096 << (number % 3)));
    }
    world.write("trace.log", &log);
    let job = "[r]\nread_iolog=trace.log\nreplay_no_stall\niodepth=32\nnumjobs=2\ngroup_reporting\n";
    let measured = world.jobs(job, Some("stats(null(size=2GiB))")).remove(0);
    assert_eq!(measured.operations, 400_000);
    // Requests 0, 3, 6… are reads of 4 KiB, 1, 4… writes of 8 KiB, the rest trims of 16 KiB.
    let counted = |what: &str| measured.layers["top"][what]["operations"].as_u64().expect("a number");
    assert_eq!((counted("read"), counted("write"), counted("discard")), (133_334, 133_334, 133_332));
    assert_eq!(measured.bytes, 133_334 * 4096 + 133_334 * 8192 + 133_332 * 16_384);
}

#[test]
fn clones_take_a_log_each() {
    let world = World::new();
    world.write("a.log", &version_2("/d read 0 4096\n/d read 4096 4096\n"));
    world.write("b.log", &version_2("/d write 8192 8192\n"));
    let job = "[r]\nread_iolog=a.log:b.log\nnumjobs=3\nreplay_no_stall\ngroup_reporting\n";
    let measured = world.jobs(job, Some("ram(1MiB)")).remove(0);
    assert_eq!((measured.operations, measured.bytes), (2 + 1 + 2, 2 * 8192 + 8192));
    // On a stack that has to be formatted first.
    let cached = world.jobs(job, Some("cache(ram(8MiB), ram(4MiB))")).remove(0);
    assert_eq!((cached.operations, cached.hit_ratios.len()), (5, 1));
}

#[test]
fn what_does_not_fit_is_refused_before_anything_runs() {
    let world = World::new();
    world.write("trace.log", &version_2("/d read 0 4096\n/d write 1048576 4096\n/d read 512 512\n"));
    let job = "[r]\nread_iolog=trace.log\n";
    let error = world.refused(job, Some("ram(1MiB)"));
    assert!(
        error.contains("trace.log:5: write of 4096 bytes at byte 1048576: the device has only 1048576"),
        "{error}"
    );
    let error = world.refused(job, Some("ram(2MiB)"));
    assert!(error.contains("trace.log:6: read of 512 bytes at byte 512: expected whole blocks"), "{error}");
    world.jobs(job, Some("ram(2MiB, block_size=512)"));
    let error = world.refused("[r]\nread_iolog=trace.log\nfilename=x.img\n", None);
    assert!(
        error.contains(
            "fio takes the file that the log names, /d; to replay it on x.img: replay_redirect=x.img"
        )
    );
    let error = world.refused("[r]\nread_iolog=none.log\n", Some("ram(1MiB)"));
    assert!(error.contains("[r]: none.log: reading this log: No such file"), "{error}");
    world.write("trace.log", "fio version 2 iolog\nx add\nx open\nx raed 0 4096\nx read 0\n");
    let error = world.refused(job, Some("ram(1MiB)"));
    assert!(
        error.contains("trace.log:4:3: action \"raed\" is not known") && error.contains("trace.log:5:1: "),
        "{error}"
    );
    let write = "[w]\nsize=64k\nrw=write\nwrite_iolog=precious.txt\n";
    world.write("precious.txt", "precious");
    let error = world.refused(write, Some("ram(1MiB)"));
    assert!(error.contains("the file is no log") && world.read("precious.txt") == "precious", "{error}");
}

/// The first workload writes the log that the second replays; an older one with the name is ignored.
const PLAN: &str = r#"
[plan]
repetitions = 2
[stack.plain]
line = "ram(size=16MiB)"
fill = true
[stack.small]
line = "cache(ram(16MiB), ram(1MiB), sequential_threshold=0)"
format = "always"
[stack.large]
line = "cache(ram(16MiB), ram(24MiB), sequential_threshold=0)"
format = "always"
[workload.load]
rw = "randrw"
rwmixread = 80
bs = "4KiB"
io_size = "16MiB"
random_distribution = "zipf:1.1"
write_iolog = "t.log"
subjects = ["plain"]
[workload.replay]
read_iolog = "t.log"
replay_no_stall = true
iodepth = 4
"#;

#[test]
fn a_plan_replays_what_it_wrote_and_shows_hit_ratios() {
    let world = World::new();
    for old in ["", "fio version 3 iolog\nrubbish\n"] {
        world.write("t.log", old);
        let outcome = world.plan(PLAN);
        assert_eq!((outcome.failures, &outcome.results.notes), (0, &Vec::new()));
        let results = outcome.results;
        assert_eq!(results.runs.len(), 2 + 6);
        for run in results.runs.iter().filter(|run| run.workload.name == "replay") {
            assert_eq!((run.measurement.operations, run.measurement.bytes), (4096, 16 << 20), "{}", run.name);
            assert_eq!(run.workload.options["read_iolog"], "t.log");
            assert!(!run.workload.options.contains_key("rw"), "{:?}", run.workload.options);
        }
        let hits = |subject: &str| {
            let run = results.of("replay", subject).next().expect("it ran");
            run.measurement.hit_ratios.get("top").map(|ratio| (ratio.all, ratio.reads, ratio.writes))
        };
        let ((small, _, writes), (large, reads, _)) =
            (hits("small").expect("hits"), hits("large").expect("hits"));
        assert!(small > 0.0 && small < large && large < 1.0, "{small} {large}");
        assert!(reads.is_some_and(|reads| reads > 0.0) && writes.is_some());
        assert_eq!(hits("plain"), None);
        let table = bench::table::render(&results);
        assert!(
            table.contains("read hits") && table.contains(&format!("{:.1} %", reads.unwrap_or(0.0) * 100.0)),
            "{table}"
        );
        let page = bench::report::render(&results);
        assert!(page.contains("<th scope=\"col\">read hits</th>") && page.contains(" %</td>"));
    }
}

#[test]
fn plans_and_job_files_refuse_what_a_replay_does_not_do() {
    let refused = |options: &str| {
        let text = format!("[r]\n{options}\n");
        JobFile::parse("j.fio", &text, &|_| None).expect_err("it is refused").to_string()
    };
    for (options, expected) in [
        ("read_iolog=a\nrw=read", "j.fio:3:1: [r] rw with read_iolog: the log has the requests"),
        ("bs=4k\nread_iolog=a\nverify=crc32c", "bs with read_iolog"),
        ("replay_no_stall", "replay_no_stall without read_iolog"),
        ("read_iolog=-", "a log is read twice"),
        ("read_iolog=a::b", "several with a colon"),
        ("read_iolog=a\nreplay_align=3000", "expected a power of two"),
        ("read_iolog=a\nreplay_time_scale=0", "expected 1 to"),
        ("read_iolog=a\nwrite_iolog=b", "leave one of them out"),
        ("write_iolog=b\nnumjobs=2", "a log is of one clone"),
        ("read_iolog=a\nreplay_skip=read", "fio's, and not supported"),
    ] {
        let said = refused(options);
        assert!(said.contains(expected), "{options}: {said}");
    }
    let plan =
        "[stack.s]\nline = \"ram(1MiB)\"\n[workload.w]\nread_iolog = \"a\"\nrate_iops = \"50% of s\"\n";
    let said = Plan::parse("p.toml", plan).expect_err("it is refused").to_string();
    assert!(said.contains("rate_iops with read_iolog"), "{said}");
    let twice = "[a]\nsize=64k\nwrite_iolog=t\n[b]\nsize=64k\nwrite_iolog=t\n";
    assert!(World::new().refused(twice, Some("ram(1MiB)")).contains("another job writes it, too"));
}
