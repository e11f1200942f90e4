//! Effect of each rule of `fault`.

use crate::disk;
use block::{
    BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, Payload, ZeroMode,
    ZoneIndex, Zones, ZonesPart,
};
use conformance::requests::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, FaultZonesPart, parse_rules};
use runtime::Simulation;
use stack::Contract;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

struct Under {
    part: FaultDevicePart,
    faulty: Rc<dyn Device>,
    honest: Rc<dyn Device>,
}

async fn under(rules: &[&str], seed: u64) -> Under {
    let disk = disk();
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let rules = parse_rules(&rules, Contract::Device).unwrap();
    let part = FaultDevicePart::new(disk.clone(), rules, seed).unwrap();
    Under { faulty: part.open().await.unwrap(), honest: disk.open().await.unwrap(), part }
}

async fn injected(part: &dyn Part, rule: usize) -> u64 {
    part.status().await["rules"][rule]["injected"].as_u64().unwrap()
}

fn different_bits(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn errors_name_the_rule_and_leave_the_device_alone() {
    on_a_shard(|| async {
        let under = under(&["write error=ENOSPC every=2", "read error=EIO times=1"], 1).await;
        write(&*under.faulty, 0, 1).await.unwrap();
        let error = write(&*under.faulty, 0, 2).await.unwrap_err();
        assert!(matches!(error, Error::NoSpace(_)) && error.detail().contains("every=2"), "{error}");
        let (result, buffer) = under.faulty.read(BlockIndex(0), Buffer::new(4096)).await;
        assert!(matches!(result, Err(Error::Io(_))) && buffer.filled().is_empty());
        assert_eq!(read(&*under.faulty, 0, 1).await.unwrap(), [1; 4096]);
        assert_eq!((injected(&under.part, 0).await, injected(&under.part, 1).await), (1, 1));
    });
}

#[test]
fn refused_and_empty_calls_are_not_counted() {
    on_a_shard(|| async {
        let under = under(&["write drop every=2"], 1).await;
        under.faulty.write(BlockIndex(0), Payload::new(), Durability::Visible).await.unwrap();
        assert!(matches!(write(&*under.faulty, 64, 1).await, Err(Error::Invalid(_))));
        write(&*under.faulty, 0, 1).await.unwrap();
        assert_eq!(injected(&under.part, 0).await, 0);
        assert_eq!(read(&*under.honest, 0, 1).await.unwrap(), [1; 4096]);
    });
}

#[test]
fn dead_ranges_are_dead_at_their_borders() {
    on_a_shard(|| async {
        let under = under(&["range=8KiB..16KiB dead"], 1).await;
        for (block, works) in [(0, true), (1, true), (2, false), (3, false), (4, true)] {
            assert_eq!(write(&*under.faulty, block, 1).await.is_ok(), works, "block {block}");
            assert_eq!(read(&*under.faulty, block, 1).await.is_ok(), works, "block {block}");
        }
        assert!(read(&*under.faulty, 1, 2).await.is_err());
        assert!(under.faulty.discard(BlockRange::new(0, 3)).await.is_err());
        under.faulty.flush().await.unwrap();
    });
}

#[test]
fn delays_delay_and_dropping_the_call_does_not_stop_the_write() {
    on_a_shard(|| async {
        let under = under(&["write delay=10ms", "write delay=5ms..6ms"], 1).await;
        let before = runtime::now();
        write(&*under.faulty, 0, 1).await.unwrap();
        assert!(runtime::now() - before >= Duration::from_millis(15));
        let dropped = runtime::timeout(Duration::from_millis(2), write(&*under.faulty, 0, 2)).await;
        assert!(dropped.is_err());
        runtime::sleep(Duration::from_millis(100)).await;
        assert_eq!(read(&*under.honest, 0, 1).await.unwrap(), [2; 4096]);
    });
}

#[test]
fn torn_writes_write_the_beginning_only() {
    on_a_shard(|| async {
        let under_rule = under(&["write torn at=4608"], 1).await;
        under_rule.honest.write(BlockIndex(0), full(1, 3), Durability::Visible).await.unwrap();
        under_rule.faulty.write(BlockIndex(0), full(2, 3), Durability::Visible).await.unwrap();
        let found = read(&*under_rule.honest, 0, 3).await.unwrap();
        assert!(found[..4608].iter().all(|byte| *byte == 2) && found[4608..].iter().all(|byte| *byte == 1));
        let under = under(&["write torn error=EIO"], 3).await;
        let error = under.faulty.write(BlockIndex(0), full(2, 3), Durability::Visible).await;
        assert!(matches!(error, Err(Error::Io(_))));
        let found = read(&*under.honest, 0, 3).await.unwrap();
        let arrived = found.iter().take_while(|byte| **byte == 2).count();
        assert!(arrived < 3 * 4096 && arrived % 512 == 0 && found[arrived..].iter().all(|byte| *byte == 0));
    });
}

/// A torn write is delayed between reading the block that it tears and writing it back; overlapping writes
/// arrive meanwhile.
#[test]
fn a_torn_write_brings_no_bytes_back_that_another_one_replaced() {
    for seed in 1..20 {
        let simulation = Simulation::new(seed);
        runtime::simulate(simulation, move || async move {
            let disk = disk();
            let parsed = |rule: &str| parse_rules(&[rule.to_owned()], Contract::Device).unwrap();
            let slow = FaultDevicePart::new(disk.clone(), parsed("write delay=20ms times=1"), 1).unwrap();
            let torn = FaultDevicePart::new(Arc::new(slow), parsed("write torn at=512 times=1"), 1).unwrap();
            let (faulty, honest) = (torn.open().await.unwrap(), disk.open().await.unwrap());
            honest.write(BlockIndex(0), full(1, 4), Durability::Visible).await.unwrap();
            let tearing = runtime::spawn({
                let faulty = faulty.clone();
                async move { faulty.write(BlockIndex(1), full(2, 1), Durability::Visible).await }
            });
            runtime::sleep(Duration::from_millis(5)).await;
            let began = runtime::now();
            faulty.write(BlockIndex(3), full(4, 1), Durability::Visible).await.unwrap();
            assert!(began.elapsed() < Duration::from_millis(5), "a write that doesn't overlap was delayed");
            // A dropped call still runs to its end, even one that waits for a lock.
            let dropped = faulty.write(BlockIndex(0), full(3, 2), Durability::Visible);
            assert!(runtime::timeout(Duration::from_millis(1), dropped).await.is_err());
            tearing.await.unwrap();
            faulty.discard(BlockRange::new(3, 1)).await.unwrap();
            runtime::sleep(Duration::from_millis(5)).await;
            let found = read(&*honest, 0, 4).await.unwrap();
            let blocks: Vec<&[u8]> = found.chunks(4096).collect();
            assert!(blocks[..2].iter().all(|block| block.iter().all(|byte| *byte == 3)), "seed {seed}");
            assert!(blocks[2].iter().all(|byte| *byte == 1) && blocks[3].iter().all(|byte| *byte == 0));
        })
        .unwrap();
    }
}

#[test]
fn bits_flip_on_the_way_there_and_back() {
    on_a_shard(|| async {
        let under = under(&["write corrupt every=2", "read corrupt every=2"], 1).await;
        let payload = full(9, 1);
        under.faulty.write(BlockIndex(0), payload.clone(), Durability::Visible).await.unwrap();
        under.faulty.write(BlockIndex(1), payload.clone(), Durability::Visible).await.unwrap();
        let good = vec![9; 4096];
        assert_eq!(&*payload.to_data(), &good, "the caller's bytes are its own");
        assert_eq!(read(&*under.honest, 0, 1).await.unwrap(), good);
        assert_eq!(different_bits(&read(&*under.honest, 1, 1).await.unwrap(), &good), 1);
        assert_eq!(read(&*under.faulty, 0, 1).await.unwrap(), good);
        assert_eq!(different_bits(&read(&*under.faulty, 0, 1).await.unwrap(), &good), 1);
        assert_eq!(read(&*under.honest, 0, 1).await.unwrap(), good);
    });
}

#[test]
fn misdirected_operations_land_elsewhere_and_around_the_end() {
    on_a_shard(|| async {
        let under_blocks = under(&["write misdirect by=8 blocks times=1"], 1).await;
        write(&*under_blocks.faulty, 1, 5).await.unwrap();
        assert_eq!(read(&*under_blocks.honest, 1, 1).await.unwrap(), [0; 4096]);
        assert_eq!(read(&*under_blocks.honest, 9, 1).await.unwrap(), [5; 4096]);
        let under_bytes = under(&["write misdirect by=8KiB"], 1).await;
        write(&*under_bytes.faulty, 63, 6).await.unwrap();
        assert_eq!(read(&*under_bytes.honest, 1, 1).await.unwrap(), [6; 4096]);
        let under = under(&["read misdirect"], 1).await;
        write(&*under.honest, 4, 7).await.unwrap();
        assert_eq!(read(&*under.faulty, 3, 1).await.unwrap(), [7; 4096]);
        let rules = parse_rules(&["misdirect by=512 bytes".into()], Contract::Device).unwrap();
        assert!(FaultDevicePart::new(disk(), rules, 1).is_err());
    });
}

#[test]
fn dropped_operations_are_acknowledged_and_not_done() {
    on_a_shard(|| async {
        let under = under(&["write write_zeroes discard drop after=1"], 1).await;
        write(&*under.faulty, 0, 1).await.unwrap();
        write(&*under.faulty, 0, 2).await.unwrap();
        under.faulty.discard(BlockRange::new(0, 1)).await.unwrap();
        let (mode, visible) = (ZeroMode::default(), Durability::Visible);
        under.faulty.write_zeroes(BlockRange::new(0, 1), mode, visible).await.unwrap();
        assert_eq!(read(&*under.honest, 0, 1).await.unwrap(), [1; 4096]);
        assert_eq!(injected(&under.part, 0).await, 3);
    });
}

#[test]
fn lies_reach_neither_flush_nor_fua_below() {
    use layers::stats::StatsDevicePart;
    on_a_shard(|| async {
        let below = Arc::new(StatsDevicePart::new(disk()));
        let rules = parse_rules(&["flush write write_zeroes lie".into()], Contract::Device).unwrap();
        let part = FaultDevicePart::new(below.clone(), rules, 1).unwrap();
        let handle = part.open().await.unwrap();
        handle.flush().await.unwrap();
        handle.write(BlockIndex(0), full(1, 1), Durability::Durable).await.unwrap();
        let status = below.status().await;
        let operations = |kind: &str| status[kind]["operations"].as_u64().unwrap();
        assert_eq!((operations("flush"), operations("write_fua"), operations("write")), (0, 0, 1));
    });
}

#[test]
fn rules_are_switched_off_and_on_by_message() {
    on_a_shard(|| async {
        let under = under(&["write error"], 1).await;
        assert!(write(&*under.faulty, 0, 1).await.is_err());
        under.part.message("rules off").await.unwrap();
        write(&*under.faulty, 0, 1).await.unwrap();
        under.part.message("rules on").await.unwrap();
        assert!(write(&*under.faulty, 0, 1).await.is_err());
        assert!(matches!(under.part.message("rules").await, Err(Error::Unsupported(_))));
    });
}

/// Numbers of the failed ones among 400 reads.
async fn failures(rules: &[&str], seed: u64) -> Vec<usize> {
    let under = under(rules, seed).await;
    let mut failed = Vec::new();
    for index in 0..400 {
        if read(&*under.faulty, index as u64 % 64, 1).await.is_err() {
            failed.push(index);
        }
    }
    failed
}

#[test]
fn the_seed_decides_and_a_rule_that_is_added_behind_changes_nothing() {
    on_a_shard(|| async {
        let rule = "read error probability=0.25";
        let first = failures(&[rule], 11).await;
        assert!((50..150).contains(&first.len()), "{}", first.len());
        assert_eq!(first, failures(&[rule], 11).await);
        assert_ne!(first, failures(&[rule], 12).await);
        assert_eq!(
            first,
            failures(&[rule, "write drop probability=0.5", "read delay=1us every=3"], 11).await
        );
    });
}

async fn zoned(rules: &[&str]) -> (FaultZonesPart, Rc<dyn Zones>, Rc<dyn Zones>) {
    let honest = Arc::new(zones::ram::RamZones::new(zones::ram::Options::default()).unwrap());
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let part = FaultZonesPart::new(honest.clone(), parse_rules(&rules, Contract::Zones).unwrap(), 5);
    let (faulty, honest) = (part.open().await.unwrap(), honest.open().await.unwrap());
    (part, faulty, honest)
}

async fn appended(rules: &[&str]) -> (block::ZoneAddress, Vec<u8>) {
    let (part, faulty, honest) = zoned(rules).await;
    let landed = faulty.append(ZoneIndex(1), Buffer::copy_of(&[9; 1024]).into()).await.unwrap();
    assert_eq!(injected(&part, 0).await, 1);
    let place = if rules[0].contains("misdirect") {
        block::ZoneAddress { zone: ZoneIndex(landed.zone.0 + 2), ..landed }
    } else {
        landed
    };
    let (result, buffer) = honest.read(place, Buffer::new(1024)).await;
    result.unwrap();
    (landed, buffer.filled().to_vec())
}

#[test]
fn appends_tear_rot_vanish_and_go_astray() {
    on_a_shard(|| async {
        let (_, found) = appended(&["append torn at=512"]).await;
        assert!(found[..512].iter().all(|byte| *byte == 9) && found[512..].iter().all(|byte| *byte == 0));
        let (_, found) = appended(&["append corrupt bits=1"]).await;
        assert_eq!(different_bits(&found, &[9; 1024]), 1);
        let (_, found) = appended(&["append drop"]).await;
        assert_eq!(found, [0; 1024]);
        let (landed, found) = appended(&["append misdirect by=2 zones"]).await;
        assert_eq!((landed.zone, found), (ZoneIndex(1), vec![9; 1024]));
    });
}

#[test]
fn zones_die_and_flushes_of_zones_lie() {
    on_a_shard(|| async {
        let (part, faulty, _) = zoned(&["zones=2..3 dead", "flush lie", "finish drop"]).await;
        let payload = || Payload::from(Buffer::copy_of(&[9; 1024]));
        assert!(matches!(faulty.append(ZoneIndex(2), payload()).await, Err(Error::Io(_))));
        assert!(faulty.reset(ZoneIndex(2), block::EraseGuarantee::None).await.is_err());
        assert!(faulty.flush(&[ZoneIndex(1), ZoneIndex(3)]).await.is_err());
        faulty.append(ZoneIndex(1), payload()).await.unwrap();
        faulty.flush(&[ZoneIndex(1)]).await.unwrap();
        faulty.finish(ZoneIndex(1)).await.unwrap();
        assert_eq!((injected(&part, 1).await, injected(&part, 2).await), (1, 1));
        // Zones in memory are finished by a flush; this one was neither flushed nor finished.
        let report = faulty.report(ZoneIndex(1), 1).await.unwrap();
        assert_eq!(report[0].state, block::ZoneState::ImplicitlyOpen);
    });
}
