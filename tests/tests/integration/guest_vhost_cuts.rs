//! Data that a guest has flushed through the vhost-user-blk door survives every power cut of the host: a
//! recorded run is cut, and each state that a cut could have left must hold the data that the guest had
//! flushed before.
//!
//! The recorded run itself shows what the guest had flushed: after a flush the guest writes a mark, beyond
//! all other data, whose submission is an event of the timeline. So in every cut after that event the flushed
//! data is on the disk, with any selection of the unflushed writes.

use conformance::budget::Budget;
use layers::record::Timeline;
use layers::record::format::Submission;
use layers::record::replay::{Choice, Cursor, History, Image, write_image};
use layers::record::timeline::EventKind;
use siltstone_tests::foreign::{Server, is_installed, run as run_program, skip};
use siltstone_tests::guest::Options;
use siltstone_tests::need_guest;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// First byte of the numbered blocks; the file system is before them.
const BLOCKS_AT: u64 = 48 * MIB;
/// Number of blocks that the numbered writes go to, in turn, so that most of them replace an earlier one.
const BLOCKS: u64 = 8;
/// Numbered writes, each flushed before the next one.
const WRITES: u64 = 40;
/// First byte of the marks: mark N is at the Nth block from there.
const MARKS_AT: u64 = 56 * MIB;
/// First mark of the files.
const FILE_MARKS: u64 = 256;
/// Files that are written and flushed one after another.
const FILES: u64 = 24;
/// Choices at each cut of the numbered writes.
const SEEDS: u64 = 4;

struct Run {
    timeline: Arc<Timeline>,
    history: Arc<History>,
    /// Events in which the guest began to write a mark, and the mark.
    marks: Vec<(u64, u64)>,
}

impl Run {
    fn read(path: &Path) -> Run {
        let path = path.to_owned();
        let timeline =
            runtime::run(runtime::Config::default(), move || async move { Timeline::read(&path).await });
        let timeline = timeline.expect("the runtime runs").expect("a recorded run");
        let marks = timeline.events.iter().enumerate().filter_map(|(event, found)| match &found.what {
            EventKind::Submitted(Submission::Write { offset, .. }) if *offset >= MARKS_AT => {
                Some((event as u64, (*offset - MARKS_AT) / BLOCK))
            }
            _ => None,
        });
        let marks = marks.collect();
        let history = History::new(&timeline, 0).expect("a device");
        Run { timeline: Arc::new(timeline), history, marks }
    }

    /// Largest mark of a range that the guest had begun to write before a cut.
    fn last_mark(&self, cut: u64, marks: std::ops::Range<u64>) -> Option<u64> {
        let before = self.marks.iter().filter(|(event, mark)| *event < cut && marks.contains(mark));
        before.map(|(_, mark)| *mark).max()
    }
}

fn number_in(block: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(&block[..8]).ok()?;
    // A block that was never written is zeros.
    if block.iter().all(|byte| *byte == 0) { Some(0) } else { text.trim().parse().ok() }
}

/// Checks the numbered blocks: each has its last write up to `flushed`, or a later one of the same block.
fn check_blocks(flushed: u64, read: impl Fn(u64, &mut [u8])) -> Result<(), String> {
    for block in 0..BLOCKS {
        let mut bytes = [0; BLOCK as usize];
        read(BLOCKS_AT + block * BLOCK, &mut bytes);
        let found = number_in(&bytes).ok_or_else(|| format!("block {block}: {:?}", &bytes[..16]))?;
        let expected = (1..=flushed).rev().find(|number| number % BLOCKS == block).unwrap_or(0);
        // The guest makes a write after the flush of the one before.
        if found < expected || found > flushed + 1 || (found != 0 && found % BLOCKS != block) {
            return Err(format!(
                "block {block}: write {found}; expected write {expected} or later: the guest had flushed up to {flushed}"
            ));
        }
    }
    Ok(())
}

/// Replays the journal of an image, checks the file system, and compares the files that the guest had
/// flushed.
fn check_files(run: &Run, cut: u64, choice: Choice, folder: &Path) {
    let Some(flushed) = run.last_mark(cut, FILE_MARKS..FILE_MARKS + FILES + 1) else { return };
    let path = folder.join("cut.img");
    let _ = std::fs::remove_file(&path);
    let (timeline, to) = (run.timeline.clone(), path.clone());
    let written = runtime::run(runtime::Config::default(), move || async move {
        write_image(&timeline, 0, cut, choice, &to).await
    });
    written.expect("the runtime runs").expect("an image");
    let image = path.to_str().expect("a path in UTF-8");
    // The first run replays the journal and returns 1 if that changed anything; the second one must find no
    // error.
    let replayed = run_program("e2fsck", &["-fp", image]);
    assert!(replayed.code.is_some_and(|code| code <= 1), "cut {cut}, {choice}: {replayed:#?}");
    run_program("e2fsck", &["-fn", image]).ok();
    for number in 1..=flushed - FILE_MARKS {
        let found = run_program("debugfs", &["-R", &format!("cat /file{number}"), image]).ok();
        let expected = format!("{number:08}\n").repeat(512 * number as usize);
        let is_same = found == expected;
        assert!(is_same, "cut {cut}, {choice}: file {number} of {flushed}: {} bytes", found.len());
    }
}

