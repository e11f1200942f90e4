//! The order in which the records of several shards are replayed.
//!
//! Records of two shards change different blocks, so their order among each other has no effect, except that
//! of joint records: those of snapshots, clones and sizes. A joint record has a number in the stream of each
//! shard, and two of them have the same order in all streams. So there is an order of all records that has
//! the order of every stream, and replay in it is replay of one log.

use crate::stripes::{Stripes, cleaner_stream, user_stream};
use block::{Error, Result};
use logkit::recovery::{number_in, replay_order};
use logkit::scan::Kept;
use std::collections::VecDeque;

/// Sorts records for replay: in the order of each shard's stream, with each joint record once.
///
/// # Errors
/// [`Error::Corrupt`] if a joint record isn't in the streams of all shards, in the same order.
pub(super) fn merge<K: Kept>(records: Vec<K>, stripes: Stripes) -> Result<Vec<K>> {
    let mut queues: Vec<VecDeque<usize>> =
        (0..stripes.shards()).map(|shard| queue(&records, shard)).collect();
    let is_joint: Vec<bool> = records.iter().map(|record| is_joint(record)).collect();
    let mut order = Vec::with_capacity(records.len());
    loop {
        for queue in &mut queues {
            let joint = queue.iter().position(|next| is_joint[*next]).unwrap_or(queue.len());
            order.extend(queue.drain(..joint));
        }
        let Some(joint) = queues.iter().find_map(|queue| queue.front().copied()) else { break };
        if queues.iter_mut().any(|queue| queue.pop_front() != Some(joint)) {
            let header = records[joint].header();
            return Err(Error::corrupt(format!(
                "record {} of stream {} isn't the next one of all shards",
                header.sequence, header.stream.0
            )));
        }
        order.push(joint);
    }
    let mut records: Vec<Option<K>> = records.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|number| records[number].take()).collect())
}

/// Numbers of a shard's records, in the order of their replay.
fn queue<K: Kept>(records: &[K], shard: u32) -> VecDeque<usize> {
    let (user, cleaner) = (user_stream(shard), cleaner_stream(shard));
    let is_own = |record: &K| record.header().stream == cleaner || number_in(record, user).is_some();
    let mut own: Vec<usize> = (0..records.len()).filter(|number| is_own(&records[*number])).collect();
    own.sort_by_cached_key(|number| replay_order(&records[*number], user));
    own.into()
}

fn is_joint<K: Kept>(record: &K) -> bool {
    record.links().iter().any(|link| link.relation == logkit::record::Relation::Member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{Changes, Replayable};
    use logkit::StreamId;
    use logkit::record::{Header, Kind, Link, Links, Relation};

    fn record(stream: StreamId, sequence: u64, links: &[(Relation, StreamId, u64)]) -> Replayable {
        let header = Header {
            kind: Kind::Entries,
            stream,
            class: 0,
            epoch: 1,
            sequence,
            durable: 0,
            clock: 0,
            zone: 2,
            generation: 1,
            position: 0,
            blocks: 0,
        };
        let link = |(relation, stream, sequence): &_| Link {
            relation: *relation,
            stream: *stream,
            sequence: *sequence,
        };
        let links: Links = links.iter().map(link).collect();
        Replayable { header, links, changes: Changes::new(&[]) }
    }

    fn order(records: Vec<Replayable>) -> Result<Vec<(u16, u64)>> {
        let stripes = Stripes::new(2, 8).expect("a division");
        let merged = merge(records, stripes)?;
        Ok(merged.iter().map(|record| (record.header.stream.0, record.header.sequence)).collect())
    }

    fn records() -> Vec<Replayable> {
        let (a, b) = (user_stream(0), user_stream(1));
        vec![
            record(b, 8, &[]),
            record(a, 3, &[]),
            record(a, 2, &[(Relation::Member, b, 7)]),
            record(a, 1, &[]),
            record(b, 6, &[]),
            record(cleaner_stream(1), 5, &[(Relation::Follows, b, 6)]),
            record(cleaner_stream(0), 4, &[(Relation::Follows, a, 3)]),
        ]
    }

    #[test]
    fn a_joint_record_comes_after_all_that_precede_it_on_any_shard() {
        let expected = [(0, 1), (2, 6), (3, 5), (0, 2), (0, 3), (1, 4), (2, 8)];
        assert_eq!(order(records()), Ok(expected.to_vec()));
    }

    #[test]
    fn joint_records_in_two_orders_are_refused() {
        let (a, b) = (user_stream(0), user_stream(1));
        let both = |first, second| {
            vec![
                record(a, 1, &[(Relation::Member, b, first)]),
                record(a, 2, &[(Relation::Member, b, second)]),
            ]
        };
        assert_eq!(order(both(1, 2)), Ok(vec![(0, 1), (0, 2)]));
        assert!(order(both(2, 1)).is_err());
    }
}
