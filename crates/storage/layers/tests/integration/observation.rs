//! Observation of the parts of a stack.

use crate::disk;
use block::layer::Position;
use block::{
    BlockIndex, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Fullness, Part, Result,
    ZoneIndex, ZonesPart,
};
use conformance::requests::{full, on_a_shard};
use layers::observation::{Filter, MAX_CLIENTS, MAX_EVENTS, Observation, Trace};
use layers::stats::StatsDevicePart;
use runtime::Requester;
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
        // The next request continues from there, also after the handle is closed.
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
        runtime::attributed(Requester::of_process(7), write(&device)).await;
        write(&device).await;
        let taken = trace.take();
        let requesters: Vec<_> = taken[0].events.iter().map(|event| event.requester).collect();
        assert_eq!(requesters, [Requester::of_process(7), Requester::Nobody]);
    });
}

const HOUR: Duration = Duration::from_secs(3600);

/// Writes once for a peer with an address of its own.
async fn write_for(device: &Rc<dyn Device>, peer: u32, port: u16) {
    let peer = Requester::of_peer((std::net::Ipv4Addr::from_bits(peer), port).into());
    runtime::attributed(peer, write(device)).await;
}

/// Clients of the door, each with the number of its writes.
fn clients(observation: &Observation, within: Duration) -> Vec<(String, u64)> {
    let of = |client: layers::observation::ClientCalls| {
        assert_eq!((client.calls.door.as_deref(), client.counts.len()), (Some("door"), 1));
        (client.client, client.counts[0].1.latency.count())
    };
    observation.clients(within).into_iter().map(of).collect()
}

#[test]
fn clients_of_a_door_are_programs_and_machines() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let part = observed(&observation, disk());
        let device = part.open().await.unwrap();
        write_for(&device, 1, 1).await;
        assert_eq!(clients(&observation, HOUR), [], "nobody looks");
        observation.count_for(HOUR);
        // Two connections of one machine, a process, one that has ended, and the stack itself.
        write_for(&device, 1, 1).await;
        write_for(&device, 1, 2).await;
        let own = Requester::of_process(std::process::id());
        runtime::attributed(own, write(&device)).await;
        runtime::attributed(own.named(), write(&device)).await;
        runtime::attributed(Requester::of_process(u32::MAX), write(&device)).await;
        write(&device).await;
        let Requester::Process(_, name) = own.named() else { panic!("{own}") };
        let expected = [("0.0.0.1", 2), (&name.to_string(), 2), ("unknown", 1)];
        let expected = expected.map(|(client, writes)| (client.to_owned(), writes));
        assert_eq!(clients(&observation, HOUR), expected);
        // Counts of a closed handle remain, and another handle adds to them.
        drop(device);
        write_for(&part.open().await.unwrap(), 1, 3).await;
        assert_eq!(clients(&observation, HOUR)[0], ("0.0.0.1".to_owned(), 3));
        assert_eq!(writes(&observation), 7, "the door's counts have all of them");
    });
}

/// The memory doesn't grow with the clients that connect.
#[test]
fn clients_without_calls_are_forgotten() {
    on_a_shard(|| async {
        let observation = Observation::default();
        let device = observed(&observation, disk()).open().await.unwrap();
        observation.count_for(HOUR);
        let all = MAX_CLIENTS as u32 + 50;
        for peer in 0..all {
            write_for(&device, peer, 1).await;
            write_for(&device, 7, 1).await;
        }
        let found = clients(&observation, HOUR);
        assert_eq!(found.len(), MAX_CLIENTS);
        assert!(found.contains(&("0.0.0.7".to_owned(), u64::from(all) + 1)), "it was never the oldest");
        assert!(!found.contains(&("0.0.0.1".to_owned(), 1)), "it was");
        write_for(&device, 1, 1).await;
        assert_eq!(clients(&observation, HOUR).iter().filter(|(client, _)| client == "0.0.0.1").count(), 1);
        runtime::sleep(Duration::from_millis(20)).await;
        write_for(&device, 7, 1).await;
        assert_eq!(clients(&observation, Duration::from_millis(10)).len(), 1);
        assert_eq!(clients(&observation, HOUR).len(), 1, "the others are forgotten");
        write_for(&device, 1, 1).await;
        assert!(clients(&observation, HOUR).contains(&("0.0.0.1".to_owned(), 1)), "it begins at 0");
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
