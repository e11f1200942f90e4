//! Tests of the selection of records.

use super::*;
use crate::record::{Header, Kind, Link, Links, Parsed};
use block::BlockSize;
use zones::on_device::format::Uuid;

struct Record(Header, Links);

impl Kept for Record {
    fn new(parsed: &Parsed<'_>) -> Self {
        Record(parsed.header, parsed.links())
    }

    fn header(&self) -> &Header {
        &self.0
    }

    fn links(&self) -> &Links {
        &self.1
    }
}

fn record(stream: u16, sequence: u64, links: &[(Relation, u16, u64)]) -> Record {
    let header = Header {
        kind: Kind::Entries,
        stream: StreamId(stream),
        class: 0,
        epoch: 1,
        sequence,
        durable: 0,
        clock: 0,
        zone: 2,
        generation: 0,
        position: 0,
        blocks: 0,
    };
    let link = |(relation, stream, sequence): &(Relation, u16, u64)| Link {
        relation: *relation,
        stream: StreamId(*stream),
        sequence: *sequence,
    };
    Record(header, links.iter().map(link).collect())
}

/// Root of a checkpoint that covers these records.
fn root(covered: &Sequences) -> Root {
    Root {
        owner: *b"test    ",
        identity: Identity { uuid: Uuid::from_bytes([7; 16]), key: 99 },
        block_size: BlockSize::default(),
        zone_blocks: 64,
        zones: 8,
        epoch: 1,
        clean: false,
        covered: covered.clone(),
        checkpoint: 1,
        clock: 0,
        boundaries: Vec::new(),
        directory_length: 0,
        directory: Vec::new(),
        own: Vec::new(),
    }
}

fn end_of(records: &[Record]) -> Vec<u64> {
    ends(&Sequences::new(&[10, 20, 30]), records).numbers().to_vec()
}

#[test]
fn a_stream_ends_at_the_first_record_that_is_missing() {
    let records = [record(0, 11, &[]), record(0, 12, &[]), record(0, 14, &[]), record(1, 22, &[])];
    assert_eq!(end_of(&records), [12, 20, 30]);
    assert_eq!(end_of(&[]), [10, 20, 30]);
}

#[test]
fn a_record_without_the_one_that_it_follows_ends_its_stream_and_so_on() {
    let follows = |stream, sequence| (Relation::Follows, stream, sequence);
    let chain = [
        record(0, 11, &[follows(1, 21)]),
        record(0, 12, &[]),
        record(1, 21, &[follows(2, 31)]),
        record(1, 22, &[]),
        record(2, 31, &[follows(0, 9)]),
    ];
    assert_eq!(end_of(&chain), [12, 22, 31], "all are there, or covered");
    assert_eq!(end_of(&chain[..4]), [10, 20, 30], "the last one of the chain is missing");
}

#[test]
fn a_member_of_two_streams_counts_in_both_or_in_none() {
    let member = record(0, 12, &[(Relation::Member, 1, 21)]);
    let after = record(1, 22, &[]);
    assert_eq!(end_of(&[record(0, 11, &[]), member, after]), [12, 22, 30]);
    // Record 11 of its own stream is missing.
    let member = record(0, 12, &[(Relation::Member, 1, 21)]);
    assert_eq!(end_of(&[member, record(1, 22, &[])]), [10, 20, 30]);
    // Record 21 of the other stream is missing.
    let member = record(0, 11, &[(Relation::Member, 1, 22)]);
    assert_eq!(end_of(&[member, record(0, 12, &[]), record(1, 23, &[])]), [10, 20, 30]);
}

#[test]
fn links_to_anything_end_the_search() {
    let hostile = [
        record(0, 11, &[(Relation::Member, 0, 11), (Relation::Follows, 0, 99)]),
        record(0, 12, &[(Relation::Member, 60_000, 1)]),
        record(1, 21, &[(Relation::Member, 1, 3), (Relation::Follows, 1, 21)]),
    ];
    assert_eq!(end_of(&hostile), [10, 21, 30]);
}

#[test]
fn of_two_records_with_one_number_the_one_without_the_refused_data_is_part_of_the_log() {
    let refused = |blocks, zone| {
        let mut record = record(0, 11, &[]);
        (record.0.blocks, record.0.zone) = (blocks, zone);
        record
    };
    let covered = Sequences::new(&[10, 20, 30]);
    for records in [[refused(3, 4), refused(0, 5)], [refused(0, 5), refused(3, 4)]] {
        let scans = Scans { records: records.into(), ..Scans::new() };
        let tail = choose(&root(&covered), scans, Goal::Serve).expect("a log");
        assert_eq!((tail.end.of(StreamId(0)), tail.records.len(), tail.discarded), (11, 1, 0));
        assert_eq!((tail.records[0].0.blocks, tail.records[0].0.zone), (0, 5));
    }
}
