//! Drivers of the kernel between node and server. Each driver is one module with two halves: the holder's,
//! which creates and removes nodes ([`NodeDriver`]), and the server's, which answers the kernel
//! ([`AttachedDoor`]).

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

    /// Returns the driver's name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Driver::Ublk => "ublk",
            Driver::Nbd => "nbd",
            Driver::Fuse => "fuse",
        }
    }

    /// Returns the holder's half.
    pub fn node_driver(self) -> &'static dyn NodeDriver {
        match self {
            Driver::Ublk => &ublk::UblkNodes,
            Driver::Nbd => &nbd::NbdNodes,
            Driver::Fuse => &fuse::FuseNodes,
        }
    }

    /// Returns the server's half: a door that isn't open.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for zones with a driver that serves devices only; errors of
    /// [`doors::nbd::door::NbdDoor::new`].
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
    /// Path of the volume in the attachment's folder; identifies the attachment's nodes.
    pub volume: PathBuf,
    /// Logical block size in bytes.
    pub sector_size: u32,
    /// Time limit for replacing a lost server.
    pub recover_within: Duration,
}

/// Half of a driver that runs in the holder. All calls block the thread, except [`NodeDriver::close_volume`].
pub trait NodeDriver: Sync {
    /// Checks that the driver can be used on this machine. May load its kernel module.
    ///
    /// # Errors
    /// [`block::Error::Unsupported`] with the missing module and the command that loads it.
    fn check(&self) -> Result<()>;

    /// Checks that the driver can create a node of zones on this machine. May load its kernel module.
    ///
    /// # Errors
    /// [`block::Error::Unsupported`] with the missing feature.
    fn check_zoned(&self) -> Result<()>;

    /// Whether the logical block size of a node is set when the node is created; otherwise it is that of the
    /// device.
    fn sets_sector_size(&self) -> bool {
        true
    }

    /// Whether [`NodeDriver::make`] and [`NodeDriver::take_over`] pass each server's descriptors to the
    /// kernel. Otherwise the holder keeps them for the next server.
    fn passes_descriptors_on(&self) -> bool {
        false
    }

    /// Closes what a lost server has left open. `descriptors` are those that it passed to the holder.
    fn server_lost(&self, _descriptors: &[OwnedFd]) {}

    /// Whether the kernel reuses the number of an [aborted](NodeDriver::abort) node once the node has no
    /// users.
    fn frees_number_on_abort(&self) -> bool {
        false
    }

    /// Whether the driver identifies nodes by their numbers alone, which the kernel reuses once they are
    /// free.
    fn goes_by_number(&self) -> bool {
        false
    }

    /// Reason why no other server may take over this connection; `None` if one may.
    fn why_not_replaced(&self, _connection: &Connection) -> Option<&'static str> {
        None
    }

    /// Creates the node for a server that is ready, and returns its path. `descriptors` are passed to the
    /// kernel.
    ///
    /// # Errors
    /// Errors of the kernel and of `losetup`.
    fn make(&self, request: &NodeRequest, ready: &Ready, descriptors: Vec<OwnedFd>) -> Result<PathBuf>;

    /// Connects the node to another server, whose `descriptors` are passed to the kernel.
    ///
    /// # Errors
    /// [`block::Error::NotFound`] if the node was removed; errors of the kernel.
    fn take_over(&self, _node: &Path, _volume: &Path, _descriptors: Vec<OwnedFd>) -> Result<()> {
        Ok(())
    }

    /// Ends the connection between kernel and servers: requests to the node fail with I/O errors afterwards.
    /// The holder has closed the connection's descriptors.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn abort(&self, _connection: &Connection, _volume: &Path) -> Result<()> {
        Ok(())
    }

    /// Ends the connection of a lost attachment without a server, if the kernel would let requests wait
    /// forever.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn abort_without_server(&self, _volume: &Path) -> Result<()> {
        Ok(())
    }

    /// Nodes of a volume, including those of lost servers. Empty for a driver whose nodes can't be
    /// identified.
    fn nodes(&self, _volume: &Path) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Removes an unused node. Does nothing if the node was removed already, or if its path belongs to
    /// another volume by now, where the driver can identify nodes.
    ///
    /// # Errors
    /// [`block::Error::Busy`] with the users; errors of the kernel and of `losetup`.
    fn remove_unused(&self, node: &Path, volume: &Path) -> Result<()>;

    /// Whether a removed node still exists: the kernel releases it with its last user.
    fn is_unreleased(&self, _node: &Path, _volume: &Path) -> bool {
        false
    }

    /// Removes the nodes of a volume, used or unused, for an attachment that failed.
    ///
    /// # Errors
    /// Errors of the kernel and of `losetup`.
    fn remove_all(&self, connection: Option<&Connection>, volume: &Path) -> Result<()>;

    /// Removes what was below the node of a volume, after the node's removal.
    ///
    /// # Errors
    /// [`block::Error::Busy`] if it is still in use after some seconds; errors of the kernel.
    fn close_volume<'a>(&'a self, _volume: &'a Path) -> Call<'a, Result<()>> {
        Call::ready(Ok(()))
    }
}

/// Configuration of the door of an attachment.
pub struct DoorConfig {
    /// Device or zones to serve.
    pub backing: Backing,
    /// Name of the device or the zones, for messages.
    pub name: String,
    /// Path of the volume in the attachment's folder.
    pub volume: PathBuf,
    /// Connection that the previous server left; `None` for the first server.
    pub left: Option<Connection>,
    /// Descriptors of `left`.
    pub descriptors: Vec<OwnedFd>,
}

impl DoorConfig {
    /// Returns the device, for a driver that serves devices only.
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

/// Error of a driver that serves devices only.
fn no_zones(driver: Driver) -> Error {
    Error::unsupported(format!("{} serves devices and no zones", driver.word()))
}

/// Connection of an open door.
pub struct OpenConnection {
    /// Properties for the next server.
    pub connection: Connection,
    /// Descriptors for the holder.
    pub descriptors: Vec<OwnedFd>,
}

/// Half of a driver that runs in the server: the door of an attachment.
pub trait AttachedDoor {
    /// Returns the door.
    fn door(&self) -> Arc<dyn Door>;

    /// Returns the connection of an open door; `None` if the door isn't open.
    ///
    /// # Errors
    /// Errors of the kernel and of the connection.
    fn connection(&self) -> Call<'_, Result<Option<OpenConnection>>>;

    /// Ends the connection of an open door that wasn't passed to a holder.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn abandon(&self) -> Call<'_, Result<()>>;

    /// Waits until the node is removed.
    ///
    /// # Errors
    /// Any other end of the connection; another server may take over.
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
