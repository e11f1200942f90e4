//! The vhost-user-blk door with this crate's front-end.

mod disks;
pub mod front_end;
mod growth;
mod hostile;
mod lifecycle;

use crate::support::{Controls, SlowDisk, run, socket};
use block::DevicePart;
use doors::vhost_user::door::{VhostUserConfig, VhostUserDoor};
use runtime::net::Address;
use stack::Door;
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

/// Runs a test on `shards` shards with the address of a door, which is stopped afterwards.
fn with_door(
    shards: usize,
    device: Arc<dyn DevicePart>,
    read_only: bool,
    test: impl AsyncFnOnce(Address) + Send + 'static,
) {
    let (_folder, address) = socket();
    run(shards, move || async move {
        let door = door(&address, device, read_only);
        door.start().await.expect("it starts");
        test(address).await;
        door.stop().await.expect("it stops");
    });
}

/// As [`with_door`], with the controls of a disk of 256 blocks of 4 KiB.
fn with_disk(shards: usize, test: impl AsyncFnOnce(Address, Arc<Controls>) + Send + 'static) {
    let disk = SlowDisk::new(256, 4096);
    let controls = disk.controls.clone();
    with_door(shards, disk, false, async move |address| test(address, controls).await);
}
