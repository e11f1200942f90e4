//! Observation of the parts of a stack.

use crate::disk;
use block::layer::Position;
use block::{
    BlockIndex, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Fullness, Part, Result,
    ZoneIndex, ZonesPart,
};
use conformance::requests::{full, on_a_shard};
use layers::observation::{Filter, MAX_EVENTS, Observation, Trace};
use layers::stats::StatsDevicePart;
use runtime::Origin;
use stack::Built;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Observes a part for the door "door".
fn observed(observation: &Observation, part: Arc<dyn DevicePart>) -> Arc<dyn DevicePart> {
    match observation.of_door("door", "nbd", "disk", Built::Device(part)) {
        Built::Device(device) => device,
        other => panic!("{other:?}"),
    }
}

/// Traces calls of all parts that take at least this time.
fn traced(observation: &Observation, least: Duration) -> Result<Trace> {
    observation.trace(Filter { least, ..Filter::default() }, |_| true)
}

/// Number of writes that were counted.
fn writes(observation: &Observation) -> u64 {
    let of_part = |counts: Vec<(&str, layers::stats::CallCounts)>| {
        counts
            .into_iter()
            .filter(|(name, _)| *name == "write")
            .map(|(_, counts)| counts.latency.count())
            .sum::<u64>()
    };
    observation.parts().iter().map(|part| of_part(part.counts())).sum()
}

async fn write(device: &Rc<dyn Device>) {
    device.write(BlockIndex(3), full(1, 2), Durability::Visible).await.unwrap();
}

#[test]
fn calls_are_counted_while_somebody_looks() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let part = observed(&observation, disk());
        let device = part.open().await.unwrap();
        write(&device).await;
        assert_eq!(writes(&observation), 0);
        let hold = observation.hold();
        let other = observation.hold();
        write(&device).await;
        drop(hold);
        write(&device).await;
        assert_eq!(writes(&observation), 2);
        drop(other);
        write(&device).await;
        assert_eq!(writes(&observation), 2);
        // The next look goes on from there, also after the handle is closed.
        observation.count_for(Duration::from_secs(3600));
        write(&device).await;
        drop(device);
        assert_eq!(writes(&observation), 3);
        // A shorter time doesn't end a longer one.
        observation.count_for(Duration::ZERO);
        write(&part.open().await.unwrap()).await;
        write(&part.open().await.unwrap()).await;
        assert_eq!(writes(&observation), 5);
    });
}

#[test]
fn looking_ends_by_itself() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let device = observed(&observation, disk()).open().await.unwrap();
        observation.count_for(Duration::from_millis(1));
        runtime::sleep(Duration::from_millis(2)).await;
        // The first call after the end still counts, and notices it.
        write(&device).await;
        write(&device).await;
        assert_eq!(writes(&observation), 1);
    });
}

#[test]
fn an_observed_part_is_the_part_itself() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let inner = Arc::new(StatsDevicePart::new(disk()));
        let part = observed(&observation, inner.clone());
        assert_eq!(part.kind(), "stats");
        assert_eq!(part.geometry(), inner.geometry());
        assert_eq!(part.keeps_flushed(), inner.keeps_flushed());
        assert_eq!(part.fullness().await, None);
        write(&part.open().await.unwrap()).await;
        assert_eq!(part.status().await["write"]["operations"], 1);
        assert_eq!(part.message("clear_stats").await.unwrap(), "cleared");
        assert!(matches!(part.version("x").await, Err(Error::Unsupported(_))));
    });
}

/// A device that is half full.
struct HalfFull(Arc<dyn DevicePart>);

const HALF: Fullness = Fullness {
    resource: "space",
    used_bytes: 1,
    limit_bytes: 2,
    can_fill: true,
    remedy: "discard some data",
};

impl Part for HalfFull {
    fn kind(&self) -> &'static str {
        "half-full"
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::ready(Some(HALF))
    }
}

impl DevicePart for HalfFull {
    fn geometry(&self) -> &DeviceGeometry {
        self.0.geometry()
    }

    fn open(&self) -> Call<'_, block::Result<Rc<dyn Device>>> {
        self.0.open()
    }
}

#[test]
fn an_observed_part_is_as_full_as_the_part_itself() {
    on_a_shard(|| async {
        let part = observed(&Observation::default(), Arc::new(HalfFull(disk())));
        assert_eq!(part.fullness().await, Some(HALF));
    });
}