#[test]
fn what_a_guest_flushed_is_in_every_cut() {
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::File::create(folder.path().join("disk"))
        .expect("a file")
        .set_len(64 * MIB)
        .expect("a sparse file");
    let socket = folder.path().join("vm.sock");
    let recorded = format!(
        "vhost-user(record(file({}), {}), socket={}) shards=2",
        path("disk"),
        path("run.timeline"),
        socket.display()
    );
    let server = Server::start_with(&["serve", &recorded], socket.clone());
    let options = Options { vhost_user_disks: vec![socket.clone()], ..Options::default() };
    // Only fsync writes back a page this soon. Beside each numbered write is one whose writer never flushes.
    let lines = format!(
        "write() {{ dd of=/dev/vda bs={BLOCK} status=none $@; }}
         mark() {{ write if=/dev/zero seek=$(({MARKS_AT} / {BLOCK} + $1)) count=1 oflag=direct conv=notrunc; }}
         stamp() {{ yes $(printf '%08d' $1) | head -n $2; }}
         head -c 64K /dev/urandom >/run/noise
         number=1
         while [ $number -le {WRITES} ]; do
             write if=/run/noise seek=$((52 * 256)) oflag=direct conv=notrunc &
             printf %08d $number | write seek=$(({BLOCKS_AT} / {BLOCK} + number % {BLOCKS})) conv=fsync,notrunc,sync
             mark $number
             wait
             number=$((number + 1))
         done
         mkfs.ext4 -q -F -b 4096 /dev/vda {}k
         mkdir -p /run/mounted; mount /dev/vda /run/mounted
         mark {FILE_MARKS}
         number=1
         while [ $number -le {FILES} ]; do
             stamp $number $((512 * number)) >/run/mounted/file$number
             sync /run/mounted/file$number
             mark $(({FILE_MARKS} + number))
             number=$((number + 1))
         done
         umount /run/mounted
         echo all flushed",
        BLOCKS_AT / 1024,
    );
    let finished = guest.run(&lines, &options);
    println!("{}", finished.ok());
    server.stop();
    let run = Run::read(&folder.path().join("run.timeline"));
    let marks: Vec<u64> = run.marks.iter().map(|(_, mark)| *mark).collect();
    let expected: Vec<u64> = (1..=WRITES).chain(FILE_MARKS..=FILE_MARKS + FILES).collect();
    assert_eq!(marks, expected, "each mark is written once, in order");

    // Every cut up to the file system, each with several choices; the rest is limited by time.
    let end = run.marks[WRITES as usize - 1].0 + 1;
    let mut cursor = Cursor::new(run.history.clone());
    let mut states = 0;
    for cut in 1..=end {
        cursor.advance_to(cut);
        let seeded = (0..SEEDS).map(|seed| Choice::Subset(seed << 32 ^ cut));
        for choice in [Choice::Nothing, Choice::Everything].into_iter().chain(seeded) {
            let image = Image::new(&cursor, choice);
            let flushed = run.last_mark(cut, 0..FILE_MARKS).unwrap_or(0);
            let checked = check_blocks(flushed, |offset, bytes| image.read(offset, bytes));
            checked.unwrap_or_else(|problem| panic!("cut {cut}, {choice}: {problem}"));
            states += 1;
        }
    }
    println!("{states} states of {end} cuts of numbered writes");

    if !["e2fsck", "debugfs"].into_iter().all(is_installed) {
        return skip("the cuts of a file system: e2fsck and debugfs (package e2fsprogs) are not installed");
    }
    let begin = run.marks[WRITES as usize].0 + 1;
    let events = run.history.events();
    let budget = Budget::of(2);
    let mut random = runtime::Random::new(11);
    // Cuts soon after a mark are those where the least other copies hold the flushed data; the others are
    // random.
    let mut cuts: Vec<u64> = run.marks[WRITES as usize..].iter().map(|(event, _)| event + 1).collect();
    cuts.extend((0..FILES).map(|_| begin + random.below(events - begin)));
    let count = cuts.len() as u64;
    let mut checked = 0;
    for (number, cut) in cuts.into_iter().enumerate() {
        if budget.allows(number as u64, count) {
            let choice = if number % 2 == 0 { Choice::Nothing } else { Choice::Subset(cut) };
            check_files(&run, cut, choice, folder.path());
            checked += 1;
        }
    }
    println!("{checked} of {count} cuts of a file system");
}

/// Proof that the check notices a flushed write that is missing.
#[test]
fn a_missing_flushed_write_is_found() {
    let block = |number: u64| format!("{number:08}\n").repeat(456).into_bytes();
    assert_eq!((number_in(&block(17)), number_in(&[0; 4096])), (Some(17), Some(0)));
    assert_eq!(number_in(&[7; 4096]), None);
    let written = |writes: u64| {
        move |offset: u64, bytes: &mut [u8]| {
            let of_block = (offset - BLOCKS_AT) / BLOCK;
            let last = (1..=writes).rev().find(|number| number % BLOCKS == of_block);
            match last {
                Some(last) => bytes.copy_from_slice(&block(last)[..bytes.len()]),
                None => bytes.fill(0),
            }
        }
    };
    for writes in [9, 10] {
        assert_eq!(check_blocks(9, written(writes)), Ok(()));
    }
    let problem = check_blocks(9, written(8)).expect_err("write 9 is missing");
    assert!(problem.contains("block 1: write 1; expected write 9"), "{problem}");
    check_blocks(9, written(11)).expect_err("write 11 wasn't made");
}
