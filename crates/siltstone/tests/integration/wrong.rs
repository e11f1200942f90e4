//! Usage errors: refused with exit code 2, before anything is opened, and with messages that help.

use crate::common::run;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs the program in a folder with `files`, and compares its whole message.
fn refused(files: &[(&str, &str)], arguments: &[&str], expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let ran = run(folder.path(), arguments);
    let said = ran.stderr.replace(folder.path().to_str().unwrap(), "FOLDER");
    assert_eq!(said.trim_end(), expected.trim_matches('\n'), "{arguments:?}");
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
s.toml:5:1: unknown key "sise" for kind "file": did you mean "size"? It takes path, size, block_size, direct, read_only, lock
 5 | sise = "64MiB"
   | ^^^^

s.toml:9:6: key "on": no part has the name "dsik": did you mean "disk"? Parts: counted, disk
 9 | on = "dsik"
   |      ^^^^^^"#,
    );
    refused(
        &[("s.toml", CYCLE)],
        &["stack", "check", "s.toml"],
        r#"
s.toml:8:6: cycle: a -> b -> a: no part can be below itself
 8 | on = "a"
   |      ^^^"#,
    );
    refused(
        &[("s.toml", TWICE)],
        &["serve", "s.toml", "--nbd", "unix:x.sock"],
        r#"
s.toml:10:6: "disk" is used by "b" and by "a", but a part of kind "ram" takes only one user
 10 | on = "disk"
    |      ^^^^^^"#,
    );
    refused(
        &[],
        &["stack", "check", "fiel(disk.img, size=1MiB)"],
        r#"
stack:1:1: unknown kind "fiel": did you mean "file"? Kinds: file, ram, null, nbd-client, memory-node, redis, stats, fault, record, model, linear, stripe, cache, writecache, mirror, crypt, remote, log, snapshot, zones, ramzones, zns-emulator, objects, zone-writecache, zone-stats, zone-fault, zone-record, nbd, fuse, vhost-user, ublk, fs, kv
 1 | fiel(disk.img, size=1MiB)
   | ^^^^"#,
    );
    refused(
        &[],
        &["stack", "check", "file(disk.img, size=1MB)"],
        r#"
stack:1:21: key "size" of kind "file": size "1MB": unknown unit "MB", expected whole bytes, with KiB, MiB, GiB or TiB where wanted, as in 4096 or 4GiB
 1 | file(disk.img, size=1MB)
   |                     ^^^"#,
    );
    refused(
        &[],
        &["stack", "check", "file(disk.img, size=5000)"],
        r#"
stack:1:16: file "top": size is 5000 bytes: expected a multiple of the block size, 4096; 4KiB would fit, or a smaller block_size
 1 | file(disk.img, size=5000)
   |                ^^^^"#,
    );
    refused(
        &[],
        &["stack", "check", "stats(ram(1MiB)"],
        r#"
stack:1:16: found the end of the line, expected "," or ")"
 1 | stats(ram(1MiB)
   |                ^"#,
    );
    refused(
        &[],
        &["format", "zones(ram(1MiB), zone_size=16MiB)"],
        r#"
stack:1:18: zones "top": 0 zones of 16777216 bytes from byte 1048576 on: the device has 1048576 bytes; expected at least one zone, and space for all
 1 | zones(ram(1MiB), zone_size=16MiB)
   |                  ^^^^^^^^^"#,
    );
    refused(
        &[],
        &["stack", "show", "none.toml"],
        r#"
stack "none.toml": no such file; expected a stack file, or one line such as 'file(disk.img, size=1GiB)'"#,
    );
    refused(
        &[],
        &["stack", "show", "no/such/stack"],
        r#"
stack "no/such/stack": no such file; expected a stack file, or one line such as 'file(disk.img, size=1GiB)'"#,
    );
    refused(
        &[],
        &["stack", "kinds", "fault-zone"],
        r#"
kind "fault-zone": unknown; did you mean "fault"? expected one of file, ram, null, nbd-client, memory-node, redis, stats, fault, record, model, linear, stripe, cache, writecache, mirror, crypt, remote, log, snapshot, zones, ramzones, zns-emulator, objects, zone-writecache, zone-stats, zone-fault, zone-record, nbd, fuse, vhost-user, ublk, fs, kv"#,
    );
    refused(
        &[("t.toml", TWICE)],
        &["stack", "show", "--line", "t.toml"],
        r#"
t.toml:10:6: "disk" is used by "b" and by "a", but a part of kind "ram" takes only one user
 10 | on = "disk"
    |      ^^^^^^"#,
    );
}

