//! Events that `record` writes to a timeline.

use crate::disk;
use block::{
    BlockIndex, BlockRange, Buffer, DevicePart, Durability, Error, Part, ZeroMode, ZoneAddress, ZoneIndex,
    ZonesPart,
};
use conformance::requests::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::format::{Role, Submission};
use layers::record::timeline::{Ending, EventKind};
use layers::record::{Contents, DEFAULT_LIMIT, RecordDevicePart, RecordZonesPart, Recorder, Timeline};
use std::fs::TryLockError;
use std::sync::Arc;

fn over(inner: Arc<dyn DevicePart>, recorder: &Arc<Recorder>, name: &str, role: Role) -> RecordDevicePart {
    RecordDevicePart::new(inner, recorder.clone(), name, role).unwrap()
}

/// One word per event: its device and what happened.
fn words(timeline: &Timeline) -> Vec<String> {
    let word = |what: &EventKind| match what {
        EventKind::Joined => "joined",
        EventKind::Submitted(Submission::Write { durability: Durability::Durable, .. }) => "fua",
        EventKind::Submitted(Submission::Write { .. }) => "write",
        EventKind::Submitted(Submission::WriteZeroes { .. }) => "zeroes",
        EventKind::Submitted(Submission::Discard { .. }) => "discard",
        EventKind::Submitted(Submission::Flush) => "flush",
        EventKind::Submitted(Submission::Read { .. }) => "read",
        EventKind::Submitted(Submission::Append { .. }) => "append",
        EventKind::Submitted(Submission::FlushZones { .. }) => "flush-zones",
        EventKind::Submitted(Submission::Open { .. }) => "open",
        EventKind::Submitted(Submission::Close { .. }) => "close",
        EventKind::Submitted(Submission::Finish { .. }) => "finish",
        EventKind::Submitted(Submission::Reset { .. }) => "reset",
        EventKind::Completed(completion) if completion.errno == 0 => "done",
        EventKind::Completed(_) => "failed",
        EventKind::Ended => "ended",
    };
    timeline.events.iter().map(|event| format!("{}:{}", event.device, word(&event.what))).collect()
}

#[test]
fn everything_that_changes_something_is_written_down_in_order() {
    on_a_shard(|| async {
        let recorder = Recorder::in_memory();
        let part = over(disk(), &recorder, "disk", Role::Disk);
        let handle = part.open().await.unwrap();
        write(&*handle, 1, 7).await.unwrap();
        handle.write(BlockIndex(2), full(8, 2), Durability::Durable).await.unwrap();
        handle.write_zeroes(BlockRange::new(3, 1), ZeroMode::default(), Durability::Visible).await.unwrap();
        handle.discard(BlockRange::new(1, 1)).await.unwrap();
        handle.flush().await.unwrap();
        read(&*handle, 0, 4).await.unwrap();
        // Refused and empty requests aren't recorded.
        assert!(write(&*handle, 64, 1).await.is_err());
        handle.discard(BlockRange::new(5, 0)).await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        let timeline = recorder.timeline().unwrap();
        let expected =
            "0:joined 0:write 0:done 0:fua 0:done 0:zeroes 0:done 0:discard 0:done 0:flush 0:done 0:ended";
        assert_eq!(words(&timeline).join(" "), expected);
        assert_eq!(timeline.ending, Ending::Clean);
        let EventKind::Submitted(Submission::Write { offset, content, .. }) = &timeline.events[3].what else {
            panic!("{:?}", timeline.events[3])
        };
        let mut bytes = vec![0; 8192];
        content.copy_to(0, &mut bytes);
        assert_eq!((*offset, content.len(), bytes), (8192, 8192, vec![8; 8192]));
    });
}

#[test]
fn reads_are_written_down_where_asked_for_and_data_is_left_out() {
    on_a_shard(|| async {
        let recorder = Recorder::in_memory();
        let rules = parse_rules(&["read error=EIO after=1".into()], stack::Contract::Device).unwrap();
        let faulty = Arc::new(FaultDevicePart::new(disk(), rules, 1).unwrap());
        let part =
            over(faulty, &recorder, "disk", Role::Disk).with_contents(Contents { reads: true, data: false });
        let handle = part.open().await.unwrap();
        write(&*handle, 1, 7).await.unwrap();
        assert_eq!(read(&*handle, 1, 1).await.unwrap()[0], 7, "what is below has the data");
        let (result, buffer) = handle.read(BlockIndex(0), Buffer::new(8192)).await;
        assert!(result.is_err() && buffer.filled().is_empty());
        // Refused reads aren't recorded.
        assert!(handle.read(BlockIndex(64), Buffer::new(4096)).await.0.is_err());
        let timeline = recorder.timeline().unwrap();
        assert_eq!(words(&timeline).join(" "), "0:joined 0:write 0:done 0:read 0:done 0:read 0:failed");
        let EventKind::Submitted(Submission::Write { content, .. }) = &timeline.events[1].what else {
            panic!()
        };
        let mut bytes = vec![1; 4096];
        content.copy_to(0, &mut bytes);
        assert_eq!((content.len(), bytes), (4096, vec![0; 4096]));
        let EventKind::Submitted(Submission::Read { offset, length }) = &timeline.events[5].what else {
            panic!()
        };
        assert_eq!((*offset, *length), (0, 8192));
    });
}

