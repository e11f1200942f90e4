//! Memory that another process keeps: after the end of a process without a close, the next one has every
//! acknowledged write.

use crate::node::{TestNode, config};
use block::{BlockIndex, Buffer, DevicePart, Durability, Part, Payload};
use remote::{Config, RemotePart};
use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;

fn memory() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

fn page(number: u64) -> Payload {
    let mut bytes = vec![number as u8; 4096];
    let mut random = runtime::Random::new(number);
    bytes[..2000].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
    block::Data::copy_of(&bytes).into()
}

#[test]
fn everything_that_was_acknowledged_is_there_for_the_next_process() {
    let nodes = [TestNode::new(64), TestNode::new(64)];
    let kept = memory();
    let configured = || Config { kept: Some(kept.try_clone().unwrap()), ..config(&nodes) };
    for round in 0..5_u64 {
        // The process ends without a close: blocks are open and being written, and all tasks stop.
        let config = configured();
        runtime::simulate(runtime::Simulation::new(round), move || async move {
            let part = RemotePart::open(config).await.unwrap();
            assert!(part.keeps_acknowledged());
            let device = part.open().await.unwrap();
            for number in 0..round * 2000 {
                let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
                outcome.unwrap();
                assert!(*found.filled() == page(number).to_data()[..], "page {number} in round {round}");
            }
            for number in 0..(round + 1) * 2000 {
                device.write(BlockIndex(number), page(number), Durability::Visible).await.unwrap();
            }
            let status = part.status().await;
            assert_eq!(status["stored_pages"], (round + 1) * 2000, "{status:?}");
        })
        .unwrap();
    }
    let other = Config { size: Some(1 << 20), ..configured() };
    runtime::simulate(runtime::Simulation::new(1), || async {
        let error = RemotePart::open(other).await.err().unwrap();
        assert!(error.to_string().contains("kept memory is that of another device"), "{error}");
    })
    .unwrap();
}
