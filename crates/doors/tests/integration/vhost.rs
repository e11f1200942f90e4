//! The vhost-user-blk door with this crate's front-end.

mod disks;
pub mod front_end;
mod growth;
mod hostile;
mod lifecycle;

use block::DevicePart;
use doors::vhost_user::door::{VhostUserConfig, VhostUserDoor};
use runtime::net::Address;
use std::sync::Arc;

/// A door that serves a device on this socket.
pub fn door(address: &Address, device: Arc<dyn DevicePart>, read_only: bool) -> VhostUserDoor {
    let Address::Unix(socket) = address else { panic!("{address}: expected a unix socket") };
    let config = VhostUserConfig {
        name: "disk".into(),
        device,
        socket: socket.clone(),
        access: Default::default(),
        queues: 4,
        serial: "0123456789abcdefghij".into(),
        read_only,
    };
    VhostUserDoor::new(config).expect("a valid configuration")
}
