use super::*;
use crate::job::{Amount, BlockSizes};
use crate::results::Figure;
use proptest::prelude::*;

const NBD: &str = r#"
[plan]
title = "Doors"
repetitions = 2
warm_up = "500ms"

[server.nbdkit]
command = ["nbdkit", "--foreground", "--unix", "{socket}", "memory", "1G"]

[server.storage-daemon]
command = ["qemu-storage-daemon", "--blockdev", "driver=file,node-name=d,filename={directory}/ram.img",
           "--nbd-server", "addr.type=unix,addr.path={socket}", "--export", "type=nbd,id=e,node-name=d,writable=on"]
prepare = [["truncate", "--size", "1G", "{directory}/ram.img"]]
socket = "q.sock"

[server.ours]
command = ["{siltstone}", "serve", "ram(size=1GiB)", "--nbd", "unix:{socket}"]

[peer.siltstone]
kind = "fio"
ours = true
server = "ours"
ioengine = "nbd"
options = { uri = "nbd+unix:///?socket={socket}" }

[peer.nbdkit]
kind = "fio"
server = "nbdkit"
ioengine = "nbd"
options = { uri = "nbd+unix:///?socket={socket}" }

[peer.batching]
kind = "command"
ours = true
server = "nbdkit"
command = ["{siltstone}", "bench", "--on", "nbd(unix:{socket})", "--bs={bs}", "{fio_arguments}"]

[peer.qsd]
kind = "fio"
server = "storage-daemon"
ioengine = "nbd"
options = { uri = "nbd+unix:///?socket={socket}", thread = true }

[workload.randread]
rw = "randread"
bs = "4KiB"
iodepth = 32
runtime = "3s"
time_based = true
"#;

const FILE: &str = r#"
[plan]
repetitions = 3
[stack.file]
line = "file(quick.img, size=1GiB)"
fill = true
[stack.null]
line = "stats(null(size=1TiB))"
[peer.fio]
kind = "fio"
filename = "quick.img"
[workload.read]
rw = ["randread", "read"]
bs = "4KiB"
iodepth = [1, 32]
runtime = "1s"
size = "50%"
subjects = ["file", "fio"]
[workload.rate]
subjects = ["null"]
runtime = 2
repetitions = 1
[workload.truth]
rw = "randrw"
rwmixread = 75
numjobs = 2
runtime = "1s"
rate_iops = "50% of fio"
subjects = ["file", "fio"]
repetitions = 4
[compare]
pairs = [["file", "fio"]]
"#;

fn problems(text: &str) -> String {
    Plan::parse("p.toml", text).expect_err("this plan is wrong").to_string()
}

#[test]
fn a_matrix_interleaved() {
    let plan = Plan::parse("dir/quick.toml", FILE).unwrap();
    assert_eq!(plan.name, "quick");
    let names: Vec<&str> = plan.workloads.iter().map(|workload| workload.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "read rw=randread iodepth=1",
            "read rw=randread iodepth=32",
            "read rw=read iodepth=1",
            "read rw=read iodepth=32",
            "rate",
            "truth"
        ]
    );
    let job = &plan.workloads[3].job;
    assert_eq!(
        (job.block_size.read, job.iodepth, job.size),
        (BlockSizes::fixed(4096), 32, Some(Amount::Percent(50)))
    );
    let runs = plan.runs();
    let names: Vec<String> = runs.iter().map(Run::name).collect();
    assert_eq!(names[0], "file/fill");
    assert_eq!(names[1], "fio/truth/calibration");
    assert_eq!(&names[2..4], ["file/read rw=randread iodepth=1/1", "fio/read rw=randread iodepth=1/1"]);
    let second = names.iter().position(|name| name == "fio/read rw=randread iodepth=1/2").unwrap();
    assert_eq!(names[second + 1], "file/read rw=randread iodepth=1/2", "the order turns round");
    assert_eq!(runs.len(), 2 + 4 * 2 * 3 + 1 + 2 * 4);
    assert!(runs[1].rate_share.is_none() && runs.last().unwrap().rate_share.is_some());
}

#[test]
fn a_share_of_a_rate_is_divided() {
    let plan = Plan::parse("x", FILE).unwrap();
    let truth = plan.workloads.last().unwrap();
    let job = truth.rate_share.as_ref().unwrap().apply(&truth.job, 80_000.0);
    assert_eq!(
        (job.rate_iops.read, job.rate_iops.write, job.rate_iops.trim),
        (Some(15_000), Some(5_000), None)
    );
}

