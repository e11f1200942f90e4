//! Control of the driver: creation, start, recovery and deletion of block devices. All functions block their
//! thread.

use super::protocol::{
    DEPTH, DeviceInfo, FEATURES, INFO_BYTES, MAX_REQUEST_BYTES, PARAMETERS_BYTES, Parameters, State, command,
    feature,
};
use crate::served::in_flight::SLOTS;
use block::{Error, Result};
use runtime::ublk_driver::{Control, Direction, open_character_device};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const CONTROL_PATH: &str = "/dev/ublk-control";

/// Device to attach to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Create a device; the kernel chooses its number.
    New,
    /// Recover this device if it exists without a server; otherwise create it.
    Any(u32),
    /// Recover this device.
    Existing(u32),
}

/// A device without a server that isn't started.
pub struct Attached {
    /// Description of the device.
    pub info: DeviceInfo,
    /// Character device.
    pub descriptor: OwnedFd,
    /// Whether the device was left by an earlier server.
    pub is_recovered: bool,
}

/// Path of the block device of this number.
pub fn node(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

/// Number of the device at a block device's path; `None` for other paths.
pub fn id_of(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

fn character_device(id: u32) -> PathBuf {
    format!("/dev/ublkc{id}").into()
}

fn open() -> Result<Control> {
    Control::open(Path::new(CONTROL_PATH)).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::unsupported(format!(
            "{CONTROL_PATH}: {error}; expected the driver ublk_drv of Linux 6.5 or newer; run: modprobe ublk_drv"
        )),
        Some(libc::EACCES | libc::EPERM) => Error::from_io(
            &error,
            &format!("{CONTROL_PATH}: expected a server with CAP_SYS_ADMIN; run it as root"),
        ),
        _ => Error::from_io(&error, CONTROL_PATH),
    })
}

fn call(control: &mut Control, number: u8, id: u32, value: u64) -> std::io::Result<()> {
    control.call(Direction::ReadWrite, number, Some(id), value, &mut [])
}

fn info(control: &mut Control, id: u32) -> std::io::Result<DeviceInfo> {
    let mut bytes = [0; INFO_BYTES];
    control.call(Direction::Read, command::GET_DEV_INFO, Some(id), 0, &mut bytes)?;
    Ok(DeviceInfo::decode(&bytes))
}

fn parameters(control: &mut Control, id: u32) -> std::io::Result<Parameters> {
    let mut bytes = [0; PARAMETERS_BYTES];
    bytes[..4].copy_from_slice(&(PARAMETERS_BYTES as u32).to_ne_bytes());
    control.call(Direction::Read, command::GET_PARAMS, Some(id), 0, &mut bytes)?;
    Ok(Parameters::decode(&bytes))
}

fn failed(doing: &str, id: u32) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from_io(&error, &format!("{doing} {}", node(id).display()))
}

/// Checks that the driver can create devices with these features.
fn check_driver(control: &mut Control, wanted: u64) -> Result<()> {
    let mut bytes = [0; 8];
    // A kernel without this command has none of the features.
    let _ = control.call(Direction::Read, command::GET_FEATURES, None, 0, &mut bytes);
    let features = u64::from_ne_bytes(bytes);
    if features & FEATURES != FEATURES {
        return Err(Error::unsupported(format!(
            "features of the driver ublk_drv: {features:#x}; expected {FEATURES:#x} (UBLK_F_USER_COPY among them); use Linux 6.5 or newer"
        )));
    }
    if features & wanted != wanted {
        return Err(Error::unsupported(format!(
            "features of the driver ublk_drv: {features:#x}; expected {wanted:#x} (UBLK_F_ZONED among them) for zones; use Linux 6.6 or \
             newer"
        )));
    }
    Ok(())
}

/// Checks that the driver can create zoned devices.
///
/// # Errors
/// [`Error::Unsupported`] with the missing feature; errors of the kernel.
pub fn check_zoned() -> Result<()> {
    check_driver(&mut open()?, FEATURES | feature::ZONED)
}

