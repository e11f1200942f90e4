//! Verbs for mounted file systems. They reach the server through extended attributes of the mount
//! ([`fs::mount`]).

use crate::arguments::{FsDefrag, FsScrub, FsUnmount};
use crate::failure::Failure;
use crate::output::{print, print_json, print_line};
use crate::progress::Reading;
use crate::server_process::{END_LIMIT, ServerProcess};
use block::Status;
use runtime::Config;
use serde_json::{Value, json};
use stack::format_size;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Type of mounted file systems in `/proc/mounts`.
const MOUNT_TYPE: &str = "fuse.siltstone";
/// Time limit for the server of a stack to end after its last door.
const DOOR_LIMIT: Duration = Duration::from_secs(30);
/// Longest answer in bytes: the kernel's limit for the value of an attribute.
const MAX_ANSWER: usize = 64 << 10;
/// Interval between reads of a scrub's progress.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

fn failed(path: &Path, error: impl Into<std::io::Error>) -> Failure {
    let error = error.into();
    match error.raw_os_error() {
        Some(libc::EPERM) => Failure::World(format!(
            "{}: permission denied; expected root; run the command as root",
            path.display()
        )),
        Some(libc::EBUSY) => {
            Failure::World(format!("{}: a scrub is running already; wait until it has ended", path.display()))
        }
        Some(libc::ENOENT) => Failure::Usage(format!(
            "mount point \"{}\": no such directory; expected one where a file system is mounted",
            path.display()
        )),
        _ => Failure::World(format!("{}: {error}", path.display())),
    }
}

/// Mount of a file system of siltstone.
pub(super) struct Mount {
    source: String,
    /// Mount point.
    pub(super) at: PathBuf,
    /// User and group that mounted it.
    owner: Option<(u32, u32)>,
}

/// Returns the user and the group among the options of a mount of FUSE.
fn owner(options: &str) -> Option<(u32, u32)> {
    let number = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name))?.parse().ok();
    Some((number("user_id=")?, number("group_id=")?))
}

/// Decodes a word of `/proc/mounts`, which has octal escapes for blanks and backslashes.
fn unescaped(word: &str) -> String {
    word.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Returns the mount that contains a path; `None` for another file system.
fn mount_of(path: &Path) -> Result<Option<Mount>, Failure> {
    let path = std::fs::canonicalize(path).map_err(|error| failed(path, error))?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| failed(&path, error))?;
    let of_line = |line: &str| {
        let mut words = line.split(' ').map(unescaped);
        Some((words.next()?, PathBuf::from(words.next()?), words.next()?, words.next()?))
    };
    // A later mount covers an earlier one at the same mount point, and the innermost mount contains the path.
    let innermost = mounts
        .lines()
        .filter_map(of_line)
        .filter(|(_, at, ..)| path.starts_with(at))
        .max_by_key(|(_, at, ..)| at.as_os_str().len());
    let ours = innermost.filter(|(_, _, kind, _)| kind == MOUNT_TYPE);
    Ok(ours.map(|(source, at, _, options)| Mount { source, at, owner: owner(&options) }))
}

/// Returns the mount at a directory.
pub(super) fn mount_at(directory: &Path) -> Result<Mount, Failure> {
    let path = std::fs::canonicalize(directory).map_err(|error| failed(directory, error))?;
    mount_of(&path)?.filter(|mount| mount.at == path).ok_or_else(|| {
        Failure::Usage(format!(
            "{}: no file system of siltstone is mounted there; expected its mount point",
            directory.display()
        ))
    })
}

fn ask(path: &Path, name: &str) -> Result<Value, Failure> {
    let mut buffer = vec![0; MAX_ANSWER];
    let length = rustix::fs::getxattr(path, name, &mut buffer[..]).map_err(|error| failed(path, error))?;
    serde_json::from_slice(&buffer[..length]).map_err(|error| {
        Failure::World(format!(
            "{}: invalid answer of the server: {error}; expected JSON; use the program that mounted it",
            path.display()
        ))
    })
}

fn tell(path: &Path, name: &str) -> Result<(), Failure> {
    rustix::fs::setxattr(path, name, b"1", rustix::fs::XattrFlags::empty())
        .map_err(|error| failed(path, error))
}

