//! Attached stacks as disks of this kernel: file systems over the death of their server, swap, wrong use.

#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use rustix::process::Signal;
use siltstone_tests::foreign::{
    Attached, Background, Finished, SWAP_PRIORITY, Server, binary, can_attach, lock_swap, random_file, run,
    run_shell,
};
use siltstone_tests::need;
use std::path::Path;
use std::time::{Duration, Instant};
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

/// Creates a file system on the node, copies files while the server is killed twice, fills it until there is
/// no space, discards, and checks it; then mounts it again on a new node and compares the files.
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
         if cat /dev/zero | tr '\\0' 'x' > {mnt}/full; then exit 1; fi
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

/// Server and holder are killed: the mount is lost, flushed data isn't.
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
    // The kernel closes the files of their rings, the socket and the locks of files, a moment later.
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

/// A stack whose acknowledged writes are lost with its server isn't served again: its requests fail.
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

/// The next server uses the stack as it was attached, and the program that attached it, even if their files
/// have changed.
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

/// A reload starts a server of the program that was installed meanwhile, under a node that is mounted. One
/// that can't be started, or that doesn't serve, leaves a server of the former program.
#[test]
fn a_reload_starts_the_installed_program() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(25);
    let (program, new, mnt) = (path(&folder, "siltstone"), path(&folder, "new"), path(&folder, "mnt"));
    std::fs::copy(binary(), &program).expect("a copy");
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let attached = Attached::by(&program, "reload", &stack, &[]);
    let (name, link) = (attached.name().to_owned(), attached.link.clone());
    // A server serves a moment before the holder lists it in the place of the former one, which has ended.
    let own = || {
        let read = || std::fs::read_link(format!("/proc/{}/exe", attached.listed()["server"])).ok();
        let begun = Instant::now();
        loop {
            match read() {
                Some(exe) => return exe.display().to_string(),
                None => assert!(begun.elapsed() < Duration::from_secs(10), "no server is listed"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    run_shell(&format!(
        "mkfs.ext4 -q {link}; mount {link} {mnt}; cp {mnt}/../tree/large {mnt}/; sync -f {mnt}"
    ))
    .ok();
    let install = |make: &str| run_shell(&format!("{make}; chmod +x {new}; mv {new} {program}")).ok();
    install(&format!("printf '#!/bin/sh\nexit 3\n' >{new}"));
    let before = attached.listed();
    let said = siltstone(&["reload", &name]).refused();
    assert!(said.contains("exit status: 3") && said.contains("the former server continues"), "{said}");
    assert_eq!(attached.listed(), before);
    install(&format!("printf '#!/bin/sh\n[ $1 = --version ]\n' >{new}"));
    let said = siltstone(&["reload", &name]).refused();
    assert!(said.contains("didn't start") && said.contains("the former program"), "{said}");
    run_shell(&format!("cp {mnt}/../tree/file9 {mnt}/; sync -f {mnt}")).ok();
    assert_eq!(own(), format!("{program} (deleted)"));
    install(&format!("cp {} {new}", binary().display()));
    siltstone(&["reload", &link]).ok();
    assert_eq!(own(), program);
    run_shell(&format!(
        "echo 3 >/proc/sys/vm/drop_caches; cmp {mnt}/large {mnt}/../tree/large; cp {mnt}/../tree/file8 {mnt}/; umount {mnt}"
    ))
    .ok();
    attached.detach();
    let attached = Attached::new("reload", "ram(size=16MiB)", &[]);
    let said = siltstone(&["reload", attached.name()]).refused();
    assert!(said.contains("can't be reloaded") && said.contains("detach"), "{said}");
    assert_eq!(attached.listed()["state"], "attached");
    attached.detach();
}

/// A signal while the node is in use makes the holder of a service detach once the node is unused: systemd
/// sends no second one, and at a shutdown it unmounts the node meanwhile.
#[test]
fn a_service_detaches_once_its_node_is_unused() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(26);
    let (name, mnt) = (format!("test-service-{}", std::process::id()), path(&folder, "mnt"));
    let stack = format!("file({}, size=32MiB)", path(&folder, "disk"));
    let program = binary().display().to_string();
    let socket = path(&folder, "notify");
    let systemd = std::os::unix::net::UnixDatagram::bind(&socket).expect("a socket");
    systemd.set_nonblocking(true).expect("a socket");
    let socket = format!("NOTIFY_SOCKET={socket}");
    let arguments = [&socket, &program, "attach", &stack, "--name", &name, "--foreground"];
    let mut holder = Background::start("env", &arguments);
    holder.wait_until("the node is there", |holder| holder.out().contains('\n'));
    run_shell(&format!("mkfs.ext4 -q /dev/siltstone/{name}; mount /dev/siltstone/{name} {mnt}")).ok();
    holder.signal(Signal::TERM);
    holder.wait_until("it has told", |holder| holder.err().contains("it is detached once it is unused"));
    run_shell(&format!("cp {mnt}/../tree/large {mnt}/; umount {mnt}")).ok();
    assert!(holder.wait().success(), "{}", holder.err());
    assert!(!Path::new("/dev/siltstone").join(&name).exists());
    let mut told = vec![0; 100];
    let told = std::iter::from_fn(|| {
        let length = systemd.recv(&mut told).ok()?;
        Some(String::from_utf8_lossy(&told[..length]).into_owned())
    });
    // The server isn't the service's main process, whose notifications alone systemd takes.
    assert_eq!(told.filter(|state| state == "READY=1").count(), 1);
}

/// Only the holder is killed: its files are removed, and the server closes its stack.
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

/// No server can be started any more: requests wait until their time limit, then they fail, and the node can
/// be detached.
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

/// A program with more memory than its group permits: its pages go to a node, and are unchanged when they
/// return.
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

/// The holder learns both at once: a server is ready, and has ended. The holder is stopped while the new
/// server opens the stack, until the server's message waits in its socket.
#[test]
fn a_server_that_dies_as_soon_as_it_is_ready_is_replaced() {
    need!("jq", "losetup", "pgrep", "ss");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let disk = path(&folder, "disk");
    // Opening takes some reads.
    let stack = format!("log(fault(file({disk}, size=16MiB), \"read delay=100ms\"))");
    let attached = Attached::new("soon", &stack, &["--format"]);
    let listed = attached.listed();
    run_shell(&format!(
        "holder={holder}
         kill -9 {server}
         until next=$(pgrep -P $holder | grep -vx {server}); do sleep 0.001; done
         kill -STOP $holder
         trap 'kill -CONT $holder' EXIT
         socket=$(readlink /proc/$next/fd/0 | tr -dc 0-9)
         is_ready() {{ ss -xH | awk -v socket=$socket '$6 == socket && $4 > 0 {{ found = 1 }} END {{ exit !found }}'; }}
         is_adopted() {{ [ \"$(jq .server /run/siltstone/{name}/attachment.json)\" = $next ]; }}
         until is_ready || is_adopted; do
             # The server opens the disk once it has the holder's message: without, the holder runs for a moment.
             ls -l /proc/$next/fd | grep -q {disk} || {{ kill -CONT $holder; sleep 0.001; kill -STOP $holder; }}
             sleep 0.01
         done
         kill -9 $next
         kill -CONT $holder
         for try in $(seq 300); do
             sleep 0.1
             {program} list --json | jq -e '.[] | select(.name == \"{name}\" and .state == \"attached\" and .server != '$next')' && break
         done >/dev/null
         timeout 30 dd if={link} of=/dev/null bs=1M count=1 iflag=direct status=none",
        holder = listed["holder"],
        server = listed["server"],
        program = binary().display(),
        name = attached.name(),
        link = attached.link,
    ))
    .ok();
    assert!(attached.listed()["lost_servers"].as_u64() >= Some(2), "{}", attached.listed());
    attached.detach();
}

#[test]
fn signals_leave_the_holder_of_a_node_in_use() {
    need!("mkfs.ext4", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = with_tree(24);
    let attached = Attached::new("signals", &format!("file({}, size=32MiB)", path(&folder, "disk")), &[]);
    let (holder, mnt) = (attached.listed()["holder"].clone(), path(&folder, "mnt"));
    run_shell(&format!(
        "mkfs.ext4 -q {link}; mount {link} {mnt}; trap 'umount {mnt}' EXIT
         for signal in TERM TERM INT INT TERM; do kill -$signal {holder}; sleep 0.1; done
         sleep 2
         kill -0 {holder}
         cp {mnt}/../tree/file9 {mnt}/; sync -f {mnt}",
        link = attached.link
    ))
    .ok();
    assert_eq!(attached.listed()["state"], "attached");
    attached.detach();
}

/// The disk of the stack stops answering: a signal to the holder shortens the patience of the server, which
/// gives up.
#[test]
fn a_detach_reports_a_server_that_gave_up() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let disk = Server::start(folder.path(), &format!("file({}, size=64MiB)", path(&folder, "disk")));
    let address = disk.socket.display();
    let stack = format!("log(nbd-client(\"unix:{address}\", block_size=4096, timeout=24h))");
    let attached = Attached::new("gave-up", &stack, &["--format", "--via", "fuse"]);
    let holder = attached.listed()["holder"].clone();
    disk.process.signal(Signal::STOP);
    let mut detaching = Background::start(&binary().display().to_string(), &["detach", attached.name()]);
    // The request of the operator is first: the server has received it once it reports its wait, and a signal
    // before that may be received together with it.
    run_shell(&format!(
        "until grep -q 'has been closing its storage' {}; do sleep 0.1; done; kill -TERM {holder}",
        attached.log()
    ))
    .ok();
    assert_eq!(detaching.wait().code(), Some(1), "{}", detaching.err());
    let said = detaching.err();
    assert!(said.contains("detached, but its server ended with exit status: 1"), "{said}");
    assert!(said.contains("changes that weren't durable are lost"), "{said}");
    attached.is_detached();
}

/// The stack waits for a server that accepts the connection and never answers.
#[test]
fn an_operator_who_ends_cancels_the_attachment() {
    need!("jq", "losetup", "python3");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let name = format!("test-cancel-{}", std::process::id());
    run_shell(&format!(
        "python3 -c 'import socket, time
s = socket.socket(socket.AF_UNIX); s.bind(\"{socket}\"); s.listen(); time.sleep(60)' & silent=$!
         trap 'kill $silent' EXIT
         for try in $(seq 100); do [ -S {socket} ] && break; sleep 0.05; done
         {program} attach 'nbd-client(unix:{socket})' --name {name} & operator=$!
         for try in $(seq 100); do [ -S /run/siltstone/{name}/holder.sock ] && break; sleep 0.05; done
         sleep 0.3
         kill -INT $operator || kill -TERM $operator
         sleep 0.2
         kill -KILL $operator || true
         for try in $(seq 200); do [ ! -e /run/siltstone/{name} ] && exit; sleep 0.1; done
         ls /run/siltstone/{name}; exit 1",
        socket = path(&folder, "silent.sock"),
        program = binary().display(),
    ))
    .ok();
}

/// Another program removes the loop device, whose number is then given to the next one.
#[test]
fn a_link_never_leads_to_the_device_of_others() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let (disk, other) = (path(&folder, "disk"), path(&folder, "other"));
    let attached = Attached::new("link", &format!("file({disk}, size=16MiB)"), &["--via=fuse"]);
    run_shell(&format!(
        "truncate -s 1M {other}
         losetup -d {node}
         for try in $(seq 100); do [ ! -L {link} ] && exit; sleep 0.1; done; exit 1",
        node = attached.node,
        link = attached.link
    ))
    .ok();
    assert_eq!(attached.listed()["state"], "failed");
    attached.detach();
    let attached = Attached::new("link", &format!("file({disk}, size=16MiB)"), &["--via=fuse"]);
    let listed = attached.listed();
    run_shell(&format!(
        "kill -9 {holder} {server}; sleep 0.5
         losetup -d {node}
         losetup {node} {other}; trap 'losetup -d {node}' EXIT
         {program} stack kinds >/dev/null
         [ ! -L {link} ]
         {program} detach {name}
         losetup {node} | grep -q {other}",
        holder = listed["holder"],
        server = listed["server"],
        node = attached.node,
        link = attached.link,
        program = binary().display(),
        name = attached.name(),
    ))
    .ok();
    attached.is_detached();
}

/// The node is removed by another program while its holder is stopped with a full queue of connections. No
/// verb waits for the holder, and its link stays until the holder continues.
#[test]
fn a_stopped_holder_makes_no_verb_wait() {
    need!("jq", "losetup", "python3");
    if !can_attach() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let attached =
        Attached::new("stopped", &format!("file({}, size=16MiB)", path(&folder, "disk")), &["--via=fuse"]);
    run_shell(&format!(
        "kill -STOP {holder}; trap 'kill -CONT {holder}' EXIT
         losetup -d {node}
         python3 -c 'import signal, socket, subprocess
queue, is_full = [], False
while not is_full:
    queue.append(socket.socket(socket.AF_UNIX))
    queue[-1].setblocking(False)
    is_full = queue[-1].connect_ex(\"/run/siltstone/{name}/holder.sock\") != 0
assert len(queue) > 10
run = lambda *verb: subprocess.run([\"{program}\", *verb], capture_output=True, text=True, timeout=60)
assert run(\"stack\", \"kinds\").returncode == 0
assert \"attached\" in run(\"list\").stdout
said = run(\"detach\", \"{name}\").stderr
assert \"no connection was accepted in 10 s\" in said and \"{name}\" in said, said'
         [ -L {link} ]
         kill -CONT {holder}
         for try in $(seq 100); do [ ! -L {link} ] && exit; sleep 0.1; done; exit 1",
        holder = attached.listed()["holder"],
        node = attached.node,
        link = attached.link,
        name = attached.name(),
        program = binary().display(),
    ))
    .ok();
    attached.detach();
}

/// Memory is locked page by page as it is used, and no more than is used.
#[test]
fn memory_of_a_ram_is_locked_as_it_is_used() {
    need!("jq", "losetup");
    if !can_attach() {
        return;
    }
    let attached = Attached::new("ram", "ram(size=3GiB)", &[]);
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", attached.listed()["server"])).expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 1 << 20, "{kib} KiB are resident");
    run_shell(&format!(
        "dd if=/dev/urandom of={link} bs=1M count=64 oflag=direct status=none; cmp -n 1048576 -s {link} /dev/zero && exit 1; exit 0",
        link = attached.link
    ))
    .ok();
    attached.detach();
    let said =
        siltstone(&["attach", "ram(size=64TiB)", "--name", &format!("test-huge-{}", std::process::id())])
            .refused();
    assert!(said.contains("whose memory is locked"), "{said}");
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