#[test]
fn failures_are_written_down_and_passed_on() {
    on_a_shard(|| async {
        let recorder = Recorder::in_memory();
        let rules = parse_rules(&["write error=ENOSPC".into()], stack::Contract::Device).unwrap();
        let faulty = Arc::new(FaultDevicePart::new(disk(), rules, 1).unwrap());
        let handle = over(faulty, &recorder, "disk", Role::Disk);
        let handle = handle.open().await.unwrap();
        assert!(matches!(write(&*handle, 0, 1).await, Err(Error::NoSpace(_))));
        let timeline = recorder.timeline().unwrap();
        assert_eq!(words(&timeline).join(" "), "0:joined 0:write 0:failed");
        let EventKind::Completed(completion) = &timeline.events[2].what else {
            panic!("{:?}", timeline.events[2])
        };
        assert_eq!((completion.submitted, completion.errno), (1, 28));
    });
}

#[test]
fn layers_of_one_file_share_one_order_and_the_last_one_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.timeline");
    on_a_shard(move || async move {
        let first = Recorder::open(&path, false, DEFAULT_LIMIT).await.unwrap();
        let roundabout = path.parent().unwrap().join(".").join("run.timeline");
        let second = Recorder::open(&roundabout, false, DEFAULT_LIMIT).await.unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let below = Arc::new(over(disk(), &first, "below", Role::Disk));
        let above = over(below.clone(), &second, "above", Role::Client);
        let handle = above.open().await.unwrap();
        write(&*handle, 1, 7).await.unwrap();
        drop(handle);
        above.close().await.unwrap();
        above.close().await.unwrap();
        // The lower layer still records while it is open.
        let handle = below.open().await.unwrap();
        handle.flush().await.unwrap();
        below.close().await.unwrap();
        assert!(matches!(handle.flush().await, Err(Error::Closed(_))));
        let timeline = Timeline::read(&path).await.unwrap();
        let expected = "0:joined 1:joined 1:write 0:write 0:done 1:done 0:flush 0:done 0:ended";
        assert_eq!(words(&timeline).join(" "), expected);
        assert_eq!(timeline.ending, Ending::Clean);
        assert_eq!((timeline.devices[0].role, timeline.devices[1].role), (Role::Disk, Role::Client));
        assert_eq!(timeline.devices[1].name, "above");
    });
}

#[test]
fn an_older_file_is_only_overwritten_if_it_is_a_timeline_and_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.timeline");
    let precious = folder.path().join("disk.img");
    std::fs::write(&precious, b"somebody's data").unwrap();
    on_a_shard(move || async move {
        for (overwrite, works) in [(false, true), (false, false), (true, true)] {
            let opened = Recorder::open(&path, overwrite, DEFAULT_LIMIT).await;
            assert_eq!(opened.is_ok(), works, "overwrite={overwrite}");
            if let Ok(recorder) = opened {
                let locked = std::fs::File::open(&path).unwrap().try_lock();
                assert!(matches!(locked, Err(TryLockError::WouldBlock)), "overwrite={overwrite}: {locked:?}");
                over(disk(), &recorder, "disk", Role::Disk).close().await.unwrap();
            }
        }
        assert_eq!(words(&Timeline::read(&path).await.unwrap()).join(" "), "0:joined 0:ended");
        // Another program writes the timeline.
        let (writer, before) = (std::fs::File::open(&path).unwrap(), std::fs::read(&path).unwrap());
        writer.lock().unwrap();
        let error = Recorder::open(&path, true, DEFAULT_LIMIT).await.err().unwrap();
        assert!(matches!(error, Error::Busy(_)), "{error}");
        assert!(std::fs::read(&path).unwrap() == before);
        let error = Recorder::open(&precious, true, DEFAULT_LIMIT).await.err().unwrap();
        assert!(matches!(error, Error::AlreadyExists(_)), "{error}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"somebody's data");
        assert!(Recorder::open(&path.join("not/there"), false, DEFAULT_LIMIT).await.is_err());
    });
}