/// Returns the status of the file system at a mount that only its owner may use, not even root.
fn asked_as_owner(mount: &Mount) -> Result<Value, Failure> {
    let refused = |why: &str| {
        Failure::World(format!(
            "{}: permission denied{why}; expected the user who mounted it, or root",
            mount.at.display()
        ))
    };
    let (user, group) = mount.owner.ok_or_else(|| refused(""))?;
    let output = Command::new("/proc/self/exe")
        .args(["fs", "status", "--json", "--"])
        .arg(&mount.at)
        .current_dir("/")
        .uid(user)
        .gid(group)
        .output()
        .map_err(|error| refused(&format!(", asking as user {user}: {error}")))?;
    let why = || format!(", asking as user {user}: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).map_err(|_| refused(&why()))
}

/// Unmounts, and waits until the server has ended.
///
/// # Errors
/// A directory that isn't a mount point, or is in use; a server that can't be waited for, though it is
/// unmounted; one that doesn't end within [`END_LIMIT`].
pub fn unmount(arguments: &FsUnmount) -> Result<(), Failure> {
    let mount = mount_at(&arguments.directory)?;
    let shown = mount.at.display();
    let told = || {
        let status = match rustix::fs::getxattr(&mount.at, "siltstone.status", &mut [0; 0][..]) {
            Err(rustix::io::Errno::ACCESS) => asked_as_owner(&mount)?,
            _ => ask(&mount.at, "siltstone.status")?,
        };
        status["process"].as_u64().ok_or_else(|| {
            Failure::World(format!(
                "{shown}: its status has no process; expected a number; use the program that mounted it"
            ))
        })
    };
    let server = told().and_then(|number| ServerProcess::of(&shown.to_string(), number));
    let unmounting = fuse::Mount::existing(mount.at.clone());
    runtime::run(Config::default(), move || async move { unmounting.unmount().await })??;
    let server = server.map_err(|failure| {
        Failure::World(format!(
            "{failure}; unmounted without waiting for the server: what it has accepted is durable once it has ended"
        ))
    })?;
    // A server with other doors continues.
    let is_door = mount.source == fs::mount::kind::SOURCE;
    match server.has_ended(if is_door { DOOR_LIMIT } else { END_LIMIT })? {
        false if is_door => print_line(&format!(
            "{shown}: unmounted; its server (process {}) serves other doors of its stack, and siltstone stop ends it",
            server.number()
        )),
        false => Err(Failure::World(format!(
            "{shown}: unmounted, but its server (process {}) hasn't ended within {} s; expected its end; if it serves other doors, \
             stop it with SIGTERM, else wait: what it has accepted is durable once it has ended",
            server.number(),
            END_LIMIT.as_secs()
        ))),
        true => print_line(&format!("{shown}: unmounted; its server has ended")),
    }
}

/// Returns the status of the file system that is mounted at a directory.
///
/// # Errors
/// A directory that isn't a mount point; errors of the server.
pub fn status(directory: &Path) -> Result<Status, Failure> {
    let mount = mount_at(directory)?;
    let mut status = Status::new();
    status.insert("image".into(), json!(mount.source));
    status.insert("mount".into(), json!(mount.at));
    if let Value::Object(all) = ask(&mount.at, "siltstone.status")? {
        status.extend(all);
    }
    Ok(status)
}

/// Reads all data and metadata, and prints the damage.
///
/// # Errors
/// A directory that isn't a mount point; a user other than root; [`Failure::Said`] for damage.
pub fn scrub(arguments: &FsScrub) -> Result<(), Failure> {
    let mount = mount_at(&arguments.directory)?;
    tell(&mount.at, "siltstone.scrub")?;
    let bar = Reading::new();
    let status = loop {
        let status = ask(&mount.at, "siltstone.scrub")?;
        let bytes = |name: &str| status[name].as_u64().unwrap_or(0) * fs::format::BLOCK;
        bar.at(bytes("read_blocks"), bytes("blocks").max(bytes("read_blocks")));
        if status["running"] == json!(false) {
            break status;
        }
        runtime::run(Config::default(), || async { runtime::sleep(BETWEEN_LOOKS).await })?;
    };
    drop(bar);
    if let Some(error) = status["error"].as_str() {
        return Err(Failure::World(format!("{}: {error}", mount.at.display())));
    }
    let damaged = status["damaged"].as_u64().unwrap_or(0);
    if arguments.json {
        print_json(&status)?;
    } else {
        let read = status["read_blocks"].as_u64().unwrap_or(0) * fs::format::BLOCK;
        let mut out = format!(
            "{}: {} of data and {} pages of metadata compared with checksums\n",
            mount.at.display(),
            format_size(read),
            status["pages"]
        );
        let described: Vec<&str> =
            status["damage"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        described.iter().for_each(|line| out += &format!("{line}\n"));
        if damaged > described.len() as u64 {
            out += &format!("and {} more\n", damaged - described.len() as u64);
        }
        out += if damaged == 0 { "no damage\n" } else { "DAMAGED\n" };
        print(&out)?;
    }
    if damaged == 0 { Ok(()) } else { Err(Failure::Said) }
}

/// Rewrites fragmented files.
///
/// # Errors
/// A path that isn't in a mounted file system of siltstone; a user other than root; no space.
pub fn defrag(arguments: &FsDefrag) -> Result<(), Failure> {
    let path = &arguments.path;
    if mount_of(path)?.is_none() {
        return Err(Failure::Usage(format!(
            "{}: not in a mounted file system of siltstone; expected a file or a directory in one",
            path.display()
        )));
    }
    let mut files = Vec::new();
    collect(path, &mut files)?;
    let (mut before, mut after, mut rewritten) = (0, 0, 0_u64);
    for file in &files {
        let fragments = |status: Value| status["fragments"].as_u64().unwrap_or(0);
        let had = fragments(ask(file, "siltstone.defrag")?);
        tell(file, "siltstone.defrag")?;
        let has = fragments(ask(file, "siltstone.defrag")?);
        (before, after) = (before + had, after + has);
        if has != had {
            rewritten += 1;
            if !arguments.json {
                print_line(&format!("{}: {had} fragments, now {has}", file.display()))?;
            }
        }
    }
    if arguments.json {
        return print_json(&json!({
            "files": files.len(), "rewritten": rewritten, "fragments_before": before, "fragments": after,
        }));
    }
    print_line(&format!("{} files with {before} fragments, now {after}", files.len()))
}

/// Collects the regular files at and below a path.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let found = std::fs::symlink_metadata(path).map_err(|error| failed(path, error))?;
    if found.is_file() {
        files.push(path.to_owned());
    } else if found.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|error| failed(path, error))? {
            collect(&entry.map_err(|error| failed(path, error))?.path(), files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_mount_is_among_its_options() {
        let options = "rw,nosuid,nodev,relatime,user_id=1000,group_id=100,default_permissions";
        assert_eq!(owner(options), Some((1000, 100)));
        assert_eq!(owner("rw,relatime,user_id=1000"), None);
    }
}
