//! What is asked for wrongly: refused with exit code 2, before anything is opened, and with words that help.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::run;
use std::path::Path;

/// Runs it where `files` are, and checks the whole of what it says.
fn refused(files: &[(&str, &str)], arguments: &[&str], expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let ran = run(folder.path(), arguments);
    assert_eq!(ran.stderr.trim_end(), expected.trim_matches('\n'), "{arguments:?}");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, files.len(), "{arguments:?}: nothing was made");
}

const STACK: &str = r#"
[device.disk]
kind = "file"
path = "disk.img"
sise = "64MiB"

[device.counted]
kind = "stats"
on = "dsik"
"#;

const CYCLE: &str = r#"
[device.a]
kind = "stats"
on = "b"

[device.b]
kind = "stats"
on = "a"
"#;

const TWICE: &str = r#"
[device.disk]
kind = "ram"
size = "1MiB"
[device.a]
kind = "stats"
on = "disk"
[device.b]
kind = "stats"
on = "disk"
"#;

#[test]
fn stacks() {
    refused(
        &[("s.toml", STACK)],
        &["stack", "check", "s.toml"],
        r#"
s.toml:5:1: unknown key "sise" of kind "file": did you mean "size"? Keys of "file": path, size, block_size, direct, read_only
 5 | sise = "64MiB"
   | ^^^^

s.toml:9:6: there is no device "dsik": did you mean "disk"?
 9 | on = "dsik"
   |      ^^^^^^"#,
    );
    refused(&[("s.toml", CYCLE)], &["stack", "check", "s.toml"], "?");
    refused(&[("s.toml", TWICE)], &["serve", "s.toml", "--nbd", "unix:x.sock"], "?");
    refused(&[], &["stack", "check", "fiel(disk.img, size=1MiB)"], "?");
    refused(&[], &["stack", "check", "file(disk.img, size=1MB)"], "?");
    refused(&[], &["stack", "check", "file(disk.img, size=5000)"], "?");
    refused(&[], &["stack", "check", "stats(ram(1MiB)"], "?");
    refused(&[], &["stack", "show", "zones(ram(1MiB), zone_size=16MiB)", "--toml"], "?");
    refused(&[], &["format", "zones(ram(1MiB), zone_size=16MiB)"], "?");
    refused(&[], &["stack", "show", "none.toml"], "?");
    refused(&[], &["stack", "show", "no/such/stack"], "?");
    refused(&[], &["stack", "kinds", "fault-zone"], "?");
    refused(&[("t.toml", TWICE)], &["stack", "show", "--line", "t.toml"], "?");
}

#[test]
fn servers() {
    refused(&[], &["serve", "ram(1MiB)"], "?");
    refused(&[], &["serve", "ram(1MiB)", "--nbd", "somewhere"], "?");
    refused(&[], &["serve", "ram(1MiB)", "--nbd", "unix:"], "?");
}

const PLAN: &str = r#"
[plan]
repetitions = 1
[stack.file]
line = "fiel(x.img, size=1MiB)"
[stack.small]
line = "ram(1MiB)"
[stack.nothing]
file = "none.toml"
[workload.read]
rw = "randread"
bs = "4KiB"
size = "2MiB"
"#;

const TYPOS: &str = r#"
[plan]
repetitoins = 5
[stack.ram]
line = "ram(1MiB)"
[workload.read]
rw = "randraed"
iodpeth = 32
[compare]
baseline = "foi"
"#;

#[test]
fn plans() {
    refused(&[("p.toml", TYPOS)], &["bench", "p.toml"], "?");
    refused(&[("p.toml", PLAN)], &["bench", "p.toml"], "?");
    refused(&[("p.toml", "")], &["bench", "p.toml"], "?");
    refused(&[], &["bench", "none.toml"], "?");
    let good = PLAN.replace("fiel(x.img, size=1MiB)", "ram(4MiB)").replace("ram(1MiB)", "ram(2MiB)");
    let good = good.replace("[stack.nothing]\nfile = \"none.toml\"\n", "");
    refused(&[("p.toml", &good)], &["bench", "p.toml", "--only", "write"], "?");
    refused(&[("p.toml", &good)], &["bench", "p.toml", "--on", "ram(1MiB)"], "?");
    refused(&[("p.toml", &good)], &["bench", "p.toml", "--writes"], "?");
}

#[test]
fn job_files() {
    let job = "[a]\nrw=randread\nsize=1m\n";
    refused(&[("j.fio", job)], &["bench", "j.fio"], "?");
    refused(&[("j.fio", "[a]\nfilename=x.img\nrw=randread\n")], &["bench", "j.fio"], "?");
    refused(&[("j.fio", "[a]\nfilename=x.img\nthinktime=5\nbz=4k\n")], &["bench", "j.fio"], "?");
    refused(&[("j.fio", job)], &["bench", "j.fio", "--on", "ram(512KiB)"], "?");
    refused(&[("j.fio", job)], &["bench", "j.fio", "--on", "rma(512KiB)"], "?");
    refused(&[("x.img", "data")], &["bench", "x.img"], "?");
    refused(&[], &["bench", "ram"], "?");
    refused(&[], &["bench", "some/where"], "?");
}

#[test]
fn options() {
    for (arguments, expected) in [
        (&["bench"][..], "the following required arguments were not provided"),
        (&["bench", "x.toml", "--onyl", "a"], "unexpected argument '--onyl'"),
        (&["bnech"], "unrecognized subcommand 'bnech'"),
        (&["serve", "ram(1MiB)", "--log", "loud"], "invalid value 'loud'"),
        (&["stack", "show", "ram(1MiB)", "--line", "--toml"], "cannot be used with"),
        (&["record", "replay", "x", "--image", "y", "--choice", "some"], "expected nothing, everything"),
    ] {
        let ran = run(Path::new("/"), arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    }
}
