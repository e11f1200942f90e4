//! A node stops answering, at each await of the device: within the time limit of a request everything else
//! continues, and the device can be closed.

use crate::model::{Model, settle, simulate};
use crate::node::{Request, TestNode, config};
use block::{DevicePart, Part, Payload};
use conformance::budget;
use remote::{Config, RemotePart};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(2);
/// Limit of a request to the device: it waits for several requests to nodes, and for the pauses between
/// retries.
const MAX_WAIT: Duration = Duration::from_secs(5);

struct Case {
    copies: u64,
    has_backup: bool,
    /// Request at which the node stops answering, and number of such requests before it.
    request: Request,
    after: u64,
}

/// Runs a load with a node that stops answering in the middle, and checks times.
fn run(number: u64, case: &'static Case) {
    simulate(number, move || async move {
        let nodes = [TestNode::new(40), TestNode::new(40), TestNode::new(40)];
        let backup = case.has_backup.then(|| TestNode::new(40));
        let config = Config {
            copies: case.copies,
            backup: backup.clone().map(|backup| backup as _),
            timeout: LIMIT,
            ..config(&nodes)
        };
        let part = RemotePart::open(config).await.unwrap();
        let mut model = Model::new(&part, number, 12_000).await;
        for _ in 0..1500 {
            model.step(number).await;
        }
        settle().await;
        // The load includes every kind of request: reads, writes, discards of groups, connections.
        let victim = backup.as_ref().unwrap_or(&nodes[0]);
        victim.controls.silent_after(case.request, case.after);
        if case.request == Request::Open {
            victim.restart().await;
        }
        let mut longest = Duration::ZERO;
        for step in 0..1200 {
            let begin = runtime::now();
            model.step(number).await;
            longest = longest.max(begin.elapsed());
            if step == 300 {
                model.discard_all().await;
            }
            if step % 20 == 0 {
                runtime::sleep(Duration::from_millis(50)).await;
            }
        }
        // Probes of an idle node are reads.
        runtime::sleep(Duration::from_secs(8)).await;
        let what = format!("{:?} after {}, {} copies", case.request, case.after, case.copies);
        assert!(longest <= MAX_WAIT, "{what}: a request took {longest:?}");
        assert_eq!((model.failed_reads, model.failed_writes), (0, 0), "{what}");
        assert!(victim.controls.is_stalled.load(Relaxed), "{what}: it was never silent");
        // The device is closed with a write in flight and another node that has just stopped answering.
        nodes[1].controls.is_stalled.store(true, Relaxed);
        let device = model.device.clone();
        let write = runtime::spawn(async move {
            let payload: Payload = block::Buffer::zeroed(4096).freeze().into();
            device.write(block::BlockIndex(0), payload, block::Durability::Visible).await
        });
        let begin = runtime::now();
        part.close().await.unwrap();
        let time = begin.elapsed();
        assert!(time <= LIMIT + Duration::from_millis(100), "{what}: closing took {time:?}");
        drop(write.await);
    });
}

const fn case(copies: u64, has_backup: bool, request: Request, after: u64) -> Case {
    Case { copies, has_backup, request, after }
}

const CASES: [Case; 14] = [
    case(2, false, Request::Read, 0),
    case(2, false, Request::Write, 0),
    case(2, false, Request::Discard, 0),
    case(2, false, Request::Open, 0),
    case(2, false, Request::Read, 3),
    case(2, false, Request::Write, 3),
    case(2, false, Request::Status, 0),
    case(3, false, Request::Write, 1),
    case(1, true, Request::Read, 0),
    case(1, true, Request::Write, 0),
    case(1, true, Request::Write, 5),
    case(2, true, Request::Write, 2),
    case(2, false, Request::Discard, 2),
    case(3, false, Request::Read, 2),
];

#[test]
fn a_silent_node_holds_nothing_for_longer_than_the_limit() {
    for (number, case) in (0..).zip(&CASES) {
        run(number, case);
    }
    if budget::is_long() {
        for (number, case) in (0..20).flat_map(|round| (round * 100..).zip(&CASES)) {
            run(number + 1000, case);
        }
    }
}

