//! Nodes, copies, sizes, groups and shards: each combination opens and works, or is refused with the numbers.

use crate::node::{TestNode, config};
use block::{BlockIndex, Buffer, DevicePart, Durability, Error, Part, Payload};
use conformance::budget;
use remote::{Config, RemotePart};
use runtime::Random;
use std::sync::Arc;

fn page(number: u64) -> Payload {
    let mut random = Random::new(number);
    let mut bytes = vec![0; 4096];
    random.fill(&mut bytes);
    block::Data::copy_of(&bytes).into()
}

/// Opens a device, fills it to the last page with incompressible data, rewrites some of it, and reads it.
async fn works(nodes: usize, mib: u64, copies: u64, group: u64, shards: usize) -> Result<u64, Error> {
    let nodes: Vec<Arc<TestNode>> = (0..nodes).map(|_| TestNode::new(mib)).collect();
    let part = RemotePart::open(Config { copies, group: group << 20, ..config(&nodes) }).await?;
    let pages = part.geometry().blocks.0;
    let each = move |part: Arc<RemotePart>, shard: usize| async move {
        let device = part.open().await.unwrap();
        let own = || (0..pages).filter(|number| *number as usize % shards == shard);
        // All pages are written twice: stale ones must make space for the second time.
        for number in own().chain(own()) {
            device.write(BlockIndex(number), page(number), Durability::Visible).await.unwrap();
        }
        for number in own().step_by(7) {
            let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
            outcome.unwrap();
            assert!(*found.filled() == page(number).to_data()[..], "page {number}");
        }
    };
    let tasks = (0..shards).map(|shard| {
        let part = part.clone();
        runtime::spawn_on(runtime::ShardIndex(shard), move || each(part, shard))
    });
    runtime::join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
    runtime::sleep(std::time::Duration::from_secs(5)).await;
    let status = part.status().await;
    assert!(copies == 1 || status["zones_with_one_copy"] == 0, "{status:?}");
    part.close().await.unwrap();
    Ok(pages)
}

#[test]
fn each_geometry_works_or_is_refused_with_the_numbers() {
    let long = budget::is_long();
    let shards: &[usize] = if long { &[1, 2, 3, 4, 7, 8, 16, 32] } else { &[1, 3, 32] };
    let sizes: &[u64] = if long { &[1, 9, 10, 40] } else { &[1, 9, 10, 24] };
    let counts: &[usize] = if long { &[1, 2, 3, 7] } else { &[1, 2, 7] };
    let groups: &[u64] = if long { &[1, 2, 8] } else { &[1, 8] };
    let (mut opened, mut refused) = (0, 0);
    for shards in shards {
        let cases: Vec<(usize, u64, u64, u64)> = counts
            .iter()
            .flat_map(|nodes| sizes.iter().map(move |mib| (*nodes, *mib)))
            .flat_map(|(nodes, mib)| {
                (1..=3).flat_map(move |copies| groups.iter().map(move |group| (nodes, mib, copies, *group)))
            })
            .collect();
        // With several shards every ninth case is enough.
        let every = if long || *shards == 1 { 1 } else { 9 };
        for (nodes, mib, copies, group) in cases.into_iter().step_by(every) {
            let shards = *shards;
            println!("{shards} shards, {nodes} nodes of {mib} MiB, {copies} copies, groups of {group} MiB");
            let main = move || works(nodes, mib, copies, group, shards);
            let outcome = runtime::simulate(runtime::Simulation::new(7).with_shards(shards), main).unwrap();
            let zones = (nodes as u64 * (mib / group)) / copies.min(nodes as u64);
            let what = format!(
                "{shards} shards, {nodes} nodes of {mib} MiB, {copies} copies, groups of {group} MiB"
            );
            match outcome.value {
                Ok(pages) => {
                    opened += 1;
                    assert!(copies <= nodes as u64 && zones >= 10 && pages > 0, "{what}: {pages} pages");
                }
                Err(Error::Invalid(text)) => {
                    refused += 1;
                    let expected = if copies > nodes as u64 {
                        format!("copies {copies}: expected 1 to {nodes}")
                    } else {
                        format!(
                            "group {group}MiB: the nodes, and backup, have space for {zones} groups; expected at least 10"
                        )
                    };
                    assert!(text.contains(&expected), "{what}: {text}");
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    assert!(opened > 10 && refused > 10, "{opened} opened, {refused} refused");
}
