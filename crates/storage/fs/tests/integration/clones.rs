//! Guarantees of clones: they take no space, later changes of one file don't affect another, and shared
//! blocks live as long as any of the files, across snapshots, cleaning and power cuts.

use crate::world::{BASE as SETUP, Files, INODE_GROUPS, Setup, checked, empty, zones};
use block::{Data, Error};
use fs::broken::{Broken, with_broken};
use fs::core::Core;
use fs::{Cloned, File, FileSystem, OpenOptions};
use runtime::{Random, Simulation};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Blocks that metadata may take in addition to files, in comparisons of free space.
const PAGES: u64 = 12;

fn in_world<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    files: Files,
    main: impl FnOnce() -> F,
) -> T {
    let world = Simulation { trace_lines: 0, most_events: 60_000_000, ..Simulation::new(seed) };
    runtime::simulate(world.with_files(files), main).unwrap().value
}

/// Returns data in which no two blocks are equal.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; length];
    Random::new(seed).fill(&mut data);
    data
}

async fn open(files: &FileSystem, path: &str) -> File {
    files.open_file(path, OpenOptions { create: true, ..OpenOptions::default() }).await.unwrap()
}

async fn write(file: &File, offset: u64, data: &[u8]) {
    file.write_at(offset, Data::copy_of(data)).await.unwrap();
}

async fn contents(file: &File) -> Vec<u8> {
    let size = file.attributes().await.unwrap().size as usize;
    file.read_at(0, size + 1).await.unwrap().to_data().to_vec()
}

/// Clones a whole file.
async fn clone(files: &FileSystem, from: &str, to: &str) -> Cloned {
    let (from, to) = (open(files, from).await, open(files, to).await);
    to.clone_range(&from, 0, u64::MAX, 0).await.unwrap()
}

async fn free(files: &FileSystem) -> u64 {
    files.sync().await.unwrap();
    files.statistics().await.unwrap().free
}