/// Messages, which logs keep, don't quote secrets.
#[test]
fn secrets_on_the_command_line() {
    refused(
        &[],
        &["stack", "check", "crypt(file(disk.img), passphrase=hunter2, sise=1)"],
        r#"
stack:1:23: unknown key "passphrase" for kind "crypt": did you mean "passphrase_file"? It takes on, passphrase_file, key_file, sector_size, discard, pbkdf_memory, pbkdf_iterations
 1 | crypt(file(disk.img), passphrase=(masked), sise=1)
   |                       ^^^^^^^^^^

stack:1:43: unknown key "sise" for kind "crypt". It takes on, passphrase_file, key_file, sector_size, discard, pbkdf_memory, pbkdf_iterations
 1 | crypt(file(disk.img), passphrase=(masked), sise=1)
   |                                            ^^^^"#,
    );
    for text in ["crypt(ram(64MiB), passphrase=hunter2", "crypt(ram(64MiB), key=\"hunter2\", on=no())"] {
        let ran = run(Path::new("/"), &["stack", "check", text]);
        assert!(ran.code == Some(2) && ran.stderr.contains("(masked)"), "{ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
}

/// The message names the file, and what often makes its contents another passphrase.
#[test]
fn a_passphrase_that_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p");
    let write = |text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    };
    let stack = |size| format!("crypt(file(disk.img{size}), passphrase_file=p, pbkdf_memory=32KiB)");
    write("right\nanother line");
    let formatted = run(folder.path(), &["format", &stack(", size=18MiB")]);
    assert_eq!(formatted.code, Some(0), "{formatted:?}");
    let said = || run(folder.path(), &["status", &stack("")]);
    assert_eq!(said().code, Some(0));
    for (text, hint) in [
        ("wrong", "; expected another one (permission denied)"),
        (
            "wrong\n",
            "; the passphrase is the first line without its end; with cryptsetup --key-file it is the whole file",
        ),
        ("right\r\n", "; the first line of the file ends with CRLF"),
    ] {
        write(text);
        let ran = said();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let named = format!("passphrase_file \"{}\": the passphrase opens no key slot", path.display());
        assert!(ran.stderr.contains(&named) && ran.stderr.contains(hint), "{hint}: {}", ran.stderr);
    }
}

/// Deletes in a bucket are persistent only with a key store, which has to fit.
#[test]
fn persistent_deletes_in_a_bucket() {
    let stack = |keys: &str| {
        format!(
            "kv(objects(\"http://127.0.0.1:1\", bucket=b, zones=64, zone_size=16MiB{keys}), \
             listen=\"127.0.0.1:0\", delete_persistence=10m)"
        )
    };
    for (keys, expected) in [
        (", key_file=k, key_store=file(keys.img, size=8KiB)", None),
        ("", Some("a reset of these zones gives no guarantee that data is erased")),
        (", key_file=k", Some("a reset of these zones gives no guarantee that data is erased")),
        (", key_store=ram(8KiB)", Some("key_store without key_file; expected both, or neither")),
        (", key_file=k, key_store=ram(4KiB)", Some("expected at least 8192 for 64 zones")),
    ] {
        let ran = run(Path::new("/"), &["stack", "check", &stack(keys)]);
        match expected {
            None => assert_eq!(ran.code, Some(0), "{ran:?}"),
            Some(expected) => {
                assert!(ran.code == Some(2) && ran.stderr.contains(expected), "{keys}: {ran:?}");
            }
        }
    }
}

