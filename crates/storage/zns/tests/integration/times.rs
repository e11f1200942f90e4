//! Service times: exact in virtual time, compared with figures computed from the profiles' sources.

use block::{Buffer, Data, EraseGuarantee, ZoneAddress, ZoneIndex, Zones, ZonesPart};
use std::rc::Rc;
use zns::{Settings, Shape, Zns};

const ZONE: ZoneIndex = ZoneIndex(0);

fn simulated<F: Future<Output = ()> + 'static>(
    profile: &'static str,
    work: impl FnOnce(Rc<dyn Zones>, Zns) -> F + Send + 'static,
) {
    let run = runtime::simulate(runtime::Simulation::new(1), move || async move {
        let size = 12 << 20;
        let shape = Shape {
            profile: profile.into(),
            zones: 4,
            zone_size: size,
            zone_capacity: size,
            ..Shape::default()
        };
        let zns = Zns::in_memory(&shape, Settings { timed: true, ..Settings::default() }).unwrap();
        let handle = zns.open().await.unwrap();
        work(handle, zns).await;
    });
    run.unwrap();
}

fn payload(bytes: usize) -> block::Payload {
    Data::copy_of(&vec![0x5A; bytes]).into()
}

async fn nanoseconds<T>(work: impl Future<Output = T>) -> u64 {
    let begin = runtime::now();
    work.await;
    begin.elapsed().as_nanos() as u64
}

async fn read(handle: &Rc<dyn Zones>, at: u64, bytes: usize) {
    handle.read(ZoneAddress::new(0, at), Buffer::new(bytes)).await.0.unwrap();
}

#[test]
fn single_operations_of_the_zn540_take_the_time_of_its_model() {
    simulated("zn540", |handle, _| async move {
        // 5.6 us, 0.6 us a page, and 4 KiB over 3050 MB/s (1342 ns) or 128 KiB (42 973 ns).
        assert_eq!(nanoseconds(handle.append(ZONE, payload(4096))).await, 5_600 + 600 + 1_342);
        assert_eq!(nanoseconds(handle.append(ZONE, payload(128 << 10))).await, 5_600 + 32 * 600 + 42_974);
        // A read of bytes that are still in the buffer takes only the controller's time.
        assert_eq!(nanoseconds(read(&handle, 128 << 10, 4096)).await, 20_000);
        runtime::sleep(std::time::Duration::from_millis(5)).await;
        // 20 us, 50 us on the die, 4 KiB over 450 MB/s (9102 ns) and over the link.
        assert_eq!(nanoseconds(read(&handle, 0, 4096)).await, 20_000 + 50_000 + 9_102 + 1_342);
        // A page: 13 us, 58 us, 32 KiB over the channel (72 817 ns) and the link (10 743 ns).
        assert_eq!(nanoseconds(read(&handle, 0, 32 << 10)).await, 13_000 + 58_000 + 72_817 + 10_743);
        let reset = handle.reset(ZONE, EraseGuarantee::Erased);
        assert_eq!(nanoseconds(reset).await, 3_000_000);
    });
}

#[test]
fn without_a_buffer_an_append_takes_its_program_and_dies_work_side_by_side() {
    simulated("confzns", |handle, _| async move {
        // 25 us over the channel and 450 us on the die for a page of 16 KiB.
        assert_eq!(nanoseconds(handle.append(ZONE, payload(16 << 10))).await, 475_000);
        // Eight pages go to eight dies on eight channels.
        assert_eq!(nanoseconds(handle.append(ZONE, payload(128 << 10))).await, 475_000);
        // Sixteen pages: two for each die.
        assert_eq!(nanoseconds(handle.append(ZONE, payload(256 << 10))).await, 950_000);
        // A finish pads the rest: (768 - 1 - 8 - 16) pages on eight dies, 93 on the busiest.
        assert_eq!(nanoseconds(handle.finish(ZONE)).await, 93 * 475_000);
    });
}

