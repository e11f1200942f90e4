//! Nodes of the driver ublk, `/dev/ublkbN`. The kernel keeps the device between servers, so the holder only
//! deletes it.

use super::super::handover::{Connection, Ready};
use super::super::node::claim;
use super::{AttachedDoor, DoorConfig, NodeDriver, NodeRequest, OpenConnection};
use block::{Call, Error, Result};
use doors::ublk::control;
use doors::ublk::door::{STOP_LIMIT, UblkConfig, UblkDoor};
use stack::Door;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Holder's half of the driver.
pub struct UblkNodes;

/// Returns the device number of a connection.
///
/// # Errors
/// [`Error::Protocol`] for the connection of another driver.
fn id(connection: &Connection) -> Result<u32> {
    match connection {
        Connection::Ublk(id) => Ok(*id),
        other => Err(Error::protocol(format!("connection of an attachment over ublk: {other:?}"))),
    }
}

impl NodeDriver for UblkNodes {
    fn check(&self) -> Result<()> {
        match Path::new("/dev/ublk-control").exists() {
            true => Ok(()),
            false => Err(Error::unsupported(
                "there is no /dev/ublk-control: load the module with modprobe ublk_drv",
            )),
        }
    }

    fn check_zoned(&self) -> Result<()> {
        self.check()?;
        control::check_zoned()
    }

    fn goes_by_number(&self) -> bool {
        true
    }

    fn sets_sector_size(&self) -> bool {
        false
    }

    /// Returns the node that the server has created.
    fn make(&self, _request: &NodeRequest, ready: &Ready, _descriptors: Vec<OwnedFd>) -> Result<PathBuf> {
        id(&ready.connection).map(control::node)
    }

    fn abort(&self, connection: &Connection, _volume: &Path) -> Result<()> {
        control::stop(id(connection)?)
    }

    fn remove_unused(&self, node: &Path, _volume: &Path) -> Result<()> {
        let Some(id) = control::id_of(node).filter(|_| node.exists()) else { return Ok(()) };
        let claim = claim(node)?;
        control::stop(id)?;
        drop(claim);
        control::remove(id)
    }

    fn remove_all(&self, connection: Option<&Connection>, _volume: &Path) -> Result<()> {
        connection.map_or(Ok(()), |connection| control::delete(id(connection)?))
    }
}

/// Returns the server's half.
pub fn door(config: DoorConfig) -> Arc<UblkDoor> {
    let left = config.left.and_then(|left| id(&left).ok());
    let config = UblkConfig {
        name: config.name,
        backing: config.backing,
        id: None,
        read_only: false,
        stop_limit: STOP_LIMIT,
    };
    Arc::new(UblkDoor::held(config, left))
}

impl AttachedDoor for Arc<UblkDoor> {
    fn door(&self) -> Arc<dyn Door> {
        self.clone()
    }

    fn connection(&self) -> Call<'_, Result<Option<OpenConnection>>> {
        let open = |id| OpenConnection { connection: Connection::Ublk(id), descriptors: Vec::new() };
        Call::ready(Ok(self.id().map(open)))
    }

    fn abandon(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            match self.id() {
                Some(id) => runtime::blocking(move || control::delete(id)).await,
                None => Ok(()),
            }
        })
    }

    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            UblkDoor::ended(self).await;
            Ok(())
        })
    }
}
