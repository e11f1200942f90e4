//! An idle device whose nodes are restarted in turn, are away for a while, or don't answer. `remote` reads no
//! wall clock. With two copies, or a backup device, no page is lost, and the status tells at any time whether
//! the loss of a node would lose pages.

use crate::model::{Model, simulate};
use crate::node::{TestNode, config};
use block::Part;
use remote::{Config, RemotePart};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Event at the nodes of an idle device, one node after the other.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The node is restarted at once.
    Restart,
    /// The node ends, and is back after this number of seconds.
    Away(u64),
    /// The node doesn't answer for this number of seconds, and keeps its contents.
    Silent(u64),
}

struct Case {
    copies: u64,
    nodes: usize,
    has_backup: bool,
    event: Event,
    /// Seconds between two events.
    pause: u64,
    rounds: usize,
}

const DAY: u64 = 24 * 3600;

const fn case(copies: u64, nodes: usize, has_backup: bool, event: Event, pause: u64, rounds: usize) -> Case {
    Case { copies, nodes, has_backup, event, pause, rounds }
}

const CASES: [Case; 8] = [
    case(2, 2, false, Event::Restart, 3, 6),
    case(2, 2, false, Event::Restart, DAY / 6, 6),
    case(2, 3, false, Event::Restart, 60, 9),
    case(3, 3, false, Event::Restart, 60, 6),
    case(2, 2, false, Event::Away(3), 20, 6),
    case(2, 3, false, Event::Away(60), 20, 6),
    case(1, 1, true, Event::Restart, 60, 4),
    case(2, 2, false, Event::Silent(60), 60, 4),
];

async fn survives(part: &Arc<RemotePart>) -> bool {
    part.status().await["survives_loss_of_a_node"] == true
}

#[test]
fn an_idle_device_keeps_every_page_though_its_nodes_are_restarted_in_turn() {
    for (number, case) in (0..).zip(CASES) {
        simulate(number, move || async move {
            let nodes: Vec<Arc<TestNode>> = (0..case.nodes).map(|_| TestNode::new(60)).collect();
            let backup = case.has_backup.then(|| TestNode::new(60));
            let config = Config {
                copies: case.copies,
                backup: backup.clone().map(|backup| backup as _),
                group: 2 << 20,
                ..config(&nodes)
            };
            let part = RemotePart::open(config).await.unwrap();
            let mut model = Model::new(&part, number, 14_000).await;
            // More pages than local memory holds.
            for _ in 0..2400 {
                model.write().await;
            }
            runtime::sleep(Duration::from_secs(5)).await;
            assert!(survives(&part).await, "case {number}: {:?}", part.status().await);
            for round in 0..case.rounds {
                let all: Vec<&Arc<TestNode>> = nodes.iter().chain(&backup).collect();
                let node = all[round % all.len()];
                match case.event {
                    Event::Restart => node.restart().await,
                    Event::Away(seconds) => {
                        node.controls.is_dead.store(true, Relaxed);
                        node.forget().await;
                        runtime::sleep(Duration::from_secs(seconds)).await;
                        // With a third node the copies have been made there by now.
                        assert_eq!(survives(&part).await, seconds > 10 && case.nodes > 2, "case {number}");
                        node.controls.is_dead.store(false, Relaxed);
                    }
                    Event::Silent(seconds) => {
                        node.controls.is_stalled.store(true, Relaxed);
                        runtime::sleep(Duration::from_secs(seconds)).await;
                        assert!(!survives(&part).await, "case {number}: a node is silent");
                        node.controls.is_stalled.store(false, Relaxed);
                    }
                }
                runtime::sleep(Duration::from_secs(case.pause)).await;
                assert!(survives(&part).await, "case {number}, round {round}: {:?}", part.status().await);
            }
            assert_eq!((model.read_all(number).await, model.failed_writes), (0, 0), "case {number}");
            let status = part.status().await;
            assert_eq!(status["lost_pages"], 0, "case {number}");
            part.close().await.unwrap();
        });
    }
}

#[test]
fn what_a_single_copy_loses_is_told_without_a_read_and_not_read_for_ever() {
    simulate(31, || async {
        let nodes = [TestNode::new(60)];
        let part = RemotePart::open(config(&nodes)).await.unwrap();
        let mut model = Model::new(&part, 31, 16_000).await;
        for _ in 0..3000 {
            model.write().await;
        }
        runtime::sleep(Duration::from_secs(5)).await;
        nodes[0].restart().await;
        runtime::sleep(Duration::from_secs(10)).await;
        let status = part.status().await;
        let lost = status["lost_pages"].as_u64().unwrap();
        assert!(lost > 1000 && status["survives_loss_of_a_node"] == false, "{status:?}");
        let read = status["node_read_bytes"].as_u64().unwrap();
        runtime::sleep(Duration::from_secs(3600)).await;
        let status = part.status().await;
        assert!(status["node_read_bytes"].as_u64().unwrap() < read + (8 << 20), "{status:?}");
        assert_eq!(model.read_all(31).await, lost);
        // Lost pages can be written again.
        for _ in 0..1500 {
            model.write().await;
        }
        assert_eq!(model.failed_writes, 0);
        part.close().await.unwrap();
    });
}