/// Nodes are connected at the same time: one that answers isn't delayed by dead ones.
#[test]
fn dead_nodes_are_connected_again_at_the_same_time() {
    simulate(41, || async {
        let nodes: Vec<Arc<TestNode>> = (0..6).map(|_| TestNode::new(40)).collect();
        let part = RemotePart::open(Config { copies: 2, ..config(&nodes) }).await.unwrap();
        for node in &nodes {
            node.controls.is_stalled.store(true, Relaxed);
        }
        runtime::sleep(Duration::from_secs(20)).await;
        let down = async || {
            let status = part.status().await;
            status["nodes"].as_array().unwrap().iter().filter(|node| node["state"] == "down").count()
        };
        assert_eq!(down().await, 6);
        // The last node answers while connections to all others wait.
        nodes[5].controls.is_stalled.store(false, Relaxed);
        runtime::sleep(Duration::from_secs(8)).await;
        assert_eq!(down().await, 5);
        nodes.iter().for_each(|node| node.controls.is_stalled.store(false, Relaxed));
        runtime::sleep(Duration::from_secs(8)).await;
        assert_eq!(down().await, 0);
        part.close().await.unwrap();
    });
}

/// Counts log lines of level `info` and above on this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, _field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

/// Both nodes don't answer for two minutes while pages are written: the log has the transitions, and not a
/// line for each attempt.
#[test]
fn attempts_that_fail_again_and_again_are_counted_and_not_logged() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        simulate(51, || async {
            let nodes = [TestNode::new(40), TestNode::new(40)];
            let config = Config { copies: 2, timeout: LIMIT, ..config(&nodes) };
            let part = RemotePart::open(config).await.unwrap();
            let device = part.open().await.unwrap();
            let write = async |page: u64| {
                let mut random = runtime::Random::new(page);
                let bytes: Vec<u8> = (0..512).flat_map(|_| random.next_u64().to_le_bytes()).collect();
                let payload: Payload = block::Data::copy_of(&bytes).into();
                let write = device.write(block::BlockIndex(page), payload, block::Durability::Visible);
                let _refused = runtime::timeout(LIMIT, write).await;
            };
            for page in 0..2000 {
                write(page).await;
            }
            let all =
                |stalled| nodes.iter().for_each(|node| node.controls.is_stalled.store(stalled, Relaxed));
            all(true);
            let begin = runtime::now();
            for page in 0.. {
                write(page % 4000).await;
                runtime::sleep(Duration::from_millis(10)).await;
                if begin.elapsed() >= Duration::from_secs(120) {
                    break;
                }
            }
            all(false);
            runtime::sleep(Duration::from_secs(20)).await;
            for page in 0..100 {
                write(page).await;
            }
            drop(device);
            part.close().await.unwrap();
        });
    });
    let lines = lines.0.lock().unwrap().clone();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert!(count("is down") >= 2 && count("answers again") >= 2, "{lines:#?}");
    assert!(lines.len() < 20, "{} lines: {lines:#?}", lines.len());
}

#[test]
fn an_error_of_opening_names_the_node_once() {
    simulate(52, || async {
        let nodes = [TestNode::new(40), TestNode::new(40)];
        nodes[1].controls.is_stalled.store(true, Relaxed);
        let opened = RemotePart::open(Config { timeout: LIMIT, ..config(&nodes) }).await;
        let text = opened.err().unwrap().to_string();
        assert_eq!(text.matches("node 1").count(), 1, "{text}");
        assert!(text.contains("took longer than"), "{text}");
    });
}

/// All nodes are lost for a moment, until every staged block was refused. Once they answer again and the
/// blocks are being written, writes wait for that.
#[test]
fn after_all_nodes_return_writes_wait_for_the_refused_blocks() {
    for seed in 60..64 {
        simulate(seed, || async {
            let nodes = [TestNode::new(200), TestNode::new(200)];
            let part =
                RemotePart::open(Config { copies: 2, timeout: LIMIT, ..config(&nodes) }).await.unwrap();
            let device = part.open().await.unwrap();
            let write = async |page: u64| {
                let mut random = runtime::Random::new(page);
                let bytes: Vec<u8> = (0..512).flat_map(|_| random.next_u64().to_le_bytes()).collect();
                let payload: Payload = block::Data::copy_of(&bytes).into();
                device.write(block::BlockIndex(page), payload, block::Durability::Visible).await
            };
            nodes.iter().for_each(|node| node.controls.is_dead.store(true, Relaxed));
            let mut page = 0;
            let error = loop {
                assert!(page < 20_000, "the nodes are dead");
                match write(page).await {
                    Ok(()) => page += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, block::Error::Disconnected(_)), "{error}");
            // All blocks that were being written have been refused as well.
            runtime::sleep(Duration::from_secs(5)).await;
            for node in &nodes {
                node.controls.delay.store(1_000_000, Relaxed);
                node.controls.is_dead.store(false, Relaxed);
            }
            let is_up = async || {
                let status = part.status().await;
                status["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "up")
            };
            while !is_up().await {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            // The blocks are written again at the latest after their pause.
            runtime::sleep(Duration::from_millis(300)).await;
            for page in page..page + 300 {
                write(page).await.unwrap();
            }
            drop(device);
            part.close().await.unwrap();
        });
    }
}
