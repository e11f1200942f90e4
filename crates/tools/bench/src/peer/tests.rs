use super::*;
use crate::job::{BlockSizes, PerDirection, ReadWrite};
use proptest::prelude::*;

fn context<'a>(directory: &'a Path, stop: &'a AtomicBool) -> Context<'a> {
    Context { directory, program: Path::new("/opt/siltstone"), stop }
}

fn peer(kind: PeerKind) -> Peer {
    Peer { name: "p".into(), kind, server: None, requires: vec![], ours: false }
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

fn fio_on(filename: &str) -> Peer {
    let fio =
        Fio { filename: Some(filename.into()), ioengine: "psync".into(), direct: false, options: vec![] };
    peer(PeerKind::Fio(fio))
}

/// Whether a program is installed; prints a note if it isn't.
fn installed(program: &str) -> bool {
    let found = find_program(program).is_some();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

fn quick_job() -> Job {
    let mut job = Job::new("quick job");
    job.rw = ReadWrite::RandMixed;
    job
}

#[test]
fn fio_runs_a_mix_for_real() {
    if !installed("fio") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a:b.img"), vec![7; 1 << 20]).unwrap();
    let mut job = quick_job();
    job.numjobs = 2;
    job.block_size = PerDirection::all(BlockSizes::fixed(8192));
    let stop = AtomicBool::new(false);
    let measured = fio_on("a:b.img").run(&job, None, &context(directory.path(), &stop)).unwrap();
    assert_eq!((measured.operations, measured.bytes), (256, 2 << 20), "two clones, once over the file");
    let latency = measured.latency_ns.unwrap();
    assert!(latency.min > 0 && latency.p50 <= latency.p99 && latency.p99 <= latency.max, "{latency:?}");
    assert!(!measured.curve.is_empty() && measured.errors == 0);
}

#[test]
fn a_command_may_add_its_write_amplification() {
    let text = r#"{"jobs": [{"error": 0, "write": {"total_ios": 2, "io_bytes": 20, "runtime": 1000, "iops": 2},
        "write_amplification": {"data": 1.5, "all": 1.75}}]}"#;
    let found = fio::measurement(text).unwrap().write_amplification;
    assert_eq!(found, Some(crate::results::WriteAmplification { data: 1.5, all: 1.75 }));
    let without = r#"{"jobs": [{"write": {"total_ios": 2}}]}"#;
    assert_eq!(fio::measurement(without).unwrap().write_amplification, None);
}

#[test]
fn fio_is_not_let_near_a_file_that_is_too_small() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("small.img");
    std::fs::write(&file, vec![7; 4096]).unwrap();
    let mut job = quick_job();
    job.size = Some(crate::job::Amount::Bytes(8192));
    let stop = AtomicBool::new(false);
    let error = fio_on("small.img").run(&job, None, &context(directory.path(), &stop)).unwrap_err();
    assert!(error.to_string().contains("the device has only 4096 bytes"), "{error}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 4096);
    let error = fio_on("none.img").run(&job, None, &context(directory.path(), &stop)).unwrap_err();
    assert!(matches!(error, Error::NotFound(_)), "{error}");
}

#[test]
fn fio_on_a_server_started_for_it() {
    if !(installed("fio") && installed("nbdkit")) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server {
        name: "nbdkit".into(),
        command: words(&["nbdkit", "--foreground", "--unix", "{socket}", "memory", "1M"]),
        prepare: vec![words(&["touch", "{directory}/prepared"])],
        after_start: vec![words(&["mv", "{directory}/prepared", "{directory}/filled"])],
        socket: "n.sock".into(),
        requires: vec![],
    };
    let uri = ("uri".to_owned(), "nbd+unix:///?socket={socket}".to_owned());
    let peer = peer(PeerKind::Fio(Fio {
        filename: None,
        ioengine: "nbd".into(),
        direct: false,
        options: vec![uri],
    }));
    let stop = AtomicBool::new(false);
    let context = context(directory.path(), &stop);
    let measured = peer.run(&quick_job(), Some(&server), &context).unwrap();
    assert_eq!(measured.operations, 256);
    assert!(measured.server_cpu_seconds.is_some());
    assert!(directory.path().join("filled").exists());
    assert!(!directory.path().join("n.sock").exists(), "the socket went with the server");
}

