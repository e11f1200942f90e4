//! In steady state a request allocates nothing, neither in the server nor in the client.

use crate::work;
use block::{BlockSize, DevicePart};
use conformance::allocations::everywhere;
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use doors::nbd::server::{ExportConfig, Server, ServerConfig};
use runtime::net::Address;
use std::sync::Arc;

pub fn requests_allocate_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = Address::Unix(folder.path().join("nbd.sock"));
    let allocations = runtime::run(runtime::Config::default(), move || async move {
        let ram = disks::ram::RamPart::new(4 << 20, BlockSize::default()).expect("memory");
        let export = ExportConfig {
            name: "disk".into(),
            description: String::new(),
            device: Arc::new(ram),
            read_only: false,
        };
        let config = ServerConfig {
            address: address.clone(),
            access: Default::default(),
            exports: vec![export],
            max_connections: 1,
            allow_remote: false,
            tls: None,
        };
        let server = Server::new(config).expect("valid");
        server.start().await.expect("it starts");
        let config = ClientConfig {
            address,
            export: "disk".into(),
            connections: 1,
            block_size: None,
            timeout: USUAL_TIMEOUT,
            tls: None,
        };
        // The request for the export's properties is also a connection.
        let client = NbdClient::connect(config).await.expect("it answers");
        while server.connections() > 0 {
            runtime::yield_now().await;
        }
        let device = client.open().await.expect("it opens");
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
        drop(device);
        server.stop().await.expect("it stops");
        allocations.saturating_sub(tasks_alone)
    });
    let allocations = allocations.expect("the runtime runs");
    println!("{allocations} allocations for 16000 requests");
    // Lists may still grow once or twice with more concurrency than during the warm-up.
    assert!(allocations < 40, "{allocations} allocations for 16000 requests");
}
