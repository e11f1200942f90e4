//! The server's end of an attachment: what its holder tells it, and the door that it opens for the node.

use super::handover::{self, Connection, Ready, Start};
use super::machine::Driver;
use super::node::nbd_socket;
use super::process::{lock_memory, name_thread};
use crate::failure::Failure;
use block::{DevicePart, Error, Result};
use doors::fuse::door::{FuseConfig, FuseDoor, LeftConnection};
use doors::nbd::client::connect_for_kernel;
use doors::nbd::door::NbdDoor;
use doors::nbd::server::{ExportConfig, ServerConfig};
use doors::ublk::door::{UblkConfig, UblkDoor};
use fuse::{Ended, Mount};
use runtime::net::{Access, Address};
use stack::Door;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connection to the holder that has started this server.
pub struct HolderConnection {
    socket: OwnedFd,
    start: Start,
    devices: Vec<OwnedFd>,
}

impl HolderConnection {
    /// Receives what the holder tells a new server, and prepares the process for a node.
    ///
    /// # Errors
    /// Those of [`handover::receive`].
    pub fn greet() -> Result<HolderConnection, Failure> {
        let socket = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
        let socket = socket.map_err(|error| Failure::World(format!("the holder's socket: {error}")))?;
        let (start, devices) = handover::receive(&socket)?;
        name_thread();
        lock_memory();
        Ok(HolderConnection { socket, start, devices })
    }

    /// The stack in TOML, in place of its file.
    pub fn text(&self) -> Option<&str> {
        self.start.text.as_deref()
    }
}

/// The door of an attachment, and its holder.
pub struct Attached {
    socket: OwnedFd,
    door: AttachedDoor,
    device: Arc<dyn DevicePart>,
}

enum AttachedDoor {
    Fuse(Arc<FuseDoor>),
    Ublk(Arc<UblkDoor>),
    Nbd(Arc<NbdDoor>),
}

impl AttachedDoor {
    fn door(&self) -> Arc<dyn Door> {
        match self {
            AttachedDoor::Fuse(door) => door.clone(),
            AttachedDoor::Ublk(door) => door.clone(),
            AttachedDoor::Nbd(door) => door.clone(),
        }
    }

    /// Connection of an open door, and what keeps it alive.
    async fn connection(&self) -> Result<Option<(Connection, Vec<OwnedFd>)>> {
        Ok(match self {
            AttachedDoor::Fuse(door) => match door.session() {
                Some(session) => Some((Connection::Fuse(*session.negotiated()), session.descriptors()?)),
                None => None,
            },
            AttachedDoor::Ublk(door) => door.id().map(|id| (Connection::Ublk(id), Vec::new())),
            AttachedDoor::Nbd(door) => {
                // The n-th connection is served on shard n.
                let (address, mut flags, mut sockets) = (door.server().address(), 0, Vec::new());
                for _ in 0..runtime::shard_count() {
                    let (socket, told) = connect_for_kernel(&address, "").await?;
                    flags = told;
                    sockets.push(socket);
                }
                Some((Connection::Nbd(flags), sockets))
            }
        })
    }

    /// Ends the connection of an open door.
    async fn abandon(&self) -> Result<()> {
        match self {
            AttachedDoor::Fuse(door) => match door.session() {
                Some(session) => Mount::existing(session.path().to_owned()).unmount().await,
                None => Ok(()),
            },
            AttachedDoor::Ublk(door) => match door.id() {
                Some(id) => runtime::blocking(move || doors::ublk::control::delete(id)).await,
                None => Ok(()),
            },
            // The holder has connected no node yet.
            AttachedDoor::Nbd(_) => Ok(()),
        }
    }

    /// Waits until the node is gone.
    ///
    /// # Errors
    /// Any other end: another server may take over.
    async fn ended(&self) -> Result<()> {
        match self {
            AttachedDoor::Fuse(door) => {
                let Some(session) = door.session() else { return Ok(()) };
                session.ended().await;
                match session.outcome() {
                    Some(ended) if *ended != Ended::Unmounted => {
                        Err(Error::io(format!("the FUSE session of the attachment has ended: {ended}")))
                    }
                    _ => Ok(()),
                }
            }
            AttachedDoor::Ublk(door) => {
                door.ended().await;
                Ok(())
            }
            // The kernel says goodbye on all connections when the node is disconnected. After the loss of one it sends requests again that may
            // still be in progress here: only the end of this process makes sure that they aren't carried out later.
            AttachedDoor::Nbd(door) => {
                let ended = door.server().first_end().await;
                ended.map_err(|error| error.in_context("a connection of the kernel's NBD client has ended"))
            }
        }
    }
}

impl Attached {
    /// Returns the door of a device, whose name is for messages. It isn't open yet.
    ///
    /// # Errors
    /// Those of [`NbdDoor::new`].
    pub fn new(holder: HolderConnection, device: Arc<dyn DevicePart>, name: String) -> Result<Attached> {
        let HolderConnection { socket, start, devices } = holder;
        let door = match start.driver {
            Driver::Fuse => {
                let left = start.left.and_then(|left| match left {
                    Connection::Fuse(negotiated) => Some(LeftConnection { devices, negotiated }),
                    _ => None,
                });
                let config = FuseConfig {
                    device: device.clone(),
                    path: start.path,
                    read_only: false,
                    allow_other: false,
                    stop_limit: doors::fuse::door::STOP_LIMIT,
                };
                AttachedDoor::Fuse(Arc::new(FuseDoor::held(config, left)))
            }
            Driver::Ublk => {
                let left = start.left.and_then(|left| match left {
                    Connection::Ublk(id) => Some(id),
                    _ => None,
                });
                let config = UblkConfig {
                    name,
                    device: device.clone(),
                    id: None,
                    read_only: false,
                    stop_limit: doors::ublk::door::STOP_LIMIT,
                };
                AttachedDoor::Ublk(Arc::new(UblkDoor::held(config, left)))
            }
            Driver::Nbd => {
                let export = ExportConfig {
                    name,
                    description: String::new(),
                    device: device.clone(),
                    read_only: false,
                };
                AttachedDoor::Nbd(Arc::new(NbdDoor::new(ServerConfig {
                    address: Address::Unix(nbd_socket(&start.path)),
                    access: Access::default(),
                    exports: vec![export],
                    max_connections: runtime::shard_count(),
                })?))
            }
        };
        Ok(Attached { socket, door, device })
    }

    /// The door.
    pub fn door(&self) -> Arc<dyn Door> {
        self.door.door()
    }

    /// Waits until the node is gone.
    ///
    /// # Errors
    /// Any other end of the connection: another server may take over.
    pub async fn ended(&self) -> Result<()> {
        self.door.ended().await
    }

    /// Tells the holder that clients are served, and gives it what keeps the connection alive. Without a holder the connection ends.
    ///
    /// # Errors
    /// Those of [`handover::send`].
    pub async fn ready(&self) -> Result<()> {
        let told = self.door.connection().await.and_then(|connection| match connection {
            None => Ok(()),
            Some((connection, devices)) => {
                let geometry = self.device.geometry();
                let ready = Ready {
                    connection,
                    bytes: geometry.bytes(),
                    block_size: geometry.block_size.bytes() as u32,
                    read_only: geometry.read_only,
                    keeps_acknowledged: self.device.keeps_acknowledged(),
                };
                handover::send(&self.socket, &ready, &devices)
            }
        });
        if told.is_err() {
            // The error is that of the holder.
            let _ended = self.door.abandon().await;
        }
        told
    }
}
