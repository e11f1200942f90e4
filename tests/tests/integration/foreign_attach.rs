//! Attached stacks as disks of this kernel: file systems through the death of their server, swap, wrong use.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use siltstone_tests::foreign::{
    Attached, Background, Finished, SWAP_PRIORITY, binary, can_attach, lock_swap, random_file, run, run_shell,
};
use siltstone_tests::need;
use std::path::Path;
use tempfile::{TempDir, tempdir};

fn siltstone(arguments: &[&str]) -> Finished {
    run(&binary().display().to_string(), arguments)
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// A mount point, and files to copy with their checksums in `sums`.
fn with_tree(seed: u64) -> TempDir {
    let folder = tempdir().expect("a folder");
    let tree = folder.path().join("tree");
    for name in ["mnt", "tree"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    random_file(&tree.join("large"), 128, seed);
    for file in 0..64_u64 {
        std::fs::write(tree.join(format!("file{file}")), vec![(seed + file) as u8; (file * 613) as usize])
            .expect("a file");
    }
    run_shell(&format!("cd {}; find . -type f -print0 | xargs -0 sha256sum > ../sums", tree.display())).ok();
    folder
}

/// Makes a file system on the node, copies files while the server is killed twice, fills it until there is no space, discards, and
/// checks it; then mounts it again on a new node and compares the files.
fn carries_on(name: &str, stack: impl Fn(&str) -> String, make: &str, check: &str) {
    let folder = with_tree(21);
    let stack = stack(&path(&folder, "disk"));
    let attached = Attached::new(name, &stack, &["--format"]);
    let (node, mnt, tree, sums) =
        (attached.link.clone(), path(&folder, "mnt"), path(&folder, "tree"), path(&folder, "sums"));
    run_shell(&format!("{make} {node}; mount {node} {mnt}")).ok();
    let mut copying = Background::start(
        "sh",
        &["-euc", &format!("for copy in 1 2 3 4; do cp -r {tree} {mnt}/$copy; sync -f {mnt}; done")],
    );
    attached.kill_server();
    attached.kill_server();
    assert!(copying.wait().success(), "{}", copying.err());
    attached.kill_server();
    run_shell(&format!(
        "for copy in 1 2 3 4; do (cd {mnt}/$copy; sha256sum --quiet --check {sums}); done
         ! cat /dev/zero | tr '\\0' 'x' > {mnt}/full
         sync -f {mnt}; rm {mnt}/full
         fstrim {mnt}
         rm -r {mnt}/1; cp -r {tree} {mnt}/last
         umount {mnt}
         {check} {node}"
    ))
    .ok();
    attached.detach();
    let attached = Attached::new(name, &stack, &[]);
    run_shell(&format!(
        "mount -o ro {} {mnt}
         trap 'umount {mnt}' EXIT
         for copy in 2 3 4 last; do (cd {mnt}/$copy; sha256sum --quiet --check {sums}); done",
        attached.link
    ))
    .ok();
    attached.detach();
}

#[test]
fn ext4_on_a_file_carries_on() {
    need!("mkfs.ext4", "jq", "losetup");
    if can_attach() {
        carries_on(
            "ext4",
            |disk| format!("file({disk}, size=96MiB, block_size=512) shards=2"),
            "mkfs.ext4 -q",
            "e2fsck -f -n",
        );
    }
}

#[test]
fn ext4_on_a_log_carries_on() {
    need!("mkfs.ext4", "jq", "losetup");
    if can_attach() {
        let stack =
            |disk: &str| format!("log(file({disk}, size=160MiB), zone_size=1MiB, checkpoint_after=4MiB)");
        carries_on("log", stack, "mkfs.ext4 -q", "e2fsck -f -n");
    }
}

#[test]
fn xfs_on_a_write_cache_on_a_cache_carries_on() {
    need!("mkfs.xfs", "jq", "losetup");
    if can_attach() {
        let stack = |disk: &str| {
            format!(
                "writecache(cache(file({disk}, size=384MiB), file({disk}.fast, size=32MiB), block_size=32KiB, mode=writeback), \
                 file({disk}.log, size=32MiB)) shards=2"
            )
        };
        carries_on("xfs", stack, "mkfs.xfs -q -f", "xfs_repair -n");
    }
}

#[test]
fn btrfs_on_a_file_carries_on() {
    need!("mkfs.btrfs", "jq", "losetup");
    if can_attach() && run_shell("grep -qw btrfs /proc/filesystems || modprobe btrfs").code == Some(0) {
        carries_on("btrfs", |disk| format!("file({disk}, size=256MiB)"), "mkfs.btrfs -q", "btrfs check");
    }
}

#[test]
fn a_node_in_use_is_not_detached() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(22);
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let attached = Attached::new("busy", &stack, &[]);
    let (name, link, mnt) = (attached.name().to_owned(), attached.link.clone(), path(&folder, "mnt"));
    run_shell(&format!("mkfs.ext4 -q {link}; mount {link} {mnt}")).ok();
    let said = siltstone(&["detach", &name]).refused();
    assert!(said.contains("is in use") && said.contains("unmount"), "{said}");
    assert_eq!(attached.listed()["state"], "attached");
    run_shell(&format!("cp {}/large {mnt}/; umount {mnt}", path(&folder, "tree"))).ok();
    let said = run_shell(&format!("exec 9<{link}; ! {} detach {link} 2>&1", binary().display())).ok();
    assert!(said.contains("is open in ") && said.contains("sh ("), "{said}");
    let said = siltstone(&["attach", &stack, "--name", &name]).refused();
    assert!(said.contains(&format!("attachment \"{name}\" exists")), "{said}");
    let (second, used) =
        (format!("{name}-2"), siltstone(&["attach", &stack, "--name", &format!("{name}-2")]));
    let said = used.refused();
    assert!(said.contains("disk") && said.contains("(busy)"), "the file is in use: {said}");
    assert!(!Path::new("/run/siltstone").join(second).exists());
    attached.detach();
}

/// Server and holder are killed: the mount is lost, what was flushed is not.
#[test]
fn what_was_flushed_is_there_after_server_and_holder_are_lost() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(23);
    let stack = format!("log(file({}, size=160MiB), zone_size=1MiB)", path(&folder, "disk"));
    let attached = Attached::new("lost", &stack, &["--format"]);
    let (name, link, mnt, sums) =
        (attached.name().to_owned(), attached.link.clone(), path(&folder, "mnt"), path(&folder, "sums"));
    run_shell(&format!(
        "mkfs.ext4 -q {link}; mount {link} {mnt}
         cp -r {}/. {mnt}; sync -f {mnt}",
        path(&folder, "tree")
    ))
    .ok();
    let listed = attached.listed();
    // The kernel closes what their rings hold, the socket and the locks of files, a moment later.
    run_shell(&format!("kill -9 {} {}; sleep 0.5", listed["holder"], listed["server"])).ok();
    assert_eq!(attached.listed()["state"], "lost");
    let said = siltstone(&["detach", &name]).refused();
    assert!(said.contains("is in use"), "{said}");
    let said = siltstone(&["attach", &stack, "--name", &name]).refused();
    assert!(said.contains("has lost its holder"), "{said}");
    run_shell(&format!("umount {mnt}")).ok();
    attached.detach();
    let attached = Attached::new("lost", &stack, &[]);
    run_shell(&format!(
        "mount {} {mnt}; trap 'umount {mnt}' EXIT; cd {mnt}; sha256sum --quiet --check {sums}; cd /",
        attached.link
    ))
    .ok();
    attached.detach();
}

