//! Facts of the machine and of a server's process, from `/proc` and `/sys`.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most bytes of one file of the system.
const MAX_BYTES: u64 = 64 << 10;
/// Modules of the kernel that doors, leaves and attachments use.
const MODULES: [&str; 8] =
    ["fuse", "ublk_drv", "nbd", "vhost", "virtio_blk", "dm_mod", "null_blk", "io_uring"];
/// Device nodes that they use.
const DEVICES: [&str; 4] = ["/dev/fuse", "/dev/ublk-control", "/dev/nbd0", "/dev/kvm"];
/// Settings of the kernel that change what a server can do.
const SETTINGS: [&str; 8] = [
    "kernel/io_uring_disabled",
    "kernel/io_uring_group",
    "fs/aio-max-nr",
    "fs/file-max",
    "fs/pipe-max-size",
    "vm/overcommit_memory",
    "vm/swappiness",
    "vm/nr_hugepages",
];

fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn section(text: &mut String, heading: &str, contents: Option<&str>) {
    let _ = write!(text, "\n== {heading}\n{}\n", contents.unwrap_or("not readable"));
}

/// Returns the lines that begin with one of these words.
fn lines(text: &str, words: &[&str]) -> String {
    let is_wanted = |line: &&str| words.iter().any(|word| line.starts_with(word));
    text.lines().filter(is_wanted).collect::<Vec<_>>().join("\n")
}

/// Describes the program and the machine.
pub fn facts() -> String {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let map_home = if cfg!(feature = "map-home") { ", map-home" } else { "" };
    let mut text = format!(
        "siltstone {}, {build} build for {}{map_home}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    section(&mut text, "kernel", read("/proc/version").as_deref());
    let release = read("/etc/os-release").map(|release| lines(&release, &["PRETTY_NAME", "VERSION_ID"]));
    section(&mut text, "distribution", release.as_deref());
    section(&mut text, "processors", read("/proc/cpuinfo").map(|info| processors(&info)).as_deref());
    let memory = [
        "MemTotal",
        "MemFree",
        "MemAvailable",
        "Swap",
        "Dirty",
        "Writeback:",
        "Mlocked",
        "HugePages_",
        "Hugepagesize",
    ];
    let memory = read("/proc/meminfo").map(|info| lines(&info, &memory));
    section(&mut text, "memory", memory.as_deref());
    for resource in ["memory", "io", "cpu"] {
        section(
            &mut text,
            &format!("pressure, {resource}"),
            read(format!("/proc/pressure/{resource}")).as_deref(),
        );
    }
    section(&mut text, "limits of this process", read("/proc/self/limits").as_deref());
    let mut settings = String::new();
    for name in SETTINGS {
        let value = read(format!("/proc/sys/{name}"));
        let _ = writeln!(settings, "{} = {}", name.replace('/', "."), value.as_deref().unwrap_or("-"));
    }
    section(&mut text, "settings of the kernel", Some(settings.trim_end()));
    section(&mut text, "modules and devices", Some(modules().trim_end()));
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains("siltstone")).collect();
    section(&mut text, "mounts", Some(if mounts.is_empty() { "none" } else { "" }));
    for mount in mounts {
        let _ = writeln!(text, "{mount}");
    }
    text
}

/// Returns the number of processors, and the name of the first one.
fn processors(info: &str) -> String {
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let usable = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let name = info.lines().find(|line| line.starts_with("model name")).unwrap_or("model name: -");
    format!("{count} listed, {usable} usable by this process\n{name}")
}

fn modules() -> String {
    let mut text = String::new();
    for name in MODULES {
        let folder = Path::new("/sys/module").join(name);
        let is_there = if folder.is_dir() { "present" } else { "-" };
        let _ = writeln!(text, "{name}: {is_there}");
        let parameters = std::fs::read_dir(folder.join("parameters")).into_iter().flatten().flatten();
        for parameter in parameters.take(50) {
            let value = read(parameter.path()).unwrap_or_default();
            let _ = writeln!(text, "  {} = {value}", parameter.file_name().to_string_lossy());
        }
    }
    for path in DEVICES {
        let access = rustix::fs::access(path, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK);
        let _ = match access {
            Ok(()) => writeln!(text, "{path}: usable"),
            Err(error) => writeln!(text, "{path}: {error}"),
        };
    }
    text
}

/// Describes a server's process, and returns the file of its log if its command line names one.
pub fn process(number: u32) -> (String, Option<PathBuf>) {
    let folder = PathBuf::from(format!("/proc/{number}"));
    let words = read(folder.join("cmdline")).unwrap_or_default();
    let words: Vec<&str> = words.split('\0').filter(|word| !word.is_empty()).collect();
    let mut text = format!("process {number}\n");
    section(&mut text, "command line", Some(&words.join(" ")));
    let wanted =
        ["Name", "State", "Uid", "Threads", "VmPeak", "VmRSS", "VmLck", "VmSwap", "Cpus_allowed_list"];
    section(
        &mut text,
        "status",
        read(folder.join("status")).map(|status| lines(&status, &wanted)).as_deref(),
    );
    section(&mut text, "limits", read(folder.join("limits")).as_deref());
    let descriptors = std::fs::read_dir(folder.join("fd")).map(|entries| entries.count().to_string()).ok();
    section(&mut text, "open descriptors", descriptors.as_deref());
    let log = log_of(&words).map(|log| {
        let working = std::fs::read_link(folder.join("cwd")).unwrap_or_default();
        working.join(log)
    });
    (text, log)
}

/// Returns the file of `--log-to` on a command line.
fn log_of<'a>(words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == "--log-to" || word.starts_with("--log-to="))?;
    let target = words[at].strip_prefix("--log-to=").or_else(|| words.get(at + 1).copied())?;
    (target != "stderr" && target != "syslog").then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_found_on_the_command_line() {
        assert_eq!(log_of(&["siltstone", "--log-to", "a.log", "serve"]), Some("a.log"));
        assert_eq!(log_of(&["siltstone", "serve", "--log-to=/b.log"]), Some("/b.log"));
        assert_eq!(log_of(&["siltstone", "serve", "--log-to"]), None);
        assert_eq!(log_of(&["siltstone", "serve", "--log-to=syslog"]), None);
    }

    #[test]
    fn this_machine_and_this_process_have_facts() {
        let facts = facts();
        for part in ["== kernel\nLinux", "MemTotal", "Max locked memory", "io_uring_disabled", "fuse: "] {
            assert!(facts.contains(part), "{part}: {facts}");
        }
        let (text, log) = process(std::process::id());
        assert!(text.contains("VmRSS") && log.is_none(), "{text}");
    }
}
