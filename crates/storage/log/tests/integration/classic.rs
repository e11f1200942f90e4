//! Mistakes that log-structured devices are known for, a test for each.

use crate::life::{BLOCK, Losing, Version, Volume, disk, run, small, stamped};
use block::{BlockIndex, Buffer, Durability, Error, Part};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::Choice;
use log::kind::Options;
use runtime::Random;
use std::sync::Arc;
use std::time::Duration;

/// Random writes of 1 to 8 blocks over a part of the volume, `blocks` blocks in total.
async fn churn(volume: &Volume, model: &mut [Version], random: &mut Random, blocks: u64, next: &mut Version) {
    let mut written = 0;
    while written < blocks {
        let count = 1 + random.below(8.min(model.len() as u64));
        let block = random.below(model.len() as u64 - count + 1);
        *next += 1;
        volume.write(block, count, *next).await;
        model[block as usize..(block + count) as usize].fill(*next);
        written += count;
    }
}

#[test]
fn a_part_of_an_extent_is_overwritten_and_the_rest_is_as_it_was() {
    let disk = disk(8);
    let expected = run({
        let disk = disk.clone();
        move || async move {
            let volume = Volume::make(&disk, &small()).await;
            volume.write(0, 100, 1).await;
            for (block, count, version) in [(40, 10, 2), (0, 1, 3), (99, 1, 4), (45, 1, 5), (38, 4, 6)] {
                volume.write(block, count, version).await;
            }
            let mut expected = vec![1; 100];
            expected[40..50].fill(2);
            (expected[0], expected[99], expected[45]) = (3, 4, 5);
            expected[38..42].fill(6);
            // One read of all blocks, and reads that begin and end within extents.
            assert_eq!(volume.versions(0, 100).await, expected);
            assert_eq!(volume.versions(39, 8).await, expected[39..47]);
            assert_eq!(volume.versions(95, 10).await, [&expected[95..], &[0; 5]].concat());
            volume.flush().await;
            expected
        }
    });
    run(move || async move {
        assert_eq!(Volume::open(&disk, &small()).await.versions(0, 100).await, expected);
    });
}

#[test]
fn blocks_0_and_the_last_are_blocks_like_any_other() {
    let disk = disk(8);
    let ends = |disk: Arc<dyn block::DevicePart>, format: bool, version: Version| {
        run(move || async move {
            let volume = match format {
                true => Volume::make(&disk, &small()).await,
                false => Volume::open(&disk, &small()).await,
            };
            let last = volume.blocks() - 1;
            let before = version - 1;
            assert_eq!(
                (volume.versions(0, 2).await, volume.versions(last, 1).await),
                (vec![before, 0], vec![before])
            );
            volume.write(0, 1, version).await;
            volume.write(last, 1, version).await;
            volume.flush().await;
            assert!(volume.try_write(last, 2, 9).await.is_err(), "after the end");
        });
    };
    ends(disk.clone(), true, 1);
    ends(disk.clone(), false, 2);
    ends(disk, false, 3);
}

#[test]
fn the_log_goes_round_many_times() {
    println!("seed 31");
    let disk = disk(4);
    let model = run({
        let disk = disk.clone();
        move || async move {
            let volume = Volume::make(&disk, &small()).await;
            let mut model = vec![0; volume.blocks() as usize];
            let (mut random, mut next) = (Random::new(31), 0);
            for _ in 0..8 {
                churn(&volume, &mut model, &mut random, 4000, &mut next).await;
                assert_eq!(volume.all().await, model);
            }
            let (reset, moved) = volume.cleaned();
            println!("{} blocks; {reset} zones reset, {moved} blocks moved", model.len());
            assert!(reset > 5 * 63 && moved > 1000, "it did not go round often");
            volume.flush().await;
            model
        }
    });
    run(move || async move {
        let volume = Volume::open(&disk, &small()).await;
        assert_eq!(volume.all().await, model);
        volume.close().await;
    });
}

