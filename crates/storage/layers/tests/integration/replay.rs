//! The model of a power cut against an independent implementation of its definition: for every cut and every
//! unit, straight from the events, without intervals, cursors or settling.

use crate::builder::Builder;
use block::{BlockCount, BlockSize, Buffer, DeviceGeometry, DevicePart};
use conformance::requests::on_a_shard;
use layers::record::format::SubmissionFields;
use layers::record::replay::{Choice, CrashStates, Cursor, History, Image, ImageDisk, Search, write_image};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const UNIT: u64 = 512;
const UNITS: u64 = 6;

fn small(volatile_cache: bool, atomic_write: u32) -> DeviceGeometry {
    let block_size = BlockSize::new(UNIT).unwrap();
    DeviceGeometry { block_size, blocks: BlockCount(UNITS), atomic_write, volatile_cache, read_only: false }
}

#[derive(Debug, Clone)]
enum Act {
    /// First unit, number of units, FUA, and whether it writes zeros.
    Write(u64, u64, bool, bool),
    Flush,
    /// A read, which has no effect on the state.
    Read(u64),
    /// Index of the operation in flight that ends, and whether it fails.
    Complete(usize, bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write = (0..UNITS, 1..4_u64, prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let write = write.prop_map(|(at, count, fua, zeros)| Act::Write(at, count.min(UNITS - at), fua, zeros));
    let complete =
        (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(which, fails)| Act::Complete(which, fails));
    prop::collection::vec(
        prop_oneof![4 => write, 2 => Just(Act::Flush), 1 => (0..UNITS).prop_map(Act::Read), 5 => complete],
        1..28,
    )
}

/// An operation as the definition has it. The data of a write is its value in every byte.
#[derive(Debug, Clone)]
struct Plain {
    value: u8,
    units: std::ops::Range<u64>,
    fua: bool,
    submitted: u64,
    ended: Option<(u64, bool)>,
}

struct Run {
    history: Arc<History>,
    writes: Vec<Plain>,
    /// Submission and successful completion.
    flushes: Vec<(u64, u64)>,
    volatile: bool,
}

fn run(acts: &[Act], geometry: DeviceGeometry) -> Run {
    let volatile = geometry.volatile_cache;
    let mut builder = Builder::new(geometry);
    let (mut writes, mut flushes): (Vec<Plain>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
    // Operations in flight: the event, and the index of the write if it is one.
    let mut open: Vec<(u64, Option<usize>)> = Vec::new();
    let mut reads: Vec<u64> = Vec::new();
    for act in acts {
        match act {
            Act::Write(at, count, fua, zeros) => {
                let value = if *zeros { 0 } else { writes.len() as u8 + 1 };
                let length = count * UNIT;
                let submitted = if *zeros {
                    let fields = SubmissionFields::new(2, at * UNIT, length);
                    builder.submit(&SubmissionFields { durable: *fua, ..fields })
                } else {
                    let payload = Buffer::copy_of(&vec![value; length as usize]).into();
                    builder.write(at * UNIT, &payload, *fua)
                };
                open.push((submitted, Some(writes.len())));
                writes.push(Plain { value, units: *at..at + count, fua: *fua, submitted, ended: None });
            }
            Act::Flush => open.push((builder.flush(), None)),
            Act::Read(at) => {
                let submitted = builder.submit(&SubmissionFields::new(9, at * UNIT, UNIT));
                open.push((submitted, None));
                reads.push(submitted);
            }
            Act::Complete(which, fails) if !open.is_empty() => {
                let (submitted, write) = open.remove(which % open.len());
                let ended = builder.complete(submitted, if *fails { 5 } else { 0 });
                match write {
                    Some(index) => writes[index].ended = Some((ended, !fails)),
                    None if !fails && !reads.contains(&submitted) => flushes.push((submitted, ended)),
                    None => {}
                }
            }
            Act::Complete(..) => {}
        }
    }
    let history = History::new(&builder.parse(), 0).unwrap();
    assert_eq!(history.events(), builder.sequence);
    Run { history, writes, flushes, volatile }
}

impl Run {
    fn is_certain(&self, write: &Plain, cut: u64) -> bool {
        let Some((ended, true)) = write.ended.filter(|(ended, _)| *ended < cut) else { return false };
        let flushed = |(began, done): &(u64, u64)| ended < *began && *done < cut;
        write.fua || !self.volatile || self.flushes.iter().any(flushed)
    }

    /// Permitted contents of the unit after the cut, by the definition.
    fn legal(&self, unit: u64, cut: u64) -> BTreeSet<u8> {
        let here: Vec<&Plain> =
            self.writes.iter().filter(|write| write.submitted < cut && write.units.contains(&unit)).collect();
        let certain: Vec<&&Plain> = here.iter().filter(|write| self.is_certain(write, cut)).collect();
        let gone = |write: &Plain| {
            let ended = write.ended.map_or(u64::MAX, |(ended, _)| ended);
            certain.iter().any(|later| ended < later.submitted)
        };
        let mut values: BTreeSet<u8> =
            here.iter().filter(|write| !gone(write)).map(|write| write.value).collect();
        if certain.is_empty() {
            values.insert(0);
        }
        values
    }
}

fn unit_of(image: &Image, unit: u64) -> u8 {
    let mut bytes = [0xEE; UNIT as usize];
    image.read(unit * UNIT, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a unit is torn");
    bytes[0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_cursor_allows_what_the_definition_allows(acts in acts(), volatile in prop::bool::weighted(0.8)) {
        let run = run(&acts, small(volatile, 512));
        let mut cursor = Cursor::new(run.history.clone());
        for cut in 0..=run.history.events() {
            cursor.advance_to(cut);
            for unit in 0..UNITS {
                let legal = run.legal(unit, cut);
                for value in 0..=run.writes.len() as u8 {
                    let allowed = cursor.check(unit * UNIT, &[value; UNIT as usize]).is_ok();
                    prop_assert_eq!(allowed, legal.contains(&value), "cut {} unit {} value {}", cut, unit, value);
                }
                let mut damaged = [run.writes.first().map_or(0, |write| write.value); UNIT as usize];
                damaged[17] = 0xFF;
                prop_assert!(cursor.check(unit * UNIT, &damaged).is_err());
            }
        }
    }

    #[test]
    fn every_image_is_legal_at_every_cut_that_it_is_given_for(acts in acts(), volatile in prop::bool::weighted(0.8), seed: u64) {
        let run = run(&acts, small(volatile, 512));
        let cuts = 0..run.history.events() + 1;
        let mut covered = BTreeSet::new();
        for state in CrashStates::new(run.history.clone(), cuts.clone(), Search::new(seed)) {
            for cut in state.cuts.clone() {
                covered.insert(cut);
                for unit in 0..UNITS {
                    let value = unit_of(&state.image, unit);
                    prop_assert!(run.legal(unit, cut).contains(&value), "cut {} unit {} {}", cut, unit, state.choice);
                }
            }
            let mut cursor = Cursor::new(run.history.clone());
            cursor.advance_to(*state.cuts.start());
            let again = Image::new(&cursor, state.choice.to_string().parse::<Choice>().unwrap());
            for unit in 0..UNITS {
                prop_assert_eq!(unit_of(&again, unit), unit_of(&state.image, unit));
            }
        }
        prop_assert_eq!(covered, cuts.collect::<BTreeSet<_>>());
    }

    #[test]
    fn units_larger_than_blocks_are_never_torn(acts in acts(), seed: u64) {
        // One unit of 1024 bytes is two blocks: a write that covers both is there in both or in neither.
        let run = run(&acts, small(true, 1024));
        let cuts = 0..run.history.events() + 1;
        let whole: BTreeSet<u8> = run.writes.iter().filter(|write| write.units == (0..2)).map(|write| write.value).collect();
        let only_whole = run.writes.iter().all(|write| write.units.end <= 2 || write.units.start >= 2);
        let only_whole = only_whole && run.writes.iter().all(|write| write.units.start >= 2 || write.units == (0..2));
        for state in CrashStates::new(run.history.clone(), cuts, Search::new(seed)) {
            let (first, second) = (unit_of(&state.image, 0), unit_of(&state.image, 1));
            if only_whole {
                prop_assert!(first == second && (first == 0 || whole.contains(&first)), "{} {}", first, second);
            }
        }
    }
}

#[test]
fn scattered_states_reach_every_legal_version() {
    // Two concurrent pairs, one of them certain in one member; a short one inside a long one.
    let acts = [
        Act::Write(0, 2, false, false),
        Act::Write(0, 1, true, false),
        Act::Complete(1, false),
        Act::Write(2, 1, false, false),
        Act::Write(2, 2, false, false),
        Act::Complete(1, false),
        Act::Write(4, 1, false, true),
    ];
    let run = run(&acts, small(true, 512));
    let cut = run.history.events();
    let mut cursor = Cursor::new(run.history.clone());
    cursor.advance_to(cut);
    for unit in 0..UNITS {
        let found: BTreeSet<u8> =
            (0..400).map(|seed| unit_of(&Image::new(&cursor, Choice::Scattered(seed)), unit)).collect();
        assert_eq!(found, run.legal(unit, cut), "unit {unit}");
    }
}

#[test]
fn torn_states_show_parts_of_a_write() {
    let mut geometry = small(true, 512);
    geometry.blocks = BlockCount(64);
    let mut builder = Builder::new(geometry);
    builder.write(0, &Buffer::copy_of(&[7; 64 * 512]).into(), false);
    let history = History::new(&builder.parse(), 0).unwrap();
    let mut cursor = Cursor::new(history);
    cursor.advance_to(2);
    let mut shapes = BTreeSet::new();
    for seed in 0..200 {
        let image = Image::new(&cursor, Choice::Torn(seed));
        let there: Vec<bool> = (0..64).map(|unit| unit_of(&image, unit) == 7).collect();
        shapes.insert((there[0], there[63], there.iter().any(|here| *here)));
    }
    assert!(shapes.contains(&(true, false, true)), "a beginning");
    assert!(shapes.contains(&(false, true, true)), "an end");
    assert!(shapes.contains(&(false, false, true)), "a middle");
}

#[test]
fn discarding_a_large_device_is_cheap() {
    let mut geometry = small(true, 512);
    geometry.blocks = BlockCount(1 << 40);
    let mut builder = Builder::new(geometry);
    builder.write(1 << 30, &Buffer::copy_of(&[7; 512]).into(), true);
    builder.complete(1, 0);
    builder.submit(&SubmissionFields::new(3, 0, 1 << 48));
    let history = History::new(&builder.parse(), 0).unwrap();
    let states: Vec<_> = CrashStates::new(history, 4..5, Search::new(3)).collect();
    // The only sector with data still has it or doesn't: everything else is zeros in any case.
    assert_eq!(states.len(), 2);
    let found: BTreeSet<u8> = states.iter().map(|state| unit_of(&state.image, (1 << 30) / 512)).collect();
    assert_eq!(found, BTreeSet::from([0, 7]));
}

#[test]
fn an_image_goes_to_a_file_and_to_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.img");
    on_a_shard(move || async move {
        let mut builder = Builder::new(small(true, 512));
        let first = builder.write(512, &Buffer::copy_of(&[3; 1024]).into(), false);
        builder.complete(first, 0);
        let timeline = builder.parse();
        write_image(&timeline, 0, 3, Choice::Everything, &path).await.unwrap();
        let mut expected = vec![0; 6 * 512];
        expected[512..1536].fill(3);
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert!(write_image(&timeline, 0, 3, Choice::Everything, &path).await.is_err(), "never over a file");
        let other = path.with_extension("other");
        assert!(write_image(&timeline, 0, 99, Choice::Nothing, &other).await.is_err());
        assert!(write_image(&timeline, 7, 0, Choice::Nothing, &other).await.is_err());

        let mut cursor = Cursor::new(History::new(&timeline, 0).unwrap());
        cursor.advance_to(3);
        let target = ImageDisk::empty(small(true, 512)).open().await.unwrap();
        Image::new(&cursor, Choice::Everything).write_to(&*target).await.unwrap();
        let (result, found) = target.read(block::BlockIndex(0), Buffer::new(6 * 512)).await;
        result.unwrap();
        assert_eq!(found.filled(), expected);
    });
}

#[test]
fn choices_have_a_text_form() {
    for choice in
        [Choice::Nothing, Choice::Everything, Choice::Only(3), Choice::AllBut(4), Choice::Torn(u64::MAX)]
    {
        assert_eq!(choice.to_string().parse::<Choice>(), Ok(choice));
    }
    for text in ["", "torn", "nothing:3", "some", "only:x"] {
        assert!(text.parse::<Choice>().unwrap_err().detail().contains("expected nothing"), "{text}");
    }
}