/// A stack whose acknowledged writes are lost with its server isn't continued: its requests fail.
#[test]
fn a_stack_in_memory_is_not_replaced() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let attached = Attached::new("memory", "ram(size=16MiB)", &[]);
    let link = attached.link.clone();
    run_shell(&format!("dd if=/dev/urandom of={link} bs=1M count=4 oflag=direct status=none")).ok();
    run_shell(&format!("kill -9 {}; sleep 0.5", attached.listed()["server"])).ok();
    run_shell(&format!("dd if={link} of=/dev/null bs=1M count=1 iflag=direct status=none")).refused();
    assert_eq!(attached.listed()["state"], "failed");
    attached.detach();
}

/// The next server has the stack as it was attached, and the program that attached it, whatever their files are by then.
#[test]
fn a_changed_stack_file_and_program_do_not_matter() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let (file, program) = (path(&folder, "vol.toml"), path(&folder, "siltstone"));
    let stack = |size: &str| format!("[device.disk]\nkind = \"file\"\npath = \"disk\"\nsize = \"{size}\"\n");
    std::fs::write(&file, stack("16MiB")).expect("a stack");
    std::fs::copy(binary(), &program).expect("a copy");
    let attached = Attached::by(&program, "changed", &file, &[]);
    let link = &attached.link;
    run_shell(&format!(
        "dd if=/dev/urandom of={link} bs=1M count=8 oflag=direct status=none; sha256sum <{link} >{}",
        path(&folder, "sum")
    ))
    .ok();
    assert!(folder.path().join("disk").exists(), "paths of a stack file are those of its folder");
    std::fs::write(&file, stack("8MiB")).expect("a stack");
    std::fs::remove_file(&program).expect("the copy is there");
    attached.kill_server();
    run_shell(&format!(
        "echo 3 >/proc/sys/vm/drop_caches; sha256sum <{link} | cmp - {}",
        path(&folder, "sum")
    ))
    .ok();
    attached.detach();
}

