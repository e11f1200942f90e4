//! The layers as a stack names them: declarations, examples, errors, and a stack that is built and runs.

use conformance::check_messages;
use conformance::requests::{on_a_shard, write};
use layers::record::Timeline;
use layers::record::timeline::Ending;
use layers::{fault, linear, model, record, stats, stripe};
use stack::{Registry, Stack};

fn registry() -> Registry {
    Registry::new(vec![
        &stats::KIND,
        &stats::ZONES_KIND,
        &fault::KIND,
        &fault::ZONES_KIND,
        &record::KIND,
        &record::ZONES_KIND,
        &linear::KIND,
        &stripe::KIND,
        &cache::KIND,
        &writecache::KIND,
        &mirror::KIND,
        &disks::file::KIND,
        &disks::ram::KIND,
        &zones::on_device::KIND,
    ])
}

#[test]
fn declarations_and_examples_are_right() {
    registry().verify().unwrap();
}

/// Every declared message of a part is parsed.
#[test]
fn declared_messages_are_read() {
    for kind in [&stats::KIND, &stats::ZONES_KIND, &model::KIND] {
        check_messages::<stats::Message>(kind, &[]);
    }
    check_messages::<fault::Message>(&fault::KIND, &[]);
    check_messages::<fault::Message>(&fault::ZONES_KIND, &[]);
    check_messages::<mirror::Message>(&mirror::KIND, &[("LEG", "fast")]);
    check_messages::<writecache::Message>(&writecache::KIND, &[]);
    let numbers = ["SECTORS", "BYTES", "FROM", "COUNT"].map(|name| (name, "2048"));
    let others =
        [("MODE", "writeback"), ("FROM-TO", "5-9"), ("HEAT", "main/3/12"), ("OFFSET+LENGTH", "0+10")];
    check_messages::<cache::Message>(&cache::KIND, &[numbers, others].concat());
}

#[test]
fn a_wrong_rule_is_refused_before_anything_is_built() {
    let line = "fault(ram(1MiB), \"read eror=EIO\")";
    let problems = Stack::from_line("line", line, &registry()).unwrap().check(false).unwrap_err().to_string();
    assert!(problems.contains("column 6") && problems.contains("\"error\""), "{problems}");
}

/// Error of a stack that is refused.
fn refused(line: &str) -> String {
    Stack::from_line("line", line, &registry()).unwrap().check(false).unwrap_err().to_string()
}

