//! Drivers of the kernel between node and server. Each driver is one module with both halves: that of the holder, which makes and
//! removes nodes ([`NodeDriver`]), and that of the server, which answers the kernel ([`AttachedDoor`]).

mod fuse;
mod nbd;
mod ublk;

use super::handover::{Connection, Ready};
use block::{Call, DevicePart, Error, Result};
use clap::ValueEnum;
use doors::ublk::backing::Backing;
use serde::{Deserialize, Serialize};
use stack::Door;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Driver of the kernel between node and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// A block driver in user space: `/dev/ublkbN`.
    Ublk,
    /// The kernel's NBD client: `/dev/nbdN`.
    Nbd,
    /// A loop device over a file of a FUSE server: `/dev/loopN`.
    Fuse,
}

impl Driver {
    /// All drivers, the preferred one first.
    pub const PREFERENCE: [Driver; 3] = [Driver::Ublk, Driver::Nbd, Driver::Fuse];

    /// The driver as a word.
    pub fn word(self) -> &'static str {
        match self {
            Driver::Ublk => "ublk",
            Driver::Nbd => "nbd",
            Driver::Fuse => "fuse",
        }
    }

    /// The holder's half.
    pub fn node_driver(self) -> &'static dyn NodeDriver {
        match self {
            Driver::Ublk => &ublk::UblkNodes,
            Driver::Nbd => &nbd::NbdNodes,
            Driver::Fuse => &fuse::FuseNodes,
        }
    }

    /// Returns the server's half: a door that isn't open yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for zones over a driver that serves devices alone; those of [`doors::nbd::door::NbdDoor::new`].
    pub fn attached_door(self, config: DoorConfig) -> Result<Box<dyn AttachedDoor>> {
        Ok(match self {
            Driver::Ublk => Box::new(ublk::door(config)),
            Driver::Nbd => Box::new(nbd::door(config)?),
            Driver::Fuse => Box::new(fuse::door(config)?),
        })
    }
}

/// Node that an attachment needs.
#[derive(Debug, Clone)]
pub struct NodeRequest {
    /// Path of the volume in the attachment's folder; it tells the attachment's nodes from others.
    pub volume: PathBuf,
    /// Logical block size in bytes.
    pub sector_size: u32,
    /// Time in which a server that was lost has to be replaced.
    pub recover_within: Duration,
}

/// Half of a driver that runs in the holder. All calls block the thread, except for [`NodeDriver::close_volume`].
pub trait NodeDriver: Sync {
    /// Checks that the driver can be used on this machine. This may load its module.
    ///
    /// # Errors
    /// [`block::Error::Unsupported`] with the missing module and the command that loads it.
    fn check(&self) -> Result<()>;

    /// Checks that the driver can make a node of zones on this machine. This may load its module.
    ///
    /// # Errors
    /// [`block::Error::Unsupported`] with what is missing.
    fn check_zoned(&self) -> Result<()>;

    /// Whether the logical block size of a node is chosen when it is made; otherwise it is that of the device.
    fn sets_sector_size(&self) -> bool {
        true
    }

    /// Whether each server's descriptors are passed on to the kernel, by [`NodeDriver::make`] and [`NodeDriver::take_over`]. Otherwise
    /// they are kept for the next server.
    fn passes_descriptors_on(&self) -> bool {
        false
    }

    /// Ends what a lost server has left open. `descriptors` are those that it gave to the holder.
    fn server_lost(&self, _descriptors: &[OwnedFd]) {}

    /// Whether the kernel gives the number of an [aborted](NodeDriver::abort) node to other devices once the node has no users.
    fn frees_number_on_abort(&self) -> bool {
        false
    }

