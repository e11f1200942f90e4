//! Programs that tests run, and the Debian or Ubuntu packages that have them. As root, and unless
//! `SILTSTONE_NO_INSTALL` is set, missing ones are installed.

use crate::say;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// A program that some tests run.
struct Need {
    program: &'static str,
    /// Packages that may have the program; the first one that does is enough.
    packages: &'static [&'static str],
    /// Tests that are skipped without the program.
    skipped: &'static str,
}

const fn need(program: &'static str, packages: &'static [&'static str], skipped: &'static str) -> Need {
    Need { program, packages, skipped }
}

/// PostgreSQL isn't among them: its package starts a server. Its tests run where /usr/lib/postgresql is.
const NEEDS: [Need; 29] = [
    need("nbdinfo", &["libnbd-bin"], "NBD: hostile clients, descriptions of exports"),
    need("nbdcopy", &["libnbd-bin"], "NBD: copies"),
    need("nbdfuse", &["libnbd-bin", "nbdfuse"], "file systems on an export"),
    need("nbdsh", &["python3-libnbd"], "NBD: unaligned requests"),
    need("nbdkit", &["nbdkit"], "NBD: exports passed on; the peer nbdkit"),
    need("fio", &["fio"], "fio with verification; the peer fio"),
    need("nbd-client", &["nbd-client"], "files on the kernel's NBD devices in the guest machine"),
    need("flashrom", &["flashrom"], "flash chips: stock flashrom, and its own emulation"),
    need("qemu-img", &["qemu-utils"], "NBD: images of qemu"),
    need("qemu-io", &["qemu-utils"], "NBD: patterns of qemu"),
    need("qemu-storage-daemon", &["qemu-system-common", "qemu-system-misc"], "the peer qemu-storage-daemon"),
    need(
        "qemu-system-x86_64",
        &["qemu-system-x86"],
        "the guest machine: the kernel's own drivers, DAX, flashrom on a serial port",
    ),
    need("mke2fs", &["e2fsprogs"], "ext4 on an export"),
    need("mmdebstrap", &["mmdebstrap"], "the package on a fresh Debian in the guest machine"),
    need("mkfs.xfs", &["xfsprogs"], "XFS on an export"),
    need("mkfs.btrfs", &["btrfs-progs"], "Btrfs on an attached stack, also on zones"),
    need("mkfs.f2fs", &["f2fs-tools"], "f2fs on zones in the guest machine"),
    need("blkzone", &["util-linux"], "zones in the guest machine"),
    need("losetup", &["mount", "util-linux"], "attached stacks"),
    need("cryptsetup", &["cryptsetup-bin"], "encryption: volumes of cryptsetup and dm-crypt"),
    need("lvm", &["lvm2"], "LVM on an attached stack in the guest machine"),
    need("fstrim", &["util-linux"], "file systems of the kernel on an export"),
    need("sqlite3", &["sqlite3"], "databases on the file system"),
    need("git", &["git"], "repositories on the file system"),
    need(
        "redis-cli",
        &["redis-tools"],
        "redis clients of the key-value store, redis itself to compare with, devices on it",
    ),
    need("prometheus", &["prometheus"], "metrics: what Prometheus scrapes"),
    need("ss", &["iproute2"], "the state of sockets, in a test of attached stacks"),
    need("curl", &["curl"], "objects of a bucket as an S3 client sees them"),
    need("jq", &["jq"], "scripts that read results; attached stacks"),
];

/// Whether a program is in one of the folders of `path`, or where Debian has those for root.
fn is_in(path: &OsStr, program: &str) -> bool {
    let root = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).to_owned());
    let mut folders = std::env::split_paths(path).chain(root);
    folders.any(|folder| {
        let found = std::fs::metadata(folder.join(program));
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    is_in(&std::env::var_os("PATH").unwrap_or_default(), program)
}

fn missing() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !has(need.program)).collect()
}

/// Reason not to install anything; `None` if packages can be installed.
fn refusal(installs: bool, is_root: bool, has_apt: bool) -> Option<&'static str> {
    match (installs, is_root, has_apt) {
        (false, _, _) => Some("as SILTSTONE_NO_INSTALL is set"),
        (true, false, _) => Some("only root can"),
        (true, true, false) => Some("this system has no apt-get"),
        (true, true, true) => None,
    }
}

/// Runs apt-get with a limit in seconds; returns the last line of its output if it fails.
fn apt_get(seconds: &str, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args([seconds, "apt-get", "-qq"]).args(arguments).stdin(Stdio::null());
    let output =
        command.env("DEBIAN_FRONTEND", "noninteractive").output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Err(text.lines().last().unwrap_or_default().to_owned())
}

