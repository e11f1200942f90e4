//! Nodes over FUSE: loop devices, `/dev/loopN`, over the file of a FUSE server. The holder keeps the
//! descriptors of the session, and owns the loop device and the mount.
//!
//! `losetup` of util-linux creates the loop devices: it supports all versions of the kernel's interface.

use super::super::handover::{Connection, Ready};
use super::super::node::claim;
use super::{AttachedDoor, DoorConfig, Driver, NodeDriver, NodeRequest, OpenConnection, no_zones};
use block::{Call, Error, Result};
use doors::fuse::door::{FuseConfig, FuseDoor, LeftConnection, STOP_LIMIT};
use doors::sysfs;
use fuse::protocol::init_flag::HAS_RESEND;
use fuse::{Ended, Mount};
use stack::Door;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Time for users of the FUSE file other than the loop device to close it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// Holder's half of the driver.
pub struct FuseNodes;

/// Runs `losetup`, and returns its output without the newline.
fn losetup(arguments: &[&str]) -> Result<String> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.map_err(|error| Error::from_io(&error, "running losetup (of util-linux)"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::io(format!("losetup {}: {text}", arguments.join(" "))))
        }
    }
}

/// Creates a loop device with direct I/O over a file.
///
/// # Errors
/// Errors of `losetup`.
fn create(file: &Path, sector_size: u32, read_only: bool) -> Result<PathBuf> {
    let (size, shown) = (sector_size.to_string(), file.display().to_string());
    let mut arguments = vec!["--find", "--show", "--partscan", "--direct-io=on", "--sector-size", &size];
    if read_only {
        arguments.push("--read-only");
    }
    arguments.push(&shown);
    let node = PathBuf::from(losetup(&arguments)?);
    // If the file doesn't permit the block size, the kernel silently uses buffered I/O.
    match sysfs::attribute(&node, "loop/dio").as_deref() {
        Some("1") => Ok(node),
        _ => {
            let refused = Error::unsupported(format!(
                "{}: the kernel refused direct I/O on {shown} with sectors of {size} bytes",
                node.display()
            ));
            remove(&node, file).and(Err(refused))
        }
    }
}

/// Removes the loop device over a file, if it exists. Its last user releases it.
///
/// # Errors
/// Errors of `losetup`.
fn remove(node: &Path, file: &Path) -> Result<()> {
    match is_over(node, file) {
        true => losetup(&["--detach", &node.display().to_string()]).map(drop),
        false => Ok(()),
    }
}

/// Whether a loop device is over this file: the kernel may have reused the device's number.
fn is_over(node: &Path, file: &Path) -> bool {
    // The kernel appends a word to the path of a removed file.
    let backing = sysfs::attribute(node, "loop/backing_file");
    backing.is_some_and(|backing| backing.trim_end_matches(" (deleted)") == file.to_string_lossy())
}

impl NodeDriver for FuseNodes {
    fn check(&self) -> Result<()> {
        for (path, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
            if !Path::new(path).exists() {
                return Err(Error::unsupported(format!(
                    "there is no {path}: load the module with modprobe {module}"
                )));
            }
        }
        Ok(())
    }

    fn check_zoned(&self) -> Result<()> {
        Err(no_zones(Driver::Fuse))
    }

    fn why_not_replaced(&self, connection: &Connection) -> Option<&'static str> {
        match connection {
            Connection::Fuse(negotiated) if !negotiated.has(HAS_RESEND) => {
                Some("Linux before 6.9 doesn't send unanswered FUSE requests again")
            }
            _ => None,
        }
    }

    fn make(&self, request: &NodeRequest, ready: &Ready, _descriptors: Vec<OwnedFd>) -> Result<PathBuf> {
        create(&request.volume, request.sector_size, ready.read_only)
    }

    fn nodes(&self, volume: &Path) -> Vec<PathBuf> {
        sysfs::nodes(|node| is_over(node, volume))
    }

    fn remove_unused(&self, node: &Path, volume: &Path) -> Result<()> {
        if !is_over(node, volume) {
            return Ok(());
        }
        // Held until the device is removed.
        let _claim = claim(node)?;
        remove(node, volume)
    }

    fn is_unreleased(&self, node: &Path, volume: &Path) -> bool {
        is_over(node, volume)
    }

    fn remove_all(&self, _connection: Option<&Connection>, volume: &Path) -> Result<()> {
        self.nodes(volume).iter().try_for_each(|node| remove(node, volume))
    }

    /// Unmounts the file, if it is mounted.
    fn close_volume<'a>(&'a self, volume: &'a Path) -> Call<'a, Result<()>> {
        Call::new(async {
            let mount = Mount::existing(volume.to_owned());
            match runtime::retry_while_busy(UNMOUNT_LIMIT, async || mount.unmount().await).await {
                Ok(()) | Err(Error::NotFound(_)) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}

/// Returns the server's half.
///
/// # Errors
/// [`Error::Unsupported`] for zones.
pub fn door(config: DoorConfig) -> Result<Arc<FuseDoor>> {
    let device = config.device(Driver::Fuse)?;
    let left = match config.left {
        Some(Connection::Fuse(negotiated)) => {
            Some(LeftConnection { devices: config.descriptors, negotiated })
        }
        _ => None,
    };
    let config = FuseConfig {
        device,
        path: config.volume,
        read_only: false,
        allow_other: false,
        stop_limit: STOP_LIMIT,
    };
    Ok(Arc::new(FuseDoor::held(config, left)))
}

impl AttachedDoor for Arc<FuseDoor> {
    fn door(&self) -> Arc<dyn Door> {
        self.clone()
    }

    fn connection(&self) -> Call<'_, Result<Option<OpenConnection>>> {
        let open = self.session().map(|session| {
            let connection = Connection::Fuse(*session.negotiated());
            session.descriptors().map(|descriptors| OpenConnection { connection, descriptors })
        });
        Call::ready(open.transpose())
    }

    fn abandon(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            match self.session() {
                Some(session) => Mount::existing(session.path().to_owned()).unmount().await,
                None => Ok(()),
            }
        })
    }

    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            let Some(session) = self.session() else { return Ok(()) };
            session.ended().await;
            match session.outcome() {
                Some(ended) if *ended != Ended::Unmounted => {
                    Err(Error::io(format!("the FUSE session of the attachment has ended: {ended}")))
                }
                _ => Ok(()),
            }
        })
    }
}
