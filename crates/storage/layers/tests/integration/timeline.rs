//! Parsing timelines: recorded events are returned, and other bytes never count as events.

use crate::builder::Builder;
use block::{Buffer, Error};
use conformance::budget::Budget;
use conformance::requests::geometry;
use layers::record::Timeline;
use layers::record::format::{FILE_HEADER, RECORD_HEADER, RecordType, SubmissionFields};
use layers::record::timeline::Ending;
use proptest::prelude::*;

/// A timeline with events of every kind.
fn sample() -> Builder {
    let mut builder = Builder::new(geometry());
    for index in 0..6_u8 {
        let payload = Buffer::copy_of(&[index; 4096]).into();
        let write = builder.write(u64::from(index) * 4096, &payload, index % 2 == 0);
        let flush = builder.flush();
        builder.complete(flush, 0);
        builder.complete(write, u32::from(index == 3) * 5);
        builder.submit(&SubmissionFields::new(3, 8192, 4096));
    }
    builder
}

#[test]
fn a_tail_that_is_cut_off_anywhere_leaves_what_is_before() {
    let builder = sample();
    let budget = Budget::of(1);
    let lengths = FILE_HEADER..builder.bytes.len();
    for length in lengths.clone() {
        if !budget.allows((length - lengths.start) as u64, lengths.len() as u64) {
            continue;
        }
        let timeline = Timeline::parse(builder.bytes[..length].to_vec()).unwrap();
        let whole = builder.starts.iter().skip(1).filter(|start| **start <= length).count();
        assert_eq!(timeline.events.len(), whole, "{length} bytes");
        let at_border = length == FILE_HEADER || builder.starts.contains(&length);
        match timeline.ending {
            Ending::Unfinished => assert!(at_border, "{length} bytes"),
            Ending::Torn { offset, valid_again, .. } => {
                assert!(!at_border && valid_again.is_none());
                assert_eq!(offset as usize, builder.starts[whole]);
            }
            Ending::Clean => panic!("{length} bytes end in order"),
        }
    }
}

#[test]
fn rot_in_the_middle_is_told_from_a_torn_tail() {
    let builder = sample();
    let mut bytes = builder.bytes.clone();
    bytes[builder.starts[7] + RECORD_HEADER] ^= 1;
    let timeline = Timeline::parse(bytes).unwrap();
    assert_eq!(timeline.events.len(), 7);
    let Ending::Torn { offset, valid_again, .. } = timeline.ending else { panic!("{:?}", timeline.ending) };
    assert_eq!((offset as usize, valid_again), (builder.starts[7], Some(builder.starts[8] as u64)));
}

#[test]
fn other_files_and_other_versions_are_refused() {
    assert!(matches!(Timeline::parse(Vec::new()), Err(Error::Protocol(_))));
    assert!(matches!(Timeline::parse(vec![0; 4096]), Err(Error::Protocol(_))));
    let mut bytes = sample().bytes;
    bytes[8] = 4;
    let error = Timeline::parse(bytes).unwrap_err();
    assert!(error.detail().contains("version 4") && error.detail().contains("expected 1 to 3"), "{error}");
    let mut bytes = sample().bytes;
    bytes[20] ^= 1;
    assert!(matches!(Timeline::parse(bytes), Err(Error::Corrupt(_))));
}

#[test]
fn records_of_another_timeline_never_validate() {
    let builder = sample();
    let mut other =
        layers::record::format::FileHeader { identity: *b"another timeline", began: 1 }.encode().to_vec();
    other.extend(&builder.bytes[FILE_HEADER..]);
    assert_eq!(Timeline::parse(other).unwrap().events.len(), 0);
}