/// A writer overwrites secrets; the check of data can't read a key store below a cache that writes. Both are
/// refused before the store is asked.
#[test]
fn key_stores_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("k");
    std::fs::write(&key, [7; 32]).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(folder.path().join("keys.img"), [0; 8192]).unwrap();
    let stack = |store: &str| {
        format!(
            "objects(\"http://127.0.0.1:1\", bucket=b, zones=64, zone_size=16MiB, key_file=k, key_store={store})"
        )
    };
    for (arguments, store, code, expected) in [
        (&["status"][..], "file(keys.img, read_only=true)", 1, "the device of the key store is read-only"),
        (
            &["objects", "check", "--data"],
            "writecache(file(keys.img), file(fast.img, size=64MiB))",
            2,
            "continues its log on the fast device when it is opened",
        ),
    ] {
        let stack = stack(store);
        let ran = run(folder.path(), &[arguments, &[&stack]].concat());
        assert!(ran.code == Some(code) && ran.stderr.contains(expected), "{store}: {ran:?}");
    }
}

#[test]
fn logs_on_zones() {
    refused(
        &[],
        &["stack", "check", "log(ramzones(zones=64))"],
        r#"
stack:1:5: log "top": its zones are durable only when they are finished; expected zones whose appends are durable at once or on flush, such as zones(file(disk.img))
 1 | log(ramzones(zones=64))
   |     ^^^^^^^^^^^^^^^^^^"#,
    );
    refused(
        &[],
        &["format", "log(zones(ram(64MiB), zone_size=1MiB), zone_size=1MiB)"],
        r#"
stack:1:40: log "top": zone_size: set for a log on zones; expected only for a log on a device; leave it out, or set it where the zones are created
 1 | log(zones(ram(64MiB), zone_size=1MiB), zone_size=1MiB)
   |                                        ^^^^^^^^^"#,
    );
    refused(
        &[],
        &["format", "log(zone-stats(zones(ram(64MiB), zone_size=1MiB, max_open=4)), appends_in_flight=1)"],
        r#"
stack:1:5: log "top": its zones have max_open=4; expected 0 (no limit) or at least 7, the log's open zones with appends_in_flight=1 and cleaning=lifetime
 1 | log(zone-stats(zones(ram(64MiB), zone_size=1MiB, max_open=4)), appends_in_flight=1)
   |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"#,
    );
    refused(
        &[],
        &["format", "log(zones(ram(64MiB), zone_size=1MiB), size=60MiB)"],
        r#"
stack:1:40: log "top": size 60MiB: expected at most 46560KiB, the capacity of a log on this disk without the cleaner's reserve; take that, or a disk of at least 84288KiB; a volume larger than its disk becomes thin
 1 | log(zones(ram(64MiB), zone_size=1MiB), size=60MiB)
   |                                        ^^^^"#,
    );
    refused(
        &[],
        &["stack", "check", "stats(zones(ram(64MiB)))"],
        r#"
stack:1:7: key "on": "zones1" is zones (kind "zones"), expected a device
 1 | stats(zones(ram(64MiB)))
   |       ^^^^^^^^^^^^^^^^^"#,
    );
    refused(
        &[],
        &["format", "zones(ram(64MiB), read_only=true)"],
        r#"
stack:1:19: zones "top": zones can't be formatted and read-only at the same time: leave one of them out
 1 | zones(ram(64MiB), read_only=true)
   |                   ^^^^^^^^^"#,
    );
}

#[test]
fn readers_of_buckets() {
    let refusal = |keys: &str, expected: &str| {
        let line = format!("log(objects(\"http://127.0.0.1:7070\", bucket=vol, {keys}))");
        let ran = run(Path::new("/"), &["stack", "check", &line]);
        assert_eq!(ran.code, Some(2), "{keys}: {}", ran.stderr);
        assert_eq!(ran.stderr.matches(expected).count(), 1, "{keys}: {}", ran.stderr);
    };
    refusal("follow=1s", "follow without open=reader");
    refusal("open=reader, follow=1ms", "follow 1ms; expected at least 100ms");
    refusal("open=readers", "did you mean \"reader\"");
    let line = "log(objects(\"http://127.0.0.1:7070\", bucket=vol, size=1GiB, open=reader))";
    let ran = run(Path::new("/"), &["stack", "check", "--format", line]);
    assert!(ran.code == Some(2) && ran.stderr.contains("open=reader while formatting"), "{}", ran.stderr);
}