/// Creates or recovers a device with these parameters.
///
/// # Errors
/// [`Error::Busy`] while the device has a server, or the kernel hasn't released one that was killed;
/// [`Error::Invalid`] for a device with other parameters or of another door; errors of the kernel.
pub fn attach(target: Target, parameters: Parameters, queues: u16) -> Result<Attached> {
    let mut control = open()?;
    check_driver(&mut control, parameters.features())?;
    let id = match target {
        Target::New => return create(&mut control, u32::MAX, parameters, queues),
        Target::Any(id) | Target::Existing(id) => id,
    };
    let found = match info(&mut control, id) {
        Ok(found) => found,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            return match target {
                Target::Existing(_) => {
                    Err(Error::not_found(format!("{}: no such device", node(id).display())))
                }
                _ => create(&mut control, id, parameters, queues),
            };
        }
        Err(error) => return Err(failed("looking at", id)(error)),
    };
    if found.state != State::Dead {
        return recover(&mut control, found, parameters);
    }
    // The device was left by a server that ended before the start or after the stop. A running server has the
    // character device open.
    drop(open_exclusively(id)?);
    delete_stopped(&mut control, id)?;
    create(&mut control, id, parameters, queues)
}

/// Deletes a stopped device. Its number is free when its last users have closed it.
fn delete_stopped(control: &mut Control, id: u32) -> Result<()> {
    /// The kernel's ENOTSUPP.
    const NOT_SUPPORTED: i32 = 524;
    match control.call(Direction::Read, command::DEL_DEV_ASYNC, Some(id), 0, &mut []) {
        // Before Linux 6.7, deletion waits for the users.
        Err(error) if matches!(error.raw_os_error(), Some(NOT_SUPPORTED | libc::EOPNOTSUPP)) => {
            call(control, command::DEL_DEV, id, 0)
        }
        other => other,
    }
    .map_err(failed("deleting", id))
}

fn open_exclusively(id: u32) -> Result<OwnedFd> {
    let path = character_device(id);
    open_character_device(&path).map_err(|error| Error::from_io(&error, &path.display().to_string()))
}

fn create(control: &mut Control, id: u32, parameters: Parameters, queues: u16) -> Result<Attached> {
    let wanted = DeviceInfo {
        queues,
        depth: DEPTH,
        state: State::Dead,
        max_request_bytes: MAX_REQUEST_BYTES,
        id,
        server: 0,
        features: parameters.features(),
    };
    let mut bytes = wanted.encode();
    let optional = (id != u32::MAX).then_some(id);
    let added = control.call(Direction::ReadWrite, command::ADD_DEV, optional, 0, &mut bytes);
    added.map_err(|error| match error.raw_os_error() {
        Some(libc::EEXIST) => Error::busy(format!("{}: the number is taken", node(id).display())),
        Some(libc::EPERM | libc::EACCES) => Error::from_io(
            &error,
            "creating a block device: expected a server with CAP_SYS_ADMIN; run it as root",
        ),
        Some(libc::EINVAL) if parameters.zoned.is_some() => Error::unsupported(
            "creating a zoned block device: the kernel refuses it; expected a kernel with CONFIG_BLK_DEV_ZONED",
        ),
        _ => Error::from_io(&error, "creating a block device"),
    })?;
    // The kernel grants at most a queue for each processor.
    let info = DeviceInfo::decode(&bytes);
    let mut prepare = || {
        let mut bytes = parameters.encode();
        control
            .call(Direction::ReadWrite, command::SET_PARAMS, Some(info.id), 0, &mut bytes)
            .map_err(failed("setting the parameters of", info.id))?;
        open_exclusively(info.id)
    };
    match prepare() {
        Ok(descriptor) => Ok(Attached { info, descriptor, is_recovered: false }),
        Err(error) => {
            let _ = delete_stopped(control, info.id);
            Err(error)
        }
    }
}