#[test]
fn a_trace_has_each_call_with_its_position() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let part = observed(&observation, disk());
        let device = part.open().await.unwrap();
        write(&device).await;
        let trace = traced(&observation, Duration::ZERO).unwrap();
        assert!(matches!(traced(&observation, Duration::ZERO), Err(Error::Busy(_))));
        write(&device).await;
        device.read(BlockIndex(9), Buffer::new(4096)).await.0.unwrap();
        let last = part.geometry().blocks.0;
        assert!(device.read(BlockIndex(last), Buffer::new(4096)).await.0.is_err());
        let taken = trace.take();
        assert_eq!((taken.len(), taken[0].lost), (1, 0));
        assert_eq!((taken[0].calls.part.as_str(), taken[0].calls.door.as_deref()), ("disk", Some("door")));
        let seen: Vec<_> =
            taken[0].events.iter().map(|event| (event.call, event.at, event.bytes, event.errno)).collect();
        let expected = [
            ("write", Position::Block(BlockIndex(3)), 8192, 0),
            ("read", Position::Block(BlockIndex(9)), 4096, 0),
            ("read", Position::Block(BlockIndex(last)), 4096, Error::invalid("").errno()),
        ];
        assert_eq!(seen, expected);
        assert!(trace.take().is_empty());
        drop(trace);
        write(&device).await;
        let slow = traced(&observation, Duration::from_secs(3600)).unwrap();
        write(&device).await;
        assert!(slow.take().is_empty(), "neither before the trace, nor fast ones");
    });
}

#[test]
fn calls_that_nobody_takes_are_bounded() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let device = observed(&observation, disk()).open().await.unwrap();
        let trace = traced(&observation, Duration::ZERO).unwrap();
        for _ in 0..MAX_EVENTS + 5 {
            device.flush().await.unwrap();
        }
        let taken = trace.take();
        assert_eq!((taken[0].events.len(), taken[0].lost), (MAX_EVENTS, 5));
    });
}

#[test]
fn zones_are_observed() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let zones: Arc<dyn ZonesPart> =
            Arc::new(zones::ram::RamZones::new(zones::ram::Options::default()).unwrap());
        let Built::Zones(part) = observation.of_door("d", "kv", "z", Built::Zones(zones)) else { panic!() };
        let handle = part.open().await.unwrap();
        let trace = traced(&observation, Duration::ZERO).unwrap();
        let landed = handle.append(ZoneIndex(2), Buffer::copy_of(&[7; 1024]).into()).await.unwrap();
        handle.read(landed, Buffer::new(1024)).await.0.unwrap();
        let taken = trace.take();
        let seen: Vec<_> = taken[0].events.iter().map(|event| (event.call, event.at)).collect();
        assert_eq!(seen, [("append", Position::Zone(ZoneIndex(2))), ("read", Position::Address(landed))]);
    });
}

#[test]
fn a_trace_keeps_what_it_was_asked_for() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let part = observed(&observation, disk());
        let device = part.open().await.unwrap();
        let last = part.geometry().blocks.0;
        let calls = async || {
            write(&device).await;
            device.flush().await.unwrap();
            assert!(device.read(BlockIndex(last), Buffer::new(4096)).await.0.is_err());
        };
        let filters = [
            (Filter { errors: true, ..Filter::default() }, true, &["read"][..]),
            (
                Filter { calls: vec!["flush".into(), "read".into()], ..Filter::default() },
                true,
                &["flush", "read"],
            ),
            (Filter { errors: true, calls: vec!["flush".into()], ..Filter::default() }, true, &[]),
            (Filter::default(), false, &[]),
        ];
        for (filter, of, expected) in filters {
            let trace = observation.trace(filter, |calls| of && calls.part == "disk").unwrap();
            calls().await;
            let taken = trace.take();
            let seen: Vec<_> =
                taken.iter().flat_map(|part| part.events.iter().map(|event| event.call)).collect();
            assert_eq!(seen, expected);
        }
    });
}

#[test]
fn calls_name_their_client() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let device = observed(&observation, disk()).open().await.unwrap();
        let trace = traced(&observation, Duration::ZERO).unwrap();
        runtime::attributed(Origin::of_process(7), write(&device)).await;
        write(&device).await;
        let taken = trace.take();
        let origins: Vec<_> = taken[0].events.iter().map(|event| event.origin).collect();
        assert_eq!(origins, [Origin::of_process(7), Origin::Nobody]);
    });
}

/// The memory doesn't grow with the handles that were opened.
#[test]
fn closed_handles_are_one_set_of_counters() {
    on_a_shard(|| async {
        let part = StatsDevicePart::new(disk());
        for _ in 0..3 {
            write(&part.open().await.unwrap()).await;
        }
        assert_eq!(part.status().await["write"]["operations"], 3);
        assert_eq!(part.open_handles(), 0);
        let device = part.open().await.unwrap();
        assert_eq!(part.open_handles(), 1);
        part.message("clear_stats").await.unwrap();
        assert_eq!(part.status().await["write"]["operations"], 0);
        write(&device).await;
        drop(device);
        assert_eq!(part.status().await["write"]["operations"], 1);
    });
}
