//! The file system through the kernel: operations of programs, contents after a kill, and refusals of the
//! verbs.
//!
//! Every test mounts an image of its own, as root or through `fusermount3`.

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::process::Signal;
use siltstone_tests::foreign::{Mount, Server, binary, has_fuse, is_installed, run};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::tempdir;

fn program() -> String {
    binary().display().to_string()
}

#[test]
fn a_session_of_a_shell_leaves_what_it_made_and_a_clean_image() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    mount.shell(
        "mkdir -p a/b && echo one > a/b/f && ln -s f a/b/l && ln a/b/f a/h && chmod 640 a/b/f
         touch -d '2001-02-03 04:05:06.789 UTC' a/b/f
         cp -a a c && mv c d && diff -r a d
         test \"$(stat -c '%a %h %s %Y' a/b/f)\" = '640 2 4 981173106'
         test \"$(stat -c '%a %Y' d/b/f)\" = '640 981173106' && test \"$(readlink d/b/l)\" = f
         head -c 5000000 /dev/urandom > r && dd if=r of=copy bs=4096 iflag=direct oflag=direct 2>/dev/null
         cmp r copy && truncate -s 3333333 r && truncate -s 6000000 r && cmp -n 3333333 r copy
         test $(tail -c 2666667 r | tr -d '\\0' | wc -c) = 0
         fallocate -l 3M pre && test $(stat -c '%s %b' pre | tr ' ' x) = 3145728x6144
         fallocate -p -o 1M -l 1M copy && test $(stat -c %s copy) = 5000000
         truncate -s 50M sparse && dd if=copy of=sparse bs=4k seek=5000 count=9 conv=notrunc 2>/dev/null
         cp --sparse=auto sparse sparse2 && cmp sparse sparse2 && test $(stat -c %b sparse2) -lt 200
         tar cf t.tar a d r copy && mkdir x && tar xf t.tar -C x && diff -r a x/a && diff -r d x/d && cmp r x/r
         rm -rf x d && test ! -e x",
    );
    let sums =
        "find . -type f | sort | xargs sha256sum; find . | sort | xargs stat -c '%n %a %h %u %g %s %Y %F'";
    let before = mount.shell(sums);
    let mount = mount.unmounted();
    let status = mount.status();
    assert_eq!(status["replayed_records"], 0, "the image was closed: {status}");
    assert_eq!(status["classes"][1]["class"], "background", "{status}");
    assert_eq!(status["classes"][1]["shares"], 20, "{status}");
    let mount = mount.mounted();
    assert_eq!(mount.shell(sums), before);
    mount.unmounted();
}

