//! Mounting and unmounting: by mount(2) with privileges, else by the program `fusermount3`.
//!
//! # Promises
//! - The type of the mount point (regular file or directory) is the type of the root node.
//! - A mount whose server has ended (ENOTCONN) is replaced; its users still get errors. Any other mount
//!   remains below the new one.
//! - [`Mount::unmount`] is never lazy; [`Mount::detach`] is.
//!
//! Calls that may wait for the file system run on threads of their own, so that the shards can serve it
//! meanwhile.

use crate::apart::Apart;
use block::{Error, Result};
use runtime::AbortOnHang;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The kernel's device.
pub const DEVICE: &str = "/dev/fuse";
/// Program that mounts for users without privileges.
const HELPER: &str = "fusermount3";

/// Options of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Mount point: an existing directory or regular file.
    pub path: PathBuf,
    /// Name in the first column of `/proc/mounts`.
    pub source: String,
    /// Refuse writes.
    pub read_only: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Don't update access times.
    pub no_access_times: bool,
    /// Let other users than the mounting one use the file system, as its permissions allow.
    pub allow_other: bool,
    /// Let a new server [adopt](crate::Session::adopt) the connection. Its requests then come by the device,
    /// since the kernel doesn't resend those in a ring.
    pub adoptable: bool,
}

/// A mounted file system.
#[derive(Debug, Clone)]
pub struct Mount {
    path: PathBuf,
    /// Number of its connection, if it could be found.
    connection: Option<u32>,
    /// Aborts the connection if this process hangs; `None` for a mount of another process, or one that it may
    /// not abort.
    _aborted_on_hang: Option<Arc<AbortOnHang>>,
}

fn failed(error: rustix::io::Errno, doing: impl std::fmt::Display) -> Error {
    Error::from_io(&error.into(), &doing.to_string())
}

impl Mount {
    /// Returns the file system that is mounted at this path, for [`Session::adopt`](crate::Session::adopt).
    pub fn existing(path: PathBuf) -> Mount {
        Mount::at(path)
    }

    fn at(path: PathBuf) -> Mount {
        Mount { connection: crate::connection::number_at(&path), path, _aborted_on_hang: None }
    }

    /// As [`at`](Self::at), for a mount that ends with this process.
    fn made_at(path: PathBuf) -> Mount {
        let mount = Mount::at(path);
        let abort = mount.connection.and_then(crate::connection::open_abort);
        Mount { _aborted_on_hang: abort.and_then(AbortOnHang::new).map(Arc::new), ..mount }
    }

    /// Mount point, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts, and returns the device that the kernel sends requests to. The first request is INIT.
    ///
    /// # Errors
    /// [`Error::NotFound`] without the mount point or the device, [`Error::PermissionDenied`] without
    /// privileges and `fusermount3`, errors of the kernel.
    pub async fn mount(options: MountOptions) -> Result<(Mount, OwnedFd)> {
        runtime::blocking(move || mount(&options)).await
    }

    /// Unmounts.
    ///
    /// # Errors
    /// [`Error::Busy`] while files are open or the mount point is in use otherwise; [`Error::NotFound`] if
    /// the path isn't a mount point.
    pub async fn unmount(&self) -> Result<()> {
        let path = self.path.clone();
        runtime::blocking(move || unmount(&path, false)).await
    }

    /// As [`unmount`](Self::unmount), by a separate process, for which a killed server doesn't wait.
    pub(crate) async fn unmount_by(&self, apart: &Apart) -> Result<()> {
        let Some(errno) = apart.unmount(&self.path).await else { return self.unmount().await };
        let path = self.path.clone();
        let outcome = match errno {
            0 => Ok(()),
            errno => Err(rustix::io::Errno::from_raw_os_error(errno)),
        };
        runtime::blocking(move || unmounted(&path, false, outcome)).await
    }

    /// Removes the mount from its path at once; the kernel ends it when the last user has closed its files
    /// (MNT_DETACH).
    ///
    /// # Errors
    /// [`Error::NotFound`] if the path isn't a mount point.
    pub async fn detach(&self) -> Result<()> {
        let path = self.path.clone();
        runtime::blocking(move || unmount(&path, true)).await
    }

