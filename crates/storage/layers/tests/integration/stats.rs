//! Counters of `stats`.

use crate::disk;
use block::{
    BlockIndex, BlockRange, Buffer, DevicePart, Durability, Part, Payload, ZeroMode, ZoneIndex, ZonesPart,
};
use conformance::requests::{full, on_a_shard};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::stats::{Message, StatsDevicePart, StatsZonesPart};
use stack::Tell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

async fn number(part: &dyn Part, kind: &str, what: &str) -> u64 {
    part.status().await[kind][what].as_u64().expect("a number")
}

#[test]
fn counts_calls_bytes_and_errors() {
    on_a_shard(|| async {
        let rules = parse_rules(&["read error=EIO after=2".into()], stack::Contract::Device).unwrap();
        let part = StatsDevicePart::new(Arc::new(FaultDevicePart::new(disk(), rules, 1).unwrap()));
        let handle = part.open().await.unwrap();
        for block in 0..3 {
            handle.write(BlockIndex(block), full(1, 2), Durability::Visible).await.unwrap();
        }
        handle.write(BlockIndex(0), full(2, 1), Durability::Durable).await.unwrap();
        handle.flush().await.unwrap();
        handle.discard(BlockRange::new(0, 4)).await.unwrap();
        handle.write_zeroes(BlockRange::new(0, 3), ZeroMode::default(), Durability::Visible).await.unwrap();
        for _ in 0..5 {
            let _ = handle.read(BlockIndex(0), Buffer::new(4096)).await;
        }
        for (kind, operations, bytes, errors) in [
            ("read", 2, 8192, 3),
            ("write", 3, 3 * 8192, 0),
            ("write_fua", 1, 4096, 0),
            ("flush", 1, 0, 0),
            ("discard", 1, 4 * 4096, 0),
            ("write_zeroes", 1, 3 * 4096, 0),
        ] {
            assert_eq!(number(&part, kind, "operations").await, operations, "{kind}");
            assert_eq!(number(&part, kind, "bytes").await, bytes, "{kind}");
            assert_eq!(number(&part, kind, "errors").await, errors, "{kind}");
            assert_eq!(number(&part, kind, "in_flight").await, 0, "{kind}");
            let latency = &part.status().await[kind]["latency_ns"];
            assert!(latency["min"].as_u64() <= latency["p50"].as_u64(), "{latency}");
            assert!(latency["p99_9"].as_u64() <= latency["max"].as_u64(), "{latency}");
        }
        assert!(part.message("clear_all").await.is_err());
        part.message("clear_stats").await.unwrap();
        assert_eq!(number(&part, "write", "operations").await, 0);
        handle.flush().await.unwrap();
        assert_eq!(number(&part, "flush", "operations").await, 1);
        assert_eq!(number(&part, "read", "errors").await, 0);
    });
}

#[test]
fn what_is_in_flight_is_seen_and_a_dropped_call_is_not() {
    on_a_shard(|| async {
        let rules = parse_rules(&["read delay=20ms".into()], stack::Contract::Device).unwrap();
        let part = StatsDevicePart::new(Arc::new(FaultDevicePart::new(disk(), rules, 1).unwrap()));
        let handle = part.open().await.unwrap();
        {
            let mut call = pin!(handle.read(BlockIndex(0), Buffer::new(4096)));
            assert_eq!(number(&part, "read", "in_flight").await, 0);
            let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
            assert!(polled);
            assert_eq!(number(&part, "read", "in_flight").await, 1);
            // A clear resets the counters, and keeps the calls in flight.
            part.tell(Message::ClearStats).await.unwrap();
            assert_eq!(number(&part, "read", "in_flight").await, 1);
            call.await.0.unwrap();
        }
        assert_eq!(number(&part, "read", "operations").await, 1);
        assert!(part.status().await["read"]["latency_ns"]["min"].as_u64().unwrap() >= 20_000_000);
        {
            let mut call = pin!(handle.read(BlockIndex(0), Buffer::new(4096)));
            poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
        }
        assert_eq!(number(&part, "read", "in_flight").await, 0);
        assert_eq!(number(&part, "read", "operations").await, 1);
    });
}

#[test]
fn all_shards_are_counted_together() {
    let part: Arc<StatsDevicePart> = Arc::new(StatsDevicePart::new(disk()));
    let counted = part.clone();
    let main = move || async move {
        let jobs = (0..2).map(|shard| {
            let part = part.clone();
            runtime::spawn_on(runtime::ShardIndex(shard), move || async move {
                let handle = part.open().await.unwrap();
                for _ in 0..100 {
                    handle.read(BlockIndex(1), Buffer::new(4096)).await.0.unwrap();
                }
            })
        });
        for result in runtime::join_all(jobs.collect::<Vec<_>>()).await {
            result.unwrap();
        }
        assert_eq!(number(&*counted, "read", "operations").await, 200);
        assert_eq!(number(&*counted, "read", "bytes").await, 200 * 4096);
    };
    runtime::run(runtime::Config::default().with_shards(2), main).unwrap();
}

#[test]
fn zones_are_counted() {
    on_a_shard(|| async {
        let zones = zones::ram::RamZones::new(zones::ram::Options::default()).unwrap();
        let part = StatsZonesPart::new(Arc::new(zones));
        let handle = part.open().await.unwrap();
        let payload = || Payload::from(Buffer::copy_of(&[7; 1024]));
        let landed = handle.append(ZoneIndex(0), payload()).await.unwrap();
        handle.read(landed, Buffer::new(1024)).await.0.unwrap();
        assert!(handle.append(ZoneIndex(999), payload()).await.is_err());
        handle.finish(ZoneIndex(0)).await.unwrap();
        handle.reset(ZoneIndex(0), block::EraseGuarantee::None).await.unwrap();
        handle.open(ZoneIndex(1)).await.unwrap();
        handle.append_at(block::ZoneAddress::new(1, 0), payload()).await.unwrap();
        handle.close(ZoneIndex(1)).await.unwrap();
        assert!(handle.close(ZoneIndex(2)).await.is_err());
        assert_eq!(number(&part, "append", "operations").await, 2);
        assert_eq!(number(&part, "append", "errors").await, 1);
        assert_eq!(number(&part, "append", "bytes").await, 2048);
        assert_eq!(number(&part, "open", "operations").await, 1);
        assert_eq!(
            (number(&part, "close", "operations").await, number(&part, "close", "errors").await),
            (1, 1)
        );
        assert_eq!(number(&part, "read", "bytes").await, 1024);
        assert_eq!(
            (number(&part, "finish", "operations").await, number(&part, "reset", "operations").await),
            (1, 1)
        );
    });
}
