//! The file system for programs on other executors, on images.

use siltstone_fs::embedded::{Error, FileSystem, OpenOptions, Options};
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::task::{Context, Waker};

fn small(shards: usize) -> Options {
    Options { size: 256 << 20, shards, ..Options::default() }
}

fn open(path: &Path, shards: usize) -> FileSystem {
    FileSystem::open(path, small(shards)).blocking().unwrap()
}

fn is_shared<T: Send + Sync + Clone + 'static>(_: &T) {}

#[test]
fn threads_use_all_shards_and_a_dropped_file_system_has_everything() {
    let folder = tempfile::tempdir().unwrap();
    for (shards, threads) in [(1, 8), (4, 32), (8, 4)] {
        let path = folder.path().join(format!("{shards}-{threads}.img"));
        let files = open(&path, shards);
        is_shared(&files);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let files = files.clone();
                scope.spawn(move || {
                    let directory = format!("/{thread}");
                    files.create_dir(directory.as_str()).blocking().unwrap();
                    for number in 0..10 {
                        let file = files.create_file(format!("{directory}/{number}")).blocking().unwrap();
                        is_shared(&file);
                        file.write_at(5, format!("{thread} {number}")).blocking().unwrap();
                        assert_eq!(
                            file.append("end").blocking().unwrap(),
                            file.metadata().blocking().unwrap().len() - 3
                        );
                    }
                    files
                        .rename(format!("{directory}/0"), format!("{directory}/renamed"))
                        .blocking()
                        .unwrap();
                    files.remove_file(format!("{directory}/1")).blocking().unwrap();
                });
            }
        });
        drop(files);
        let files = open(&path, 2);
        for thread in 0..threads {
            let mut names: Vec<_> = files.read_dir(format!("/{thread}")).blocking().unwrap();
            names.sort_by(|a, b| a.file_name().cmp(b.file_name()));
            assert_eq!(names.len(), 9);
            assert!(names.iter().all(|entry| entry.file_type().is_file()));
            assert_eq!(names[8].file_name(), "renamed");
            let expected = format!("\0\0\0\0\0{thread} 9end");
            assert_eq!(files.read(format!("/{thread}/9")).blocking().unwrap(), expected.into_bytes());
        }
        files.close().blocking().unwrap();
    }
}

#[test]
fn names_behave_as_those_of_the_standard_library() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(&folder.path().join("disk.img"), 1);
    files.create_dir_all("/a/b/c/").blocking().unwrap();
    files.create_dir_all("a/b").blocking().unwrap();
    assert!(files.metadata("/a/b/c").blocking().unwrap().is_dir());
    files.write("/a/file", "contents").blocking().unwrap();
    files.write("/a/file", "new").blocking().unwrap();
    assert_eq!(files.read("/a/file").blocking().unwrap(), b"new");
    assert!(
        matches!(files.create_dir_all("/a/file/x").blocking(), Err(error) if error.errno() == libc::ENOTDIR)
    );
    files.hard_link("/a/file", "/a/other").blocking().unwrap();
    files.symlink("file", "/a/link").blocking().unwrap();
    assert_eq!(files.read_link("/a/link").blocking().unwrap(), Path::new("file"));
    assert_eq!(files.read("/a/link").blocking().unwrap(), b"new");
    let entries = files.read_dir("/a").blocking().unwrap();
    assert!(entries.iter().any(|entry| entry.file_name() == "link" && entry.file_type().is_symlink()));
    assert_eq!(entries.len(), 4);
    let new = OpenOptions { create_new: true, ..OpenOptions::default() };
    assert!(matches!(files.open_file_with("/a/file", new).blocking(), Err(Error::AlreadyExists(_))));
    assert!(matches!(files.open_file("/a/missing").blocking(), Err(Error::NotFound(_))));
    assert_eq!(files.try_exists("/a/missing").blocking(), Ok(false));
    assert_eq!(files.try_exists("/a/other").blocking(), Ok(true));
    assert_eq!(files.remove_dir("/a/b").blocking().unwrap_err().errno(), libc::ENOTEMPTY);
    files.remove_dir("/a/b/c").blocking().unwrap();
    let file = files.open_file("/a/file").blocking().unwrap();
    file.set_len(2).blocking().unwrap();
    files.remove_file("/a/file").blocking().unwrap();
    assert_eq!(file.read_at(0, 100).blocking().unwrap(), b"ne", "an open file is read after its removal");
    let metadata = file.metadata().blocking().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777, metadata.is_file()), (2, 0o644, true));
    assert!(metadata.modified() >= metadata.created());
    files.remove_file("/a/other").blocking().unwrap();
    files.sync().blocking().unwrap();
    let used = |files: &FileSystem| files.status().blocking().unwrap()["files"].as_u64().unwrap();
    let before = used(&files);
    drop(file);
    assert_eq!(used(&files), before - 1, "the last handle frees the removed file");
}