#[test]
fn what_was_discarded_reads_as_zeros_also_after_reopening() {
    for closes in [true, false] {
        let disk = disk(8);
        let mut expected = vec![1; 64];
        expected[10..20].fill(0);
        expected[0] = 0;
        expected[15] = 2;
        let wanted = expected.clone();
        run({
            let disk = disk.clone();
            move || async move {
                let volume = Volume::make(&disk, &small()).await;
                volume.write(0, 64, 1).await;
                volume.discard(10, 10).await;
                volume.discard(0, 1).await;
                volume.write(15, 1, 2).await;
                assert_eq!(volume.versions(0, 64).await, wanted);
                volume.flush().await;
                if closes {
                    volume.close().await;
                }
            }
        });
        run(move || async move {
            let volume = Volume::open(&disk, &small()).await;
            assert_eq!(volume.versions(0, 64).await, expected);
            // A volume whose blocks are all discarded is empty again.
            volume.discard(0, volume.blocks()).await;
            assert!(volume.all().await.iter().all(|version| *version == 0));
        });
    }
}

#[test]
fn two_volumes_in_one_process_stay_apart() {
    println!("seed 32");
    let disks = [disk(4), disk(4)];
    run(move || async move {
        let volumes = [Volume::make(&disks[0], &small()).await, Volume::make(&disks[1], &small()).await];
        let mut models = [vec![0; volumes[0].blocks() as usize], vec![0; volumes[1].blocks() as usize]];
        let (mut random, mut next) = (Random::new(32), 0);
        for _ in 0..6 {
            for (volume, model) in volumes.iter().zip(&mut models) {
                churn(volume, model, &mut random, 500, &mut next).await;
            }
        }
        let [first, second] = volumes;
        assert_eq!([first.all().await, second.all().await], models);
        first.close().await;
        assert_eq!(second.all().await, models[1]);
        second.write(0, 1, 1 << 40).await;
        second.close().await;
    });
}

/// A user overwrites everything in flushed zones without a further flush; then the power fails.
#[test]
fn no_zone_is_used_again_before_what_emptied_it_is_durable() {
    run(|| async {
        let losing = Losing::new(disk(4));
        let volume = Volume::make(&losing.disk, &small()).await;
        let blocks = volume.blocks();
        for block in (0..blocks).step_by(8) {
            volume.write(block, 8.min(blocks - block), 1).await;
        }
        volume.flush().await;
        let reset_before = volume.cleaned().0;
        // Twice, so that zones must be reset although no client flushes.
        for version in [2, 3] {
            for block in (0..blocks).step_by(8) {
                volume.write(block, 8.min(blocks - block), version).await;
            }
        }
        assert!(volume.cleaned().0 > reset_before, "no zone was reset");
        for choice in (0..20).map(Choice::Subset).chain([Choice::Nothing, Choice::Everything]) {
            let left = losing.after_power_cut(choice);
            let found = Volume::open(&left, &small()).await.all().await;
            let is_there = |version: &Version| (1..=3).contains(version);
            assert!(found.iter().all(is_there), "{choice}: {found:?}");
            // Prefix consistency: blocks of version 3 and then of 2, or of 2 and then of 1.
            assert!(found.is_sorted_by(|one, next| one >= next), "{choice}: {found:?}");
            assert!(found[0] - found[found.len() - 1] <= 1, "{choice}: {found:?}");
        }
    });
}

#[test]
fn nothing_of_an_earlier_format_shows() {
    for closes in [true, false] {
        let disk = disk(4);
        let life = |format: bool, write: Option<Version>, expected: Version| {
            let disk = disk.clone();
            run(move || async move {
                let volume = match format {
                    true => Volume::make(&disk, &small()).await,
                    false => Volume::open(&disk, &small()).await,
                };
                let expected = vec![expected; volume.blocks() as usize];
                assert_eq!(volume.all().await, expected, "format {format}, write {write:?}");
                let Some(version) = write else { return };
                // Twice, so that zones are reset.
                for _ in 0..2 {
                    for block in 0..volume.blocks() {
                        volume.write(block, 1, version).await;
                    }
                }
                volume.flush().await;
                if closes {
                    volume.close().await;
                }
            });
        };
        life(true, Some(1), 0);
        life(false, None, 1);
        life(true, None, 0);
        life(false, None, 0);
        life(false, Some(2), 0);
        life(false, None, 2);
        life(true, Some(3), 0);
        life(false, Some(4), 3);
        life(false, None, 4);
    }
}

