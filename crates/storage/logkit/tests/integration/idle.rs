//! Marks that an idle shard writes.

use crate::bare::{Bare, CLEANER, Item, MOVED, USER, zones};
use block::Error;
use logkit::{Mover, Owner, lane};
use std::time::Duration;

#[test]
fn an_idle_shard_leaves_one_mark_in_each_stream_and_then_writes_nothing() {
    let main = async || {
        let zones = zones(40, 64 << 10, 0).await?.open().await?;
        let owner = Bare::format(zones, false).await?;
        lane::start(&owner);
        let streams = &owner.kit().streams;
        let state = || [USER, CLEANER].map(|stream| (streams.committed(stream), streams.durable(stream)));
        runtime::sleep(Duration::from_secs(60)).await;
        assert_eq!(state(), [(0, 0), (0, 0)], "nothing was appended");
        owner.append(Item::new(1, 3, 10)).await;
        owner.append(Item::new(2, 3, 10)).await;
        assert_eq!(state()[0].0, 2);
        runtime::sleep(Duration::from_secs(5)).await;
        assert_eq!(state(), [(3, 3), (0, 0)], "two records and a mark");
        let appended = owner.kit().since_checkpoint();
        runtime::sleep(Duration::from_secs(3600)).await;
        assert_eq!((state(), owner.kit().since_checkpoint()), ([(3, 3), (0, 0)], appended));
        // The cleaner's records need a mark of their own.
        let mut mover = Mover::new(2);
        mover.append(&owner, MOVED, [Item::new(3, 1, 10)]).await?;
        runtime::sleep(Duration::from_secs(5)).await;
        assert_eq!(state(), [(3, 3), (2, 2)]);
        // Appends without a pause need no mark.
        for number in 0..10 {
            runtime::sleep(Duration::from_secs(1)).await;
            owner.append(Item::new(number, 1, 10)).await;
        }
        assert_eq!(streams.committed(USER), 13);
        mover.close(&*owner).await;
        let begun = runtime::now();
        owner.close().await;
        assert!(begun.elapsed() < Duration::from_millis(500), "closing doesn't wait for a mark");
        Ok::<_, Error>(())
    };
    let world = runtime::Simulation::new(1);
    runtime::simulate(world, main).expect("the world runs").value.expect("zones in memory");
}
