//! File systems on an export: created, filled and checked by their own tools, through FUSE over NBD.
//!
//! `nbdfuse` shows the export as a file; with root, a loop device on this file lets the kernel's own ext4 and
//! XFS write to it. The image below the export is checked once the server has ended.

use siltstone_tests::foreign::{Fuse, Server, binary, can_mount_loop, has_fuse, random_file, run, run_shell};
use siltstone_tests::{need, need_root};
use tempfile::{TempDir, tempdir};

const IMAGE_BYTES: u64 = 320 << 20;

/// A server on a file, the export as a file in `nbd/`, and a folder of files in `tree/`.
struct Bench {
    folder: TempDir,
    server: Option<Server>,
    fuse: Option<Fuse>,
}

impl Bench {
    fn new() -> Bench {
        Bench::on(|image| format!("file({image}, size={IMAGE_BYTES}) shards=2"))
    }

    /// Serves the stack that `stack` makes of the image's path; `--format` formats its parts.
    fn on(stack: impl Fn(&str) -> String) -> Bench {
        let folder = tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["nbd", "mnt", "tree"] {
            std::fs::create_dir(at(name)).expect("a folder");
        }
        let stack = stack(&at("disk.img").display().to_string());
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let server = Server::start(folder.path(), &stack);
        let fuse = Fuse::start(&at("nbd"), server.uri());
        Bench { folder, server: Some(server), fuse: Some(fuse) }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn export(&self) -> String {
        self.path("nbd/export")
    }

    fn image(&self) -> String {
        self.path("disk.img")
    }

    /// Writes a tree of seeded files, many small ones and a large one, with its checksums in `sums`.
    fn fill_tree(&self, seed: u64) {
        let tree = self.folder.path().join("tree");
        random_file(&tree.join("large"), 256, seed);
        for index in 0..8 {
            let folder = tree.join(format!("folder{index}"));
            std::fs::create_dir(&folder).expect("a folder");
            for file in 0..24_u64 {
                let bytes = vec![(seed + file) as u8; (file * 613) as usize];
                std::fs::write(folder.join(format!("file{file}")), bytes).expect("a file");
            }
        }
        run_shell(&format!(
            "cd {}; find . -type f -print0 | sort -z | xargs -0 sha256sum > ../sums",
            tree.display()
        ))
        .ok();
    }

    /// Ends nbdfuse, then the server, and leaves the image.
    fn close(&mut self) {
        self.fuse.take().expect("it is closed once").close();
        self.server.take().expect("it is closed once").stop();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.fuse.is_some() {
            // After a failure. Unmounting a folder that isn't mounted only fails. The devices below it are
            // removed afterwards.
            run_shell(&format!("umount -l {} || true", self.path("mnt")));
        }
    }
}

#[test]
fn ext4_made_with_its_files_in_it() {
    need!("nbdfuse", "mke2fs", "e2fsck", "debugfs");
    if !has_fuse() {
        return;
    }
    let mut bench = Bench::new();
    bench.fill_tree(11);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-d", &bench.path("tree"), &bench.export()]).ok();
    run("e2fsck", &["-f", "-n", &bench.export()]).ok();
    bench.close();
    run("e2fsck", &["-f", "-n", &bench.image()]).ok();
    let back = bench.path("back");
    std::fs::create_dir(&back).expect("a folder");
    run("debugfs", &["-R", &format!("rdump / {back}"), &bench.image()]).ok();
    run_shell(&format!("cd {back}; sha256sum --quiet --check {}", bench.path("sums"))).ok();
}

/// The kernel's file system on a loop device on the export: filled, trimmed, emptied in part and filled
/// again.
fn in_the_kernel(make: &[&str], check: &[&str]) {
    let mut bench = Bench::new();
    bench.fill_tree(12);
    run(make[0], &[&make[1..], &[&bench.export()]].concat()).ok();
    let (export, mount, tree, sums) =
        (bench.export(), bench.path("mnt"), bench.path("tree"), bench.path("sums"));
    run_shell(&format!(
        "mount -o loop {export} {mount}
         cp -r {tree} {mount}/first
         sync -f {mount}
         rm -r {mount}/first
         fstrim {mount}
         cp -r {tree} {mount}/second
         cp -r {mount}/second {mount}/third
         umount {mount}"
    ))
    .ok();
    bench.close();
    let image = bench.image();
    run(check[0], &[&check[1..], &[&image]].concat()).ok();
    run_shell(&format!(
        "mount -o loop,ro {image} {mount}
         trap 'umount {mount}' EXIT
         (cd {mount}/second; sha256sum --quiet --check {sums})
         (cd {mount}/third; sha256sum --quiet --check {sums})
         test ! -e {mount}/first"
    ))
    .ok();
}

#[test]
fn ext4_of_the_kernel() {
    need!("nbdfuse", "mkfs.ext4", "e2fsck", "fstrim");
    need_root!("mount");
    if has_fuse() && can_mount_loop() {
        in_the_kernel(&["mkfs.ext4", "-q", "-F"], &["e2fsck", "-f", "-n"]);
    }
}

#[test]
fn xfs_of_the_kernel() {
    need!("nbdfuse", "mkfs.xfs", "xfs_repair", "fstrim");
    need_root!("mount");
    if has_fuse() && can_mount_loop() {
        in_the_kernel(&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n", "-f"]);
    }
}

/// ext4 in a log that it fills to the last block, while the cleaner works all the time: data that fits is
/// there, writes that don't fit fail, and the file system is intact.
#[test]
fn ext4_in_a_log_that_is_full() {
    need!("nbdfuse", "mkfs.ext4", "e2fsck", "fstrim");
    need_root!("mount");
    if !has_fuse() || !can_mount_loop() {
        return;
    }
    let mut bench =
        Bench::on(|image| format!("log(file({image}, size=96MiB), zone_size=256KiB, checkpoint_after=4MiB)"));
    bench.fill_tree(13);
    let (export, mount, tree, sums) =
        (bench.export(), bench.path("mnt"), bench.path("tree"), bench.path("sums"));
    run_shell(&format!(
        "mkfs.ext4 -q -F {export}
         mount -o loop {export} {mount}
         trap 'umount {mount}' EXIT
         cp -r {tree} {mount}/kept
         for round in 1 2 3; do
             if cat /dev/zero | tr '\\0' 'x' > {mount}/full; then exit 1; fi
             sync -f {mount}
             test $(stat -c %s {mount}/full) -gt 30000000
             rm {mount}/full
             fstrim {mount}
         done
         cp -r {tree} {mount}/last
         sync -f {mount}
         (cd {mount}/kept; sha256sum --quiet --check {sums})"
    ))
    .ok();
    run("e2fsck", &["-f", "-n", &export]).ok();
    run_shell(&format!(
        "mount -o loop,ro {export} {mount}
         trap 'umount {mount}' EXIT
         (cd {mount}/kept; sha256sum --quiet --check {sums})
         (cd {mount}/last; sha256sum --quiet --check {sums})"
    ))
    .ok();
    bench.close();
}