/// The holder alone is killed: what it has left is removed, and the server closes its stack.
#[test]
fn a_server_without_a_holder_ends_with_its_mount() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let stack = format!("file({}, size=16MiB)", path(&folder, "disk"));
    let attached = Attached::new("orphan", &stack, &[]);
    let listed = attached.listed();
    run_shell(&format!("kill -9 {}; sleep 0.5", listed["holder"])).ok();
    assert_eq!(attached.listed()["state"], "lost");
    attached.detach();
    run_shell(&format!(
        "for try in $(seq 100); do [ ! -e /proc/{0} ] && exit; sleep 0.05; done; exit 1",
        listed["server"]
    ))
    .ok();
    Attached::new("orphan", &stack, &[]).detach();
}

/// No server can be started any more: requests wait as long as they may, then they fail, and the node can be detached.
#[test]
fn requests_do_not_wait_without_end() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let disk = path(&folder, "disk");
    let attached = Attached::new("waits", &format!("file({disk}, size=16MiB)"), &["--recover-within=2s"]);
    let (link, listed) = (attached.link.clone(), attached.listed());
    run_shell(&format!("mv {disk} {disk}.away; mkdir {disk}; kill -9 {}; sleep 0.3", listed["server"])).ok();
    assert_eq!(attached.listed()["state"], "recovering");
    let said = siltstone(&["detach", attached.name()]).refused();
    assert!(said.contains("another one is being started"), "{said}");
    run_shell(&format!("timeout 60 dd if={link} of=/dev/null bs=1M count=1 iflag=direct status=none"))
        .refused();
    assert_eq!(attached.listed()["state"], "failed");
    attached.detach();
}

#[test]
fn an_attachment_that_fails_leaves_nothing() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let name = format!("test-shards-{}", std::process::id());
    let said = siltstone(&["attach", "ram(size=16MiB) shards=253", "--name", &name]).refused();
    assert!(said.contains("at most 252"), "{said}");
    assert!(!Path::new("/run/siltstone").join(&name).exists());
    assert!(!std::fs::read_to_string("/proc/mounts").expect("mounts").contains(&name));
}