#[test]
fn the_server_of_a_mount_is_operated_like_that_of_a_stack() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    mount.shell("echo one > f; sync");
    let (image, at) = (mount.image(), mount.beside("mnt"));
    let status = run(&program(), &["status", &image, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let door = &status["doors"][at.to_str().unwrap()];
    assert_eq!((&door["kind"], &door["state"], &door["files"]), (&"fs".into(), &"mounted".into(), &2.into()));
    assert_eq!(status["devices"]["image"]["kind"], "file", "{status}");
    assert_eq!((&status["server"]["stack"], &status["live"]), (&image.as_str().into(), &true.into()));
    // Ends the server, and the mount with it.
    run(&program(), &["stop", &image]).ok();
    assert!(!at.join("f").exists());
    let mount = mount.mounted_with(&["--no-control"]);
    let refused = run(&program(), &["stop", &image]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert_eq!(mount.shell("cat f"), "one\n");
    mount.unmounted();
}

#[test]
fn snapshots_are_directories_of_the_mount() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    mount.shell(&format!(
        "mkdir a; echo one > a/f; ln -s f a/l; head -c 3000000 /dev/urandom > r; sums=$(sha256sum r a/f)
         {program} fs snapshot create . before
         test -z \"$(ls -A | grep snapshots)\"
         echo two > a/f; rm r; mkdir .snapshots/second
         test \"$(ls .snapshots | xargs)\" = 'before second'
         test \"$(cd .snapshots/before; sha256sum r a/f)\" = \"$sums\"
         test $(cat .snapshots/before/a/l) = one
         test $(cat .snapshots/second/a/l) = two
         cp .snapshots/before/r r
         cmp r .snapshots/before/r
         for refused in 'touch .snapshots/before/x' 'rm .snapshots/before/a/f' 'mv .snapshots/before .snapshots/c' \\
             'ln .snapshots/before/a/f h' 'mkdir .snapshots/before' 'rmdir .snapshots/nothing'; do
             if $refused 2>/dev/null; then echo \"$refused works\"; exit 1; fi
         done
         test $(tar c .snapshots/before | tar t | wc -l) = 5
         rmdir .snapshots/second
         test \"$({program} fs snapshot list . --json | grep -c name)\" = 1",
        program = program()
    ));
    let mount = mount.unmounted().mounted();
    assert_eq!(mount.shell("cat .snapshots/before/a/f; ls .snapshots"), "one\nbefore\n");
    mount.unmounted();
}

#[test]
fn an_open_file_of_a_deleted_snapshot_never_shows_another_one() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let shown = mount.shell(
        "echo one > f; mkdir .snapshots/a; exec 3< .snapshots/a/f; generation=$(stat -c %i .snapshots/a/f)
         rmdir .snapshots/a; echo two-longer > f; mkdir .snapshots/b
         cat .snapshots/b/f; stat -c %s .snapshots/b/f
         test $(stat -c %i .snapshots/b/f) != $generation
         cat <&3 2>/dev/null || echo stale",
    );
    // The kernel's cache of the old contents may still be shown.
    let of_new = shown.lines().take(2).collect::<Vec<_>>();
    assert_eq!(of_new, ["two-longer", "11"]);
    assert!(matches!(shown.lines().nth(2), Some("one" | "stale") | None), "{shown}");
    mount.unmounted();
}

/// A file that is created while space is short, and one that was opened before.
#[test]
fn a_full_file_system_fails_the_write_and_not_only_the_close() {
    if !has_fuse() {
        return;
    }
    let dd = "export LC_ALL=C; if dd if=/dev/zero bs=1M count=1000 2> ../dd.err >&7; then echo it works; fi
         grep -c 'error writing' ../dd.err || cat ../dd.err; exec 7>&-";
    let mount = Mount::formatted(&["--size", "128MiB"]);
    assert_eq!(mount.shell(&format!("exec 7> f; {dd}")), "1\n");
    // All of the file is data, and little space is left.
    let sizes = mount.shell("stat -c '%s %b' f; stat -fc %f .");
    let sizes: Vec<u64> = sizes.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(sizes[0] > 64 << 20 && sizes[1] * 512 >= sizes[0] && sizes[2] < 600, "{sizes:?}");
    mount.shell("rm f; sync; echo again > g; sync");
    mount.unmounted();
    // The file isn't empty, so the kernel caches its writes.
    let mount = Mount::formatted(&["--size", "400MiB"]);
    assert_eq!(mount.shell(&format!("echo > f; sync; exec 7>> f; {dd}")), "1\n");
    assert_eq!(mount.shell("rm f; sync; echo again > g; sync; cat g"), "again\n");
    mount.unmounted();
}

#[test]
fn the_largest_file_is_the_kernels() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let shown = mount.shell(
        "last=$(((1 << 63) - 4096)); printf x | dd of=f bs=1 seek=$last conv=notrunc,fsync 2>&1 | grep -c copied
         stat -c %s f; tail -c 1 f; echo
         printf x | dd of=f bs=1 seek=$(((1 << 63) - 1)) conv=notrunc 2>/dev/null || echo refused",
    );
    assert_eq!(shown, "1\n9223372036854771713\nx\nrefused\n");
    let mount = mount.unmounted().mounted();
    assert_eq!(mount.shell("stat -c %s f; tail -c 1 f; rm f"), "9223372036854771713\nx");
    mount.unmounted();
}