#[test]
fn a_full_log_says_so_and_takes_writes_again_after_discards() {
    println!("seed 33");
    let disk = disk(4);
    let options = Options { size: Some(16 << 20), ..small() };
    let model = run({
        let (disk, options) = (disk.clone(), options.clone());
        move || async move {
            let volume = Volume::make(&disk, &options).await;
            let mut model = vec![0; volume.blocks() as usize];
            let (mut random, mut next) = (Random::new(33), 0);
            let mut refused = 0;
            assert_eq!(volume.part.status().await["space"], "ok");
            for round in 0..12 {
                while refused <= 20 * round {
                    let count = 1 + random.below(8);
                    let block = random.below(volume.blocks() - count + 1);
                    next += 1;
                    match volume.try_write(block, count, next).await {
                        Ok(()) => model[block as usize..(block + count) as usize].fill(next),
                        Err(Error::NoSpace(_)) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                // Overwrites need no further capacity.
                for block in 0..volume.blocks() {
                    if model[block as usize] != 0 && random.chance(0.1) {
                        next += 1;
                        volume.write(block, 1, next).await;
                        model[block as usize] = next;
                    }
                }
                volume.flush().await;
                assert_eq!(volume.part.status().await["space"], "full");
                // A refused write leaves no data: none was large enough to be divided.
                assert_eq!(volume.all().await, model);
                let (block, count) = (random.below(2048), 2048);
                volume.discard(block, count).await;
                model[block as usize..(block + count) as usize].fill(0);
            }
            volume.flush().await;
            model
        }
    });
    run(move || async move {
        let volume = Volume::open(&disk, &options).await;
        assert_eq!(volume.all().await, model);
        volume.close().await;
    });
}

/// Many large concurrent writes, of new blocks and overwrites: a volume that fits its disk never runs out of
/// space.
#[test]
fn a_volume_that_fits_its_disk_is_never_full() {
    println!("seed 34");
    let disk = disk(16);
    run(move || async move {
        let volume = Arc::new(Volume::make(&disk, &small()).await.part);
        let tasks = (0..16_u64).map(|task| {
            let volume = volume.clone();
            runtime::spawn(async move {
                let device = block::DevicePart::open(&**volume).await.unwrap();
                let (blocks, mut random) = (device.geometry().blocks.0, Random::new(34 + task));
                for round in 0..12 {
                    let block = random.below(blocks - 256 + 1);
                    let data = stamped(block, 256, 1 + round * 16 + task);
                    device.write(BlockIndex(block), data.into(), Durability::Visible).await?;
                }
                Ok::<(), Error>(())
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for outcome in runtime::join_all(tasks).await {
            outcome.expect("there is always space");
        }
    });
}

async fn with_rules(disk: Arc<dyn block::DevicePart>, rules: &[&str]) -> Arc<FaultDevicePart> {
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
    let faulty = FaultDevicePart::new(disk, rules, 35).unwrap();
    block::Part::message(&faulty, "rules off").await.unwrap();
    Arc::new(faulty)
}

#[test]
fn an_append_that_fails_is_repeated_in_another_zone() {
    for rule in ["write error=EIO every=20", "write torn error=EIO every=20"] {
        let whole = disk(8);
        let model = run({
            let whole = whole.clone();
            move || async move {
                let faulty = with_rules(whole, &[rule]).await;
                let disk: Arc<dyn block::DevicePart> = faulty.clone();
                let volume = Volume::make(&disk, &small()).await;
                let mut model = vec![0; 256];
                block::Part::message(&*faulty, "rules on").await.unwrap();
                let (mut random, mut next) = (Random::new(35), 0);
                churn(&volume, &mut model, &mut random, 600, &mut next).await;
                block::Part::message(&*faulty, "rules off").await.unwrap();
                assert_eq!(volume.versions(0, 256).await, model, "{rule}");
                volume.flush().await;
                model
            }
        });
        run(move || async move {
            let volume = Volume::open(&whole, &small()).await;
            assert_eq!(volume.versions(0, 256).await, model, "{rule}");
            volume.close().await;
        });
    }
}

#[test]
fn a_disk_that_takes_no_more_writes_fails_every_write_and_goes_on_reading() {
    run(|| async {
        let faulty = with_rules(disk(8), &["write dead"]).await;
        let disk: Arc<dyn block::DevicePart> = faulty.clone();
        let volume = Volume::make(&disk, &small()).await;
        volume.write(0, 32, 1).await;
        volume.flush().await;
        block::Part::message(&*faulty, "rules on").await.unwrap();
        // Several at a time: a write in flight when the log fails must also end.
        let writes = (0..32).map(|block| volume.try_write(block, 1, 2));
        let all = runtime::timeout(Duration::from_secs(20), runtime::join_all(writes)).await;
        assert!(all.expect("every write ends").iter().all(Result::is_err));
        assert!(volume.try_write(0, 1, 3).await.is_err());
        assert_eq!(volume.versions(0, 32).await, [1; 32]);
        drop(volume.device);
        runtime::timeout(Duration::from_secs(20), block::Part::close(&*volume.part))
            .await
            .expect("closing ends")
            .expect_err("nothing can be written");
    });
}

#[test]
fn reads_that_fail_while_the_cleaner_reads_lose_nothing() {
    println!("seed 36");
    let whole = disk(4);
    let model = run({
        let whole = whole.clone();
        move || async move {
            let faulty = with_rules(whole, &["read error=EIO every=7"]).await;
            let disk: Arc<dyn block::DevicePart> = faulty.clone();
            let options = Options { size: Some(1 << 20), ..small() };
            let volume = Volume::make(&disk, &options).await;
            let mut model = vec![0; volume.blocks() as usize];
            let (mut random, mut next) = (Random::new(36), 0);
            churn(&volume, &mut model, &mut random, 1000, &mut next).await;
            block::Part::message(&*faulty, "rules on").await.unwrap();
            // A zone that can't be read is excluded from cleaning, so the space may run out.
            for _ in 0..2000 {
                let (block, version) = (random.below(model.len() as u64), next + 1);
                match volume.try_write(block, 1, version).await {
                    Ok(()) => (model[block as usize], next) = (version, version),
                    Err(Error::NoSpace(_) | Error::Io(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            block::Part::message(&*faulty, "rules off").await.unwrap();
            assert!(volume.cleaned().1 > 0, "nothing was cleaned");
            assert_eq!(volume.all().await, model);
            volume.flush().await;
            model
        }
    });
    run(move || async move {
        let volume = Volume::open(&whole, &small()).await;
        assert_eq!(volume.all().await, model);
        // Excluded zones are cleaned again after the log is opened again.
        let mut model = model;
        churn(&volume, &mut model, &mut Random::new(37), 4000, &mut (1 << 40)).await;
        assert_eq!(volume.all().await, model);
        volume.close().await;
    });
}

#[test]
fn a_write_nobody_waits_for_any_more_is_carried_out() {
    for dirty in [4 << 10, 64 << 20] {
        run(move || async move {
            let options = Options { dirty, ..small() };
            let volume = Volume::make(&disk(8), &options).await;
            for block in 0..40 {
                let data = stamped(block, 1, 7).into();
                let mut write =
                    std::pin::pin!(volume.device.write(BlockIndex(block), data, Durability::Visible));
                // The call is begun and dropped.
                std::future::poll_fn(|context| {
                    let _ = write.as_mut().poll(context);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            let mut tries = 0;
            while volume.versions(0, 40).await != [7; 40] {
                tries += 1;
                assert!(tries < 5000, "{:?}", volume.versions(0, 40).await);
                runtime::sleep(Duration::from_millis(1)).await;
            }
            volume.close().await;
        });
    }
}

#[test]
fn writes_of_8_mib_and_of_one_block_at_depth_64() {
    println!("seed 38");
    let disk = disk(64);
    let model = run({
        let disk = disk.clone();
        move || async move {
            let volume =
                Volume::make(&disk, &Options { checkpoint_after: 1 << 20, ..Options::default() }).await;
            let mut model = vec![0; volume.blocks() as usize];
            let mut random = Random::new(38);
            for round in 0..6_u64 {
                let block = random.below(volume.blocks() - 2048 + 1);
                volume.write(block, 2048, 1000 * round + 1).await;
                model[block as usize..block as usize + 2048].fill(1000 * round + 1);
                // 64 writes at a time, to different blocks.
                for batch in 0..6 {
                    let first = random.below(volume.blocks() - 64 * 7);
                    let version = 1000 * round + 10 + batch;
                    let blocks: Vec<u64> = (0..64).map(|number| first + 7 * number).collect();
                    let writes = blocks.iter().map(|block| volume.try_write(*block, 1, version));
                    for outcome in runtime::join_all(writes).await {
                        outcome.expect("it writes");
                    }
                    blocks.iter().for_each(|block| model[*block as usize] = version);
                }
            }
            assert_eq!(volume.all().await, model);
            let (outcome, buffer) = volume.device.read(BlockIndex(0), Buffer::new(2048 * BLOCK)).await;
            outcome.expect("8 MiB are read at once");
            assert_eq!(buffer.filled().len(), 2048 * BLOCK);
            volume.flush().await;
            model
        }
    });
    run(move || async move { assert_eq!(Volume::open(&disk, &Options::default()).await.all().await, model) });
}

#[test]
fn closed_and_opened_a_hundred_times() {
    println!("seed 39");
    let disk = disk(4);
    run(move || async move {
        let mut volume = Volume::make(&disk, &small()).await;
        let mut model = vec![0; volume.blocks() as usize];
        let (mut random, mut next) = (Random::new(39), 0);
        for round in 0..100 {
            churn(&volume, &mut model, &mut random, round % 40, &mut next).await;
            volume.close().await;
            volume = Volume::open(&disk, &small()).await;
            assert!(volume.part.recovered().clean, "round {round}");
            assert_eq!(volume.part.recovered().replayed, 0, "round {round}");
            assert_eq!(volume.all().await, model, "round {round}");
        }
    });
}

/// A handle that is never dropped doesn't prevent the log from being closed, and can't write afterwards.
#[test]
fn closed_while_handles_are_open() {
    run(|| async {
        let disk = disk(4);
        let Volume { part, device } = Volume::make(&disk, &small()).await;
        let data = |version| stamped(0, 4, version).into();
        device.write(BlockIndex(0), data(1), Durability::Visible).await.expect("it writes");
        part.close().await.expect("it closes");
        let refused = device.write(BlockIndex(0), data(2), Durability::Visible).await;
        assert!(matches!(refused, Err(Error::Closed(_))), "{refused:?}");
        assert!(part.close().await.is_err(), "it is closed");
        let volume = Volume::open(&disk, &small()).await;
        assert!(volume.part.recovered().clean);
        assert_eq!(volume.versions(0, 5).await, [1, 1, 1, 1, 0]);
        drop(device);
        volume.close().await;
    });
}

/// A root names the ends of 32 epochs; more epochs in a row must neither be lost nor make the root too large.
#[test]
fn stopped_uncleanly_two_hundred_times_in_a_row() {
    for writes in [true, false] {
        let disk = disk(8);
        let options = Options { checkpoint_after: 1 << 40, ..small() };
        let (first, made) = (options.clone(), disk.clone());
        run(move || async move {
            let volume = Volume::make(&made, &first).await;
            volume.write(300, 8, 1).await;
            volume.flush().await;
        });
        for life in 0..200_u64 {
            let (disk, options) = (disk.clone(), options.clone());
            run(move || async move {
                let volume = Volume::open(&disk, &options).await;
                let mut expected = vec![0; 308];
                expected[300..].fill(1);
                if writes {
                    expected[..life as usize].fill(2);
                    assert_eq!(volume.versions(0, 308).await, expected, "epoch {life}");
                    volume.write(life, 1, 2).await;
                    volume.flush().await;
                }
                assert!(volume.versions(0, 308).await[300..] == [1; 8], "epoch {life}");
            });
        }
    }
}
