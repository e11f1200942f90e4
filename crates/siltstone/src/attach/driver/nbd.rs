//! Nodes of the kernel's NBD client, `/dev/nbdN`. The server negotiates one connection per shard with its own
//! door and sends the client's ends to the holder, which passes them to the kernel.

use super::super::folder::OWNER_ONLY;
use super::super::handover::{Connection, Ready};
use super::super::node::claim;
use super::{AttachedDoor, DoorConfig, Driver, NodeDriver, NodeRequest, OpenConnection, no_zones};
use crate::log_target;
use block::{Call, Error, Result};
use doors::nbd::client::connect_for_kernel;
use doors::nbd::door::NbdDoor;
use doors::nbd::kernel;
use doors::nbd::server::{ExportConfig, ServerConfig};
use runtime::net::{Access, Address, is_listened_on};
use runtime::sync::{StopSource, StopToken};
use stack::Door;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Holder's half of the driver.
pub struct NbdNodes;

/// Identifier of the devices of a volume.
fn backend(volume: &Path) -> String {
    volume.display().to_string()
}

/// Path of the socket of a volume's door.
fn socket(volume: &Path) -> PathBuf {
    volume.with_extension("sock")
}

/// Disconnects the devices of a volume: requests to them fail with I/O errors afterwards.
fn disconnect_all(volume: &Path) -> Result<()> {
    let backend = backend(volume);
    kernel::all_of(&backend).iter().try_for_each(|node| kernel::disconnect(node, &backend))
}

impl NodeDriver for NbdNodes {
    fn check(&self) -> Result<()> {
        kernel::check()
    }

    fn check_zoned(&self) -> Result<()> {
        Err(no_zones(Driver::Nbd))
    }

    fn passes_descriptors_on(&self) -> bool {
        true
    }

    /// Shuts the connections down: the sockets of a killed process stay open while its rings have disk I/O in
    /// flight, and the kernel's client only drops a connection when it ends.
    fn server_lost(&self, descriptors: &[OwnedFd]) {
        for connection in descriptors {
            // The connection may have ended already.
            let _shut_down = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
    }

    fn frees_number_on_abort(&self) -> bool {
        true
    }

    fn make(&self, request: &NodeRequest, ready: &Ready, descriptors: Vec<OwnedFd>) -> Result<PathBuf> {
        let Connection::Nbd(flags) = ready.connection else {
            let other = &ready.connection;
            return Err(Error::protocol(format!("connection of an attachment over NBD: {other:?}")));
        };
        let client = kernel::Client {
            bytes: ready.bytes,
            sector_size: request.sector_size,
            flags,
            // The holder decides when requests fail; the kernel does without a holder.
            dead_limit: request.recover_within + Duration::from_secs(1),
        };
        kernel::connect(&client, &backend(&request.volume), &descriptors)
    }

    fn take_over(&self, node: &Path, volume: &Path, descriptors: Vec<OwnedFd>) -> Result<()> {
        kernel::reconnect(node, &backend(volume), &descriptors)
    }

    fn abort(&self, _connection: &Connection, volume: &Path) -> Result<()> {
        disconnect_all(volume)
    }

    /// The kernel lets requests that a lost server hadn't answered wait without limit, and so the users of
    /// the node. Without an answer whether there is a server, nothing is disconnected.
    fn abort_without_server(&self, volume: &Path) -> Result<()> {
        match is_listened_on(&socket(volume))? {
            true => Ok(()),
            false => disconnect_all(volume),
        }
    }

    fn nodes(&self, volume: &Path) -> Vec<PathBuf> {
        kernel::all_of(&backend(volume))
    }

    fn remove_unused(&self, node: &Path, volume: &Path) -> Result<()> {
        if !kernel::is_of(node, &backend(volume)) {
            return Ok(());
        }
        // Held until the device is disconnected.
        let _claim = claim(node)?;
        kernel::disconnect(node, &backend(volume))
    }

    fn is_unreleased(&self, node: &Path, volume: &Path) -> bool {
        kernel::is_of(node, &backend(volume))
    }

    fn remove_all(&self, _connection: Option<&Connection>, volume: &Path) -> Result<()> {
        disconnect_all(volume)
    }
}

/// Server's half of the driver.
pub struct NbdAttachedDoor {
    door: Arc<NbdDoor>,
    /// Stopped when the kernel has disconnected the node.
    disconnected: StopToken,
}

/// Returns the server's half.
///
/// # Errors
/// [`Error::Unsupported`] for zones; errors of [`NbdDoor::new`].
pub fn door(config: DoorConfig) -> Result<NbdAttachedDoor> {
    let device = config.device(Driver::Nbd)?;
    let export = ExportConfig { name: config.name, description: String::new(), device, read_only: false };
    let door = NbdDoor::new(ServerConfig {
        address: Address::Unix(socket(&config.volume)),
        access: Access::with_mode(OWNER_ONLY),
        exports: vec![export],
        max_connections: runtime::shard_count(),
        allow_remote: false,
        tls: None,
    })?;
    let disconnected = StopSource::new();
    let token = disconnected.token();
    door.server().on_end(move |end| {
        if let Err(error) = end {
            // The kernel resends the connection's requests, also to this server over another connection. One
            // that is still in progress must not execute after that.
            tracing::error!("a connection of the kernel's NBD client has ended: {error}");
            log_target::exit_without_flush(1);
        }
        disconnected.stop();
    });
    Ok(NbdAttachedDoor { door: Arc::new(door), disconnected: token })
}

impl AttachedDoor for NbdAttachedDoor {
    fn door(&self) -> Arc<dyn Door> {
        self.door.clone()
    }

    fn connection(&self) -> Call<'_, Result<Option<OpenConnection>>> {
        Call::new(async {
            // Shard n serves the n-th connection.
            let (address, mut flags, mut descriptors) = (self.door.server().address(), 0, Vec::new());
            for _ in 0..runtime::shard_count() {
                let (socket, told) = connect_for_kernel(&address, "").await?;
                flags = told;
                descriptors.push(socket);
            }
            Ok(Some(OpenConnection { connection: Connection::Nbd(flags), descriptors }))
        })
    }

    /// Nothing to end: the holder has connected no node yet.
    fn abandon(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    /// Waits for DISC, which the kernel sends on all connections when the node is disconnected. The loss of
    /// one connection ends this process.
    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            self.disconnected.stopped().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_stay_connected_where_their_server_cant_be_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        NbdNodes.abort_without_server(&volume).unwrap();
        std::os::unix::fs::symlink("volume.sock", socket(&volume)).unwrap();
        let error = NbdNodes.abort_without_server(&volume).unwrap_err();
        assert_eq!(error.errno(), libc::ELOOP, "{error}");
    }
}