#[test]
fn calls_wait_where_the_buffer_is_full_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.timeline");
    on_a_shard(move || async move {
        let recorder = Recorder::open(&path, false, 64 << 10).await.unwrap();
        let part = Arc::new(over(disk(), &recorder, "disk", Role::Disk));
        let handle = part.open().await.unwrap();
        let writers = (0..200_u64).map(|number| {
            let handle = handle.clone();
            runtime::spawn(async move { write(&*handle, number % 64, number as u8 | 1).await })
        });
        for result in runtime::join_all(writers.collect::<Vec<_>>()).await {
            result.unwrap();
        }
        assert!(part.status().await["waits_for_room"].as_u64().unwrap() > 0, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
        let timeline = Timeline::read(&path).await.unwrap();
        assert_eq!((timeline.events.len(), timeline.ending), (1 + 400 + 1, Ending::Clean));
    });
}

#[test]
fn where_the_timeline_cannot_be_written_calls_fail() {
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIPPED: where_the_timeline_cannot_be_written_calls_fail: there is no /dev/full");
        return;
    }
    on_a_shard(|| async {
        // A recorder creates its file itself, so the full device is reached by a symbolic link.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let Ok(recorder) = Recorder::open(&path, true, DEFAULT_LIMIT).await else {
            panic!("an empty file may be overwritten");
        };
        let part = over(disk(), &recorder, "disk", Role::Disk);
        let handle = part.open().await.unwrap();
        let mut failed = None;
        for _ in 0..1000 {
            runtime::yield_now().await;
            if let Err(error) = write(&*handle, 0, 1).await {
                failed = Some(error);
                break;
            }
            runtime::sleep(std::time::Duration::from_millis(1)).await;
        }
        let error = failed.expect("writes go on though nothing is recorded");
        assert!(matches!(error, Error::NoSpace(_)) && error.detail().contains("timeline"), "{error}");
        assert!(part.close().await.is_err());
    });
}

#[test]
fn a_recorder_that_is_abandoned_leaves_a_timeline_without_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.timeline");
    on_a_shard(move || async move {
        let recorder = Recorder::open(&path, false, DEFAULT_LIMIT).await.unwrap();
        let part = over(disk(), &recorder, "disk", Role::Disk);
        let handle = part.open().await.unwrap();
        write(&*handle, 0, 1).await.unwrap();
        drop((handle, part));
        let weak = Arc::downgrade(&recorder);
        drop(recorder);
        while weak.strong_count() > 0 {
            runtime::sleep(std::time::Duration::from_millis(1)).await;
        }
        let timeline = Timeline::read(&path).await.unwrap();
        assert_eq!((timeline.events.len(), timeline.ending), (3, Ending::Unfinished));
    });
}

#[test]
fn zones_are_written_down_with_addresses_and_generations() {
    on_a_shard(|| async {
        let recorder = Recorder::in_memory();
        let zones = Arc::new(zones::ram::RamZones::new(zones::ram::Options::default()).unwrap());
        let part = RecordZonesPart::new(zones, recorder.clone(), "zones", Role::Disk).unwrap();
        let handle = part.open().await.unwrap();
        handle.append(ZoneIndex(2), Buffer::copy_of(&[1; 512]).into()).await.unwrap();
        let second = handle.append(ZoneIndex(2), Buffer::copy_of(&[2; 512]).into()).await.unwrap();
        handle.flush(&[ZoneIndex(2), ZoneIndex(3)]).await.unwrap();
        handle.finish(ZoneIndex(2)).await.unwrap();
        let generation = handle.reset(ZoneIndex(2), block::EraseGuarantee::None).await.unwrap();
        handle.open(ZoneIndex(2)).await.unwrap();
        handle.append_at(ZoneAddress::new(2, 0), Buffer::copy_of(&[3; 512]).into()).await.unwrap();
        let misplaced = handle.append_at(ZoneAddress::new(2, 0), Buffer::copy_of(&[4; 512]).into()).await;
        assert!(matches!(misplaced, Err(Error::Misplaced(_))), "{misplaced:?}");
        handle.close(ZoneIndex(2)).await.unwrap();
        let timeline = recorder.timeline().unwrap();
        let expected = "0:joined 0:append 0:done 0:append 0:done 0:flush-zones 0:done 0:finish 0:done 0:reset 0:done \
             0:open 0:done 0:append 0:done 0:append 0:failed 0:close 0:done";
        assert_eq!(words(&timeline).join(" "), expected);
        let value = |event: usize| match &timeline.events[event].what {
            EventKind::Completed(completion) => completion.value,
            other => panic!("{other:?}"),
        };
        assert_eq!((value(4), value(10)), (second.offset.0, generation));
        let EventKind::Submitted(Submission::FlushZones { zones }) = &timeline.events[5].what else {
            panic!()
        };
        assert_eq!(zones, &[2, 3]);
        let EventKind::Submitted(Submission::Append { zone, at, content }) = &timeline.events[13].what else {
            panic!()
        };
        assert_eq!((*zone, *at, content.len()), (2, Some(0), 512));
    });
}