#[test]
fn servers() {
    refused(
        &[],
        &["serve", "ram(1MiB)"],
        r#"
ram(1MiB): this stack has no door: give an address to serve it at, such as --nbd unix:vol.sock or --vhost-user vm.sock"#,
    );
    refused(
        &[],
        &["serve", "ram(1MiB)", "--nbd", "somewhere"],
        r#"
--nbd: address "somewhere": expected unix:PATH or IP:PORT, such as 127.0.0.1:10809"#,
    );
    refused(
        &[],
        &["serve", "ram(1MiB)", "--nbd", "unix:"],
        r#"
--nbd: address "unix:": a unix socket's path has 1 to 107 bytes"#,
    );
    refused(
        &[],
        &["serve", "ram(1MiB)", "--nbd", "0.0.0.0:10809"],
        r#"
--nbd: address "0.0.0.0:10809": can be reached from other machines without TLS and certificates or passwords; expected a unix socket or a loopback address, such as 127.0.0.1:10809; to serve other machines, give --allow-remote if you trust all machines of the network"#,
    );
    refused(
        &[],
        &["spi", "serve", "--chip", "W25Q64JV", "--serprog", "[::]:4025"],
        r#"
--serprog: address "[::]:4025": can be reached from other machines without TLS and certificates or passwords; expected a unix socket or a loopback address, such as 127.0.0.1:4025; to serve other machines, give --allow-remote if you trust all machines of the network"#,
    );
    for (door, keys) in [("nbd", "address"), ("kv", "listen")] {
        let stack = format!("{door}(ram(1GiB), {keys}=\"0.0.0.0:10809\")");
        let ran = run(Path::new("/"), &["serve", &stack]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let expected = "or allow_remote = true if you trust all machines of the network";
        assert!(
            ran.stderr.contains("to serve other machines, set tls, ") && ran.stderr.contains(expected),
            "{ran:?}"
        );
    }
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
    refused(
        &[("p.toml", TYPOS)],
        &["bench", "p.toml"],
        r#"
p.toml:3:1: [plan]: unknown key "repetitoins": did you mean "repetitions"? (known: name, title, repetitions, warm_up, published_in)
 3 | repetitoins = 5
   | ^^^^^^^^^^^

p.toml:7:6: rw=randraed: expected one of read, write, trim, randread, randwrite, randtrim, rw, readwrite, randrw: did you mean "randread"?
 7 | rw = "randraed"
   |      ^^^^^^^^^^

p.toml:8:1: option "iodpeth" is not known: did you mean "iodepth"?
 8 | iodpeth = 32
   | ^^^^^^^

p.toml:10:12: there is no subject "foi" (known: ram)
 10 | baseline = "foi"
    |            ^^^^^"#,
    );
    refused(
        &[("p.toml", PLAN)],
        &["bench", "p.toml"],
        r#"
p.toml:5:8: [stack.file]:1:1: unknown kind "fiel": did you mean "file"? Kinds: file, ram, null, nbd-client, memory-node, redis, stats, fault, record, model, linear, stripe, cache, writecache, mirror, crypt, remote, log, snapshot, zones, ramzones, zns-emulator, objects, zone-writecache, zone-stats, zone-fault, zone-record, nbd, fuse, vhost-user, ublk, fs, kv
 1 | fiel(x.img, size=1MiB)
   | ^^^^

p.toml:7:8: [stack.small]: job read: size=2097152 at offset 0: the device has only 1048576 bytes there; make it larger or the job smaller

p.toml:9:8: [stack.nothing]: FOLDER/none.toml: can't read this stack file: No such file or directory (os error 2)"#,
    );
    refused(
        &[("p.toml", "")],
        &["bench", "p.toml"],
        r#"
p.toml: a plan needs at least one [workload.NAME] and one [stack.NAME] or [peer.NAME]"#,
    );
    refused(
        &[],
        &["bench", "none.toml"],
        r#"
file "none.toml": no such file; expected a plan or a stack (.toml), or a fio job file (.fio)"#,
    );
    let good = PLAN.replace("fiel(x.img, size=1MiB)", "ram(4MiB)").replace("ram(1MiB)", "ram(2MiB)");
    let good = good.replace("[stack.nothing]\nfile = \"none.toml\"\n", "");
    refused(
        &[("p.toml", &good)],
        &["bench", "p.toml", "--only", "write"],
        r#"
p: no workload has "write" in its name (known: read)"#,
    );
    refused(
        &[("p.toml", &good)],
        &["bench", "p.toml", "--on", "ram(1MiB)"],
        r#"
p.toml: --on is for fio job files"#,
    );
    refused(
        &[("p.toml", &good)],
        &["bench", "p.toml", "--writes"],
        r#"
p.toml: --writes is for a stack; a plan and a job file define their writes"#,
    );
    refused(
        &[("p.toml", &good)],
        &["bench", "p.toml", "--full"],
        r#"
p.toml: --full: this plan has no table [full]"#,
    );
    refused(
        &[("p.toml", &format!("{good}\n[full.workload.raed]\nruntime = \"5m\"\n"))],
        &["bench", "p.toml"],
        r#"
p.toml:13:16: [full.workload]: the plan has no workload "raed": did you mean "read"? (known: read)
 13 | [full.workload.raed]
    |                ^^^^"#,
    );
}

#[test]
fn job_files() {
    let job = "[a]\nrw=randread\nsize=1m\n";
    refused(
        &[("j.fio", job)],
        &["bench", "j.fio"],
        r#"
j.fio: [a]: expected filename=PATH, or a stack for all jobs with --on STACK"#,
    );
    refused(
        &[("j.fio", "[a]\nfilename=x.img\nrw=randread\n")],
        &["bench", "j.fio"],
        r#"
j.fio: x.img doesn't exist, and no job has its size: expected size=BYTES"#,
    );
    refused(
        &[("j.fio", "[a]\nfilename=x.img\nbssplit=5\nbz=4k\n")],
        &["bench", "j.fio"],
        r#"
j.fio:3:1: option "bssplit": not supported: use bs= or bsrange=
 3 | bssplit=5
   | ^^^^^^^

j.fio:4:1: option "bz" is not known: did you mean "bs"?
 4 | bz=4k
   | ^^"#,
    );
    refused(
        &[("j.fio", job)],
        &["bench", "j.fio", "--on", "ram(512KiB)"],
        r#"
ram(512KiB): job a: size=1048576 at offset 0: the device has only 524288 bytes there; make it larger or the job smaller"#,
    );
    refused(
        &[("j.fio", job)],
        &["bench", "j.fio", "--on", "rma(512KiB)"],
        r#"
stack:1:1: unknown kind "rma": did you mean "ram"? Kinds: file, ram, null, nbd-client, memory-node, redis, stats, fault, record, model, linear, stripe, cache, writecache, mirror, crypt, remote, log, snapshot, zones, ramzones, zns-emulator, objects, zone-writecache, zone-stats, zone-fault, zone-record, nbd, fuse, vhost-user, ublk, fs, kv
 1 | rma(512KiB)
   | ^^^"#,
    );
    refused(
        &[("x.img", "data")],
        &["bench", "x.img"],
        r#"
x.img: expected a plan (.toml), a fio job file (.fio) or a stack; to measure this file: 'file(x.img)'"#,
    );
    refused(
        &[],
        &["bench", "ram"],
        r#"
stack:1:1: "top" has no key "size": kind "ram" needs it (capacity; memory is taken when it is written), expected a size such as 4096, "64KiB" or "4GiB"
 1 | ram
   | ^^^"#,
    );
    refused(
        &[],
        &["bench", "some/where"],
        r#"
stack "some/where": no such file; expected a stack file, or one line such as 'file(disk.img, size=1GiB)'"#,
    );
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
        (&["trace", "ram(1MiB)", "--count", "-1"], "invalid value '-1' for '--count <N>'"),
        (
            &["trace", "ram(1MiB)", "--slow", "-5ms"],
            "duration \"-5ms\": expected a whole number with ns, us, ms",
        ),
        (&["trace", "ram(1MiB)", "--slow", "--errors"], "invalid value '--errors' for '--slow <TIME>'"),
        (&["top", "-d", "-1s"], "duration \"-1s\": expected"),
        (&["fs", "format", "x.img", "--size", "-8GiB"], "invalid value '-8GiB' for '--size <SIZE>'"),
        (&["objects", "status", "x", "--prices", "put=1"], "get is missing: expected put=X,get=X,storage=X"),
        (
            &["objects", "status", "objects(\"http://127.0.0.1:1\", bucket=b, key_file=nokey)"],
            "/nokey\": No such file or directory (os error 2); expected it to exist; check the path",
        ),
        (&["stack", "check", "file(x.img, size=1MiB, lock=false)"], "lock=false of a file that is written"),
        (&["objects", "check", "ram(1MiB)"], "this stack has no part of kind \"objects\"; expected one"),
        (
            &["objects", "gc", "objects(\"http://h\", bucket=vol)", "--part", "b"],
            "--part b: expected a part of kind \"objects\": \"top\"",
        ),
        (
            &["objects", "drain", "objects(\"http://h\", bucket=vol, open=reader)"],
            "is a reader, which has nothing to upload; expected the stack of the writer",
        ),
        (&["serve", "-s", "ram(1MiB)"], "-s: standard input is closed, or a device such as /dev/null"),
    ] {
        let ran = run(Path::new("/"), arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}");
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    }
}