fn install(absent: &[&Need]) {
    let names: Vec<&str> = absent.iter().map(|need| need.program).collect();
    say(&format!("installs what has: {}", names.join(" ")));
    if let Err(error) = apt_get("300", &["update"]) {
        say(&format!("apt-get update failed: {error}"));
    }
    for need in absent {
        for package in need.packages {
            // A package may have brought another one's program along.
            if has(need.program) {
                break;
            }
            if let Err(error) = apt_get("600", &["install", "--yes", "--no-install-recommends", package]) {
                say(&format!("couldn't install {package}: {error}"));
            }
        }
    }
}

/// Installs missing programs where that is allowed, and lists the tests that are skipped without them.
pub fn install_missing(installs: bool) {
    let absent = missing();
    if absent.is_empty() {
        return;
    }
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    match refusal(installs, is_root, has("apt-get")) {
        Some(reason) => say(&format!("installs nothing: {reason}")),
        None => install(&absent),
    }
    for need in missing() {
        say(&format!("without {}, skipped: {}", need.program, need.skipped));
    }
}

/// Fetches the kernel of the guest machine: about 100 MB, once. Without it its tests are skipped.
pub fn fetch_guest(installs: bool) {
    if !has("qemu-system-x86_64") {
        return;
    }
    if !installs {
        say("fetches no kernel for the guest machine, as SILTSTONE_NO_INSTALL is set");
        return;
    }
    let mut command = Command::new("timeout");
    let fetched = command.args(["400", "tests/guest/fetch"]).stdin(Stdio::null()).status();
    if !fetched.is_ok_and(|status| status.success()) {
        say("without a kernel, skipped: the guest machine (the lines above say why)");
    }
}

/// Fetches all crates of Cargo.lock, some MB: a test compiles C sources of one that is never built. A build
/// fetches only what it builds.
pub fn fetch_sources(installs: bool) {
    let mut command = Command::new("timeout");
    command.args(["400", "cargo", "fetch", "--quiet"]).stdin(Stdio::null());
    if installs && !command.status().is_ok_and(|status| status.success()) {
        say("cargo fetch failed, skipped: littlefs on a flash chip, unless its sources are there");
    }
}

/// Installs VersityGW, a real object store, if Go is installed: about a minute, once. Its tests find it
/// in the same folder.
pub fn install_object_store(installs: bool) {
    let folder = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/siltstone-store"));
    let is_there =
        has("versitygw") || folder.as_ref().is_some_and(|folder| folder.join("versitygw").is_file());
    if is_there {
        return;
    }
    let skipped = "skipped: the client of object stores, and volumes in a bucket, on VersityGW";
    match folder.filter(|_| installs && has("go")) {
        None if installs => say(&format!("without go, {skipped}")),
        None => say(&format!("installs no versitygw, as SILTSTONE_NO_INSTALL is set; {skipped}")),
        Some(folder) => {
            let mut command = Command::new("timeout");
            command.args(["400", "go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"]);
            command.env("GOBIN", folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if !command.status().is_ok_and(|status| status.success()) {
                say(&format!("go install of versitygw failed, {skipped}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_listed_once_with_its_packages() {
        for (number, need) in NEEDS.iter().enumerate() {
            let Need { program, packages, skipped } = need;
            assert!(!packages.is_empty() && !skipped.is_empty(), "{program}");
            assert!(packages.iter().all(|package| !package.contains(' ')), "{program}");
            assert!(NEEDS[..number].iter().all(|earlier| earlier.program != *program), "{program}");
        }
    }

    #[test]
    fn a_program_is_an_executable_file_in_a_folder_of_the_path() {
        assert!(is_in(OsStr::new("/nowhere:/bin"), "sh"));
        assert!(!is_in(OsStr::new("/nowhere"), "sh") && !is_in(OsStr::new("/"), "bin"));
        assert!(!is_in(OsStr::new("/etc"), "passwd"), "it can't be executed");
    }

    #[test]
    fn only_root_installs_with_apt_get_unless_that_is_disabled() {
        assert_eq!(refusal(true, true, true), None);
        assert_eq!(refusal(true, true, false), Some("this system has no apt-get"));
        assert_eq!(refusal(true, false, true), Some("only root can"));
        assert_eq!(refusal(false, true, true), Some("as SILTSTONE_NO_INSTALL is set"));
    }
}