async fn sound(files: &FileSystem) {
    let report = files.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

async fn sound_on_disk() {
    let report = checked(&zones(None).await.unwrap()).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_clone_takes_no_space_and_each_file_goes_its_own_way_over_power_cuts() {
    let cut = in_world(1, empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let (data, new) = (bytes(1_000_001, 1), bytes(40_000, 2));
        let a = open(&files, "/a").await;
        write(&a, 0, &data).await;
        let before = free(&files).await;
        assert_eq!(clone(&files, "/a", "/b").await, Cloned { bytes: 1_000_001, shared: 1_000_001 });
        assert!(before - free(&files).await <= PAGES, "{before} blocks, then {}", free(&files).await);
        let b = open(&files, "/b").await;
        assert!(contents(&b).await == data);
        let (one, other) = (a.attributes().await.unwrap(), b.attributes().await.unwrap());
        assert_eq!((one.size, one.blocks, 245), (other.size, other.blocks, other.blocks));
        // Changed blocks are copied, one by one.
        write(&a, 100_000, &new).await;
        write(&b, 500_000, &new).await;
        b.truncate(900_000).await.unwrap();
        sound(&files).await;
        let changed = before - free(&files).await;
        assert!((22..=22 + 2 + PAGES).contains(&changed), "{changed} blocks");
        clone(&files, "/b", "/c").await;
        files.unlink("/a").await.unwrap();
        drop((a, b));
        files.sync().await.unwrap();
        sound(&files).await;
        runtime::power_cut()
    });
    in_world(2, cut, || async {
        sound_on_disk().await;
        let files = SETUP.open().await.unwrap();
        let mut expected = bytes(1_000_001, 1);
        expected[500_000..540_000].copy_from_slice(&bytes(40_000, 2));
        expected.truncate(900_000);
        for path in ["/b", "/c"] {
            assert!(contents(&open(&files, path).await).await == expected, "{path}");
        }
        files.unlink("/b").await.unwrap();
        sound(&files).await;
        assert!(contents(&open(&files, "/c").await).await == expected);
        let with_one = free(&files).await;
        files.unlink("/c").await.unwrap();
        sound(&files).await;
        assert!(free(&files).await >= with_one + 219);
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn ranges_edges_and_holes_are_copied_as_programs_expect_it() {
    in_world(1, empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let (a, b) = (open(&files, "/a").await, open(&files, "/b").await);
        write(&a, 0, &bytes(100_000, 1)).await;
        a.punch(20_480..40_960).await.unwrap();
        a.preallocate(98_304..200_000).await.unwrap();
        write(&b, 0, &bytes(60_000, 2)).await;
        let (source, mut expected) = (contents(&a).await, bytes(60_000, 2));
        // Offset in the source, number of bytes, offset in the copy, number of shared bytes.
        for (from, length, to, shared) in [
            (4096, 40_960, 8192, 40_960),
            (4100, 40_000, 8196, 32_768),
            (1, 30_000, 0, 0),
            (0, 5000, 0, 4096),
            (90_000, 50_000, 53_136, 9888),
            (90_112, u64::MAX, 90_112, 9888),
            (0, u64::MAX, 1 << 20, 100_000),
            (100_000, 10, 0, 0),
        ] {
            let from_end = (from + length.min(1 << 30)).min(100_000);
            let wanted = source[from as usize..from_end as usize].to_vec();
            let done = b.clone_range(&a, from, length, to).await.unwrap();
            assert_eq!(done.bytes, wanted.len() as u64, "from {from} to {to}");
            assert_eq!(done.shared, shared, "from {from} to {to}");
            let end = to as usize + wanted.len();
            if !wanted.is_empty() {
                expected.resize(expected.len().max(end), 0);
                expected[to as usize..end].copy_from_slice(&wanted);
            }
            assert!(contents(&b).await == expected, "from {from} to {to}");
            sound(&files).await;
        }
        // The first three blocks are holes, followed by the ranges of the last clones, with 5 holes in 25
        // blocks.
        assert_eq!(b.attributes().await.unwrap().blocks, 13 + 3 + 20);
        // Overlapping ranges within one file.
        for (from, length, to) in [(0, 4097, 4096), (4096, u64::MAX, 0), (8192, 1, 8192)] {
            let refused = a.clone_range(&a, from, length, to).await.unwrap_err();
            assert!(
                matches!(refused, Error::Invalid(_)) && refused.detail().contains("overlap"),
                "{refused}"
            );
        }
        for _ in 0..2 {
            assert_eq!(a.clone_range(&a, 0, 16_384, 24_576).await.unwrap().shared, 16_384);
        }
        let mut expected = source.clone();
        expected.copy_within(0..16_384, 24_576);
        assert!(contents(&a).await == expected);
        sound(&files).await;
        // Other inode groups have other trees.
        for directory in 0..2 * INODE_GROUPS {
            files.make_directory(&format!("/d{directory}")).await.unwrap();
        }
        let mut shared = 0;
        for directory in 0..2 * INODE_GROUPS {
            let path = format!("/d{directory}/a");
            let done = clone(&files, "/a", &path).await;
            assert_eq!(done.bytes, 100_000);
            shared += u32::from(done.shared > 0);
            assert!(contents(&open(&files, &path).await).await == expected);
        }
        assert!(
            (1..2 * INODE_GROUPS).contains(&shared),
            "{shared}: some directories are of the root's inode group"
        );
        sound(&files).await;
    });
}

#[test]
fn a_snapshot_before_between_and_after_a_clone_frees_what_it_alone_had_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for keeps in [None, Some("/a"), Some("/b")] {
            in_world(1, empty(SETUP.disk), move || async move {
                let files = SETUP.format().await.unwrap();
                let names = ["before", "between", "after"];
                let (a, b) = (open(&files, "/a").await, open(&files, "/b").await);
                let empty = free(&files).await;
                let mut now = [bytes(200_000, 1), Vec::new()];
                let mut then = Vec::new();
                write(&a, 0, &now[0]).await;
                then.push(now.clone());
                files.create_snapshot(names[0]).await.unwrap();
                clone(&files, "/a", "/b").await;
                write(&a, 0, &bytes(30_000, 2)).await;
                now[1] = now[0].clone();
                now[0][..30_000].copy_from_slice(&bytes(30_000, 2));
                then.push(now.clone());
                files.create_snapshot(names[1]).await.unwrap();
                write(&b, 20_480, &bytes(40_960, 3)).await;
                b.clone_range(&a, 0, 8192, 122_880).await.unwrap();
                let copied = now[0][..8192].to_vec();
                now[1][20_480..61_440].copy_from_slice(&bytes(40_960, 3));
                now[1][122_880..131_072].copy_from_slice(&copied);
                then.push(now.clone());
                files.create_snapshot(names[2]).await.unwrap();
                let kept = keeps.map(|path| now[usize::from(path == "/b")].clone());
                for path in ["/a", "/b"].into_iter().filter(|path| Some(*path) != keeps) {
                    files.unlink(path).await.unwrap();
                }
                drop((a, b));
                for (number, at) in order.into_iter().enumerate() {
                    sound(&files).await;
                    for at in &order[number..] {
                        let view = files.snapshot(names[*at]).await.unwrap();
                        for (path, expected) in ["/a", "/b"].into_iter().zip(&then[*at]) {
                            let file = view.open_file(path).await.unwrap();
                            let found = file.read_at(0, 300_000).await.unwrap().to_data();
                            assert!(found[..] == expected[..], "{path} of {}", names[*at]);
                        }
                    }
                    files.delete_snapshot(names[at]).await.unwrap();
                    if number == 0 {
                        // The counts are the same after opening.
                        files.take_checkpoint().await.unwrap();
                        sound_on_disk().await;
                    }
                }
                sound(&files).await;
                let used = kept.as_ref().map_or(0, |_| 49);
                let found = free(&files).await;
                assert!(found + used + PAGES >= empty, "{order:?}, {keeps:?}: {found} of {empty}");
                if let (Some(path), Some(kept)) = (keeps, kept) {
                    assert!(contents(&open(&files, path).await).await == kept);
                }
                files.close().await.unwrap();
                sound_on_disk().await;
            });
        }
    }
}

/// Lets the cleaner move shared blocks of files; then reads and removes all files.
fn cleaned() {
    in_world(1, empty(SETUP.disk), move || async move {
        let files = SETUP.format().await.unwrap();
        for number in 0..40 {
            let (path, clone_path) = (format!("/{number}"), format!("/clone{number}"));
            // A filler, so that each zone has only a few of the shared blocks.
            write(&open(&files, &format!("/filler{number}")).await, 0, &bytes(100_000, number)).await;
            write(&open(&files, &path).await, 0, &bytes(16_384, number)).await;
            if number % 4 > 0 {
                clone(&files, &path, &clone_path).await;
            }
            if number == 20 {
                files.create_snapshot("middle").await.unwrap();
            }
            match number % 4 {
                // Only the clone has the block now.
                2 => files.unlink(&path).await.unwrap(),
                // Another block now belongs to the file and offset for which the first one was written.
                3 => write(&open(&files, &path).await, 0, &bytes(4096, 1000 + number)).await,
                _ => {}
            }
        }
        for number in 0..40 {
            files.unlink(&format!("/filler{number}")).await.unwrap();
        }
        // Enough writes for each zone to be cleaned several times.
        for round in 0..1200_u64 {
            let (large, small) =
                (open(&files, "/churn").await, open(&files, &format!("/churn{}", round % 9)).await);
            write(&large, 0, &bytes(40_000 + (round as usize % 7) * 4096, round)).await;
            write(&small, 0, &bytes(4096, round)).await;
        }
        let moved = files.counters().cleaned_zones.load(Relaxed);
        assert!(moved > 10, "{moved} zones were cleaned");
        for round in 0..2 {
            sound(&files).await;
            for number in 0..40 {
                let mut expected = bytes(16_384, number);
                if number % 4 > 0 {
                    let found = contents(&open(&files, &format!("/clone{number}")).await).await;
                    assert!(found == expected, "clone {number}");
                }
                if number % 4 != 2 {
                    if number % 4 == 3 {
                        expected[..4096].copy_from_slice(&bytes(4096, 1000 + number));
                    }
                    assert!(
                        contents(&open(&files, &format!("/{number}")).await).await == expected,
                        "{number}"
                    );
                }
            }
            if round == 0 {
                files.delete_snapshot("middle").await.unwrap();
            }
        }
        // The space between the files can be used.
        let all = free(&files).await - 2 * PAGES;
        let full = open(&files, "/full").await;
        for at in 0..all / 16 {
            write(&full, at << 16, &bytes(16 * 4096, at)).await;
        }
        drop(full);
        files.unlink("/full").await.unwrap();
        let used = files.statistics().await.unwrap().blocks - free(&files).await;
        let expected = 40 * 4 + 10 + 10 + 16 + 9;
        assert!(used <= expected + 40, "{used} blocks for {expected}");
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn shared_blocks_are_moved_for_all_who_have_them() {
    cleaned();
}

#[test]
fn a_cleaner_that_moves_shared_blocks_for_one_file_alone_is_noticed() {
    let run = std::panic::catch_unwind(|| with_broken([Broken::IgnoresShared], cleaned));
    assert!(run.is_err(), "it isn't noticed");
}

#[test]
fn a_block_with_16_owners_is_copied() {
    in_world(1, empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let data = bytes(100_000, 1);
        write(&open(&files, "/0").await, 0, &data).await;
        let before = free(&files).await;
        let mut shared = Vec::new();
        for number in 1..=20 {
            shared.push(clone(&files, "/0", &format!("/{number}")).await.shared);
        }
        assert!(shared[..15].iter().all(|bytes| *bytes == 100_000) && shared[15..] == [0; 5], "{shared:?}");
        let used = before - free(&files).await;
        assert!((5 * 25..5 * 25 + PAGES).contains(&used), "{used} blocks");
        // A copy of a copy is shared again; so is the first, after a part of it has fewer owners.
        assert_eq!(clone(&files, "/20", "/21").await.shared, 100_000);
        write(&open(&files, "/7").await, 8192, &bytes(4096, 2)).await;
        let one_more = clone(&files, "/0", "/22").await;
        assert_eq!(one_more, Cloned { bytes: 100_000, shared: 4096 });
        for number in [0, 1, 15, 16, 20, 21, 22] {
            assert!(contents(&open(&files, &format!("/{number}")).await).await == data, "{number}");
        }
        sound(&files).await;
        for number in 0..=22 {
            files.unlink(&format!("/{number}")).await.unwrap();
        }
        sound(&files).await;
        assert!(free(&files).await + PAGES >= before + 25);
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn clones_and_writes_at_the_same_time_wait_for_each_other_and_none_waits_for_ever() {
    for seed in 1..6 {
        in_world(seed, empty(24 << 20), move || async move {
            let setup = Setup { disk: 24 << 20, slow: 0.2, ..SETUP };
            let files = setup.format().await.unwrap();
            const LENGTH: usize = 15 * 4096;
            for path in ["/a", "/b", "/c"] {
                write(&open(&files, path).await, 0, &vec![0; LENGTH]).await;
            }
            let tasks = (0..8_u64).map(|task| {
                let files = files.clone();
                runtime::spawn(async move {
                    let mut random = Random::new(seed * 100 + task);
                    let names = ["/a", "/b", "/c"];
                    for round in 0..40 {
                        let (one, other) = (random.below(3) as usize, random.below(3) as usize);
                        let (one_file, other_file) =
                            (open(&files, names[one]).await, open(&files, names[other]).await);
                        match task {
                            // A write is atomic: all bytes of a file are equal.
                            0..3 => write(&one_file, 0, &vec![(round * 8 + task) as u8; LENGTH]).await,
                            3 => {
                                let far = random.below(4) << 20;
                                one_file
                                    .clone_range(&one_file, 0, LENGTH as u64, (1 << 20) + far)
                                    .await
                                    .unwrap();
                            }
                            _ if one != other => {
                                one_file.clone_range(&other_file, 0, LENGTH as u64, 0).await.unwrap();
                            }
                            _ => {
                                let found = one_file.read_at(0, LENGTH).await.unwrap().to_data();
                                assert_eq!(found.len(), LENGTH);
                            }
                        }
                        if random.chance(0.1) {
                            runtime::sleep(Duration::from_micros(random.below(500))).await;
                        }
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await;
            }
            for path in ["/a", "/b", "/c"] {
                let all = contents(&open(&files, path).await).await;
                for part in all.chunks(1 << 20).map(|part| &part[..LENGTH.min(part.len())]) {
                    assert!(part.iter().all(|byte| *byte == part[0]), "{path}: parts of several writes");
                }
            }
            sound(&files).await;
        });
    }
}

#[test]
fn a_power_cut_in_the_middle_of_clones_leaves_whole_ones() {
    for seed in 1..25 {
        let cut = in_world(seed, empty(SETUP.disk), move || async move {
            let files = Setup { checkpoint_after: 64 << 10, ..SETUP }.format().await.unwrap();
            write(&open(&files, "/0").await, 0, &bytes(300_000, 1)).await;
            files.sync().await.unwrap();
            let cloning = async {
                for number in 1..200_u64 {
                    // Few clones, so that no block has 16 owners.
                    let (from, to) = (format!("/{}", (number - 1) % 12), format!("/{}", number % 12));
                    clone(&files, &from, &to).await;
                    write(&open(&files, &to).await, number * 4096 % 300_000, &bytes(4096, number)).await;
                    if number % 7 == 0 {
                        files.sync().await.unwrap();
                        files.unlink(&from).await.unwrap();
                    }
                }
            };
            runtime::timeout(Duration::from_micros(seed * 400), cloning).await.ok();
            runtime::power_cut()
        });
        in_world(seed, cut, || async {
            sound_on_disk().await;
            let files = SETUP.open().await.unwrap();
            for entry in files.read_directory("/").await.unwrap() {
                let name = String::from_utf8(entry.name.clone()).unwrap();
                let found = contents(&open(&files, &format!("/{name}")).await).await;
                assert!(
                    found.is_empty() || (300_000..=304_096).contains(&found.len()),
                    "/{name}: {}",
                    found.len()
                );
                files.unlink(&format!("/{name}")).await.unwrap();
            }
            sound(&files).await;
            let (used, all) = (free(&files).await, files.statistics().await.unwrap().blocks);
            assert!(all - used <= PAGES, "{} blocks stay", all - used);
        });
    }
}

#[test]
fn on_a_full_file_system_shared_blocks_need_space_to_be_written_and_none_to_be_removed() {
    in_world(1, empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let data = bytes(400_000, 1);
        write(&open(&files, "/a").await, 0, &data).await;
        clone(&files, "/a", "/b").await;
        let full = open(&files, "/full").await;
        let mut length = 0;
        while full.write_at(length, Data::copy_of(&[1; 4096])).await.is_ok() {
            length += 4096;
        }
        let a = open(&files, "/a").await;
        let refused = a.write_at(0, Data::copy_of(&data[1..])).await;
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        let refused = open(&files, "/full").await.clone_range(&a, 0, u64::MAX, 0).await;
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
        sound(&files).await;
        files.unlink("/b").await.unwrap();
        files.sync().await.unwrap();
        // This file is now the only owner of its blocks, which are still marked as shared.
        write(&a, 0, &data[1..]).await;
        let mut expected = data[1..].to_vec();
        expected.push(data[399_999]);
        assert!(contents(&a).await == expected);
        sound(&files).await;
    });
}

#[test]
fn scrubs_read_shared_blocks_once_and_defragmentation_leaves_them() {
    in_world(1, empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let a = open(&files, "/a").await;
        // Every second block, then the others: each block is an extent of its own.
        for start in [0, 1] {
            for block in (start..40).step_by(2) {
                write(&a, block * 4096, &bytes(4096, block)).await;
            }
        }
        let b = open(&files, "/b").await;
        b.clone_range(&a, 0, 20 * 4096, 0).await.unwrap();
        files.create_snapshot("both").await.unwrap();
        write(&a, 0, &bytes(8192, 99)).await;
        let scrubbed = files.scrub(&Arc::new(AtomicU64::new(0))).await.unwrap();
        assert_eq!((scrubbed.blocks, scrubbed.damaged), (42, 0), "{scrubbed:?}");
        let expected = contents(&a).await;
        assert_eq!(b.defragment().await.unwrap().blocks, 0);
        let done = a.defragment().await.unwrap();
        assert!((20..=22).contains(&done.blocks) && done.after < done.before, "{done:?}");
        assert!(contents(&a).await == expected);
        sound(&files).await;
        files.unlink("/a").await.unwrap();
        drop(a);
        files.delete_snapshot("both").await.unwrap();
        let scrubbed = files.scrub(&Arc::new(AtomicU64::new(0))).await.unwrap();
        assert_eq!((scrubbed.blocks, scrubbed.damaged), (20, 0), "{scrubbed:?}");
        files.home().with(|core: Rc<Core>| async move { core.check_open() }).await.unwrap();
        sound(&files).await;
    });
}
