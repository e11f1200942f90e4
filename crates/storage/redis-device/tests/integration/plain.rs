//! A single real server.

use crate::servers::Server;
use crate::support::{BLOCK, MIB, connect, content, discard, open, read, write};
use block::{BlockRange, DevicePart, Durability, Error, ZeroMode};
use conformance::Whole;
use redis_device::KIND;
use stack::{Registry, Stack};
use std::cell::Cell;
use std::sync::Arc;

#[test]
fn the_device_keeps_the_contract_of_devices() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(folder.path(), &[]) else { return };
    let main = move || async move {
        let made = Cell::new(0);
        let make = async || {
            made.set(made.get() + 1);
            // The last string is shorter.
            let part =
                connect(&[server.address()], &format!("part{}", made.get()), 5 * MIB + 3 * BLOCK).await;
            Arc::new(part.unwrap()) as Arc<dyn DevicePart>
        };
        conformance::device::run(make, Default::default()).await
    };
    let runtime = runtime::Config::default().with_shards(2);
    runtime::run(runtime, main).unwrap().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn strings_are_as_long_as_they_must_be_and_go_when_they_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(folder.path(), &[]) else { return };
    let test = move || async move {
        let part = connect(&[server.address()], "disk", 2 * MIB + 2 * BLOCK).await.unwrap();
        let device = open(&part).await;
        // 300 blocks: the end of the first string, all of the second one.
        let data = block::Data::copy_of(&vec![7; 300 * BLOCK as usize]);
        write(&*device, 212, data).await.unwrap();
        write(&*device, 512, content(512, 1)).await.unwrap();
        let lengths = || ["disk:0", "disk:1", "disk:2"].map(|key| server.ask(&["STRLEN", key]));
        assert_eq!(lengths(), [":1048576", ":1048576", ":4096"]);
        assert_eq!(read(&*device, 212, 300).await.unwrap(), vec![7; 300 * BLOCK as usize]);
        assert_eq!(read(&*device, 512, 2).await.unwrap()[BLOCK as usize..], [0; BLOCK as usize]);
        // Part of a string: zeros are written, and the string doesn't grow.
        discard(&*device, 255, 2).await.unwrap();
        assert_eq!(read(&*device, 255, 2).await.unwrap(), vec![0; 2 * BLOCK as usize]);
        discard(&*device, 513, 1).await.unwrap();
        assert_eq!(lengths(), [":1048576", ":1048576", ":4096"]);
        // All of the second string, and all of the last string's existing bytes.
        discard(&*device, 256, 258).await.unwrap();
        assert_eq!(lengths(), [":1048576", ":0", ":0"]);
        assert_eq!(server.ask(&["EXISTS", "disk:0", "disk:1", "disk:2"]), ":1");
        let kept = device.write_zeroes(BlockRange::new(256, 1), ZeroMode::KeepAllocated, Durability::Visible);
        kept.await.unwrap();
        assert_eq!(lengths()[1], ":4096");
        assert_eq!(server.ask(&["DBSIZE"]), ":2", "nothing else was written");
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}

#[test]
fn a_full_server_refuses_writes_and_has_space_again_later() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(folder.path(), &[]) else { return };
    let test = move || async move {
        let part = connect(&[server.address()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        write(&*device, 0, content(0, 1)).await.unwrap();
        assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "1"]), "+OK");
        let error = write(&*device, 0, content(0, 2)).await.unwrap_err();
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
        assert!(read(&*device, 0, 1).await.unwrap() == content(0, 1)[..]);
        server.ask(&["SET", "disk:1", "x"]);
        assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "0"]), "+OK");
        write(&*device, 0, content(0, 2)).await.unwrap();
        assert_eq!(server.ask(&["RPUSH", "disk:3", "x"]), ":1");
        let error = read(&*device, 768, 1).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "a key of something else: {error}");
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}

#[test]
fn a_server_that_lost_its_memory_shows_no_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut server) = Server::start(folder.path(), &[]) else { return };
    let test = move || async move {
        let part = connect(&[server.address()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        write(&*device, 0, content(0, 1)).await.unwrap();
        server.kill();
        let error = read(&*device, 0, 1).await.unwrap_err();
        assert_eq!(error.errno(), 111, "nothing listens: {error}");
        server.start_again();
        let error = read(&*device, 0, 1).await.unwrap_err();
        assert!(error.detail().contains("was restarted"), "{error}");
        let device = open(&part).await;
        assert_eq!(read(&*device, 0, 1).await.unwrap(), [0; BLOCK as usize]);
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}

#[test]
fn users_log_in_with_the_password_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(folder.path(), &[]) else { return };
    let commands = ["+getrange", "+setrange", "+strlen", "+unlink", "+info", "+cluster|slots", "+asking"];
    let user = [&["ACL", "SETUSER", "disk", "on", ">secret", "~disk:*"][..], &commands].concat();
    assert_eq!(server.ask(&user), "+OK");
    assert_eq!(server.ask(&["ACL", "SETUSER", "default", "off"]), "+OK");
    std::fs::write(folder.path().join("right"), "secret\n").unwrap();
    std::fs::write(folder.path().join("wrong"), "guess\n").unwrap();
    let test = move || async move {
        let build = async |keys: &str| {
            let line = format!("redis({}, size=2MiB, {keys})", server.address());
            let registry = Registry::new(vec![&KIND]);
            let stack = Stack::from_line("line", &line, &registry).unwrap();
            stack.with_base_directory(folder.path()).check(false).unwrap().build().await
        };
        let built = build("name=disk, username=disk, password_file=right").await.unwrap();
        let device = Whole::new(built).unwrap().open().await.unwrap();
        write(&*device, 0, content(0, 1)).await.unwrap();
        discard(&*device, 0, 1).await.unwrap();
        discard(&*device, 0, 512).await.unwrap();
        assert_eq!(read(&*device, 0, 1).await.unwrap(), [0; BLOCK as usize]);
        let refused = async |keys| build(keys).await.expect_err("refused").to_string();
        let text = refused("name=disk, username=disk, password_file=wrong").await;
        assert!(text.contains("WRONGPASS") && !text.contains("guess"), "{text}");
        let text = refused("name=disk").await;
        assert!(text.contains("NOAUTH") || text.contains("AUTH"), "{text}");
        let built = build("name=other, username=disk, password_file=right").await.unwrap();
        let device = Whole::new(built).unwrap().open().await.unwrap();
        let error = read(&*device, 0, 1).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}
