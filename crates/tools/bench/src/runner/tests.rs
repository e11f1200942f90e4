use super::*;
use std::sync::Mutex;

/// Records the steps, and stops the benchmark at a given one.
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

fn watched(watcher: Watcher) -> (Arc<Watcher>, Arc<dyn Observer>) {
    let watcher = Arc::new(watcher);
    (watcher.clone(), watcher)
}

fn registry() -> Registry {
    Registry::new(vec![&disks::file::KIND, &disks::ram::KIND, &disks::null::KIND, &layers::stats::KIND])
}

/// Calls `work` with a folder of its own.
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
        // Created from scratch before its first run, and only then: the file is larger than the plan demands.
        std::fs::write(setting.directory.join("x.img"), vec![1; 2 << 20]).unwrap();
        let plan = Plan::parse("p.toml", RATES).unwrap();
        let (watcher, observer) = watched(Watcher::default());
        let outcome = Benchmark::of_plan(plan, setting).unwrap().run(&observer, &Stop::new());
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
        let stop_at = Some(("memory/read/calibration", stop.clone()));
        let (watcher, observer) = watched(Watcher { stop_at, ..Watcher::default() });
        let outcome = Benchmark::of_plan(plan, setting).unwrap().run(&observer, &stop);
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
        let (watcher, observer) = watched(Watcher::default());
        let outcome =
            Benchmark::of_job_file("j.fio", jobs, None, setting).unwrap().run(&observer, &Stop::new());
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

const MATRIX: &str = r#"
[plan]
repetitions = 2
[stack.memory]
line = "stats(ram(size=1MiB))"
format = "always"
fill = "random"
[stack.file]
line = "file(x.img, size=1MiB)"
[workload.points]
one_setup = true
rw = ["read", "write"]
bs = ["4KiB", "8KiB"]
"#;

#[test]
fn a_matrix_on_one_setup_builds_and_fills_once() {
    within(|setting| {
        std::fs::write(setting.directory.join("x.img"), vec![1; 1 << 20]).unwrap();
        let (watcher, observer) = watched(Watcher::default());
        let plan = Plan::parse("p.toml", MATRIX).unwrap();
        let outcome = Benchmark::of_plan(plan, setting).unwrap().run(&observer, &Stop::new());
        let steps = watcher.steps.lock().unwrap();
        assert_eq!((steps.len(), outcome.failures), (16, 0), "{steps:?} {:?}", outcome.results.notes);
        assert_eq!(steps[0], "memory/points rw=read bs=4KiB/1 measured");
        assert_eq!(steps[4], "file/points rw=read bs=4KiB/1 measured");
        assert_eq!(steps[8], "file/points rw=read bs=4KiB/2 measured");
        let runs = &outcome.results.runs;
        let count =
            |run: &RunResult, what: &str| run.measurement.layers["top"][what]["operations"].as_u64().unwrap();
        // The runs share the stack, so its counters continue. The writes of the filling were cleared before.
        assert_eq!((count(&runs[1], "read"), count(&runs[1], "write")), (256 + 128, 0));
        assert_eq!(count(&runs[3], "write"), 256 + 128);
        assert_eq!(count(&runs[12], "read"), 256, "the next repetition has another one");
        let point = runs[1].workload.point.as_ref().unwrap();
        assert_eq!((point.section.as_str(), point.choices.len()), ("points", 2));
    });
}

#[test]
fn a_stop_in_a_matrix_keeps_what_was_measured() {
    within(|setting| {
        let stop = Stop::new();
        let stop_at = Some(("memory/points rw=write bs=4KiB/1", stop.clone()));
        let (watcher, observer) = watched(Watcher { stop_at, ..Watcher::default() });
        let plan = Plan::parse("p.toml", MATRIX).unwrap();
        let outcome = Benchmark::of_plan(plan, setting).unwrap().run(&observer, &stop);
        assert!(outcome.results.interrupted && outcome.failures == 0, "{:?}", outcome.results.notes);
        assert_eq!(watcher.steps.lock().unwrap().len(), 3, "the fourth never begins");
        assert!((2..=3).contains(&outcome.results.runs.len()));
    });
}

#[test]
fn tables_of_commands() {
    let outcome = |command: &str, rows: &str| {
        let text = format!(
            "[table.t]\ntitle = \"T\"\ncommand = {command}\nrows = [{rows}]\n\
             [stack.memory]\nline = \"ram(size=64KiB)\"\n[workload.read]\nrw = \"read\"\n"
        );
        within(|setting| {
            let columns = r#"{"name":"map","title":"map"},{"name":"bytes","title":"bytes","unit":"bytes"}"#;
            let table = format!(r#"{{"columns":[{columns}],"rows":[{{"map":"radix","bytes":4096}}]}}"#);
            std::fs::write(setting.directory.join("table.json"), table).unwrap();
            let plan = Plan::parse("p.toml", &text).unwrap();
            let (_, observer) = watched(Watcher::default());
            Benchmark::of_plan(plan, setting).unwrap().run(&observer, &Stop::new())
        })
    };
    let good = outcome(r#"["cat", "table.json"]"#, r#"{ map = "published", bytes = "133 (224)" }"#);
    assert_eq!((good.failures, good.results.runs.len()), (0, 5), "{:?}", good.results.notes);
    let found = &good.results.tables[0];
    assert_eq!((found.name.as_str(), found.title.as_deref()), ("t", Some("T")));
    assert_eq!(found.command, "cat table.json");
    let cells: Vec<String> =
        found.rows.iter().map(|row| found.columns[1].unit.say(row.get("bytes"))).collect();
    assert_eq!(cells, ["4 KiB", "133 (224)"]);
    let page = crate::report::render(&good.results);
    assert!(page.contains("<td>published</td><td>133 (224)</td>"));
    assert!(crate::table::render(&good.results).contains("133 (224)"));
    let notes = |command, rows| outcome(command, rows).results.notes.join("\n");
    let unknown = notes(r#"["cat", "table.json"]"#, r#"{ mop = "x" }"#);
    assert!(unknown.contains("there is no column \"mop\" (known: map, bytes)"), "{unknown}");
    let nonsense = notes(r#"["echo", "nonsense"]"#, "");
    assert!(nonsense.contains("table t failed: ") && nonsense.contains("found \"nonsense"), "{nonsense}");
}
