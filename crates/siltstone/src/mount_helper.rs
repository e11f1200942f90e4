//! The program as a helper of mount(8) and umount(8), by links to it in /sbin: `mount.siltstone`, for lines
//! of fstab(5) with the type `siltstone`, and `umount.fuse.siltstone`.
//!
//! The first one starts `siltstone fs mount` in the background and ends when the mount can be used; the
//! second one ends when everything is durable. Exit statuses are those of mount(8).

use crate::arguments::FsUnmount;
use crate::background::{self, Started};
use crate::fs_verb::mounted;
use crate::output::say;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Exit statuses of mount(8).
const USAGE: u8 = 1;
const SYSTEM: u8 = 2;
const FAILED: u8 = 32;

const USAGE_TEXT: &str = "mount.siltstone: usage: mount.siltstone IMAGE DIRECTORY [-fnsv] [-o OPTION,...]\n\
                          Options are those of siltstone fs mount -o, and shards=N, memory=SIZE, background_shares=N, salvage, \
                          warn_at=PERCENT[:PERCENT...], warn_command=PROGRAM, log_to=syslog|FILE.";

/// Does the work of the helper whose name this program was called by. Returns `None` for other names.
pub fn run_if_called() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    let name = Path::new(&name).file_name()?.to_str()?.to_owned();
    let arguments = || arguments.map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let status = match name.as_str() {
        "mount.siltstone" | "mount.fuse.siltstone" => mount(&arguments()),
        "umount.siltstone" | "umount.fuse.siltstone" => unmount(&arguments()),
        _ => return None,
    };
    Some(ExitCode::from(status))
}

/// Arguments of `mount.siltstone`.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    image: String,
    directory: String,
    /// Arguments of `siltstone fs mount` besides the image and the directory.
    options: Vec<String>,
    log_to: Option<String>,
    /// Only check the arguments (`-f`).
    is_fake: bool,
}

/// Options that are for mount(8), systemd and fsck, not for the file system.
fn is_for_others(name: &str) -> bool {
    matches!(
        name,
        "defaults"
            | "auto"
            | "noauto"
            | "nofail"
            | "_netdev"
            | "user"
            | "nouser"
            | "users"
            | "group"
            | "owner"
            | "comment"
            | "uhelper"
            | "helper"
    ) || name.starts_with("x-")
        || name.starts_with("X-")
}

fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let mut names = Vec::new();
    let (mut lists, mut is_fake) = (Vec::new(), false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "-o" => lists.push(rest.next().ok_or("-o: expected a list of options after it")?.as_str()),
            // A namespace and the type, which mount(8) has used already.
            "-N" | "-t" => {
                rest.next().ok_or_else(|| format!("{argument}: expected a value after it"))?;
            }
            flags if flags.len() > 1 && flags.starts_with('-') => {
                let unknown = flags[1..].chars().find(|flag| !"fnsv".contains(*flag));
                if let Some(unknown) = unknown {
                    return Err(format!("-{unknown}: unknown option; {USAGE_TEXT}"));
                }
                is_fake |= flags.contains('f');
            }
            name => names.push(name.to_owned()),
        }
    }
    let [image, directory] = names.as_slice() else { return Err(USAGE_TEXT.to_owned()) };
    let (mut options, mut passed, mut log_to) = (Vec::new(), Vec::new(), None);
    for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
        let name = option.split('=').next().unwrap_or_default();
        match (name, option.split_once('=')) {
            ("remount", _) => {
                return Err(format!("{directory}: remount isn't supported; unmount it and mount it again"));
            }
            ("log_to", Some((_, value))) => log_to = Some(value.to_owned()),
            ("shards" | "memory" | "background_shares", Some((_, value))) => {
                options.push(format!("--{}={value}", name.replace('_', "-")));
            }
            // Commas separate options.
            ("warn_at", Some((_, value))) => {
                options.push(format!("--warn-at={}", value.replace(':', ",")));
            }
            ("warn_command", Some((_, value))) => options.push(format!("--warn-command={value}")),
            ("salvage", None) => options.push("--salvage".to_owned()),
            (name, _) if is_for_others(name) => {}
            _ => passed.push(option),
        }
    }
    if !passed.is_empty() {
        options.extend(["-o".to_owned(), passed.join(",")]);
    }
    Ok(Wanted { image: image.clone(), directory: directory.clone(), options, log_to, is_fake })
}