#[test]
fn servers_peers_and_default_pairs() {
    let plan = Plan::parse("doors.toml", NBD).unwrap();
    assert_eq!(plan.title.as_deref(), Some("Doors"));
    assert_eq!(plan.servers[0].socket, "nbdkit.sock");
    assert_eq!(plan.workloads[0].job.ramp_time, Duration::from_millis(500));
    let pairs: Vec<String> =
        plan.pairs.iter().map(|(subject, baseline)| format!("{subject}:{baseline}")).collect();
    assert_eq!(pairs, ["siltstone:nbdkit", "batching:nbdkit", "siltstone:qsd", "batching:qsd"]);
    let is_peer: Vec<bool> = plan.runs().iter().take(4).map(|run| run.subject.is_peer()).collect();
    assert_eq!(is_peer, [false, true, false, true]);
}

#[test]
fn a_stack_on_a_server() {
    let stack = "[stack.client]\nline = \"nbd-client(unix:{socket})\"\nserver = \"nbdkit\"\nours = false\n";
    let mut plan = Plan::parse("doors.toml", &format!("{NBD}{stack}")).unwrap();
    let client = Subject::Stack(&plan.stacks[0]);
    assert!(client.is_peer());
    assert_eq!(plan.server_of(client).unwrap().name, "nbdkit");
    assert!(plan.pairs.contains(&("siltstone".into(), "client".into())), "{:?}", plan.pairs);
    let notes = plan.leave_out_missing(&|program| program != "nbdkit");
    assert!(notes.contains(&"client is left out: nbdkit is not installed".into()), "{notes:?}");
    assert!(plan.stacks.is_empty() && plan.pairs.iter().all(|(_, baseline)| baseline != "client"));
    let nowhere = format!("{NBD}{}", stack.replace("server = \"nbdkit\"\n", ""));
    assert!(problems(&nowhere).contains("{socket} needs a server: add server = \"NAME\""));
}

const MAPS: &str = r#"
[plan]
repetitions = 2
[table.alone]
title = "Alone"
command = ["{siltstone}", "map-lookups", "--json"]
rows = [{ map = "published", bytes = "133 (224)" }, { map = "another", bytes = 4 }]
[stack.radix]
line = "log(ram(1GiB), map=radix)"
shards = "cores"
format = "always"
fill = "random"
[stack.ram]
line = "ram(1GiB)"
fill = true
format = true
[peer.fio]
kind = "fio"
filename = "x"
[workload.points]
one_setup = true
rw = ["randread", "randwrite"]
iodepth = [1, 32]
runtime = "1s"
[workload.alone]
subjects = ["radix", "ram"]
runtime = "1s"
"#;

#[test]
fn a_matrix_on_one_setup_goes_subject_by_subject() {
    let plan = Plan::parse("maps.toml", MAPS).unwrap();
    let [radix, ram] = &plan.stacks[..] else { panic!("two stacks") };
    assert_eq!((radix.fill, radix.format), (Filling::AtRandom, Formatting::Always));
    assert_eq!((ram.fill, ram.format, ram.shards), (Filling::InOrder, Formatting::Once, 1));
    assert!(radix.shards >= 1);
    let workload = &plan.workloads[1];
    assert_eq!((workload.section.as_str(), workload.one_setup), ("points", true));
    let choices: Vec<String> = workload.choices.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(choices, ["rw=randread", "iodepth=32"]);
    let runs = plan.runs();
    let measured: Vec<(&str, u32, bool)> = runs
        .iter()
        .filter(|run| run.role == Role::Measured)
        .map(|run| (run.subject.name(), run.repetition, run.continues))
        .collect();
    let points = |subject, repetition, continues| {
        let first = (subject, repetition, false);
        std::iter::once(first).chain(std::iter::repeat_n((subject, repetition, continues), 3))
    };
    let expected: Vec<_> = points("radix", 1, true)
        .chain(points("ram", 1, true))
        .chain(points("fio", 1, false))
        .chain([("radix", 1, false), ("ram", 1, false)])
        .chain(points("fio", 2, false))
        .chain(points("ram", 2, true))
        .chain(points("radix", 2, true))
        .chain([("ram", 2, false), ("radix", 2, false)])
        .collect();
    assert_eq!(measured, expected);
}