#[test]
fn changes_by_others_than_root_take_setuid_and_setgid_as_elsewhere() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let mount = Mount::new(&[]);
    let changes = [
        ("fallocate", "setpriv --reuid 65534 --clear-groups fallocate -l 100000 f", "755"),
        ("fallocate by root", "fallocate -l 200000 f", "6755"),
        ("chown of nothing", "setpriv --reuid 65534 --clear-groups chown '' f", "755"),
        (
            "a direct write",
            "head -c 4096 /dev/zero | setpriv --reuid 65534 --clear-groups dd of=f bs=4096 oflag=direct conv=notrunc 2>/dev/null",
            "755",
        ),
        (
            "copy_file_range",
            "python3 -c 'import os; os.setgroups([]); os.setuid(65534)
os.copy_file_range(os.open(\"s\", 0), os.open(\"f\", 1), 8192)'",
            "755",
        ),
    ];
    for (name, change, mode) in changes {
        let script = format!(
            "chmod 711 ..; head -c 8192 /dev/urandom > s; chmod 644 s; cp s f; chown 65534 f; chmod 6755 f; stat f >/dev/null
             {change}; stat -c %a f"
        );
        assert_eq!(mount.shell(&script).trim(), mode, "{name}");
    }
    mount.unmounted();
}

/// Blocks of 4 KiB that are free in a mount.
fn free_blocks(mount: &Mount) -> u64 {
    let status = rustix::fs::statvfs(mount.at(".")).unwrap();
    status.f_bfree * status.f_bsize / 4096
}

#[test]
fn a_copy_by_cp_takes_no_space_and_survives_a_kill() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    // More than half of the free space, so that a copy with blocks of its own wouldn't fit.
    let bytes = free_blocks(&mount) * 4096 * 3 / 5 / 4096 * 4096 + 1234;
    mount.shell(&format!("head -c {bytes} /dev/urandom > a; sync a"));
    let before = free_blocks(&mount);
    mount.shell("cp a b; sync b; cmp a b; test $(stat -c %b a) = $(stat -c %b b)");
    let taken = before.saturating_sub(free_blocks(&mount));
    assert!(taken < bytes / 4096 / 50, "a copy of {bytes} bytes takes {taken} blocks");
    // Only changed blocks are copied.
    mount.shell(
        "printf changed | dd of=b bs=1 seek=1000000 conv=notrunc 2>/dev/null
         test $(cmp -l a b | wc -l) -le 7
         if cp --reflink=always a c 2>/dev/null; then exit 1; fi
         rm -f c; cp b c; cmp b c
         head -c 100001 a > small; mkdir other; cp small other/small; cmp small other/small",
    );
    let b = File::options().read(true).write(true).open(mount.at("b")).unwrap();
    let copy = |mut from: u64, mut to: u64| {
        rustix::fs::copy_file_range(&b, Some(&mut from), &b, Some(&mut to), 8192)
    };
    assert_eq!(copy(4096, 0), Err(rustix::io::Errno::INVAL), "the ranges overlap");
    // Only the kernel's cache has this.
    b.write_all_at(&[7; 8192], 4096).unwrap();
    assert_eq!(copy(4096, 1 << 20), Ok(8192));
    let mut found = [0; 8192];
    b.read_exact_at(&mut found, 1 << 20).unwrap();
    assert!(found == [7; 8192]);
    b.sync_all().unwrap();
    drop(b);
    mount.shell("sha256sum a b > sums; sync sums");
    let mount = mount.killed().mounted();
    mount.shell("sha256sum --quiet -c sums; rm a; grep ' b$' sums | sha256sum --quiet -c");
    let mount = mount.unmounted();
    mount.is_sound();
    let mount = mount.mounted();
    mount.shell("grep ' b$' sums | sha256sum --quiet -c; rm b c");
    mount.unmounted();
}

#[test]
fn programs_that_need_much_of_posix_work() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&["--block-size", "8KiB"]);
    if is_installed("git") {
        mount.shell(
            "git init -q g && cd g && git config user.email a@example.com && git config user.name a
             for n in $(seq 200); do echo $n > f$n; done; git add -A; git commit -qm one
             git mv f1 g1; rm f2; git commit -qam two; git gc -q; git fsck --full
             test -z \"$(git status --short)\" && git clone -q --no-local . ../g2 && cd ../g2 && git fsck --full",
        );
    }
    if is_installed("sqlite3") {
        let said = mount.shell(
            "for mode in delete wal; do sqlite3 $mode.db \"pragma journal_mode=$mode; create table t(a integer primary key, b);
             with recursive c(x) as (select 1 union all select x+1 from c where x<3000)
             insert into t select x, randomblob(500) from c; delete from t where a % 3 = 0; vacuum;
             pragma integrity_check; select count(*) from t\"; done",
        );
        assert_eq!(said, "delete\nok\n2000\nwal\nok\n2000\n");
    }
    mount.unmounted();
}

