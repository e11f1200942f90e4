//! The door and the client as parts of a stack.

use crate::support::{Raw, run};
use doors::nbd::protocol::command;
use doors::nbd::{client, door};
use runtime::net::Address;
use stack::{Registry, Stack};

fn registry() -> Registry {
    Registry::new(vec![&disks::ram::KIND, &door::KIND, &client::KIND, &doors::fuse::door::KIND])
}

#[test]
fn declarations_hold() {
    assert_eq!(registry().verify(), Ok(()));
}

#[test]
fn a_stack_is_served_and_another_one_stands_on_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    run(1, move || async move {
        let text = "
            [device.a]
            kind = \"ram\"
            size = \"1MiB\"
            [device.b]
            kind = \"ram\"
            size = \"2MiB\"
            [door.main]
            kind = \"nbd\"
            exports = [\"a\", \"b\"]
            socket = \"vol.sock\"
        ";
        let stack = Stack::from_toml("test", text, &registry()).expect("parses").with_base_directory(&path);
        let built = stack.check(false).expect("fits").build().await.expect("builds");
        built.start().await.expect("starts");
        let raw = Raw::open(&Address::Unix(path.join("vol.sock")), "b", false).await;
        raw.call(command::WRITE, 0, 0, 4, b"here").await.expect("written");
        let upper = Stack::from_line("upper", "nbd-client(unix:vol.sock, export=b)", &registry());
        let upper = upper.expect("parses").with_base_directory(&path);
        let client = upper.check(false).expect("fits").build().await.expect("builds");
        client.close().await.expect("closes");
        built.close().await.expect("closes");
        assert!(raw.is_closed().await);
    });
}

#[test]
fn doors_that_cant_be_are_refused_with_the_key() {
    for (keys, expected) in [
        ("device = \"a\"", "where to listen"),
        ("device = \"a\"\nsocket = \"x\"\naddress = \"127.0.0.1:1\"", "both given"),
        ("socket = \"x\"", "what to serve"),
        ("device = \"a\"\nexports = [\"a\"]\nsocket = \"x\"", "exported twice"),
        ("device = \"a\"\naddress = \"nowhere\"", "IP:PORT"),
        ("device = \"a\"\nsocket = \"x\"\nmax_connections = 0", "from 1 to 65536"),
    ] {
        let used = "[device.a]\nkind = \"ram\"\nsize = \"1MiB\"\n\
                    [door.other]\nkind = \"nbd\"\ndevice = \"a\"\nsocket = \"other\"\n";
        let text = format!("{used}[door.main]\nkind = \"nbd\"\n{keys}\n");
        let checked =
            Stack::from_toml("test", &text, &registry()).and_then(|stack| stack.check(false).map(drop));
        let problems = checked.expect_err(keys).to_string();
        assert!(problems.contains(expected), "{keys}: {problems}");
    }
}

/// The keys of the socket reach its file, for both doors that have one.
#[test]
fn the_socket_of_a_door_has_the_mode_and_the_owner_of_its_keys() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let registry = || Registry::new(vec![&disks::ram::KIND, &door::KIND, &doors::vhost_user::door::KIND]);
    for kind in ["nbd", "vhost-user"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        // Numbers don't need a database of users. Only root can change the owner.
        let own = std::fs::metadata(&path).expect("the folder");
        let owner = match own.uid() {
            0 => (12345, 54321),
            user => (user, own.gid()),
        };
        run(1, move || async move {
            let keys = format!("socket=vol.sock, mode=0606, owner=\"{}:{}\"", owner.0, owner.1);
            let line = format!("{kind}(ram(size=1MiB), {keys})");
            let stack =
                Stack::from_line("test", &line, &registry()).expect("parses").with_base_directory(&path);
            let built = stack.check(false).expect("fits").build().await.expect("builds");
            built.start().await.expect("starts");
            let found = std::fs::symlink_metadata(path.join("vol.sock")).expect("the socket");
            assert_eq!((found.uid(), found.gid()), owner, "{kind}");
            assert_eq!(found.permissions().mode() & 0o777, 0o606, "{kind}");
            built.close().await.expect("closes");
            assert!(!path.join("vol.sock").exists());
            for (keys, expected) in [
                ("mode=0668", "not permissions: \"0668\"; expected octal digits up to 0777, such as 0660"),
                ("owner=\"no-such-user:root\"", "unknown user: \"no-such-user\""),
            ] {
                let line = format!("{kind}(ram(size=1MiB), socket=vol.sock, {keys})");
                let stack = Stack::from_line("test", &line, &registry()).expect("parses");
                let problem = match stack.check(false) {
                    Err(problems) => problems.to_string(),
                    Ok(plan) => plan.build().await.map(drop).expect_err(keys).to_string(),
                };
                assert!(problem.contains(expected), "{line}: {problem}");
            }
        });
    }
    let line = "nbd(ram(size=1MiB), address=\"127.0.0.1:0\", mode=0660)";
    let checked = Stack::from_line("test", line, &registry()).and_then(|stack| stack.check(false).map(drop));
    assert!(checked.expect_err(line).to_string().contains("mode with a TCP address"));
}