#[test]
fn tables_and_their_rows() {
    let mut plan = Plan::parse("maps.toml", MAPS).unwrap();
    let table = &plan.tables[0];
    assert_eq!((table.title.as_deref(), table.command.len(), table.rows.len()), (Some("Alone"), 3, 2));
    assert_eq!(table.rows[1][1], ("bytes".into(), "4".into()));
    assert!(plan.leave_out_missing(&|program| program == "fio").is_empty(), "ours is always there");
    let foreign = MAPS.replace("{siltstone}", "numbers");
    let notes = Plan::parse("maps.toml", &foreign).unwrap().leave_out_missing(&|program| program == "fio");
    assert_eq!(notes, ["alone is left out: numbers is not installed"]);
    for (from, to, expected) in [
        ("rows = [", "rows = [3, ", "rows: expected a list of rows"),
        ("title = \"Alone\"", "titel = \"Alone\"", "did you mean \"title\"?"),
        ("\"--json\"]", "\"{socket}\"]", "{socket} needs a server"),
        (
            "fill = \"random\"",
            "fill = \"often\"",
            "fill: expected true, false or \"random\", found the text \"often\"",
        ),
        ("shards = \"cores\"", "shards = \"all\"", "shards: expected a whole number from 1 to 1024"),
        ("one_setup = true", "one_setup = 3", "one_setup: expected true or false"),
    ] {
        let text = MAPS.replacen(from, to, 1);
        assert!(problems(&text).contains(expected), "{expected}: {}", problems(&text));
    }
}

const FULL: &str = r#"
[plan]
repetitions = 1
published_in = "a table"
[stack."Fast + slow"]
line = "ram(26GiB)"
[stack.slow]
line = "ram(4GiB)"
[workload.randwrite]
rw = "randwrite"
runtime = "30s"
time_based = true
zero_buffers = true
iodepth = [1, 32]
[published."Fast + slow"]
iops = 131_000
p50 = "237us"
[published.slow]
workload = "randwrite iodepth=32"
bandwidth = "1MiB"
p99 = "90ms"
[table.sizes]
title = "By size"
command = ["measure", "1"]
[full.plan]
warm_up = "2s"
[full.table.sizes]
command = ["measure", "1", "10"]
[full.workload.randwrite]
runtime = "5m"
[full.stack."Fast + slow"]
line = "ram(261GiB)"
format = "always"
"#;