#[test]
fn files_without_names_live_as_long_as_they_are_open() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let path = mount.at("f");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(b"first").unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"second", 100_000).unwrap();
    file.sync_all().unwrap();
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 100_000).unwrap();
    assert_eq!(&bytes, b"second");
    // A file replaces an open one.
    std::fs::write(mount.at("old"), b"old").unwrap();
    std::fs::write(mount.at("new"), b"new").unwrap();
    let mut old = File::open(mount.at("old")).unwrap();
    std::fs::rename(mount.at("new"), mount.at("old")).unwrap();
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(
        (text.as_str(), std::fs::read(mount.at("old")).unwrap().as_slice()),
        ("old", b"new".as_slice())
    );
    symlink("nowhere", mount.at("dangling")).unwrap();
    assert!(mount.at("dangling").metadata().is_err() && mount.at("dangling").symlink_metadata().is_ok());
    drop((file, old));
    let mount = mount.unmounted();
    assert_eq!(mount.status()["files"], 3, "the root, \"old\" and \"dangling\"");
}

#[test]
fn a_directory_is_read_completely_while_others_change_it() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let folder = mount.at("many");
    std::fs::create_dir(&folder).unwrap();
    for number in 0..3000 {
        File::create_new(folder.join(format!("stays-{number}"))).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    for (number, entry) in std::fs::read_dir(&folder).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(seen.insert(name.clone()), "\"{name}\" was read twice");
        let other = folder.join(format!("goes-{}", number % 50));
        match number % 2 {
            0 => drop(std::fs::write(other, b"x")),
            _ => drop(std::fs::remove_file(folder.join(format!("goes-{}", (number - 1) % 50)))),
        }
    }
    assert_eq!(seen.iter().filter(|name| name.starts_with("stays-")).count(), 3000);
    // Entries that were listed are removed while the directory is read.
    for entry in std::fs::read_dir(&folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::remove_dir(&folder).unwrap();
    mount.unmounted();
}

/// Changes a file of the mounted file system at random, and compares it with a model.
fn fsx(path: &Path, random: &mut runtime::Random, operations: u32, model: &mut Vec<u8>) {
    const MAX: u64 = 300_000;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), model.len() as u64);
    for number in 0..operations {
        let (offset, length) = (random.below(MAX), random.below(40_000) + 1);
        let (from, to) = (offset as usize, (offset + length) as usize);
        let inside = from.min(model.len())..to.min(model.len());
        match random.below(8) {
            0..3 => {
                let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8 | 1).collect();
                file.write_all_at(&bytes, offset).unwrap();
                model.resize(model.len().max(to), 0);
                model[from..to].copy_from_slice(&bytes);
            }
            3..5 => {
                let mut bytes = vec![0; inside.len()];
                file.read_exact_at(&mut bytes, inside.start as u64).unwrap();
                assert_eq!(bytes, model[inside], "operation {number}: {length} bytes from byte {offset} on");
            }
            5 => {
                file.set_len(offset).unwrap();
                model.resize(from, 0);
            }
            6 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, offset, length).unwrap();
                model[inside].fill(0);
            }
            _ if random.chance(0.5) => {
                rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, offset, length).unwrap();
                model.resize(model.len().max(to), 0);
                model[from..to].fill(0);
            }
            _ => {
                // The first byte that isn't zero is data, whether or not it has been written back.
                let data = rustix::fs::seek(&file, SeekFrom::Data(offset));
                let first = model.get(from..).and_then(|rest| rest.iter().position(|byte| *byte != 0));
                if let Some(first) = first {
                    assert!(data.unwrap() <= offset + first as u64, "operation {number}");
                }
                rustix::fs::fdatasync(&file).unwrap();
            }
        }
        assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "operation {number}");
    }
}