#[test]
fn what_makes_no_sense_ends_the_timeline_though_its_checksums_are_right() {
    type Nonsense = fn(&mut Builder) -> u64;
    let nonsense: [(&str, Nonsense); 9] = [
        ("behind the end", |builder| builder.submit(&SubmissionFields::new(3, 64 * 4096, 4096))),
        ("overflow", |builder| builder.submit(&SubmissionFields::new(3, u64::MAX - 511, 4096))),
        ("unaligned", |builder| builder.submit(&SubmissionFields::new(3, 100, 4096))),
        ("empty", |builder| builder.submit(&SubmissionFields::new(2, 0, 0))),
        ("an append to a device", |builder| builder.submit(&SubmissionFields::new(5, 0, 0))),
        ("an unknown operation", |builder| builder.submit(&SubmissionFields::new(99, 0, 512))),
        ("completes nothing", |builder| builder.complete(0, 0)),
        ("completes the future", |builder| builder.complete(u64::MAX, 0)),
        ("too many bytes", |builder| {
            builder.record(RecordType::End, &[]) + builder.record(RecordType::Complete, &[0; 99])
        }),
    ];
    for (name, make) in nonsense {
        let mut builder = sample();
        let good = builder.sequence as usize;
        make(&mut builder);
        let timeline = builder.parse();
        if name == "too many bytes" {
            assert_eq!(timeline.ending, Ending::Clean, "nothing behind the end is looked at");
            continue;
        }
        assert_eq!(timeline.events.len(), good, "{name}");
        assert!(matches!(timeline.ending, Ending::Torn { .. }), "{name}");
    }
    let mut twice = sample();
    let flush = twice.flush();
    twice.complete(flush, 0);
    twice.complete(flush, 0);
    assert!(matches!(twice.parse().ending, Ending::Torn { .. }));
}

#[test]
fn a_few_bytes_cannot_ask_for_much_memory() {
    // Segments of zeros that add up to far more than the file: they are counted, not allocated.
    let mut builder = Builder::new(geometry());
    let mut body = Vec::new();
    SubmissionFields::new(1, 0, 1 << 40).encode(&mut body);
    for _ in 0..600 {
        body.extend((1_u32 << 31 | 0x7FFF_FE00).to_le_bytes());
    }
    builder.record(RecordType::Submit, &body);
    assert!(matches!(builder.parse().ending, Ending::Torn { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_wrong_bit_is_always_noticed(place: prop::sample::Index, bit in 0..8_u8) {
        let builder = sample();
        let place = FILE_HEADER + place.index(builder.bytes.len() - FILE_HEADER);
        let mut bytes = builder.bytes.clone();
        bytes[place] ^= 1_u8 << bit;
        let timeline = Timeline::parse(bytes).unwrap();
        let record = builder.starts.partition_point(|start| *start <= place) - 1;
        prop_assert_eq!(timeline.events.len(), record, "the record with the wrong bit is not taken");
    }

    #[test]
    fn any_bytes_are_parsed_without_panic(noise in prop::collection::vec(any::<u8>(), 0..3000), keep: prop::sample::Index) {
        let builder = sample();
        let keep = keep.index(builder.bytes.len());
        let whole = builder.starts.iter().filter(|start| **start < keep).count();
        let mut bytes = builder.bytes[..keep].to_vec();
        bytes.extend(&noise);
        if let Ok(timeline) = Timeline::parse(bytes) {
            prop_assert!(timeline.events.len() <= whole, "noise was taken for an event");
        }
        let _ = Timeline::parse(noise);
    }

    #[test]
    fn any_body_with_right_checksums_is_parsed_without_panic(kind in 1..4_u8, body in prop::collection::vec(any::<u8>(), 0..200), operation in 0..10_u8) {
        let mut builder = sample();
        let kind = [RecordType::Device, RecordType::Submit, RecordType::Complete][usize::from(kind) - 1];
        let mut body = body;
        if let Some(first) = body.first_mut() {
            *first = operation;
        }
        builder.record(kind, &body);
        let timeline = builder.parse();
        if let Ok(history) = layers::record::replay::History::new(&timeline, 0) {
            let search = layers::record::replay::Search::new(1);
            let cuts = history.events()..history.events() + 1;
            prop_assert!(layers::record::replay::CrashStates::new(history, cuts, search).count() > 0);
        }
    }
}
