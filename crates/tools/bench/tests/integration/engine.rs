//! The engine on real devices: it follows the job, counts its operations, and detects bad blocks.

use bench::engine::{self, Assignment, Progress};
use bench::job::{Amount, BlockSizes, Distribution, Job, PerDirection, ReadWrite, Verify};
use bench::results::Measurement;
use block::{BlockIndex, BlockSize, Buffer, DevicePart, Durability};
use disks::null::NullPart;
use disks::ram::RamPart;
use runtime::Config;
use runtime::sync::StopSource;
use std::sync::Arc;
use std::time::Duration;

fn job(rw: ReadWrite) -> Job {
    let mut job = Job::new("job");
    job.rw = rw;
    job
}

fn ram(bytes: u64) -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(bytes, BlockSize::default()).expect("memory"))
}

fn measure(part: Arc<dyn DevicePart>, jobs: Vec<Job>) -> Vec<Measurement> {
    let run = move || async move {
        let assignments = jobs.into_iter().map(|job| Assignment { job, part: part.clone() }).collect();
        engine::run(assignments, Arc::default(), StopSource::new().token()).await
    };
    runtime::run(Config::default().with_shards(2), run).expect("it starts").expect("it runs")
}

#[test]
fn a_job_without_a_time_does_its_size_once() {
    let mut random = job(ReadWrite::RandWrite);
    (random.iodepth, random.numjobs) = (8, 3);
    random.size = Some(Amount::Bytes(1 << 20));
    let measured = measure(ram(4 << 20), vec![random.clone(), job(ReadWrite::Read)]);
    assert_eq!(measured[0].operations, 3 * 256);
    assert_eq!(measured[0].bytes, 3 << 20);
    assert_eq!(measured[1].operations, 1024);
    for figures in measured {
        let latency = figures.latency_ns.expect("there were operations");
        assert_eq!(figures.errors, 0);
        assert!(latency.min <= latency.p50 && latency.p50 <= latency.max && latency.min > 0);
        assert!(figures.iops > 0.0 && figures.seconds > 0.0);
    }
}

#[test]
fn reads_and_writes_of_a_mixed_job_are_counted_apart() {
    let mut mixed = job(ReadWrite::RandMixed);
    mixed.rwmixread = 75;
    let measured = measure(ram(4 << 20), vec![mixed, job(ReadWrite::Read)]);
    let (reads, writes) = (measured[0].reads.expect("reads"), measured[0].writes.expect("writes"));
    assert_eq!(reads.operations + writes.operations, measured[0].operations);
    assert_eq!(reads.bytes + writes.bytes, measured[0].bytes);
    assert!(reads.operations > writes.operations * 2 && writes.operations > 0, "{reads:?} {writes:?}");
    assert!(reads.latency_ns.is_some() && writes.latency_ns.is_some());
    assert!((reads.iops + writes.iops - measured[0].iops).abs() < 1.0);
    assert_eq!((measured[1].reads, measured[1].writes), (None, None), "a job of one direction has one row");
}

#[test]
fn time_rate_and_ramp_are_kept() {
    let mut paced = job(ReadWrite::RandRead);
    (paced.iodepth, paced.time_based) = (4, true);
    (paced.runtime, paced.ramp_time) = (Some(Duration::from_millis(400)), Duration::from_millis(100));
    paced.rate_iops = PerDirection::all(Some(1000));
    let measured = measure(Arc::new(NullPart::new(1 << 30, BlockSize::default())), vec![paced]);
    // 400 operations in 0.4 s; after a pause of the machine the engine catches up.
    assert!((380..=420).contains(&measured[0].operations), "{}", measured[0].operations);
    assert!((0.35..0.5).contains(&measured[0].seconds), "{}", measured[0].seconds);
}

#[test]
fn what_is_written_is_verified_in_every_mode() {
    let sizes = PerDirection::all(BlockSizes { min: 4096, max: 32768 });
    for rw in [ReadWrite::Write, ReadWrite::RandWrite, ReadWrite::RandMixed, ReadWrite::Mixed] {
        for distribution in [Distribution::Uniform, Distribution::Zipf { theta: 0.9 }] {
            let mut verified = job(rw);
            (verified.iodepth, verified.verify) = (16, Some(Verify::default()));
            (verified.random_distribution, verified.norandommap) = (distribution, true);
            (verified.block_size, verified.fsync) = (sizes, 7);
            let measured = measure(ram(2 << 20), vec![verified]);
            assert_eq!((measured[0].errors, &measured[0].first_error), (0, &None), "{rw} {distribution:?}");
            assert!(measured[0].operations > 20);
        }
    }
}

#[test]
fn a_block_in_the_wrong_place_is_found_by_a_later_run() {
    let part = ram(1 << 20);
    let mut write = job(ReadWrite::RandWrite);
    write.verify = Some(Verify { after_writes: false, ..Verify::default() });
    assert_eq!(measure(part.clone(), vec![write.clone()])[0].errors, 0);
    let mut read = job(ReadWrite::Read);
    read.verify = Some(Verify::default());
    assert_eq!(measure(part.clone(), vec![read.clone()])[0].errors, 0);
    write.verify = Some(Verify { only: true, ..Verify::default() });
    assert_eq!(measure(part.clone(), vec![write.clone()])[0].errors, 0);
    let damaged = part.clone();
    let damage = move || async move {
        let device = damaged.open().await.expect("it opens");
        let (result, buffer) = device.read(BlockIndex(7), Buffer::new(4096)).await;
        result.expect("it reads");
        device.write(BlockIndex(9), buffer.into(), Durability::Visible).await.expect("it writes");
    };
    runtime::run(Config::default(), damage).expect("it starts");
    for job in [read, write] {
        let measured = measure(part.clone(), vec![job]);
        let text = measured[0].first_error.clone().expect("it is found");
        assert_eq!(measured[0].errors, 1);
        assert!(text.contains("block at byte 36864: it belongs at byte 28672"), "{text}");
    }
}