#[test]
fn random_operations_on_files_do_what_they_do_in_memory() {
    if !has_fuse() {
        return;
    }
    for (seed, block_size) in [(1, "4KiB"), (2, "64KiB")] {
        println!("seed {seed}");
        let mut mount = Mount::new(&["--block-size", block_size]);
        let mut random = runtime::Random::new(seed);
        let mut models = vec![Vec::new(); 3];
        for _ in 0..2 {
            for (number, model) in models.iter_mut().enumerate() {
                fsx(&mount.at(&format!("f{number}")), &mut random, 300, model);
            }
            let times = |mount: &Mount| {
                (0..3)
                    .map(|n| mount.at(&format!("f{n}")).metadata().unwrap().modified().unwrap())
                    .collect::<Vec<_>>()
            };
            let before = times(&mount);
            mount = mount.unmounted().mounted();
            assert_eq!(times(&mount), before, "the times that were seen stay");
            for (number, model) in models.iter().enumerate() {
                assert!(std::fs::read(mount.at(&format!("f{number}"))).unwrap() == *model, "f{number}");
            }
        }
        mount.unmounted();
    }
}

#[test]
fn what_was_fsynced_is_there_after_a_kill() {
    if !has_fuse() {
        return;
    }
    let mut mount = Mount::new(&[]);
    for life in 0..3 {
        let folder = mount.at(&format!("life-{life}"));
        std::fs::create_dir(&folder).unwrap();
        for number in 0..40 {
            let path = folder.join(format!("f{number}"));
            std::fs::write(&path, vec![life + 1; 1000 * number]).unwrap();
            // The file was closed, and is opened again.
            let file = File::open(&path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(number as u64)).unwrap();
            file.sync_all().unwrap();
            std::fs::write(folder.join("unsynced"), [9; 5000]).unwrap();
        }
        std::fs::rename(folder.join("f0"), folder.join("renamed")).unwrap();
        File::open(&folder).unwrap().sync_all().unwrap();
        mount = mount.killed();
        assert!(std::fs::read_dir(mount.at("")).is_err(), "the mount has no server");
        mount = mount.mounted();
        for earlier in 0..=life {
            for number in 1..40 {
                let path = mount.at(&format!("life-{earlier}/f{number}"));
                assert!(
                    std::fs::read(&path).unwrap() == vec![earlier + 1; 1000 * number],
                    "{}",
                    path.display()
                );
                assert_eq!(path.metadata().unwrap().mtime(), number as i64);
            }
            assert!(mount.at(&format!("life-{earlier}/renamed")).exists());
            assert!(!mount.at(&format!("life-{earlier}/f0")).exists());
        }
    }
    let mount = mount.unmounted();
    assert_eq!(mount.status()["replayed_records"], 0);
}