    /// Opens the file that aborts the connection; `None` if it isn't known or not this user's.
    pub(crate) fn open_abort(&self) -> Option<OwnedFd> {
        let connection = self.connection?;
        let opened = crate::connection::open_abort(connection);
        opened.or_else(|| crate::connection::open_abort_detached(connection).ok())
    }

    /// Aborts the connection and removes the mount, if it is still the topmost one at its path.
    pub(crate) async fn abort(&self) -> Result<()> {
        let Mount { path, connection: Some(connection), .. } = self.clone() else { return Ok(()) };
        runtime::blocking(move || crate::connection::abort_mount(&path, connection)).await
    }
}

fn mount(options: &MountOptions) -> Result<(Mount, OwnedFd)> {
    let given = options.path.display();
    let looking = |error: std::io::Error| Error::from_io(&error, &format!("mount point {given}"));
    // Attributes of a mount without a server may be cached; its sizes aren't.
    let found = rustix::fs::statfs(&options.path).map_err(std::io::Error::from);
    let metadata = match found.and_then(|_| std::fs::metadata(&options.path)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            detach_now(&options.path)
                .map_err(|error| error.in_context(format_args!("the server of {given} has ended")))?;
            tracing::info!("{given}: unmounted; its server had ended");
            std::fs::metadata(&options.path).map_err(looking)?
        }
        other => other.map_err(looking)?,
    };
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(Error::invalid(format!(
            "mount point {given}: neither a regular file nor a directory; expected one of them"
        )));
    }
    let path = std::fs::canonicalize(&options.path).map_err(looking)?;
    match mount_directly(options, &path, metadata.mode()) {
        Err(Error::PermissionDenied(_) | Error::Os(libc::EPERM, _)) => {
            let device = mount_by_helper(HELPER, options, &path)?;
            Ok((Mount::made_at(path), device))
        }
        other => other.map(|device| (Mount::made_at(path), device)),
    }
}

fn mount_directly(options: &MountOptions, path: &Path, mode: u32) -> Result<OwnedFd> {
    let device = runtime::message_device::open(Path::new(DEVICE)).map_err(|error| match error {
        Error::NotFound(_) | Error::Os(libc::ENODEV | libc::ENXIO, _) => Error::not_found(format!(
            "{DEVICE}: not there; expected the kernel's FUSE module; run: modprobe fuse"
        )),
        other => other,
    })?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!(
        "fd={},rootmode={:o},user_id={user},group_id={group},default_permissions",
        device.as_raw_fd(),
        mode & libc::S_IFMT
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Error::invalid("mount options: with a NUL"))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NOATIME, options.no_access_times);
    rustix::mount::mount(options.source.as_str(), path, "fuse.siltstone", flags, data.as_c_str())
        .map_err(|error| failed(error, format_args!("mounting {}", path.display())))?;
    Ok(device)
}

/// Mounts by `fusermount3`, which sends the open device over the socket that its environment names.
fn mount_by_helper(helper: &str, options: &MountOptions, path: &Path) -> Result<OwnedFd> {
    let socket = |error| failed(error, "making a socket for fusermount3");
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(socket)?;
    let mut text = format!(
        "{},nosuid,nodev,default_permissions,subtype=siltstone,fsname={}",
        if options.read_only { "ro" } else { "rw" },
        options.source.replace('\\', "\\\\").replace(',', "\\,")
    );
    for (is_given, option) in [
        (options.no_exec, ",noexec"),
        (options.no_access_times, ",noatime"),
        (options.allow_other, ",allow_other"),
    ] {
        if is_given {
            text.push_str(option);
        }
    }
    let mut command = Command::new(helper);
    command.args(["-o", &text, "--"]).arg(path).env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs));
    run_helper(&mut command, &format!("mounting {}", path.display()))?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
        .map_err(|error| failed(error, "receiving the device of fusermount3"))?;
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    sent.ok_or_else(|| Error::protocol(format!("{HELPER}: sent no descriptor; expected that of {DEVICE}")))
}

