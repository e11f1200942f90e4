//! Server's end of an attachment: the message of its holder, and the door for the node.

use super::driver::{AttachedDoor, DoorConfig, OpenConnection};
use super::handover::{self, Connection, Ready, Start};
use super::process::{lock_memory, name_thread};
use crate::failure::Failure;
use block::Result;
use doors::ublk::backing::Backing;
use doors::ublk::zoned::Layout;
use stack::Door;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connection to the holder that started this server.
pub struct HolderConnection {
    socket: OwnedFd,
    start: Start,
    descriptors: Vec<OwnedFd>,
}

impl HolderConnection {
    /// Receives the first message of the holder, and prepares the process to serve a node.
    ///
    /// # Errors
    /// Errors of [`handover::receive`].
    pub fn greet() -> Result<HolderConnection, Failure> {
        let socket = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
        let socket = socket.map_err(|error| Failure::World(format!("the holder's socket: {error}")))?;
        let (start, mut descriptors) = handover::receive(&socket)?;
        name_thread();
        lock_memory();
        if let Some(memory) = descriptors.pop() {
            remote::kept::set(memory);
        }
        Ok(HolderConnection { socket, start, descriptors })
    }

    /// Returns the stack in TOML, in place of its file; `None` for a stack of one line.
    pub fn text(&self) -> Option<&str> {
        self.start.text.as_deref()
    }
}

/// Door of an attachment, and the connection to its holder.
pub struct Attached {
    socket: OwnedFd,
    door: Box<dyn AttachedDoor>,
    backing: Backing,
}

impl Attached {
    /// Creates the door of a device or of zones; `name` is for messages. The door isn't open.
    ///
    /// # Errors
    /// Errors of [`Driver::attached_door`](super::driver::Driver::attached_door).
    pub fn new(holder: HolderConnection, backing: Backing, name: String) -> Result<Attached> {
        let HolderConnection { socket, start, descriptors } = holder;
        let door = start.driver.attached_door(DoorConfig {
            backing: backing.clone(),
            name,
            volume: start.volume,
            left: start.left,
            descriptors,
        })?;
        Ok(Attached { socket, door, backing })
    }

    /// Returns the door.
    pub fn door(&self) -> Arc<dyn Door> {
        self.door.door()
    }

    /// Waits until the node is removed.
    ///
    /// # Errors
    /// Any other end of the connection; another server may take over.
    pub async fn ended(&self) -> Result<()> {
        self.door.ended().await
    }

    fn describe(&self, connection: Connection) -> Result<Ready> {
        Ok(match &self.backing {
            Backing::Device(device) => {
                let geometry = device.geometry();
                Ready {
                    connection,
                    bytes: geometry.bytes(),
                    block_size: geometry.block_size.bytes() as u32,
                    read_only: geometry.read_only,
                    is_zoned: false,
                    keeps_acknowledged: device.keeps_acknowledged(),
                }
            }
            Backing::Zones(zones) => {
                let layout = Layout::of(zones.geometry())?;
                Ready {
                    connection,
                    bytes: layout.bytes(),
                    block_size: layout.block,
                    read_only: false,
                    is_zoned: true,
                    keeps_acknowledged: zones.keeps_acknowledged(),
                }
            }
        })
    }

    /// Sends [`Ready`] to the holder, with what keeps the connection alive. Ends the connection if the holder
    /// is lost.
    ///
    /// # Errors
    /// Errors of [`handover::send`].
    pub async fn ready(&self) -> Result<()> {
        let told = self.door.connection().await.and_then(|connection| match connection {
            None => Ok(()),
            Some(OpenConnection { connection, descriptors }) => {
                let ready = self.describe(connection)?;
                handover::send(&self.socket, &ready, &descriptors, None)
            }
        });
        if told.is_err() {
            // The holder's error is more useful than this one.
            let _ended = self.door.abandon().await;
        }
        told
    }
}
