use super::*;
use std::sync::Mutex;

/// Writes down what it sees, and stops the benchmark where it is asked to.
#[derive(Default)]
struct Watcher {
    steps: Mutex<Vec<String>>,
    stop_at: Option<(&'static str, Stop)>,
}

impl Observer for Watcher {
    fn begin(&self, step: &Step, _: &Arc<Progress>) {
        assert!(step.number >= 1 && step.number <= step.count && step.before + step.expected <= step.total);
        if let Some((_, stop)) = self.stop_at.as_ref().filter(|(name, _)| *name == step.name) {
            stop.stop();
        }
    }

    fn end(&self, step: &Step, outcome: &Result<Option<Measurement>>) {
        let word = match outcome {
            Ok(Some(_)) => "measured",
            Ok(None) => "done",
            Err(_) => "failed",
        };
        self.steps.lock().unwrap().push(format!("{} {word}", step.name));
    }
}

fn registry() -> Registry {
    Registry::new(vec![&disks::file::KIND, &disks::ram::KIND, &disks::null::KIND, &layers::stats::KIND])
}

/// Runs something in a folder of its own.
fn within<T>(work: impl FnOnce(Setting<'_>) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry();
    work(Setting { registry: &registry, directory: folder.path(), program: Path::new("/opt/siltstone") })
}

const RATES: &str = r#"
[plan]
repetitions = 2
[stack.memory]
line = "stats(ram(size=1MiB))"
fill = true
[stack.file]
line = "file(x.img, size=1MiB)"
format = true
[workload.read]
rw = "randread"
bs = "4KiB"
runtime = "50ms"
time_based = true
rate_iops = "10% of memory"
subjects = ["memory"]
[workload.write]
rw = "write"
bs = "4KiB"
subjects = ["file"]
repetitions = 1
"#;

#[test]
fn fills_calibrates_and_measures() {
    within(|setting| {
        // Created anew before its first run, and only then: the file is larger than the plan says.
        std::fs::write(setting.directory.join("x.img"), vec![1; 2 << 20]).unwrap();
        let plan = Plan::parse("p.toml", RATES).unwrap();
        let watcher = Watcher::default();
        let outcome = Benchmark::of_plan("p.toml", plan, setting).unwrap().run(&watcher, &Stop::new());
        assert_eq!(
            *watcher.steps.lock().unwrap(),
            [
                "memory/fill done",
                "memory/read/calibration measured",
                "memory/read/1 measured",
                "file/write/1 measured",
                "memory/read/2 measured"
            ]
        );
        let runs = &outcome.results.runs;
        assert_eq!((outcome.failures, runs.len(), outcome.results.interrupted), (0, 3, false));
        assert!(runs[0].workload.options.contains_key("rate_iops"), "{:?}", runs[0].workload);
        let reads = &runs[0].measurement.layers["top"]["read"];
        assert_eq!(
            runs[0].measurement.layers["top"]["write"]["operations"], 0,
            "filled again, and not counted"
        );
        assert!(reads["operations"].as_u64().unwrap() >= runs[0].measurement.operations, "{reads}");
        assert_eq!(runs[1].measurement.operations, 256);
        assert_eq!(std::fs::metadata(setting.directory.join("x.img")).unwrap().len(), 1 << 20);
        assert!(outcome.results.environment.file_systems.contains_key("x.img"));
    });
}

#[test]
fn a_stop_begins_nothing_more() {
    within(|setting| {
        let stop = Stop::new();
        let plan = Plan::parse("p.toml", &RATES.replace("50ms", "1h")).unwrap();
        let watcher =
            Watcher { stop_at: Some(("memory/read/calibration", stop.clone())), ..Watcher::default() };
        let outcome = Benchmark::of_plan("p.toml", plan, setting).unwrap().run(&watcher, &stop);
        assert!(outcome.results.interrupted && outcome.results.runs.is_empty() && outcome.failures == 0);
        assert_eq!(watcher.steps.lock().unwrap().len(), 2);
    });
}

#[test]
fn a_stack_alone_is_only_read_unless_writes_are_allowed() {
    within(|setting| {
        let names = |writes| {
            let benchmark = Benchmark::of_stack("ram", "ram(size=1MiB)", writes, setting);
            match benchmark.unwrap().what {
                What::Plan(plan) => plan.runs().iter().map(Run::name).collect::<Vec<_>>(),
                What::Files(_) => unreachable!("a stack is a plan"),
            }
        };
        let (reads, writes) = (names(false), names(true));
        assert!(reads.iter().all(|name| name.contains("reads")), "{reads:?}");
        assert_eq!(reads.len(), 3);
        assert_eq!(writes[0], "stack/fill");
        assert_eq!(writes.len(), 1 + 3 + 3);
    });
}

#[test]
fn jobs_share_their_files_and_keep_their_names_apart() {
    within(|setting| {
        let text = "[global]\nfilename=f.img\nsize=64k\nbs=512\n[a]\nrw=read\n[a]\nrw=write\n\
                    [b]\nstonewall\nrw=randrw\nbs=2k\nfilename=g.img\n";
        let jobs = JobFile::parse("j.fio", text, &|_| None).unwrap();
        let watcher = Watcher::default();
        let outcome =
            Benchmark::of_job_file("j.fio", jobs, None, setting).unwrap().run(&watcher, &Stop::new());
        assert_eq!(*watcher.steps.lock().unwrap(), ["a + a 2 measured", "b measured"]);
        let stacks: Vec<&str> = outcome.results.runs.iter().map(|run| run.stack.as_str()).collect();
        let small = "file(f.img, size=64KiB, block_size=512, direct=off)";
        assert_eq!(stacks, [small, small, "file(g.img, size=64KiB, block_size=2KiB, direct=off)"]);
        assert_eq!(outcome.results.runs[1].name, "f.img/a 2/1");
        assert_eq!(outcome.results.runs[0].measurement.operations, 128);
        assert_eq!((outcome.results.name.as_str(), outcome.results.notes.len()), ("j", 2));
    });
}

#[test]
fn commands_are_kept_as_somebody_would_type_them() {
    let flag = AtomicBool::new(false);
    let context =
        Context { directory: Path::new("/plans"), program: Path::new("/opt/siltstone"), stop: &flag };
    let words =
        ["/opt/siltstone", "serve", "ram(1MiB)", "--nbd", "unix:/plans/x.sock", "it's"].map(String::from);
    let text = command_text(&words, &context);
    assert_eq!(text, r"siltstone serve 'ram(1MiB)' --nbd unix:x.sock 'it'\''s'");
}