/// A program with more memory than its group may have: its pages go to a node, and come back as they were.
#[test]
fn swap_on_a_node() {
    need!("mkswap", "python3", "jq", "losetup");
    let group = format!("/sys/fs/cgroup/memory/siltstone-test-{}", std::process::id());
    if !can_attach() {
        return;
    }
    if !Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        siltstone_tests::foreign::skip("there is no memory controller of cgroups v1");
        return;
    }
    let Some(_lock) = lock_swap() else { return };
    let folder = tempdir().expect("a folder");
    let stack = format!("file({}, size=256MiB) shards=2", path(&folder, "disk"));
    let attached = Attached::new("swap", &stack, &[]);
    let link = &attached.link;
    run_shell(&format!(
        "mkswap -q {link} >/dev/null
         mkdir {group}
         echo 48M > {group}/memory.limit_in_bytes
         trap 'swapoff {link} || true; rmdir {group} || true' EXIT
         trap 'exit 1' TERM # of the time limit: the trap above runs
         swapon -p {SWAP_PRIORITY} {link}
         sh -c 'echo $$ > {group}/cgroup.procs; exec python3 -c \"$1\"' sh '
pages = 160 << 8
memory = bytearray(pages << 12)
for page in range(pages):
    memory[page << 12:(page << 12) + 8] = (page * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, \"little\")
for step in (1, 2):
    for page in range(pages):
        found = memory[page << 12:(page << 12) + 8]
        assert found == (page * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, \"little\"), page
used = [line.split() for line in open(\"/proc/swaps\").read().splitlines()[1:]]
assert sum(int(line[3]) for line in used) > 64 << 10, used
'"
    ))
    .ok();
    attached.detach();
}

#[test]
fn wrong_use_is_told() {
    need!("jq", "losetup", "setpriv");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let said = |arguments: &[&str]| siltstone(arguments).refused();
    let cases: &[(&[&str], &str)] = &[
        (&["attach", "null(size=1MiB)", "--name", "a/b"], "letters, digits"),
        (&["attach", "null(size=1MiB)", "--sector-size", "1000"], "512, 1024, 2048 or 4096"),
        (&["attach", "-"], "standard input"),
        (&["detach", "nothing-of-this-name"], "nothing of this name is attached"),
        (&["attach", "zones.ram(zones=4)"], ""),
        (&["attach", "ram(size=1MiB)", "--systemd", "--json"], "--systemd"),
    ];
    for (arguments, expected) in cases {
        let text = said(arguments);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let missing = path(&folder, "missing/disk");
    let text = said(&["attach", &format!("file({missing}, size=1MiB)"), "--name", "test-missing"]);
    assert!(text.contains(&missing), "{text}");
    assert!(!Path::new("/run/siltstone/test-missing").exists());
    let ordinary = format!(
        "cp {0} {1}/siltstone; chmod 755 {1} {1}/siltstone
         ! setpriv --reuid 65534 --clear-groups {1}/siltstone attach 'ram(size=1MiB)' --name test-user 2>&1",
        binary().display(),
        folder.path().display()
    );
    let text = run_shell(&ordinary).ok();
    assert!(text.contains("needs root"), "{text}");
    let unit = siltstone(&["attach", "ram(size=1MiB)", "--systemd", "--name", "vol"]).ok();
    assert!(unit.contains("Type=notify") && unit.contains("/dev/siltstone/vol"), "{unit}");
}

/// Processes of a parent.
fn children(parent: u64) -> Vec<u64> {
    let is_child = |process: &u64| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent_of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent_of == Some(parent.to_string().as_str())
    };
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

fn kill(signal: &str, process: u64) {
    run("kill", &[signal, &process.to_string()]).ok();
}

/// Waits until something is so, for at most 30 s.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited too long for: {what}");
}

#[test]
fn a_server_that_dies_right_after_it_was_ready_is_replaced() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let attached = Attached::new("ready", &stack, &["--via", "fuse"]);
    let listed = attached.listed();
    let (holder, first) = (listed["holder"].as_u64().unwrap(), listed["server"].as_u64().unwrap());
    kill("-9", first);
    let mut second = None;
    until("another server", || {
        second = children(holder).into_iter().find(|process| *process != first);
        second.is_some()
    });
    // The holder learns of the beginning and of the end of this one at the same time.
    kill("-STOP", holder);
    std::thread::sleep(std::time::Duration::from_millis(600));
    run_shell(&format!("kill -9 {} || true; kill -CONT {holder}", second.unwrap())).ok();
    until("a third server", || {
        let listed = attached.listed();
        let server = listed["server"].as_u64();
        listed["state"] == "attached" && server != Some(first) && server != second
    });
    run_shell(&format!("timeout 30 dd if={} of=/dev/null bs=4k count=1 iflag=direct", attached.node)).ok();
    attached.detach();
}

#[test]
fn signals_do_not_end_the_holder_of_a_node_in_use() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(23);
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let attached = Attached::new("signals", &stack, &["--via", "fuse"]);
    let (link, mnt) = (attached.link.clone(), path(&folder, "mnt"));
    run_shell(&format!("mkfs.ext4 -q {link}; mount {link} {mnt}")).ok();
    let holder = attached.listed()["holder"].as_u64().unwrap();
    for _ in 0..5 {
        kill("-TERM", holder);
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    assert_eq!(attached.listed()["state"], "attached");
    run_shell(&format!("echo works > {mnt}/f; sync -f {mnt}; umount {mnt}")).ok();
    // Looks at the node and the last refused signal take a moment.
    let detached = || siltstone(&["detach", attached.name()]).code == Some(0);
    let folder = Path::new("/run/siltstone").join(attached.name());
    until("detached", || !folder.exists() || detached());
}

#[test]
fn an_attach_that_is_interrupted_leaves_no_node() {
    need!("losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let name = format!("test-interrupted-{}", std::process::id());
    let attachment = Path::new("/run/siltstone").join(&name);
    for milliseconds in [5, 20, 60, 120] {
        let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
        let mut attaching = Background::start(
            &binary().display().to_string(),
            &["attach", &stack, "--name", &name, "--via", "fuse"],
        );
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        if !attaching.is_alive() {
            // It was faster.
            siltstone(&["detach", &name]).ok();
            continue;
        }
        attaching.signal(rustix::process::Signal::INT);
        attaching.wait();
        if attaching.out().is_empty() {
            // Its holder may still begin.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            until("nothing is left", || !attachment.exists());
        } else {
            siltstone(&["detach", &name]).ok();
        }
    }
}

#[test]
fn the_link_goes_with_a_loop_device_that_others_take_away() {
    need!("losetup", "jq");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let attached = Attached::new("link", &stack, &["--via", "fuse"]);
    run("losetup", &["-d", &attached.node]).ok();
    until("the link is gone", || std::fs::symlink_metadata(&attached.link).is_err());
}
