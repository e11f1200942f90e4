//! Peers that aren't memory nodes, send invalid bytes, or don't answer.

use crate::support::{MIB, Machine, borrow, config, node, number, open, simulated, status_when, write};
use block::{BlockIndex, BlockSize, Data, DevicePart, Durability, Part};
use disks::ram::RamPart;
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use doors::nbd::server::{ExportConfig, Server, ServerConfig};
use memory_node::{MemoryNodePart, STATUS_BYTES};
use runtime::net::{Address, Listener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A server whose status is written by the test, and that has memory for the borrower `one`.
async fn impostor(address: &Address, status_bytes: u64) -> (Server, Rc<dyn block::Device>) {
    let ram = |bytes| Arc::new(RamPart::new(bytes, BlockSize::new(512).unwrap()).unwrap());
    let status = ram(status_bytes);
    let export = |name: &str, device: Arc<RamPart>| ExportConfig {
        name: name.to_owned(),
        description: String::new(),
        device,
        read_only: false,
    };
    let exports = vec![export("status", status.clone()), export("memory/one", ram(MIB))];
    let config = ServerConfig {
        address: address.clone(),
        access: Default::default(),
        exports,
        max_connections: 16,
        allow_remote: false,
        tls: None,
    };
    let server = Server::new(config).unwrap();
    server.start().await.unwrap();
    (server, status.open().await.unwrap())
}

async fn say(status: &dyn block::Device, text: &[u8]) {
    let mut bytes = text.to_vec();
    bytes.resize(STATUS_BYTES, b' ');
    status.write(BlockIndex(0), Data::copy_of(&bytes).into(), Durability::Visible).await.unwrap();
}

const SOUND: &str = r#"{"version":1,"capacity_bytes":5,"lent_bytes":0,"free_bytes":4,"reserve_bytes":0,"reclaim_bytes":0,
    "pressure":{"some_avg10":null,"mem_available_bytes":0,"cgroup_limit_bytes":null,"cgroup_used_bytes":null},
    "borrowers":{"one":{"quota_bytes":9,"lent_bytes":7,"reclaim_bytes":18446744073709551615,"connections":0,"epoch":0}}}"#;

#[test]
fn other_servers_are_refused_with_the_reason() {
    simulated(21, |address| async move {
        let (server, status) = impostor(&address, STATUS_BYTES as u64).await;
        let connect =
            async || MemoryNodePart::connect(address.clone(), "one".to_owned(), 1, None).await.err();
        for (text, expected) in [
            (&b""[..], "isn't the JSON object"),
            (b"{\"version\": 2, \"capacity_bytes\": 1}", "version 2: expected 1"),
            (b"{\"version\": 1}", "missing field"),
            (&[b'['; 9000], "isn't the JSON object"),
            (b"{\"version\":1,\"capacity_bytes\":-1}", "isn't the JSON object"),
            (b"\xff\xfe", "isn't the JSON object"),
        ] {
            say(&*status, text).await;
            let error = connect().await.expect("refused");
            assert!(error.detail().contains(expected), "{error}");
            assert_eq!(error.errno(), 71, "{error}");
        }
        say(&*status, SOUND.as_bytes()).await;
        assert!(connect().await.is_none(), "the same with a sound status");
        server.stop().await.unwrap();
        let (server, _status) = impostor(&address, 4 << 20).await;
        let error = connect().await.expect("refused");
        assert!(error.detail().contains("4194304 bytes: expected 65536"), "{error}");
        server.stop().await.unwrap();
    });
}

#[test]
fn a_status_that_turns_bad_leaves_what_was_known_and_the_device_works() {
    simulated(22, |address| async move {
        let (server, status) = impostor(&address, STATUS_BYTES as u64).await;
        say(&*status, SOUND.as_bytes()).await;
        let part = borrow(&address, "one").await;
        assert_eq!(number(&part.status().await, "reclaim_bytes"), 7, "no more than is lent");
        say(&*status, b"{\"version\":7,\"mood\":1}").await;
        let status_of_part = status_when(&part, "an error", |status| !status["status_error"].is_null()).await;
        assert!(status_of_part["status_error"].as_str().unwrap().contains("version 7"), "{status_of_part:?}");
        assert_eq!(number(&status_of_part, "capacity_bytes"), 5);
        write(&*open(&part).await, 0, Data::copy_of(&[1; 4096])).await.unwrap();
        say(&*status, SOUND.as_bytes()).await;
        status_when(&part, "well again", |status| status["status_error"].is_null()).await;
        part.close().await.unwrap();
        server.stop().await.unwrap();
    });
}

#[test]
fn a_part_closes_at_once_although_its_node_does_not_answer() {
    simulated(24, |address| async move {
        let (server, status) = impostor(&address, STATUS_BYTES as u64).await;
        say(&*status, SOUND.as_bytes()).await;
        let part = borrow(&address, "one").await;
        server.stop().await.unwrap();
        // The kernel accepts connections and the server never answers: the next read of the status takes its
        // limit of 3 s.
        let _silent = Listener::bind(&address).unwrap();
        runtime::sleep(Duration::from_secs(2)).await;
        let begin = runtime::now();
        part.close().await.unwrap();
        assert!(begin.elapsed() < Duration::from_millis(50), "{:?}", begin.elapsed());
    });
}

#[test]
fn names_that_a_node_does_not_know_are_refused_and_leave_nothing() {
    simulated(23, |address| async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        let connect = async |export: String| {
            let config = ClientConfig {
                address: address.clone(),
                export,
                connections: 1,
                block_size: None,
                timeout: USUAL_TIMEOUT,
                tls: None,
            };
            NbdClient::connect(config).await
        };
        for export in
            ["memory", "memory/", "memory/a/b", "memory/..%", "MEMORY/a", "memory/\x1b[31m", "other"]
        {
            let error = connect(export.to_owned()).await.err().expect("refused");
            let refusal = error.detail().split_once(": ").map_or("", |(_, refusal)| refusal);
            assert!(refusal.contains("expected") || refusal.contains("no export"), "{error}");
        }
        connect("memory/".to_owned() + &"x".repeat(4000)).await.err().expect("refused");
        // The first export is the default one.
        let status = connect(String::new()).await.unwrap();
        assert!(status.geometry().read_only);
        let device = status.open().await.unwrap();
        let written =
            device.write(BlockIndex(0), Data::copy_of(&[0; 4096]).into(), Durability::Visible).await;
        assert_eq!(written.unwrap_err().errno(), 30);
        let part = borrow(&address, "one").await;
        let text = serde_json::to_string(&part.status().await).unwrap();
        assert!(!text.contains("error\":\""), "{text}");
        node.stop().await.unwrap();
    });
}
