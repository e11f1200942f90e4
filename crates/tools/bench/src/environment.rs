//! Environment of a measurement: the machine, the kernel, the file system under a file, the versions.
//!
//! Names of the machine and its users aren't collected.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// Environment of a measurement. Unknown fields are empty or 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The processor's model, as the kernel names it.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// The kernel's name, release and architecture.
    pub kernel: String,
    /// Name of the operating system.
    pub system: String,
    /// Memory of the machine, in bytes.
    pub memory: u64,
    /// Whether the processor reports a hypervisor.
    #[serde(default)]
    pub virtual_machine: bool,
    /// File system of each used file, by the file's name: `ext4 on /dev/sda1`.
    #[serde(default)]
    pub file_systems: BTreeMap<String, String>,
    /// Versions of the programs that took part.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment of this machine.
    pub fn collect() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let uname = rustix::system::uname();
        let words = [uname.sysname(), uname.release(), uname.machine()].map(|word| word.to_string_lossy());
        let mut environment = Environment {
            cpu: field(&cpuinfo, "model name", ':').unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: words.join(" "),
            system: field(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_default().replace('"', ""),
            memory: field(&read("/proc/meminfo"), "MemTotal", ':')
                .as_deref()
                .and_then(kibibytes)
                .unwrap_or(0),
            virtual_machine: cpuinfo
                .lines()
                .any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
            ..Environment::default()
        };
        environment.versions.insert("siltstone".into(), env!("CARGO_PKG_VERSION").into());
        environment
    }

    /// Adds the file system of a file, which may not exist yet. `name` is the user's name of the file.
    pub fn add_file(&mut self, name: &str, path: &Path) {
        if let Some(description) = file_system(&read("/proc/self/mountinfo"), path) {
            self.file_systems.insert(name.into(), description);
        }
    }

    /// Adds the version of a program: the first line of its output for `--version`. A program that can't be
    /// started is omitted.
    pub fn add_program(&mut self, program: &str) {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        let Ok(output) = output else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some(line) = text.lines().map(str::trim).find(|line| !line.is_empty()) {
            let name = Path::new(program).file_name().map_or(program.into(), |name| name.to_string_lossy());
            self.versions.insert(name.into_owned(), line.into());
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn field(text: &str, key: &str, separator: char) -> Option<String> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(separator));
    pairs.find(|(found, _)| found.trim() == key).map(|(_, value)| value.trim().to_owned())
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Mount of a path, from the kernel's `mountinfo` (Documentation/filesystems/proc.rst, 3.5).
fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let existing = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok())?;
    let mut best: Option<(usize, String)> = None;
    for line in mountinfo.lines() {
        let (mount, source) = line.split_once(" - ")?;
        let mount_point = mount.split(' ').nth(4)?.replace("\\040", " ");
        let mut words = source.split(' ');
        let (kind, device) = (words.next()?, words.next().unwrap_or_default());
        // A later mount on the same point hides the earlier one.
        let is_better = best.as_ref().is_none_or(|(length, _)| mount_point.len() >= *length);
        if existing.starts_with(&mount_point) && is_better {
            let on = if device.starts_with('/') { format!(" on {device}") } else { String::new() };
            best = Some((mount_point.len(), format!("{kind}{on}")));
        }
    }
    best.map(|(_, description)| description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_a_kernel_and_memory() {
        let mut environment = Environment::collect();
        environment.add_file("tests", Path::new("/tmp/not/there"));
        environment.add_program("no-such-program-anywhere");
        assert!(environment.cores > 0 && environment.memory > 1 << 20, "{environment:?}");
        assert!(environment.kernel.starts_with("Linux "), "{environment:?}");
        assert!(environment.file_systems.contains_key("tests"), "{environment:?}");
        assert_eq!(environment.versions.len(), 1);
    }

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let mountinfo = "\
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:5 / /proc rw - proc proc rw
3 1 0:6 / /usr rw shared:1 - overlay overlay rw
4 1 0:7 / /usr rw - xfs /dev/loop0 rw
";
        assert_eq!(file_system(mountinfo, Path::new("/usr/lib")).as_deref(), Some("xfs on /dev/loop0"));
        assert_eq!(file_system(mountinfo, Path::new("/etc")).as_deref(), Some("ext4 on /dev/sda1"));
        assert_eq!(file_system(mountinfo, Path::new("/proc/1")).as_deref(), Some("proc"));
    }
}
