//! The tours of README.md, pasted as they are printed into a shell in an empty folder.

use crate::documents::{read, root};
use siltstone_tests::foreign::{binary, has_fuse, run};
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};
use std::path::Path;

/// First block of commands below a heading.
fn tour(heading: &str) -> String {
    let text = read(&root().join("README.md"));
    let section = text.split(&format!("\n### {heading}\n")).nth(1).expect("README.md has this tour");
    let block = section.split("```sh\n").nth(1).expect("the tour has commands");
    block.split("```").next().unwrap().to_owned()
}

/// Runs commands in an empty folder. As root, in a process namespace of their own, with which their servers
/// end. Returns what they print.
#[track_caller]
fn paste(commands: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (programs, here) = (folder.path().join("bin"), folder.path().join("here"));
    std::fs::create_dir(&programs).unwrap();
    std::fs::create_dir(&here).unwrap();
    std::os::unix::fs::symlink(binary(), programs.join("siltstone")).unwrap();
    let script = format!(
        "export PATH={}:$PATH; cd {}; set -euo pipefail\n{commands}",
        programs.display(),
        here.display()
    );
    let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let shell = ["timeout", "300", "bash", "-c", &script];
    let line: Vec<&str> = match rustix::process::geteuid().is_root() {
        true => apart.iter().chain(&shell).copied().collect(),
        false => shell.to_vec(),
    };
    run(line[0], &line[1..]).ok()
}

#[test]
fn a_disk() {
    need!("qemu-io");
    let printed = paste(&tour("Disk"));
    assert!(printed.contains("wrote 1048576/1048576 bytes"), "{printed}");
}

#[test]
fn files() {
    if !has_fuse() || !Path::new("/usr/share/common-licenses").exists() {
        return;
    }
    let printed = paste(&tour("Files"));
    assert!(printed.contains("GPL-3") && printed.contains("no damage"), "{printed}");
}

#[test]
fn keys() {
    need!("redis-cli");
    let printed = paste(&tour("Keys"));
    assert_eq!(printed.matches("hello").count(), 2, "{printed}");
}

#[test]
fn swap() {
    need!("mkswap", "swapon");
    let guest = need_guest!();
    let options = Options { modules: vec!["ublk_drv"], memory: 2048, ..Options::default() };
    let commands =
        format!("mkdir bin; ln -s $siltstone bin/siltstone; PATH=$PWD/bin:$PATH\n{}", tour("Swap"));
    guest.run_siltstone(&commands, &options);
}

#[test]
fn a_flash_chip() {
    need!("flashrom");
    // A free port instead of the printed one, and no time for the chip's own times: other tests listen and
    // run meanwhile.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let commands =
        tour("Flash chip").replace("4025", &port.to_string()).replace("spi serve", "spi serve --time fast");
    let printed = paste(&commands);
    assert!(printed.contains("VERIFIED"), "{printed}");
}