fn recover(control: &mut Control, found: DeviceInfo, expected: Parameters) -> Result<Attached> {
    let id = found.id;
    let shown = node(id);
    let needed = expected.features() & !feature::CMD_IOCTL_ENCODE;
    if found.features & (needed | feature::ZONED) != needed
        || usize::from(found.depth) > SLOTS
        || found.max_request_bytes > MAX_REQUEST_BYTES
    {
        return Err(Error::invalid(format!(
            "{}: features {:#x}, depth {}; expected a device that this door has created; delete that one or choose another number",
            shown.display(),
            found.features,
            found.depth
        )));
    }
    let parameters = parameters(control, id).map_err(failed("looking at", id))?;
    let expected = expected.as_left(&parameters);
    if parameters != expected {
        return Err(Error::invalid(format!(
            "{}: the device that was left there: {parameters:?}; expected {expected:?}; serve the device that was served before",
            shown.display()
        )));
    }
    call(control, command::START_USER_RECOVERY, id, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::busy(format!(
            "{}: the device has a server: process {}; expected none; stop it or choose another number",
            shown.display(),
            found.server
        )),
        _ => failed("recovering", id)(error),
    })?;
    Ok(Attached { info: found, descriptor: open_exclusively(id)?, is_recovered: true })
}

/// Starts an attached device, whose queues fetch requests. During the call the kernel reads its partition
/// table.
///
/// # Errors
/// Errors of the kernel.
pub fn start(id: u32, is_recovered: bool) -> Result<()> {
    let number = if is_recovered { command::END_USER_RECOVERY } else { command::START_DEV };
    let server = u64::from(std::process::id());
    call(&mut open()?, number, id, server).map_err(failed("starting", id))
}

/// Stops a device: its users get I/O errors afterwards, and its queues end.
///
/// # Errors
/// Errors of the kernel.
pub fn stop(id: u32) -> Result<()> {
    call(&mut open()?, command::STOP_DEV, id, 0).map_err(failed("stopping", id))
}

/// Deletes a stopped device. Its number is free when its queues have ended and its last users have closed it;
/// before Linux 6.7 this waits for them.
///
/// # Errors
/// Errors of the kernel.
pub fn remove(id: u32) -> Result<()> {
    delete_stopped(&mut open()?, id)
}

/// Stops and deletes a device, whether or not it has a server. Data that its users have in the page cache is
/// lost: unmount or sync it before. For a process that keeps a device while its servers change.
///
/// # Errors
/// Errors of the kernel.
pub fn delete(id: u32) -> Result<()> {
    stop(id)?;
    remove(id)
}

/// Claims the block device, so that it can't be mounted, and writes back its page cache.
///
/// # Errors
/// [`Error::Busy`] while it is mounted or claimed by another block device; errors of the kernel.
pub fn claim(id: u32) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let claimed = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node(id));
    let file = claimed.map_err(failed("claiming", id))?;
    file.sync_all().map_err(failed("writing back", id))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BlockCount, BlockSize, DeviceGeometry};

    #[test]
    fn nodes_have_numbers() {
        assert_eq!(id_of(&node(12)), Some(12));
        for path in ["/dev/ublkb", "/dev/ublkb1p2", "/dev/ublkc1", "ublkb1"] {
            assert_eq!(id_of(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_machine_without_the_driver_is_told_what_to_do() {
        if Path::new(CONTROL_PATH).exists() {
            return;
        }
        let geometry = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(1),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        let parameters = Parameters::of(&geometry, false);
        let error = check_zoned().expect_err("there is no driver");
        assert!(error.to_string().contains("modprobe ublk_drv"), "{error}");
        for target in [Target::New, Target::Any(3), Target::Existing(3)] {
            let error = attach(target, parameters, 1).err().expect("there is no driver");
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            assert!(error.to_string().contains("modprobe ublk_drv"), "{error}");
        }
    }
}