#[test]
fn a_second_open_is_refused_and_files_outlive_a_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let files = open(&path, 1);
    let error = FileSystem::open(&path, small(1)).blocking().unwrap_err();
    assert!(matches!(&error, Error::Busy(_)) && error.to_string().contains("disk.img"), "{error}");
    let file = files.create_file("/file").blocking().unwrap();
    let mut call = file.write_at(0, "begun");
    drop(Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())));
    drop(call);
    files.close().blocking().unwrap();
    assert!(matches!(file.read_at(0, 1).blocking(), Err(Error::Closed(_))));
    assert!(matches!(files.read("/file").blocking(), Err(Error::Closed(_))));
    let again = open(&path, 1);
    assert_eq!(again.read("/file").blocking().unwrap(), b"begun");
    drop((file, files));
    std::fs::write(folder.path().join("other"), vec![1; 1 << 20]).unwrap();
    let error = FileSystem::open(folder.path().join("other"), small(1)).blocking().unwrap_err();
    assert!(matches!(&error, Error::Protocol(_)) && error.to_string().contains("other"), "{error}");
    // A path that is also a word of the message.
    let error = FileSystem::open("such", Options { create: false, ..small(1) }).blocking().unwrap_err();
    assert!(matches!(&error, Error::NotFound(_)) && error.to_string().starts_with("such: "), "{error}");
}

#[test]
fn a_full_file_system_refuses_writes_and_closes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let files = FileSystem::open(&path, Options { size: 64 << 20, ..small(1) }).blocking().unwrap();
    let file = files.create_file("/file").blocking().unwrap();
    let mut written = 0;
    let error = loop {
        match file.append(vec![written as u8; 1 << 20]).blocking() {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 64, "64 MiB don't have space for 64 MiB of data");
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(file.read_at((written - 1) << 20, 1).blocking().unwrap(), [(written - 1) as u8]);
    files.remove_file("/file").blocking().unwrap();
    drop(file);
    files.close().blocking().unwrap();
    assert!(!open(&path, 1).try_exists("/file").blocking().unwrap());
}

/// Path of the image, in the environment of the process that is killed.
const VICTIM: &str = "SILTSTONE_TEST_VICTIM";

#[test]
fn a_killed_process_leaves_all_synced_data() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let files = open(Path::new(&path), 2);
        let file = files.create_file("/journal").blocking().unwrap();
        for number in 0_u64.. {
            file.append(number.to_le_bytes()).blocking().unwrap();
            file.sync_all().blocking().unwrap();
            println!("\nsynced {number}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let test = "embedded::a_killed_process_leaves_all_synced_data";
    for count in [1, 200] {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let numbers = lines.filter_map(|line| line.strip_prefix("synced ")?.parse::<usize>().ok());
        let last = numbers.take(count).last().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        let journal = open(&path, 1).read("/journal").blocking().unwrap();
        assert!(journal.len() > 8 * last, "{} bytes after {last} was synced", journal.len());
        for (number, bytes) in journal.chunks_exact(8).enumerate() {
            assert_eq!(bytes, (number as u64).to_le_bytes());
        }
    }
}

#[path = "../../examples/fs-threads.rs"]
#[allow(dead_code)]
mod threads_example;
#[path = "../../examples/fs-tokio.rs"]
#[allow(dead_code)]
mod tokio_example;

#[test]
fn the_examples_run_also_on_one_thread_of_tokio() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("threads.img");
    threads_example::fill(&path).unwrap();
    assert_eq!(open(&path, 1).read("/data/table.1").blocking().unwrap().len(), 4 << 16);
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    for (executor, name) in [(one, "one.img"), (several, "several.img")] {
        let path = folder.path().join(name);
        executor.block_on(tokio_example::write_journals(path.clone())).unwrap();
        assert_eq!(open(&path, 1).read_dir("/var/journals").blocking().unwrap().len(), 10);
    }
}
