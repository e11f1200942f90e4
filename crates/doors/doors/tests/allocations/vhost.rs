//! In steady state a guest's request allocates nothing, neither in the door nor in the front-end.

use crate::front_end::{FrontEnd, Settings};
use crate::work;
use block::BlockSize;
use conformance::allocations::everywhere;
use doors::vhost_user::door::{VhostUserConfig, VhostUserDoor};
use runtime::net::Address;
use stack::Door;
use std::sync::Arc;

pub fn requests_allocate_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("vm.sock");
    let allocations = runtime::run(runtime::Config::default(), move || async move {
        let ram = disks::ram::RamPart::new(4 << 20, BlockSize::default()).expect("memory");
        let config = VhostUserConfig {
            name: "disk".into(),
            device: Arc::new(ram),
            socket: socket.clone(),
            access: Default::default(),
            queues: 1,
            serial: String::new(),
            read_only: false,
        };
        let door = VhostUserDoor::new(config).expect("valid");
        door.start().await.expect("it starts");
        let settings = Settings { depth: 16, ..Settings::default() };
        let front_end = FrontEnd::connect(&Address::Unix(socket), settings).await.expect("it answers");
        let part = front_end.device().await.expect("a device");
        let device = part.open().await.expect("it opens");
        let run = async |requests| {
            let tasks = (0..32).map(|task| runtime::spawn(work(device.clone(), task, requests)));
            for task in tasks.collect::<Vec<_>>() {
                task.await;
            }
        };
        run(100).await;
        let before = everywhere();
        run(0).await;
        let tasks_alone = everywhere() - before;
        let before = everywhere();
        run(500).await;
        let allocations = everywhere() - before;
        door.stop().await.expect("it stops");
        allocations.saturating_sub(tasks_alone)
    });
    let allocations = allocations.expect("the runtime runs");
    println!("{allocations} allocations for 16000 requests of a guest");
    // Lists may still grow once or twice with more concurrency than during the warm-up.
    assert!(allocations < 40, "{allocations} allocations for 16000 requests of a guest");
}
