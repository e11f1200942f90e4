//! Memory that the doors allocate on the path of a request.
//!
//! The counts are of the whole process, so this binary has a single test.

use block::{BlockIndex, Buffer, Device, Durability};
use conformance::allocations::Counting;
use std::rc::Rc;

#[path = "../integration/vhost/front_end.rs"]
#[allow(dead_code)] // Shared with the integration tests.
mod front_end;
mod fuse;
mod nbd;
mod vhost;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads and writes blocks of 4096 bytes, one after the other.
async fn work(device: Rc<dyn Device>, task: u64, requests: u64) {
    for number in 0..requests {
        let at = BlockIndex((task * 31 + number) % 1024);
        if number % 4 == 0 {
            let payload = Buffer::zeroed(4096).into();
            device.write(at, payload, Durability::Visible).await.expect("written");
        } else {
            device.read(at, Buffer::new(4096)).await.0.expect("read");
        }
    }
}

#[test]
fn memory_is_bounded_and_steady_state_allocates_nothing() {
    nbd::requests_allocate_nothing();
    fuse::requests_allocate_nothing();
    vhost::requests_allocate_nothing();
}