#[test]
fn commands_get_the_workload_in_words() {
    let mut job = quick_job();
    job.iodepth = 7;
    let command =
        peer(PeerKind::Command(words(&["x", "{rw}:{iodepth}:{size}:{runtime}:{other}", "{fio_arguments}"])));
    let stop = AtomicBool::new(false);
    let said = command.command(&job, None, &context(Path::new("/plan"), &stop));
    assert_eq!(said[1], "randrw:7::0:{other}");
    assert_eq!(said[2], "--name=quick-job");
    assert!(said.contains(&"--rw=randrw".to_owned()) && said.contains(&"--iodepth=7".to_owned()), "{said:?}");
}

#[test]
fn processes_fail_with_what_they_said() {
    let stop = AtomicBool::new(false);
    let run = |command: &[&str], time| {
        let limit = Limit { time, stop: &stop };
        process::run(&words(command), Path::new("/"), &limit).unwrap_err()
    };
    let patient = Duration::from_secs(60);
    let error = run(&["sh", "-c", "echo no disk >&2; exit 3"], patient);
    assert!(error.to_string().contains("exit status: 3: no disk"), "{error}");
    assert!(matches!(run(&["no-such-program-anywhere"], patient), Error::NotFound(_)));
    assert!(matches!(run(&["sleep", "600"], Duration::from_millis(60)), Error::TimedOut(_)));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(run(&["sleep", "600"], patient), Error::Cancelled(_)));
}

#[test]
fn a_server_that_dies_is_noticed() {
    let stop = AtomicBool::new(false);
    let limit = Limit { time: Duration::from_secs(60), stop: &stop };
    let command = words(&["sh", "-c", "echo no port >&2"]);
    let error = RunningServer::start(&command, Path::new("/"), "/no/such.sock", &limit).err().unwrap();
    assert!(error.to_string().contains("ended before it accepted connections: no port"), "{error}");
}

#[test]
fn json_behind_other_lines() {
    let text = "fio: connected to NBD server\n{not json\n{\"jobs\":[{\"error\":0,\"usr_cpu\":10.0,\"sys_cpu\":40.0,\
                \"job_runtime\":2000,\"read\":{\"total_ios\":10,\"io_bytes\":40960,\"iops\":5.0,\"runtime\":2000}}]}\nbye";
    let measured = fio::measurement(text).unwrap();
    assert_eq!((measured.operations, measured.cpu_seconds, measured.seconds), (10, 1.0, 2.0));
    assert!(measured.latency_ns.is_none());
    let failed = fio::measurement("{\"jobs\":[{\"error\":5}]}").unwrap_err();
    assert!(failed.to_string().contains("Input/output error"), "{failed}");
    assert!(fio::measurement("{\"jobs\":[{},{}]}").unwrap_err().to_string().contains("2 jobs"));
    assert!(fio::measurement("").is_err());
}

#[test]
fn cpu_time_behind_an_odd_name() {
    let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0";
    assert_eq!(process::state_and_ticks(stat), Some(("S", 127)));
    assert_eq!(process::state_and_ticks("12 (a) S 1"), None);
}

proptest! {
    #[test]
    fn hostile_output_never_panics(text in "\\PC{0,200}", key in "[a-z_]{1,12}", value in "[0-9eE\\.\\-]{1,20}|\"x\"|\\[\\]") {
        let _ = fio::measurement(&text);
        let _ = fio::measurement(&format!("{{\"jobs\":[{{\"{key}\":{value},\"read\":{{\"total_ios\":{value},\
            \"lat_ns\":{{\"percentile\":{{\"{key}\":{value}}}}}}}}}]}}"));
        let _ = process::state_and_ticks(&text);
    }
}