fn mount(arguments: &[String]) -> u8 {
    let wanted = match parse(arguments) {
        Ok(wanted) => wanted,
        Err(error) => {
            say(&error);
            return USAGE;
        }
    };
    if wanted.is_fake {
        return 0;
    }
    match start(&wanted) {
        Ok(status) => status,
        Err(error) => {
            say(&format!("mount.siltstone: {}: {error}", wanted.image));
            SYSTEM
        }
    }
}

/// Starts the server, and waits until it has mounted or has ended.
fn start(wanted: &Wanted) -> std::io::Result<u8> {
    let absolute = |path: &str| std::path::absolute(path);
    let mut command = background::command();
    match &wanted.log_to {
        Some(target) => command.arg(format!("--log-to={target}")),
        None => command.args(background::default_log()),
    };
    command.args(["fs", "mount"]).args(&wanted.options).arg("--");
    command.args([absolute(&wanted.image)?, absolute(&wanted.directory)?]);
    // A working directory would keep its file system in use.
    command.current_dir("/");
    Ok(match background::start(command)? {
        Started::Ready(_) => 0,
        // A usage error of the server is one of this helper's arguments.
        Started::Ended(status) if status.code() == Some(2) => USAGE,
        Started::Ended(_) => FAILED,
    })
}

/// Unmounts and waits for the server, as `siltstone fs unmount` does. Lazy and forced unmounts, and a mount
/// whose server has ended, are left to umount(8).
fn unmount(arguments: &[String]) -> u8 {
    let mut directory = None;
    let mut is_plain = true;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "-N" | "-t" => {
                rest.next();
            }
            flags if flags.starts_with('-') => is_plain &= !flags.contains(['f', 'l']),
            path => directory = Some(path),
        }
    }
    let Some(directory) = directory else {
        say("umount.fuse.siltstone: usage: umount.fuse.siltstone DIRECTORY [-flnrv]");
        return USAGE;
    };
    let is_lost = std::fs::metadata(directory).is_err_and(|error| is_of_lost_server(&error));
    if !is_plain || is_lost {
        let flags = arguments.iter().filter(|argument| argument.starts_with('-'));
        return umount(flags.map(OsStr::new).chain([OsStr::new(directory)]));
    }
    match mounted::unmount(&FsUnmount { directory: directory.into() }) {
        Ok(()) => 0,
        Err(failure) => {
            say(&failure.to_string());
            FAILED
        }
    }
}

/// Whether an error of a mount means that its server has ended. After others, such as EACCES for root at the
/// mount of a user, the data that the server has accepted may still become durable.
fn is_of_lost_server(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Runs umount(8) without helpers.
fn umount<'a>(arguments: impl Iterator<Item = &'a OsStr>) -> u8 {
    match Command::new("umount").arg("-i").args(arguments).status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED),
        Err(error) => {
            say(&format!("umount: {error}; expected the program of util-linux"));
            SYSTEM
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Wanted, String> {
        parse(&arguments.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_go_to_whom_they_are_for() {
        let wanted = parsed(
            "/srv/vol.img /mnt -n -o rw,nofail,_netdev,x-systemd.requires=net,noatime,shards=2,memory=1GiB,warn_at=70:90,warn_command=/w,uid=7,log_to=/l",
        )
        .unwrap();
        assert_eq!((wanted.image.as_str(), wanted.directory.as_str()), ("/srv/vol.img", "/mnt"));
        assert_eq!(
            wanted.options,
            ["--shards=2", "--memory=1GiB", "--warn-at=70,90", "--warn-command=/w", "-o", "rw,noatime,uid=7"]
        );
        assert_eq!(wanted.log_to.as_deref(), Some("/l"));
        assert!(!wanted.is_fake);
    }

    #[test]
    fn a_mount_that_refuses_this_user_still_has_its_server() {
        let lost = |errno| is_of_lost_server(&std::io::Error::from_raw_os_error(errno));
        assert!(lost(libc::ENOTCONN) && lost(libc::ECONNABORTED));
        assert!(![libc::EACCES, libc::EPERM, libc::EIO, libc::ENOENT].into_iter().any(lost));
    }

    #[test]
    fn the_forms_of_mount_are_understood() {
        let wanted = parsed("-sf -t siltstone vol.img -o salvage /mnt").unwrap();
        assert!(wanted.is_fake);
        assert_eq!(wanted.options, ["--salvage"]);
        for wrong in ["vol.img", "a b c", "a b -o", "a b -x", "a b -o remount,ro"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
