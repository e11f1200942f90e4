//! Remote memory keeps the promises of the contract of devices.

use crate::node::{TestNode, config};
use block::DevicePart;
use remote::{Compression, Config, RemotePart};
use std::sync::Arc;

fn suite(make: impl Fn() -> Config + Send + 'static) {
    let runtime = runtime::Config::default().with_shards(2);
    let main = move || async move {
        let make = async || RemotePart::open(make()).await.unwrap() as Arc<dyn DevicePart>;
        conformance::device::run(make, Default::default()).await
    };
    runtime::run(runtime, main).unwrap().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn on_one_node() {
    suite(|| config(&[TestNode::new(64)]));
}

#[test]
fn in_two_copies_with_a_backup() {
    suite(|| Config {
        copies: 2,
        compression: Compression::Zstd,
        backup: Some(TestNode::new(64)),
        ..config(&[TestNode::new(64), TestNode::new(40), TestNode::new(64)])
    });
}