#[test]
fn a_mount_whose_server_is_dead_goes_when_a_test_ends() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]).killed();
    let at = mount.at("");
    assert!(at.metadata().is_err(), "a killed server leaves its mount");
    drop(mount);
    assert_eq!(at.symlink_metadata().unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_stack_mounts_a_file_system_on_a_log() {
    if !has_fuse() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let at = folder.path().join("mnt");
    std::fs::create_dir(&at).expect("a folder");
    let stack = folder.path().join("stack.toml");
    let text = "[device.disk]\nkind = \"file\"\npath = \"disk.img\"\nsize = \"512MiB\"\n\
                [device.vol]\nkind = \"log\"\non = \"disk\"\n\
                [device.counted]\nkind = \"stats\"\non = \"vol\"\n\
                [door.files]\nkind = \"fs\"\non = \"counted\"\nmount = \"mnt\"\nblock_size = \"16KiB\"\n";
    std::fs::write(&stack, text).unwrap();
    let stack = stack.display().to_string();
    run(&program(), &["format", &stack]).ok();
    for life in 0..2 {
        let mut server = Server::restart_with(&["serve", &stack], PathBuf::new());
        assert_eq!(server.addresses, [at.display().to_string()]);
        let said = run(&program(), &["status", &stack, "--json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(status["doors"]["files"]["state"], "mounted", "{said}");
        assert_eq!(status["doors"]["files"]["block_size"], 16384, "{said}");
        if life == 0 {
            std::fs::write(at.join("f"), b"on a log").unwrap();
        }
        assert_eq!(std::fs::read(at.join("f")).unwrap(), b"on a log");
        server.process.signal(Signal::TERM);
        assert!(server.process.wait().success(), "{}", server.process.err());
    }
    let refused = run(&program(), &["fs", "mount", &stack, &at.display().to_string()]).refused();
    assert!(refused.contains("expected a stack without doors"), "{refused}");
}

#[test]
fn a_check_tells_damaged_data_from_sound_data() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let line = "a line that is found again in the image\n";
    mount.shell(&format!("for i in $(seq 1000); do printf '{line}'; done > file && sync file"));
    let mount = mount.unmounted();
    let check = || run(&program(), &["fs", "check", &mount.image(), "--data"]);
    assert!(check().ok().ends_with("no damage\n"));
    let image = File::options().read(true).write(true).open(mount.image()).expect("the image");
    // The first zones are written first.
    let mut bytes = vec![0; 32 << 20];
    image.read_exact_at(&mut bytes, 0).expect("the image");
    let at = conformance::images::find(&bytes, line.as_bytes()).expect("the data");
    image.write_all_at(b"X", at as u64 + 2).expect("a byte");
    let said = check().refused();
    assert!(said.contains("DAMAGED") && said.contains("wrong checksum"), "{said}");
    let mount = mount.mounted();
    assert_eq!(mount.shell("LC_ALL=C cat file 2>&1 >/dev/null | grep -c 'Input/output error'"), "1\n");
    mount.unmounted();
}

#[test]
fn nothing_is_formatted_or_mounted_by_mistake() {
    let folder = tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let refused = |arguments: &[&str]| run(&program(), arguments).refused();
    let (image, missing) = (at("vol.img"), at("missing.img"));
    for (contents, position) in [(b"x".as_slice(), 5_u64), (b"x", 5 << 20), (b"\x53\xef", 1080)] {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(contents, position).unwrap();
        let said = refused(&["fs", "format", &image]);
        assert!(said.contains("format it with --force if its contents may be lost"), "{said}");
        let mut found = vec![0; contents.len()];
        file.read_exact_at(&mut found, position).unwrap();
        assert_eq!(found, contents, "it is as it was");
    }
    let said = refused(&["fs", "mount", &image, &at("")]);
    assert!(said.contains("no file system of siltstone: "), "{said}");
    let said = refused(&["fs", "format", &image, "--size", "128MiB", "--force"]);
    assert!(said.contains("leave --size out"), "{said}");
    run(&program(), &["fs", "format", &image, "--force"]).ok();
    let said = refused(&["fs", "format", &image]);
    assert!(said.contains("zones of Siltstone's"), "{said}");
    let said = refused(&["fs", "mount", &image, &at("nowhere")]);
    assert!(said.contains("nowhere"), "{said}");
    let said = refused(&["fs", "mount", &image, &image]);
    assert!(said.contains("not a directory"), "{said}");
    assert!(refused(&["fs", "mount", &missing, &at("")]).contains("siltstone fs format"));
    assert!(refused(&["fs", "status", &missing]).contains("no such file"));
    assert!(refused(&["fs", "status", &at("")]).contains("no file system of siltstone is mounted there"));
    assert!(refused(&["fs", "format", &missing]).contains("--size"));
    assert!(!Path::new(&missing).exists(), "nothing was created");
    let said = refused(&["fs", "format", &missing, "--size", "1MiB"]);
    assert!(said.contains("expected at least") && !Path::new(&missing).exists(), "{said}");
    std::fs::write(&missing, vec![7; 8 << 20]).unwrap();
    let said = refused(&["fs", "check", &missing]);
    assert!(said.contains("no file system of siltstone: ") && !said.contains("--format"), "{said}");
    std::fs::remove_file(&missing).unwrap();
    assert!(
        refused(&["fs", "format", &missing, "--size", "64MiB", "--block-size", "5000"])
            .contains("power of two")
    );
    assert!(refused(&["fs", "mount", &image, &at(""), "--read-only"]).contains("--read-only"));
}
