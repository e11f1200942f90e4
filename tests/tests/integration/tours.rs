//! Commands of README.md and of the first pages of the book, pasted as they are printed into a shell in an
//! empty folder. Not run, and counted by `every_block_has_a_test`: the blocks that build the project or run
//! its tests. Those of the package and its units are carried out on a fresh Debian by `guest_debian`.

use crate::documents::{read, root};
use siltstone_tests::foreign::{binary, has_fuse, run};
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};
use std::path::Path;

/// First block of commands below a heading of README.md.
fn below(heading: &str) -> String {
    let text = read(&root().join("README.md"));
    let section = text.split(&format!("\n{heading}\n")).nth(1).expect("README.md has this heading");
    let block = section.split("```sh\n").nth(1).expect("it has commands");
    block.split("```").next().unwrap().to_owned()
}

fn tour(heading: &str) -> String {
    below(&format!("### {heading}"))
}

/// A block that is added needs a test as well.
#[test]
fn every_block_has_a_test() {
    for (page, run, others) in
        [("../../README.md", 6, 2), ("introduction.md", 0, 0), ("getting-started.md", 3, 2)]
    {
        assert_eq!(blocks(page, "sh").len(), run + others, "{page}");
    }
}

/// As printed the commands measure for 17 s; otherwise the job file runs for a shorter time.
#[test]
fn measuring() {
    let commands = below("## Measuring");
    let (usual, job_file) = commands.split_once('\n').expect("two commands");
    let copy = format!("cp -r {} examples\n", root().join("examples").display());
    let printed = match conformance::budget::is_left_out() {
        true => paste(&format!("{copy}sed -i s/runtime=3s/runtime=100ms/ examples/randread.fio\n{job_file}")),
        false => paste(&format!("{copy}{usual}\n{job_file}")),
    };
    assert!(printed.contains("thirty-two") && printed.contains("report.html"), "{printed}");
}

/// Blocks of a page of the book in one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let (text, fence) = (read(&root().join("book/src").join(page)), format!("```{language}\n"));
    text.split(&fence).skip(1).map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

/// The same commands, with servers that leave the shell to the next command.
fn in_background(commands: &str) -> String {
    let is_server = |line: &str| line.contains(" serve ");
    let line = |line: &str| format!("{line}{}\n", if is_server(line) { " --background" } else { "" });
    commands.lines().map(line).collect()
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

/// The column "begin with" of the table at the head, without swap and the chip, whose tours have more.
#[test]
fn the_first_commands() {
    let text = read(&root().join("README.md"));
    let rows = text.lines().filter(|line| line.starts_with("| [") && line.ends_with("` |"));
    let commands: Vec<&str> = rows.map(|row| row.rsplit('`').nth(1).unwrap()).collect();
    let [disk, files, keys, swap, chip] = commands[..] else {
        panic!("the table has five rows: {commands:?}")
    };
    assert!(
        swap.starts_with("siltstone swap on ") && chip.starts_with("siltstone spi serve "),
        "{commands:?}"
    );
    let served = in_background(&format!("{disk}\n{keys}"));
    let examples = root().join("examples");
    paste(&format!(
        "cp -r {} examples\n{files}\n{served}siltstone stop examples/kv.toml\nsiltstone stop 'file(disk.img, size=1GiB)'",
        examples.display()
    ));
}

#[test]
fn getting_started() {
    need!("qemu-io", "nbdinfo", "nbdcopy");
    let page = "getting-started.md";
    let shell = blocks(page, "sh");
    let [_, _, first, clients, second] = &shell[..] else { panic!("five blocks of commands: {shell:?}") };
    let toml = blocks(page, "toml").remove(0);
    let (first, second) = (in_background(first), in_background(second));
    let printed = paste(&format!(
        "truncate -s 1M disk-to-copy.img\n{first}{clients}siltstone stop 'file(disk.img, size=256MiB)'\n\
         cat > stack.toml <<'END'\n{toml}END\n{second}siltstone stop stack.toml"
    ));
    assert!(printed.contains("read 1048576/1048576 bytes"), "{printed}");
}

/// Commands with the output that the page prints below them.
#[test]
fn the_pictures_of_stacks() {
    let shown = blocks("stacks.md", "console");
    // One of them is about a file that the page doesn't show.
    let commands = shown.iter().filter(|block| !block.contains("two.toml"));
    let mut count = 0;
    for block in commands {
        let (command, output) = block.split_once('\n').unwrap();
        let command = command.strip_prefix("$ ").expect("a block begins with its command");
        let copy = format!("cp -r {} examples", root().join("examples").display());
        assert_eq!(paste(&format!("{copy}\n{command} 2>&1 || true")), *output, "{command}");
        count += 1;
    }
    assert_eq!(count, 2);
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