#[test]
fn a_stop_keeps_what_was_measured() {
    let part: Arc<dyn DevicePart> = Arc::new(NullPart::new(1 << 30, BlockSize::default()));
    let mut endless = job(ReadWrite::RandRead);
    (endless.iodepth, endless.time_based, endless.runtime) = (4, true, Some(Duration::from_secs(3600)));
    let run = move || async move {
        let source = StopSource::new();
        let progress = Arc::new(Progress::default());
        let assignments = vec![Assignment { job: endless, part }];
        let running = runtime::spawn(engine::run(assignments, progress.clone(), source.token()));
        while progress.operations() < 1000 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        source.stop();
        (running.await.expect("it runs"), progress.fraction())
    };
    let (measured, fraction) = runtime::run(Config::default(), run).expect("it starts");
    assert!(measured[0].operations >= 900);
    assert!(fraction < 0.5);
}

#[test]
fn filling_writes_every_block() {
    let part = ram(5 << 20);
    let run = move || async move {
        engine::fill(&part, Arc::default(), StopSource::new().token()).await.expect("it fills");
        let device = part.open().await.expect("it opens");
        for block in 0..1280 {
            let (result, buffer) = device.read(BlockIndex(block), Buffer::new(4096)).await;
            result.expect("it reads");
            assert!(buffer.filled().iter().any(|byte| *byte != 0), "block {block}");
        }
    };
    runtime::run(Config::default(), run).expect("it starts");
}

#[test]
fn jobs_that_cannot_run_are_refused() {
    let refused = |job: Job| {
        let part = ram(1 << 20);
        let run = move || async move {
            let assignments = vec![Assignment { job, part }];
            engine::run(assignments, Arc::default(), StopSource::new().token()).await
        };
        runtime::run(Config::default(), run).expect("it starts").expect_err("it is refused").to_string()
    };
    let mut verified = job(ReadWrite::RandWrite);
    (verified.numjobs, verified.verify) = (2, Some(Verify::default()));
    assert!(refused(verified).contains("overwrite each other"));
    let mut large = job(ReadWrite::Read);
    large.size = Some(Amount::Bytes(1 << 30));
    assert!(refused(large).contains("the device has only"));
}

/// Contents of a device of 64 KiB.
fn contents(part: &Arc<dyn DevicePart>) -> Vec<u8> {
    let part = part.clone();
    let read = move || async move {
        let device = part.open().await.expect("it opens");
        let (result, buffer) = device.read(BlockIndex(0), Buffer::new(64 << 10)).await;
        result.expect("it reads");
        buffer.filled().to_vec()
    };
    runtime::run(Config::default(), read).expect("it starts")
}

#[test]
fn writes_contain_what_the_job_says() {
    let mut write = job(ReadWrite::RandWrite);
    (write.iodepth, write.block_size) = (4, PerDirection::all(BlockSizes { min: 4096, max: 16384 }));
    write.io_size = Some(Amount::Bytes(1 << 20));
    write.norandommap = true;
    let part = ram(64 << 10);
    let run = |job: &Job| assert_eq!(measure(part.clone(), vec![job.clone()])[0].errors, 0);
    run(&write);
    let random = contents(&part);
    assert!(random.chunks(512).all(|sector| sector.iter().any(|byte| *byte != sector[0])), "random bytes");
    write.zero_buffers = true;
    run(&write);
    assert!(contents(&part).iter().all(|byte| *byte == 0), "zeros over what was there");
    let pattern = vec![1, 2, 3, 4];
    write.buffer_pattern = Some(pattern.clone());
    run(&write);
    assert_eq!(contents(&part), pattern.repeat(16 << 10), "the pattern goes before zeros");
}

#[test]
fn a_job_waits_after_so_many_operations() {
    let mut bursts = job(ReadWrite::RandWrite);
    (bursts.iodepth, bursts.time_based, bursts.norandommap) = (8, true, true);
    bursts.runtime = Some(Duration::from_millis(900));
    (bursts.thinktime, bursts.thinktime_blocks) = (Duration::from_millis(400), 1000);
    let measured = measure(Arc::new(NullPart::new(1 << 30, BlockSize::default())), vec![bursts]).remove(0);
    // Bursts at 0, 0.4 and 0.8 s, the last one ended by the clock; each may be exceeded by the operations in
    // flight.
    assert!((1000..=3 * 1008).contains(&measured.operations), "{}", measured.operations);
    let series = measured.series.expect("there were operations");
    let busy = series.rates().iter().filter(|(_, rate)| *rate > 0.0).count();
    assert!(busy <= 4, "most of the time it waits: {:?}", series.rates());
}
