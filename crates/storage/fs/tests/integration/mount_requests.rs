//! Requests that the kernel sends to a mount for one operation of a program, counted by their opcodes: an
//! operation may not cost more than is stated here.

use crate::mount::{can_mount, files_on};
use runtime::{Config, run};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files of each operation.
const FILES: usize = 10;

/// The kernel's trace of the requests of one mount, in an instance of its own; dropping it removes it.
struct Trace(PathBuf);

impl Drop for Trace {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

impl Trace {
    /// Begins to trace; `None` where the kernel has no tracing.
    fn of(mount: &Path) -> Option<Trace> {
        let instances = Path::new("/sys/kernel/tracing/instances");
        let trace = Trace(instances.join(format!("siltstone-{}", std::process::id())));
        let connection = rustix::fs::minor(std::fs::metadata(mount).unwrap().dev());
        let event = "events/fuse/fuse_request_send";
        let begun = std::fs::create_dir(&trace.0)
            .and_then(|()| trace.put(&format!("{event}/filter"), &format!("connection == {connection}")))
            .and_then(|()| trace.put(&format!("{event}/enable"), "1"));
        if let Err(error) = begun {
            println!("SKIPPED: it needs the kernel's trace of FUSE: {error}");
            return None;
        }
        Some(trace)
    }

    fn put(&self, file: &str, value: &str) -> std::io::Result<()> {
        std::fs::write(self.0.join(file), value)
    }

    /// Numbers of requests of an operation by the names of their opcodes.
    fn requests_of(&self, operation: impl FnOnce()) -> BTreeMap<String, usize> {
        self.put("trace", "").unwrap();
        operation();
        let mut counts = BTreeMap::new();
        for line in std::fs::read_to_string(self.0.join("trace")).unwrap().lines() {
            let name = line.split_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')'));
            if let Some((name, _)) = name {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// Checks that an operation costs at most these numbers of requests, and no others.
    fn costs_at_most(&self, what: &str, most: &[(&str, usize)], operation: impl FnOnce()) {
        let counts = self.requests_of(operation);
        assert!(!counts.is_empty(), "{what}: the trace has no request of this mount");
        for (name, count) in &counts {
            let most = most.iter().find(|(other, _)| other == name).map_or(0, |(_, most)| *most);
            assert!(*count <= most, "{what}: {count} of {name}; expected at most {most}; all: {counts:?}");
        }
    }
}

fn operations_cost_no_more_requests(mount: &Path) {
    let Some(trace) = Trace::of(mount) else { return };
    let folder = mount.join("folder");
    let path = |number: usize| folder.join(format!("file-{number}"));
    std::fs::create_dir(&folder).unwrap();
    // The answer to the first FLUSH is that there is none.
    std::fs::write(folder.join("first"), b"data").unwrap();
    let all = || (0..FILES).map(path);
    let per_file = |names: &[&'static str]| names.iter().map(|name| (*name, FILES)).collect::<Vec<_>>();

    let created = per_file(&["GETATTR", "LOOKUP", "CREATE", "RELEASE"]);
    trace.costs_at_most("create", &created, || {
        all().for_each(|path| drop(std::fs::File::create_new(path).unwrap()));
    });
    // Attributes of regular files are cached for a second.
    let written = per_file(&["GETATTR", "OPEN", "GETXATTR", "WRITE", "SETATTR", "RELEASE"]);
    trace.costs_at_most("write", &written, || {
        for path in all() {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"data", 0).unwrap();
        }
    });
    let read = per_file(&["GETATTR", "OPEN", "RELEASE"]);
    trace.costs_at_most("open, read from the cache, close", &read, || {
        for path in all() {
            let mut data = [0; 4];
            let file = std::fs::File::open(path).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut data, 0).unwrap();
            assert_eq!(&data, b"data");
        }
    });
    let list = || assert_eq!(std::fs::read_dir(&folder).unwrap().count(), FILES + 1);
    let first = [("GETATTR", 1), ("OPENDIR", 1), ("READDIRPLUS", 2), ("READDIR", 2), ("RELEASEDIR", 1)];
    trace.costs_at_most("list", &first, list);
    let removed = per_file(&["GETATTR", "UNLINK", "SETATTR"]);
    trace.costs_at_most("unlink", &removed, || {
        all().for_each(|path| std::fs::remove_file(path).unwrap());
    });
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn an_operation_costs_a_fixed_number_of_requests() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let main = move || async move {
        // Attributes of regular files aren't cached where space is short.
        let files = files_on("ram(1GiB)").await;
        let config =
            fs::MountConfig { path: path.clone(), source: "memory".to_owned(), ..fs::MountConfig::default() };
        let mounted = fs::Mounted::mount(&files, config).await.unwrap();
        runtime::blocking(move || operations_cost_no_more_requests(&path)).await;
        mounted.unmount(Duration::from_secs(10)).await.unwrap();
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}
