//! Requests that a node answers with an error: only these requests fail.

use crate::model::{Model, settle, simulate};
use crate::node::{TestNode, config};
use block::Part;
use remote::{Config, RemotePart};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A device whose pages are on the nodes, and its model.
async fn filled(
    seed: u64,
    copies: u64,
) -> ([std::sync::Arc<TestNode>; 2], std::sync::Arc<RemotePart>, Model) {
    let nodes = [TestNode::new(100), TestNode::new(100)];
    let part = RemotePart::open(Config { copies, ..config(&nodes) }).await.unwrap();
    let mut model = Model::new(&part, seed, 20_000).await;
    // More pages than local memory holds. Afterwards the first node is preferred for reads.
    for _ in 0..4500 {
        model.write().await;
    }
    settle().await;
    nodes[1].controls.delay.store(300, Relaxed);
    model.read_all(seed).await;
    (nodes, part, model)
}

#[test]
fn one_error_of_a_read_fails_no_other_read() {
    for copies in [1, 2] {
        simulate(21, move || async move {
            let (nodes, part, mut model) = filled(21, copies).await;
            for _ in 0..2 {
                nodes[0].controls.failing_reads.store(1, Relaxed);
                assert_eq!(model.read_all(21).await, 0, "{copies} copies");
                assert_eq!(nodes[0].controls.failing_reads.load(Relaxed), 0, "the error has come");
            }
            let node = &part.status().await["nodes"][0];
            assert_eq!(
                (&node["state"], &node["losses"], &node["errors"]),
                (&"up".into(), &0.into(), &2.into())
            );
            // Two errors: with a single copy the read of that page fails, and no other read.
            nodes[0].controls.failing_reads.store(2, Relaxed);
            assert!(model.read_all(21).await <= 2 - copies);
            assert_eq!((model.read_all(21).await, model.failed_writes), (0, 0));
            part.close().await.unwrap();
        });
    }
}

#[test]
fn errors_that_persist_make_a_node_down_and_its_copies_are_made_again() {
    simulate(22, move || async move {
        let (nodes, part, mut model) = filled(22, 2).await;
        nodes[0].controls.failing_reads.store(u64::MAX, Relaxed);
        assert_eq!(model.read_all(22).await, 0);
        let node = &part.status().await["nodes"][0];
        assert!(node["losses"].as_u64() > Some(0), "{node}");
        nodes[0].controls.failing_reads.store(0, Relaxed);
        settle().await;
        assert_eq!(part.status().await["zones_with_one_copy"], 0);
        nodes[1].controls.is_dead.store(true, Relaxed);
        assert_eq!((model.read_all(22).await, model.failed_writes), (0, 0));
        part.close().await.unwrap();
    });
}

#[test]
fn errors_of_writes_lose_no_page_and_others_go_on() {
    for copies in [1, 2] {
        simulate(23, move || async move {
            let (nodes, part, mut model) = filled(23, copies).await;
            for round in 0..3 {
                let failing = [1, 3, u64::MAX][round % 3];
                nodes[round % 2].controls.failing_writes.store(failing, Relaxed);
                for _ in 0..300 {
                    model.step(23).await;
                }
                runtime::sleep(Duration::from_secs(1)).await;
                nodes[round % 2].controls.failing_writes.store(0, Relaxed);
                settle().await;
                assert_eq!(part.status().await["nodes"][round % 2]["losses"], 0, "a write is no loss");
            }
            assert_eq!((model.read_all(23).await, model.failed_writes), (0, 0), "{copies} copies");
            part.close().await.unwrap();
        });
    }
}