fn run_helper(command: &mut Command, doing: &str) -> Result<()> {
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::permission_denied(format!(
            "{doing}: not permitted, and there is no {HELPER}; expected one of both; run as root or install fuse3"
        )),
        _ => Error::from_io(&error, &format!("running {HELPER}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let detail = format!("{doing}: {}", said.trim());
    Err(match said.contains("busy") {
        true => Error::busy(detail),
        false => Error::permission_denied(detail),
    })
}

/// Unmounts with the privileges of this process.
///
/// # Errors
/// Errors of umount(2).
pub(crate) fn unmount_directly(path: &Path, lazily: bool) -> rustix::io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazily);
    rustix::mount::unmount(path, flags)
}

/// Removes the mount of a server that has ended, in use or not.
pub(crate) fn detach_now(path: &Path) -> Result<()> {
    match unmount(path, false) {
        Err(Error::Busy(_)) => unmount(path, true),
        other => other,
    }
}

/// Path of a mount point without symbolic links, found without a request to its file system.
pub(crate) fn own_path(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
        _ => std::fs::canonicalize(path),
    }
}

fn unmount(path: &Path, lazily: bool) -> Result<()> {
    unmounted(path, lazily, unmount_directly(path, lazily))
}

/// Outcome of an unmount. Without privileges, `fusermount3` unmounts.
fn unmounted(path: &Path, lazily: bool, outcome: rustix::io::Result<()>) -> Result<()> {
    let doing = format!("unmounting {}", path.display());
    match outcome {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let mut command = Command::new(HELPER);
            command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(path);
            run_helper(&mut command, &doing)
        }
        Err(rustix::io::Errno::BUSY) => {
            Err(Error::busy(format!("{doing}: in use; close its files, and unmount what is in it")))
        }
        Err(rustix::io::Errno::INVAL) => Err(Error::not_found(format!("{doing}: not mounted"))),
        Err(error) => Err(failed(error, doing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Mounts as `fusermount3` does, and sends the device.
    const SCRIPT: &str = "#!/usr/bin/env python3
import array, ctypes, os, socket, sys
assert sys.argv[1] == '-o' and sys.argv[3] == '--', sys.argv
assert sys.argv[2].split(',')[:3] == ['ro', 'nosuid', 'nodev'], sys.argv
fd, path = os.open('/dev/fuse', os.O_RDWR), sys.argv[4].encode()
options = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % fd
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b'test', path, b'fuse', 1, options) == 0, os.strerror(ctypes.get_errno())
sent = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))
socket.socket(fileno=int(os.environ['_FUSE_COMMFD'])).sendmsg([b'x'], [sent])
";

    #[test]
    fn a_helper_sends_the_device_that_it_mounted() {
        let python = Command::new("python3").arg("-V").output().is_ok_and(|it| it.status.success());
        if !rustix::process::getuid().is_root() || !Path::new(DEVICE).exists() || !python {
            return println!(
                "SKIPPED: a_helper_sends_the_device_that_it_mounted: needs root, {DEVICE} and python3"
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (helper, path) = (folder.path().join("helper"), folder.path().join("mounted"));
        std::fs::write(&helper, SCRIPT).expect("written");
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o700)).expect("executable");
        std::fs::create_dir(&path).expect("a folder");
        let options =
            MountOptions { path: path.clone(), source: "a,b".into(), read_only: true, ..Default::default() };
        let helper = helper.to_str().expect("text");
        let device = mount_by_helper(helper, &options, &path);
        let received = device.map(|device| {
            let mut bytes = vec![0; 1 << 21];
            rustix::io::read(&device, &mut bytes).map(|_| bytes[4])
        });
        let unmounted = unmount(&path, true);
        assert_eq!(received.expect("mounted"), Ok(crate::protocol::opcode::INIT as u8));
        unmounted.expect("it was mounted");
        let error = unmount(&path, false).expect_err("it is no more");
        assert!(matches!(error, Error::NotFound(_)), "{error}");
        let error = mount_by_helper("/nowhere/fusermount3", &options, &path).expect_err("no helper");
        assert!(error.to_string().contains("install fuse3"), "{error}");
    }
}