/// A stack to format has nothing to salvage: refused before anything is opened, for each kind with the key.
#[test]
fn salvage_of_what_is_formatted() {
    for stack in [
        "log(file(disk.img, size=64MiB), salvage=true)",
        "fs(file(disk.img, size=64MiB), mount=mnt, salvage=true)",
        "kv(file(disk.img, size=64MiB), listen=\"unix:x.sock\", salvage=true)",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ran = run(folder.path(), &["stack", "check", "--format", stack]);
        assert_eq!(ran.code, Some(2), "{stack}: {}", ran.stderr);
        let expected = "salvage: a part that is formatted has nothing to copy; expected no --format; leave it or the key out";
        assert_eq!(ran.stderr.matches(expected).count(), 1, "{stack}: {}", ran.stderr);
        let ran = run(folder.path(), &["format", stack]);
        assert_eq!((ran.code, ran.stderr.matches(expected).count()), (Some(2), 1), "{stack}: {}", ran.stderr);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{stack}: nothing was made");
    }
}

/// Messages about missing things name each thing and each fact once.
#[test]
fn messages_say_things_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("zeros.img"), vec![0; 2 << 20]).unwrap();
    let said = |arguments: &[&str]| run(folder.path(), arguments).stderr;
    let at = ["--nbd", "unix:x.sock", "--no-control"];
    let serve = |stack| said(&[&["serve", stack], &at[..]].concat());
    for (text, expected) in [
        (
            serve("file(/no/such/disk, size=1MiB)"),
            "opening /no/such/disk: No such file or directory (os error 2); expected it to exist; check the path\n",
        ),
        (
            serve("nbd-client(unix:/no/such/socket)"),
            "No such file or directory (os error 2); expected it to exist; check the path\n",
        ),
        (
            said(&["serve", "ram(1MiB)", "--nbd", "999.0.0.1:9"]),
            "--nbd: address \"999.0.0.1:9\": expected unix:PATH or IP:PORT",
        ),
        (
            said(&["bench", "ram(1MiB)", "--out", "/proc/results"]),
            "making the folder /proc/results: No such file or directory (os error 2); expected it to exist; check the path\n",
        ),
        (
            said(&["zns", "raw", "drive.img", "--zone", "0", "--offset", "some"]),
            "--offset: size \"some\": expected whole bytes, ",
        ),
        (said(&["detach", "nothing-of-this-name"]), "nothing of this name is attached; "),
        (said(&["reload", "nothing-of-this-name"]), "nothing of this name is attached; "),
        (said(&["status", "zeros.img"]), "to use it as a disk: 'file(zeros.img)'"),
    ] {
        assert_eq!(text.matches(expected).count(), 1, "{expected}: {text}");
    }
    let text = serve("mirror(file(no1.img), file(zeros.img))");
    let last = text.lines().last().unwrap();
    assert_eq!(last.matches("\"file1\"").count(), 1, "{last}");
    let warning = text.lines().find(|line| line.contains("a leg is missing")).unwrap();
    assert_eq!(warning.matches("file1").count(), 1, "{warning}");
}