#[test]
fn devices_that_dont_fit_together_are_refused_with_what_would() {
    for (line, expected) in [
        ("stripe(ram(1MiB))", "expected two or more"),
        ("stripe(ram(1MiB), ram(1MiB), chunk_size=12KiB)", "expected a power of two, at least 4096"),
        ("stripe(ram(1MiB), ram(1MiB), chunk_size=512)", "expected a power of two, at least 4096"),
        ("cache(ram(1MiB), ram(1MiB), block_size=16KiB)", "expected a multiple of 32KiB from 32KiB to 1GiB"),
        ("cache(ram(1MiB), ram(1MiB), block_size=80KiB)", "expected a multiple of 32KiB from 32KiB to 1GiB"),
        ("cache(ram(1MiB), ram(1MiB), block_size=2GiB)", "expected a multiple of 32KiB from 32KiB to 1GiB"),
        (
            "cache(ram(2MiB, block_size=1MiB), ram(8MiB))",
            "expected a multiple of 1048576, the larger block size",
        ),
        ("writecache(ram(1MiB), ram(1MiB), low_watermark=51)", "expected at most high_watermark, 50"),
        ("writecache(ram(1MiB), ram(64KiB))", "for blocks of 4096"),
        (
            "writecache(ram(1MiB), ram(1MiB), autocommit_time=2h)",
            "autocommit_time 2h: expected 1ms to 1h, as in dm-writecache",
        ),
        ("writecache(ram(1MiB), ram(1MiB), high_watermark=40)", "low_watermark 45 by default: expected"),
        ("writecache(ram(1MiB), ram(1MiB), writeback_batch=0)", "expected at least 1 byte"),
        ("writecache(ram(1MiB), ram(1MiB), dirty=64KiB)", "dirty 64KiB: expected 1MiB to 1TiB"),
        ("writecache(ram(1MiB), ram(1MiB), max_age=25h)", "expected 1ms to 24h"),
        ("writecache(ram(1MiB), ram(1MiB), pause_writeback=61s)", "expected 0 to 1m"),
        ("writecache(ram(1MiB), ram(1MiB), fua=true, nofua=true)", "fua is set, too"),
        ("stripe(ram(1MiB), ram(32KiB))", "chunk_size 64KiB: expected at most 32KiB"),
        ("linear(ram(1MiB), offset=512)", "offset 512: expected a multiple of 4096, the largest block size"),
        ("linear(ram(1MiB), offset=1MiB)", "offset 1MiB: expected less than 1MiB"),
        (
            "linear(ram(1MiB), ram(1MiB), offset=512KiB, size=2MiB)",
            "size 2MiB: expected from one block to 1536KiB",
        ),
        ("linear(ram(1MiB), size=0)", "size 0: expected from one block to 1MiB"),
        ("mirror(ram(1MiB), ram(1MiB), write_behind=1)", "only write-mostly legs lag"),
        ("mirror(ram(1MiB), ram(1MiB), flush=fast)", "no leg lags without write_behind"),
        ("mirror(ram(1MiB), ram(1MiB), write_mostly=[2])", "expected one of ram1, ram2"),
        ("mirror(ram(1MiB), ram(1MiB), bitmap_chunk=2KiB)", "at least 4096 (md's limit)"),
        (
            "mirror(ram(1MiB), ram(1MiB), bitmap_delay=0s)",
            "bitmap_delay 0: expected 1ms or more (md's --delay",
        ),
        (
            "mirror(ram(1MiB), ram(1MiB), bitmap_delay=999us)",
            "bitmap_delay 999us: expected 1ms or more (md's",
        ),
        ("mirror(ram(1MiB), ram(1MiB), behind_bytes=0)", "behind_bytes 0: smaller than one block"),
        ("mirror(ram(1MiB), ram(1MiB), behind_bytes=2KiB)", "behind_bytes 2048: smaller than one block"),
        ("mirror(ram(1MiB), ram(8KiB))", "smallest leg: 8192 bytes"),
    ] {
        let problems = refused(line);
        assert!(problems.contains(expected), "{line}: {problems}");
    }
}

#[test]
fn values_beyond_the_limits_of_md_and_dm_are_refused_with_whose_they_are() {
    for (line, expected) in [
        (
            "mirror(ram(1MiB), ram(1MiB), write_behind=16384)",
            "expected a whole number from 1 to 16383, as md takes",
        ),
        (
            "writecache(ram(1MiB), ram(1MiB), high_watermark=101)",
            "found 101, expected a whole number from 0 to 100, as dm-writecache takes",
        ),
        (
            "cache(ram(1MiB), ram(1MiB), chunksize=64KiB)",
            "unknown key \"chunksize\" for kind \"cache\": did you mean \"block_size\"?",
        ),
    ] {
        let problems = Stack::from_line("line", line, &registry()).unwrap_err().to_string();
        assert!(problems.contains(expected), "{line}: {problems}");
    }
}

#[test]
fn raid0_of_parts_is_built_as_planned() {
    on_a_shard(|| async {
        let line = "stripe(linear(ram(1MiB), ram(64KiB, block_size=512), offset=36KiB), ram(1000KiB), chunk_size=16KiB)";
        let parsed = Stack::from_line("line", line, &registry()).unwrap();
        let built = parsed.check(false).unwrap().build().await.unwrap();
        let top = built.device("top").unwrap();
        assert_eq!(top.geometry().bytes(), 2 * (992 << 10), "whole chunks of the smaller one, twice");
        assert_eq!(top.status().await["unused_bytes"], (1052 + 1000 - 2 * 992) << 10);
        built.close().await.unwrap();
    });
}