    /// Why no other server may take this connection over, if so.
    fn why_not_replaced(&self, _connection: &Connection) -> Option<&'static str> {
        None
    }

    /// Makes the node for a server that serves, and returns its path. `descriptors` are those to be passed on.
    ///
    /// # Errors
    /// Those of the kernel and of `losetup`.
    fn make(&self, request: &NodeRequest, ready: &Ready, descriptors: Vec<OwnedFd>) -> Result<PathBuf>;

    /// Connects the node to another server, whose `descriptors` are to be passed on.
    ///
    /// # Errors
    /// [`block::Error::NotFound`] if the node is gone; those of the kernel.
    fn take_over(&self, _node: &Path, _volume: &Path, _descriptors: Vec<OwnedFd>) -> Result<()> {
        Ok(())
    }

    /// Ends the connection between kernel and servers: users of the node get I/O errors from now on. The holder has closed the
    /// connection's descriptors.
    ///
    /// # Errors
    /// Those of the kernel.
    fn abort(&self, _connection: &Connection, _volume: &Path) -> Result<()> {
        Ok(())
    }

    /// Ends the connection of a lost attachment whose server is gone, if the kernel would let requests wait without limit.
    ///
    /// # Errors
    /// Those of the kernel.
    fn abort_without_server(&self, _volume: &Path) -> Result<()> {
        Ok(())
    }

    /// Nodes of a volume, also those of servers that are gone. Empty for a driver whose nodes aren't told apart.
    fn nodes(&self, _volume: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Removes a node that nobody uses. Does nothing if the node is gone, or is another volume's by now, where the driver tells
    /// nodes apart.
    ///
    /// # Errors
    /// [`block::Error::Busy`] with the users; those of the kernel and of `losetup`.
    fn remove_unused(&self, node: &Path, volume: &Path) -> Result<()>;

    /// Whether a node that was removed is still there: the kernel releases it with its last user.
    fn is_unreleased(&self, _node: &Path, _volume: &Path) -> bool {
        false
    }

    /// Whether others can take a node away so that its name becomes another disk's. [`is_unreleased`](Self::is_unreleased) tells it.
    fn may_be_taken_away(&self) -> bool {
        false
    }

    /// Removes the nodes of a volume, used or not, for an attachment that failed.
    ///
    /// # Errors
    /// Those of the kernel and of `losetup`.
    fn remove_all(&self, connection: Option<&Connection>, volume: &Path) -> Result<()>;

    /// Removes what was below the node of a volume, once the node is gone.
    ///
    /// # Errors
    /// [`block::Error::Busy`] if it is still in use some seconds later; those of the kernel.
    fn close_volume<'a>(&'a self, _volume: &'a Path) -> Call<'a, Result<()>> {
        Call::ready(Ok(()))
    }
}

/// Configuration of the door of an attachment.
pub struct DoorConfig {
    /// Device or zones to serve.
    pub backing: Backing,
    /// Its name, for messages.
    pub name: String,
    /// Path of the volume in the attachment's folder.
    pub volume: PathBuf,
    /// Connection that the server before has left; `None` for the first server.
    pub left: Option<Connection>,
    /// Descriptors of that connection.
    pub descriptors: Vec<OwnedFd>,
}

impl DoorConfig {
    /// The device, for a driver that serves nothing else.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for zones.
    fn device(&self, driver: Driver) -> Result<Arc<dyn DevicePart>> {
        match &self.backing {
            Backing::Device(device) => Ok(device.clone()),
            Backing::Zones(_) => Err(no_zones(driver)),
        }
    }
}

/// Error of a driver that serves devices alone.
fn no_zones(driver: Driver) -> Error {
    Error::unsupported(format!("{} serves devices and no zones", driver.word()))
}

/// Connection of an open door.
pub struct OpenConnection {
    /// What the next server has to know of it.
    pub connection: Connection,
    /// Descriptors for the holder.
    pub descriptors: Vec<OwnedFd>,
}

/// Half of a driver that runs in the server: the door of an attachment.
pub trait AttachedDoor {
    /// The door.
    fn door(&self) -> Arc<dyn Door>;

    /// Returns the connection of an open door; `None` if the door isn't open.
    ///
    /// # Errors
    /// Those of the kernel and of the connection.
    fn connection(&self) -> Call<'_, Result<Option<OpenConnection>>>;

    /// Ends the connection of an open door that no holder got.
    ///
    /// # Errors
    /// Those of the kernel.
    fn abandon(&self) -> Call<'_, Result<()>>;

    /// Waits until the node is gone.
    ///
    /// # Errors
    /// Any other end of the connection: another server may take over.
    fn ended(&self) -> Call<'_, Result<()>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_has_a_preference_and_its_word_on_the_command_line() {
        assert_eq!(Driver::PREFERENCE, Driver::value_variants());
        for driver in Driver::PREFERENCE {
            assert_eq!(Driver::from_str(driver.word(), false), Ok(driver));
        }
    }

    #[test]
    fn zones_are_for_ublk_alone() {
        for driver in [Driver::Nbd, Driver::Fuse] {
            let error = driver.node_driver().check_zoned().unwrap_err();
            assert_eq!(error.detail(), format!("{} serves devices and no zones", driver.word()));
        }
    }

    #[test]
    fn a_volume_that_is_not_attached_has_no_nodes() {
        let volume = Path::new("/nowhere/to/be/found/volume");
        for driver in Driver::PREFERENCE {
            let nodes = driver.node_driver();
            assert_eq!(nodes.nodes(volume), Vec::<PathBuf>::new());
            for node in ["/dev/ublkb", "/dev/nbd", "/dev/loop", "/dev/no-such-device"] {
                assert_eq!(nodes.remove_unused(Path::new(node), volume), Ok(()), "{driver:?} {node}");
            }
            assert_eq!(nodes.remove_all(None, volume), Ok(()));
        }
    }
}