#[test]
fn a_plan_in_full() {
    let plan = Plan::parse("dir/tiers.toml", FULL).unwrap();
    let full = plan.full.as_ref().expect("it has one");
    assert_eq!((plan.name.as_str(), full.name.as_str(), full.full.is_none()), ("tiers", "tiers-full", true));
    let of = |plan: &Plan| {
        let (job, stack) = (&plan.workloads[1].job, &plan.stacks[0]);
        (job.runtime, job.ramp_time, stack.source.clone(), stack.format)
    };
    let (seconds, line) = (Duration::from_secs, |text: &str| StackSource::Line(text.into()));
    assert_eq!(of(&plan), (Some(seconds(30)), seconds(0), line("ram(26GiB)"), Formatting::No));
    assert_eq!(of(full), (Some(seconds(300)), seconds(2), line("ram(261GiB)"), Formatting::Always));
    assert!(full.workloads.iter().all(|it| it.job.zero_buffers && it.repetitions == 1));
    assert_eq!((full.stacks[1].source.clone(), full.stacks.len()), (line("ram(4GiB)"), 2));
    assert_eq!(full.published, plan.published);
    let table = |plan: &Plan| (plan.tables[0].title.clone(), plan.tables[0].command.join(" "));
    let title = Some("By size".to_owned());
    assert_eq!(table(&plan), (title.clone(), "measure 1".into()));
    assert_eq!(table(full), (title, "measure 1 10".into()));
    for (from, to, expected) in [
        (
            "[full.workload.randwrite]",
            "[full.workload.randwriet]",
            "no workload \"randwriet\": did you mean \"randwrite\"?",
        ),
        ("[full.stack.", "[full.stacks.", "unknown key \"stacks\": did you mean \"stack\"?"),
        ("[full.plan]\n", "[full.peer.fio]\n", "[full.peer]: the plan has no [peer] to change"),
        ("runtime = \"5m\"", "runtiem = \"5m\"", "option \"runtiem\" is not known"),
        ("line = \"ram(261GiB)\"", "line = 3", "line: expected a text"),
    ] {
        let said = problems(&FULL.replacen(from, to, 1));
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // A problem of both plans is reported once.
    let said = problems(&FULL.replacen("rw = \"randwrite\"", "rw = \"randwriet\"", 1));
    assert_eq!(said.matches("rw=randwriet").count(), 1, "{said}");
}

#[test]
fn published_figures() {
    let plan = Plan::parse("tiers.toml", FULL).unwrap();
    assert_eq!(plan.published_in.as_deref(), Some("a table"));
    assert_eq!(plan.published[0].figures, [(Figure::Iops, 131_000.0), (Figure::P50, 237_000.0)]);
    let slow = &plan.published[1];
    assert_eq!((slow.subject.as_str(), slow.workload.as_deref()), ("slow", Some("randwrite iodepth=32")));
    assert_eq!(slow.figures, [(Figure::Bandwidth, f64::from(1 << 20)), (Figure::P99, 9e7)]);
    for (from, to, expected) in [
        ("[published.slow]", "[published.solw]", "no subject \"solw\": did you mean \"slow\"?"),
        ("iodepth=32\"", "iodepth=33\"", "no workload \"randwrite iodepth=33\": did you mean"),
        ("iops = 131_000", "iosp = 3", "unknown key \"iosp\": did you mean \"iops\"?"),
        ("iops = 131_000", "iops = \"many\"", "iops = many: expected a whole number"),
        ("p99 = \"90ms\"", "p99 = \"0s\"", "expected more than 0"),
        ("iops = 131_000\np50 = \"237us\"\n", "", "expected a figure"),
    ] {
        let said = problems(&FULL.replacen(from, to, 1));
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn a_shorter_plan_to_try() {
    let mut plan = Plan::parse("x", &FILE.replace("[plan]", "[plan]\nwarm_up = \"2s\"")).unwrap();
    plan.shorten(Some(1), Some(Duration::from_millis(500)));
    let half = Duration::from_millis(500);
    assert!(plan.workloads.iter().all(|it| it.repetitions == 1 && it.job.runtime == Some(half)));
    assert!(plan.workloads.iter().all(|it| it.job.ramp_time == half));
    plan.shorten(None, None);
    assert!(plan.workloads.iter().all(|it| it.repetitions == 1));
}

/// Expansion of the repository's plans.
#[test]
fn the_plans_of_the_log() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/plans");
    let read = |name: &str| {
        let plan = Plan::parse(name, &std::fs::read_to_string(folder.join(name)).unwrap());
        plan.unwrap_or_else(|problems| panic!("{problems}"))
    };
    let maps = read("maps.toml");
    assert_eq!((maps.workloads.len(), maps.stacks.len(), maps.runs().len()), (216, 6, 216 * 6 + 6));
    let times = maps.runs().into_iter().filter_map(|run| Some(run.job.runtime? + run.job.ramp_time));
    let seconds = times.map(|time| time.as_secs_f64()).sum::<f64>();
    assert!(seconds < 800.0, "{seconds}");
    assert_eq!(read("maps-quick.toml").workloads.len(), 24);
    let log = read("log.toml");
    assert!(log.workloads.iter().all(|workload| workload.repetitions >= 10));
    assert!(log.stacks.iter().all(|stack| stack.fill != Filling::No));
    assert_eq!(read("cleaning.toml").workloads.len(), 2);
}

#[test]
fn programs_beside_the_plan_are_not_looked_for_among_those_installed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/plans");
    let text = std::fs::read_to_string(folder.join("spinor.toml")).unwrap();
    let mut plan = Plan::parse("spinor.toml", &text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.leave_out_missing(&|program| ["flashrom", "cargo"].contains(&program)), [""; 0]);
    assert_eq!(plan.peers.len(), 3);
}

#[test]
fn what_is_missing_is_left_out_and_said() {
    let mut plan = Plan::parse("doors.toml", NBD).unwrap();
    let notes = plan.leave_out_missing(&|program| program != "qemu-storage-daemon");
    assert_eq!(notes, ["qsd is left out: qemu-storage-daemon is not installed"]);
    assert_eq!(plan.pairs.len(), 2);
    assert!(plan.runs().iter().all(|run| run.subject.name() != "qsd"));
    let mut plan = Plan::parse("x", FILE).unwrap();
    let notes = plan.leave_out_missing(&|_| false);
    assert_eq!(
        notes,
        ["fio is left out: fio is not installed", "truth is left out: its rate is a share of fio"]
    );
}

#[test]
fn everything_wrong_is_said_at_once_and_where() {
    let text = r#"
[plan]
repetitoins = 5
[stack.file]
line = "file(x)"
file = "y.toml"
[workload.a]
rw = "randraed"
iodpeth = [1, 2]
bs = ["4KiB", "5Q"]
filename = "x"
subjects = ["fiel"]
time_based = true
[peer.fio]
kind = "fio"
[peer.x]
kind = "command"
command = ["x", "{iodpeth}", "{socket}"]
server = "y"
[compare]
baseline = "foi"
"#;
    let said = problems(text);
    for expected in [
        "p.toml:3:1: [plan]: unknown key \"repetitoins\": did you mean \"repetitions\"?",
        "p.toml:4:8: [stack.file]: expected either line",
        "p.toml:8:6: rw=randraed: expected one of",
        "p.toml:9:1: option \"iodpeth\" is not known: did you mean \"iodepth\"?",
        "p.toml:10:15: bs=5Q: expected a number of bytes",
        "p.toml:11:1: filename: not an option of a workload",
        "p.toml:12:12: there is no subject \"fiel\": did you mean \"file\"? (known: file, fio, x)",
        "p.toml:13:1: workload a: time_based without runtime",
        "p.toml:14:7: [peer.fio]: expected filename",
        "p.toml:18:11: command: unknown placeholder {iodpeth}: did you mean \"iodepth\"?",
        "p.toml:19:10: there is no server \"y\"",
        "p.toml:21:12: there is no subject \"foi\": did you mean \"fio\"?",
    ] {
        assert!(said.contains(expected), "{expected}\n--- in ---\n{said}");
    }
    assert_eq!(said.matches("iodpeth\" is not known").count(), 1, "once, not for each point: {said}");
}

#[test]
fn refusals() {
    for (text, expected) in [
        ("", "p.toml: a plan needs at least one"),
        ("[plan]\nname = ", "p.toml:2:8: TOML"),
        ("[plan]\nname = 3", "2:8: name: expected a text that isn't empty, found 3"),
        ("[plan]\nrepetitions = 0", "expected a whole number from 1 to 1000"),
        ("[plan]\nwarm_up = \"soon\"", "expected a time"),
        ("stack = 3", "stack: expected a table"),
        ("[stack.a]\nline = \"null\"\ndevice = \"x\"", "a line has only its top"),
        ("[stack.a]\nline = \"null\"\n[peer.a]\nkind = \"fio\"\nfilename = \"x\"", "of the same name"),
        ("[stack.\"a/b\"]\nline = \"null\"", "expected a name"),
        ("[peer.a]\nkind = \"foi\"", "kind = \"command\", found \"foi\""),
        ("[peer.a]\nkind = \"command\"\ncommand = []", "at least a program"),
        ("[server.a]", "expected command"),
        ("[stack.a]\nline = \"null\"\n[workload.w]\nrate_iops = \"half\"", "expected a whole number"),
        ("[stack.a]\nline = \"null\"\n[workload.w]\nrate_iops = \"50% of b\"", "no subject \"b\""),
        ("[stack.a]\nline = \"null\"\n[workload.w]\nbs = []", "at least one value"),
        ("[stack.a]\nline = \"null\"\n[workload.w]\nbs = \"4kb\"", "write 4KiB"),
        ("[stack.a]\nline = \"null\"\n[workload.w]\nbs = 1979-05-27", "expected one value"),
    ] {
        assert!(problems(text).contains(expected), "{text}\n--- gives ---\n{}", problems(text));
    }
}

proptest! {
    #[test]
    fn hostile_plans_never_panic(text in "\\PC{0,200}|(\\[?[a-z\\.]{0,9}\\]? ?=? ?[\"\\[\\{]?[a-z0-9%,]{0,6}[\"\\]\\}]?\n){0,20}") {
        let _ = Plan::parse("p.toml", &text);
    }

    /// A valid plan, from which a part is removed or to which text is added.
    #[test]
    fn damaged_plans_never_panic(from in 0..NBD.len(), length in 0..40usize, put in "\\PC{0,6}", which in 0..3usize) {
        let source = [NBD, FILE, MAPS][which];
        let mut text: Vec<char> = source.chars().collect();
        let from = from.min(text.len());
        let to = (from + length).min(text.len());
        text.splice(from..to, put.chars());
        if let Ok(plan) = Plan::parse("p.toml", &text.into_iter().collect::<String>()) {
            let _ = plan.runs();
        }
    }
}