/// Stacks that keep acknowledged writes when their process is killed, and stacks that don't. `A` and `B` are
/// files, `M` is memory.
#[test]
fn a_stack_keeps_what_was_acknowledged_if_all_parts_that_acknowledge_do() {
    let folder = tempfile::tempdir().unwrap();
    on_a_shard(move || async move {
        for (line, keeps) in [
            ("A", true),
            ("M", false),
            ("stats(A)", true),
            ("stats(M)", false),
            ("fault(A)", true),
            ("stripe(A, B)", true),
            ("stripe(A, M)", false),
            ("linear(A, B)", true),
            ("linear(M, A)", false),
            ("mirror(A, B)", true),
            ("mirror(A, M)", false),
            ("mirror(A, B, write_mostly=[1], write_behind=8)", true),
            ("cache(A, B)", false),
            ("cache(A, B, mode=writethrough)", false),
            ("writecache(A, B)", true),
            ("writecache(A, M)", false),
            ("writecache(M, A)", false),
            ("writecache(A, B, cleaner=true)", true),
            ("writecache(stripe(M, A), B)", false),
            ("mirror(A, writecache(M, B))", false),
        ] {
            let named = |letter| match letter {
                'A' => "file(a.img, size=8MiB)".to_owned(),
                'B' => "file(b.img, size=8MiB)".to_owned(),
                'M' => "ram(8MiB)".to_owned(),
                other => other.to_string(),
            };
            let line: String = line.chars().map(named).collect();
            let parsed = Stack::from_line("line", &line, &registry()).unwrap();
            let plan = parsed.with_base_directory(folder.path()).check(true);
            let built = plan.unwrap_or_else(|problems| panic!("{line}: {problems}")).build().await.unwrap();
            assert_eq!(built.device("top").unwrap().keeps_acknowledged(), keeps, "{line}");
            built.close().await.unwrap();
            for name in ["a.img", "b.img"] {
                let _ = std::fs::remove_file(folder.path().join(name));
            }
        }
    });
}

#[test]
fn a_stack_of_all_three_records_at_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    on_a_shard(move || async move {
        let line = "record(stats(fault(record(ram(1MiB), run.timeline), \"write drop after=1\", seed=3)), \
                    run.timeline, role=client)";
        let parsed = Stack::from_line("line", line, &registry()).unwrap().with_base_directory(folder.path());
        let built = parsed.check(false).unwrap().build().await.unwrap();
        let handle = built.device("top").unwrap().open().await.unwrap();
        write(&*handle, 0, 1).await.unwrap();
        write(&*handle, 1, 1).await.unwrap();
        drop(handle);
        built.close().await.unwrap();
        let timeline = Timeline::read(&folder.path().join("run.timeline")).await.unwrap();
        assert_eq!(timeline.ending, Ending::Clean);
        // Two devices join; the first write passes both, the second one only the client's device; then the
        // end.
        assert_eq!((timeline.devices.len(), timeline.events.len()), (2, 2 + 4 + 2 + 1));
    });
}

/// A missing leg, origin or cache device is an error; no file is created in its place.
#[test]
fn a_missing_part_with_contents_is_not_created_empty() {
    on_a_shard(|| async {
        for (line, missing, opens) in [
            ("mirror(A, B)", "b.img", false),
            ("mirror(A, B, degraded=true)", "b.img", true),
            ("mirror(A, stats(B))", "b.img", false),
            ("writecache(A, B)", "a.img", false),
            ("writecache(A, B)", "b.img", false),
            ("cache(A, B)", "a.img", false),
            ("cache(A, B, mode=writeback)", "b.img", false),
            ("cache(linear(A, C), B)", "c.img", false),
            ("stats(A)", "a.img", true),
            ("linear(A, B)", "b.img", true),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let named: String = line
                .chars()
                .map(|letter| match letter {
                    'A'..='C' => format!("file({}.img, size=8MiB)", letter.to_ascii_lowercase()),
                    other => other.to_string(),
                })
                .collect();
            let parsed =
                || Stack::from_line("line", &named, &registry()).unwrap().with_base_directory(folder.path());
            parsed().check(true).unwrap().build().await.unwrap().close().await.unwrap();
            parsed().check(false).unwrap().build().await.unwrap().close().await.unwrap();
            let path = folder.path().join(missing);
            // An empty file counts as missing.
            for empty in [false, true] {
                std::fs::remove_file(&path).unwrap();
                if empty {
                    std::fs::write(&path, "").unwrap();
                }
                match parsed().check(false).unwrap().build().await {
                    Ok(built) => {
                        built.close().await.unwrap();
                        assert!(opens, "{line}");
                    }
                    Err(error) => assert!(!opens && error.to_string().contains(missing), "{line}: {error}"),
                }
                let length = std::fs::metadata(&path).map(|found| found.len()).ok();
                let creates = !line.starts_with("mirror") && opens;
                let expected = if creates { Some(8 << 20) } else { empty.then_some(0) };
                assert_eq!(length, expected, "{line}");
                if !path.exists() {
                    std::fs::write(&path, "").unwrap();
                }
            }
        }
    });
}