/// Opening would fail at the file's lock, but another part may have been formatted before.
#[test]
fn a_file_that_two_parts_write_to() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::os::unix::fs::symlink("../disk.img", folder.path().join("sub/link.img")).unwrap();
    let bytes = vec![7; 1 << 20];
    std::fs::write(&disk, &bytes).unwrap();
    let text = "[device.slow]\nkind = \"file\"\npath = \"disk.img\"\n\n[device.fast]\nkind = \"file\"\npath = \"sub/link.img\"\n\n\
                [device.cached]\nkind = \"cache\"\non = \"slow\"\ncache = \"fast\"\n";
    std::fs::write(folder.path().join("s.toml"), text).unwrap();
    let expected = r#"
s.toml:7:1: file "fast": FOLDER/sub/link.img is already taken by file "slow", which writes to it as FOLDER/disk.img: expected another file; only parts that don't write may share one
 7 | path = "sub/link.img"
   | ^^^^"#;
    for arguments in [
        &["stack", "check", "s.toml"][..],
        &["format", "s.toml"],
        &["format", "s.toml", "cached"],
        &["serve", "s.toml", "--nbd", "unix:x.sock", "--format"],
        &["bench", "s.toml"],
    ] {
        let ran = run(folder.path(), arguments);
        let said = ran.stderr.replace(folder.path().to_str().unwrap(), "FOLDER");
        assert_eq!(said.trim_end(), expected.trim_start_matches('\n'), "{arguments:?}");
        assert_eq!((ran.code, std::fs::read(&disk).unwrap() == bytes), (Some(2), true), "{arguments:?}");
    }
    for (line, is_fine) in [
        ("mirror(file(disk.img), file(./sub/../disk.img))", false),
        ("linear(file(disk.img), file(disk.img, read_only=true))", false),
        ("linear(file(new.img, size=1MiB), file(sub/../new.img, size=1MiB))", false),
        ("linear(file(disk.img, read_only=true), file(sub/link.img, read_only=true))", true),
        ("linear(file(disk.img), file(new.img, size=1MiB))", true),
        ("log(file(disk.img), map_home=\"pmem:sub/link.img\")", false),
    ] {
        let ran = run(folder.path(), &["stack", "check", "--format", line]);
        assert_eq!(ran.code, Some(if is_fine { 0 } else { 2 }), "{line}: {}", ran.stderr);
        assert_eq!(ran.stderr.contains("is already taken by"), !is_fine, "{line}: {}", ran.stderr);
    }
    let shared = "mirror(file(disk.img, read_only=true), file(sub/link.img, read_only=true))";
    let ran = run(folder.path(), &["stack", "check", shared]);
    assert!(!ran.stderr.contains("is already taken by"), "{}", ran.stderr);
}

#[test]
fn addresses_in_use_and_storage_without_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = format!(
        "listening on {address}: Address already in use (os error 98); expected an address that no program listens on; end that \
         program, or choose another address"
    );
    let ran = run(folder.path(), &["serve", "ram(1MiB)", "--nbd", &address]);
    assert_eq!((ran.code, ran.stderr.trim_end()), (Some(1), said.as_str()));
    let ran = run(folder.path(), &["kv", "get", "kv(ram(1GiB))", "key"]);
    assert_eq!(
        (ran.code, ran.stderr.lines().last()),
        (
            Some(1),
            Some(
                "kv(ram(1GiB)): it holds no key-value store (the device holds nothing but zeros); expected one; siltstone kv serve \
                 STACK --format makes a new one (protocol error)"
            )
        )
    );
}