/// Sustained appends reach the speed of the dies: the published program time, within 3 %.
#[test]
fn sustained_bandwidth_is_that_of_the_dies() {
    for (profile, program, unit, dies) in [
        ("femu-tlc", 937_500, 96 << 10, 32),
        ("femu-slc", 75_000, 32 << 10, 32),
        ("femu-qlc", 12_196_000, 128 << 10, 32),
    ] {
        simulated(profile, move |handle, zns| async move {
            let mut bytes = 0_u64;
            let begin = runtime::now();
            for zone in 0..4 {
                while handle.report(ZoneIndex(zone), 1).await.unwrap()[0].write_pointer < 12 << 20 {
                    handle.append(ZoneIndex(zone), payload(256 << 10)).await.unwrap();
                    bytes += 256 << 10;
                }
                handle.finish(ZoneIndex(zone)).await.unwrap();
            }
            drop(zns);
            let taken = begin.elapsed().as_nanos() as f64;
            // The controller takes 1 us for each 4 KiB, so the last die begins later than the first. Each
            // zone ends with that die.
            let rounds = (12_u64 << 20).div_ceil(unit * dies);
            let dies_take = rounds * program + dies * unit / 4096 * 1000;
            let controller_takes = (12 << 20) / 4096 * 1000 + program;
            assert_eq!(bytes, 48 << 20);
            let expected = (4 * dies_take.max(controller_takes)) as f64;
            let ratio = taken / expected;
            assert!((0.97..1.03).contains(&ratio), "{profile}: {taken} ns, expected {expected}: {ratio}");
        });
    }
}

/// The ZN540's buffer of a zone has ten units: that many dies work at a time, which gives 1.26 GB/s.
#[test]
fn sustained_appends_to_one_zone_are_bound_by_its_buffer() {
    simulated("zn540", |handle, _| async move {
        let begin = runtime::now();
        let appends = (0..192).map(|_| handle.append(ZONE, payload(64 << 10)));
        let appended = runtime::join_limited(16, appends).await;
        assert!(appended.iter().all(Result::is_ok));
        handle.finish(ZONE).await.unwrap();
        let taken = begin.elapsed().as_nanos() as f64;
        // 128 units, ten at a time, of 96 KiB over 450 MB/s and then 561 us each. The last one follows twelve
        // others, the first of which was the eighth to pass the link, in 32 us each.
        let expected = 13.0 * (218_453.0 + 561_000.0) + 8.0 * 32_231.0;
        assert!((0.97..1.03).contains(&(taken / expected)), "{taken} ns, expected {expected}");
    });
}

/// Random reads of 4 KiB with one in flight, and with many: IOPS of the model within 3 %.
#[test]
fn random_reads_have_the_iops_of_the_dies() {
    simulated("femu-tlc", |handle, _| async move {
        for _ in 0..48 {
            handle.append(ZONE, payload(256 << 10)).await.unwrap();
        }
        handle.finish(ZONE).await.unwrap();
        let mut random = runtime::Random::new(1);
        let begin = runtime::now();
        for _ in 0..200 {
            read(&handle, random.below(3072) * 4096, 4096).await;
        }
        assert_eq!(begin.elapsed().as_micros(), 200 * 32);
        // Each of the 32 dies gets the same number of reads, all at once.
        let begin = runtime::now();
        let reads = (0..3200_u64).map(|number| {
            let handle = handle.clone();
            async move { read(&handle, number % 32 * (96 << 10), 4096).await }
        });
        runtime::join_all(reads).await;
        assert_eq!(begin.elapsed().as_micros(), 100 * 32);
    });
}

/// In real time a read takes the profile's time, and not much more.
#[test]
fn real_time_is_kept() {
    let run = runtime::run(runtime::Config::default().with_shards(1), || async {
        let shape = Shape { zones: 2, zone_size: 1 << 20, zone_capacity: 1 << 20, ..Shape::default() };
        let zns = Zns::in_memory(&shape, Settings { timed: true, ..Settings::default() }).unwrap();
        let handle = zns.open().await.unwrap();
        handle.append(ZONE, payload(256 << 10)).await.unwrap();
        handle.finish(ZONE).await.unwrap();
        let mut times = Vec::new();
        for _ in 0..50 {
            times.push(nanoseconds(read(&handle, 0, 4096)).await);
        }
        times.sort_unstable();
        assert!(times[0] >= 80_444, "{times:?}");
        // Other processes may take the processor, so the fastest reads are compared.
        assert!(times[5] < 2 * 80_444, "{times:?}");
    });
    run.unwrap();
}
