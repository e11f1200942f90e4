//! Files of programs that link the libraries, opened by the command line.

use crate::common::run;

#[test]
fn the_command_line_opens_the_store_of_a_program_and_the_program_opens_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, stack) = (folder.path().join("data.kv"), "kv(file(data.kv))");
    let options = kv::embedded::Options { size: 256 << 20, shards: 2, ..Default::default() };
    let store = kv::embedded::Store::open(&path, options.clone()).blocking().unwrap();
    store.insert("apple", "red").blocking().unwrap();
    let busy = run(folder.path(), &["kv", "get", stack, "apple"]);
    assert!(busy.code != Some(0) && busy.stderr.contains("in use"), "{}", busy.stderr);
    store.close().blocking().unwrap();
    let got = run(folder.path(), &["kv", "get", stack, "apple"]);
    assert_eq!((got.code, got.stdout.trim()), (Some(0), "red"), "{}", got.stderr);
    assert_eq!(run(folder.path(), &["kv", "put", stack, "banana", "yellow"]).code, Some(0));
    let checked = run(folder.path(), &["kv", "check", stack]);
    assert!(
        checked.code == Some(0) && checked.stdout.contains("no damage"),
        "{}{}",
        checked.stdout,
        checked.stderr
    );
    let store = kv::embedded::Store::open(&path, options).blocking().unwrap();
    assert_eq!(store.get("banana").blocking().unwrap(), Some(b"yellow".to_vec()));
}

#[test]
fn a_program_opens_the_store_that_the_command_line_has_made() {
    let folder = tempfile::tempdir().unwrap();
    let stack = "kv(file(data.kv, size=256MiB))";
    let formatted = run(folder.path(), &["format", stack]);
    assert_eq!(formatted.code, Some(0), "{}", formatted.stderr);
    assert_eq!(run(folder.path(), &["kv", "put", "kv(file(data.kv))", "apple", "green"]).code, Some(0));
    let options = kv::embedded::Options { create: false, ..Default::default() };
    let store = kv::embedded::Store::open(folder.path().join("data.kv"), options).blocking().unwrap();
    assert_eq!(store.get("apple").blocking().unwrap(), Some(b"green".to_vec()));
}

#[test]
fn the_command_line_checks_and_mounts_the_image_of_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let options = fs::embedded::Options { size: 256 << 20, ..Default::default() };
    let image = folder.path().join("disk.img");
    let files = fs::embedded::FileSystem::open(&image, options).blocking().unwrap();
    files.write("/hello", "world").blocking().unwrap();
    files.close().blocking().unwrap();
    let checked = run(folder.path(), &["fs", "check", "disk.img", "--data"]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    // An image of the command line is opened by the library.
    assert_eq!(run(folder.path(), &["fs", "format", "other.img", "--size", "256MiB"]).code, Some(0));
    let existing = fs::embedded::Options { create: false, ..Default::default() };
    let other = folder.path().join("other.img");
    let files = fs::embedded::FileSystem::open(other, existing).blocking().unwrap();
    assert!(files.read_dir("/").blocking().unwrap().is_empty());
    if !std::path::Path::new("/dev/fuse").exists() {
        println!("SKIPPED: no /dev/fuse");
        return;
    }
    let at = folder.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let arguments = ["fs", "mount", "disk.img", "mnt"];
    let mut server = crate::common::command(folder.path(), &arguments).spawn().unwrap();
    crate::common::wait_for(server.stdout.as_mut().unwrap(), "mnt");
    let read = std::fs::read(at.join("hello"));
    assert_eq!(run(folder.path(), &["fs", "unmount", "mnt"]).code, Some(0));
    server.wait().unwrap();
    assert_eq!(read.unwrap(), b"world");
}
