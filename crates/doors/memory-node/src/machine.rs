//! Measurements of the machine's memory: /proc/meminfo, pressure stall information, and the control groups
//! that limit this process.
//!
//! The limit of a control group applies to all processes in it and in its descendants, so each group from
//! this process's own to the root is read, and the one with the least memory left is authoritative. Memory
//! that the kernel can reclaim at once (the inactive file pages in `memory.stat`) isn't counted as used. Both
//! versions of the interface are supported: version 1 (`memory.limit_in_bytes`), and version 2 (`memory.max`,
//! and `memory.high`, above which the kernel throttles the processes).

use block::{Error, Result};
use std::path::{Path, PathBuf};

/// Memory of the machine at one time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measurement {
    /// Total memory of the machine.
    pub total: u64,
    /// Memory that programs can allocate without swapping: MemAvailable.
    pub available: u64,
    /// Share of the last ten seconds in which some task waited for memory, in percent; `None` for a kernel
    /// without PSI.
    pub some_avg10: Option<f64>,
    /// The control group with the least memory left; `None` without a limit.
    pub cgroup: Option<Cgroup>,
}

/// Memory of a control group, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cgroup {
    /// Limit.
    pub limit: u64,
    /// Used memory that can't be reclaimed at once.
    pub used: u64,
}

impl Cgroup {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl Measurement {
    /// Memory that this process can allocate, in bytes.
    pub fn available(&self) -> u64 {
        self.cgroup.map_or(self.available, |cgroup| self.available.min(cgroup.left()))
    }

    /// Memory that this process could allocate on an idle machine, in bytes.
    pub fn total(&self) -> u64 {
        self.cgroup.map_or(self.total, |cgroup| self.total.min(cgroup.limit))
    }
}

/// Measures the machine that this process runs on.
///
/// # Errors
/// Errors of reading /proc/meminfo. Missing pressure stall information and control groups are no error.
pub fn measure() -> Result<Measurement> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(|error| Error::from_io(&error, path))?;
    let number = |name: &str| {
        field(&text, name).ok_or_else(|| {
            Error::unsupported(format!("{path} has no line \"{name}\" in kB; expected Linux 3.14 or newer"))
        })
    };
    let pressure = std::fs::read_to_string("/proc/pressure/memory").ok();
    Ok(Measurement {
        total: number("MemTotal:")?,
        available: number("MemAvailable:")?,
        some_avg10: pressure.and_then(|text| some_avg10(&text)),
        cgroup: tightest(&groups()),
    })
}

/// Parses a number of kB in /proc/meminfo into bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the average over ten seconds of the line "some" of /proc/pressure/memory, in percent.
fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let number = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    number.parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0)
}

/// A control group that may limit this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    is_version_2: bool,
}

/// Control groups of this process and their ancestors.
fn groups() -> Vec<Group> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    groups_of(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), &|folder| folder.is_dir())
}

/// Control groups in the texts of /proc/self/cgroup and /proc/self/mountinfo.
fn groups_of(memberships: &str, mounts: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<Group> {
    let mut groups = Vec::new();
    for membership in memberships.lines() {
        let mut fields = membership.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_version_2 = number == "0" && controllers.is_empty();
        if !is_version_2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        for (root, mount) in mounts.lines().filter_map(|line| mount_of(line, is_version_2)) {
            let below = Path::new(path).strip_prefix(root).or_else(|_| Path::new(path).strip_prefix("/"));
            // In a container the path may be relative to the machine's hierarchy, which isn't mounted: then
            // the mount is the group.
            let own = below.map(|below| mount.join(below)).ok().filter(|folder| exists(folder));
            let own = own.unwrap_or_else(|| mount.clone());
            let folders = own.ancestors().take_while(|folder| folder.starts_with(&mount));
            groups.extend(folders.map(|folder| Group { folder: folder.to_owned(), is_version_2 }));
        }
    }
    groups
}

/// Root and mount point of a line of mountinfo, if it is a mount of memory groups (proc_pid_mountinfo(5)).
fn mount_of(line: &str, is_version_2: bool) -> Option<(&Path, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split_whitespace();
    let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let fits = match is_version_2 {
        true => name == "cgroup2",
        false => name == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    let mut place = place.split_whitespace().skip(3);
    let (root, mount) = (place.next()?, place.next()?);
    fits.then(|| (Path::new(root), PathBuf::from(mount.replace("\\040", " "))))
}

/// Memory of the group with the least memory left.
fn tightest(groups: &[Group]) -> Option<Cgroup> {
    let read = |group: &Group| {
        let file = |name: &str| std::fs::read_to_string(group.folder.join(name)).ok();
        match group.is_version_2 {
            true => {
                let limits = [file("memory.max"), file("memory.high")];
                let limit = limits.iter().flatten().filter_map(|text| limit(text)).min()?;
                let reclaimable = file("memory.stat").and_then(|text| counter(&text, "inactive_file "));
                used(limit, &file("memory.current")?, reclaimable)
            }
            false => {
                let limit = limit(&file("memory.limit_in_bytes")?)?;
                let reclaimable = file("memory.stat").and_then(|text| counter(&text, "total_inactive_file "));
                used(limit, &file("memory.usage_in_bytes")?, reclaimable)
            }
        }
    };
    groups.iter().filter_map(read).min_by_key(Cgroup::left)
}

/// Parses a limit in bytes; `None` for "max", and for the huge numbers that mean no limit in version 1.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|limit| *limit < 1 << 62)
}

fn used(limit: u64, used: &str, reclaimable: Option<u64>) -> Option<Cgroup> {
    let used = used.trim().parse::<u64>().ok()?;
    Some(Cgroup { limit, used: used.saturating_sub(reclaimable.unwrap_or(0)) })
}

/// Parses a number of `memory.stat`.
fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
