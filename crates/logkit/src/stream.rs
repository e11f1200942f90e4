//! Streams: sequences of numbered records, and up to where each has committed, is durable and is covered by a checkpoint.
//!
//! [`Streams`] holds these watermarks for all shards. [`CommitQueue`] belongs to the shard that appends to a stream: it
//! numbers records and lets them commit in order, in whatever order they are written.

use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of a stream of a log. Each stream counts its own records from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

impl StreamId {
    /// Index into lists by stream.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A sequence number for each stream, by its number; 0 for streams beyond the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequences(SmallVec<[u64; 4]>);

impl Sequences {
    /// These numbers, for the streams from 0 on.
    pub fn new(numbers: &[u64]) -> Self {
        Sequences(SmallVec::from_slice(numbers))
    }

    /// Number of this stream.
    #[inline]
    pub fn of(&self, stream: StreamId) -> u64 {
        self.0.get(stream.index()).copied().unwrap_or(0)
    }

    /// Sets the number of a stream.
    pub fn set(&mut self, stream: StreamId, sequence: u64) {
        if self.0.len() <= stream.index() {
            self.0.resize(stream.index() + 1, 0);
        }
        self.0[stream.index()] = sequence;
    }

    /// Raises the number of a stream to at least this.
    pub fn raise(&mut self, stream: StreamId, sequence: u64) {
        self.set(stream, self.of(stream).max(sequence));
    }

    /// All numbers, by stream.
    pub fn numbers(&self) -> &[u64] {
        &self.0
    }
}

/// Watermarks of one stream.
#[derive(Debug, Default)]
struct Watermarks {
    committed: AtomicU64,
    durable: AtomicU64,
    covered: AtomicU64,
}

/// Watermarks of all streams. Any shard may read them; a stream's own shard raises `committed` and `durable`, the shard that
/// writes roots raises `covered`.
#[derive(Debug)]
pub struct Streams(Box<[Watermarks]>);

impl Streams {
    /// Streams whose records up to `last` are durable, and up to `covered` are in the newest durable checkpoint.
    pub fn new(last: &Sequences, covered: &Sequences) -> Self {
        let streams = 0..last.numbers().len() as u16;
        let watermarks = streams.map(StreamId).map(|stream| Watermarks {
            committed: AtomicU64::new(last.of(stream)),
            durable: AtomicU64::new(last.of(stream)),
            covered: AtomicU64::new(covered.of(stream)),
        });
        Streams(watermarks.collect())
    }

    /// The last record up to which every record is written and has taken effect.
    #[inline]
    pub fn committed(&self, stream: StreamId) -> u64 {
        self.0[stream.index()].committed.load(Ordering::Acquire)
    }

    /// The last record up to which every record survives a power cut.
    #[inline]
    pub fn durable(&self, stream: StreamId) -> u64 {
        self.0[stream.index()].durable.load(Ordering::Acquire)
    }

    /// The last record up to which every record is in the newest durable checkpoint.
    pub fn covered(&self, stream: StreamId) -> u64 {
        self.0[stream.index()].covered.load(Ordering::Acquire)
    }

    /// [`committed`](Self::committed) of all streams.
    pub fn all_committed(&self) -> Sequences {
        Sequences(self.0.iter().map(|marks| marks.committed.load(Ordering::Acquire)).collect())
    }

    /// [`covered`](Self::covered) of all streams.
    pub fn all_covered(&self) -> Sequences {
        Sequences(self.0.iter().map(|marks| marks.covered.load(Ordering::Acquire)).collect())
    }

    /// Notes that these records and all before them are durable.
    pub fn set_durable(&self, stream: StreamId, sequence: u64) {
        self.0[stream.index()].durable.fetch_max(sequence, Ordering::Release);
    }

    /// Notes that a durable checkpoint has everything up to these records.
    pub fn set_covered(&self, covered: &Sequences) {
        for (marks, sequence) in self.0.iter().zip(covered.numbers()) {
            marks.covered.fetch_max(*sequence, Ordering::Release);
        }
    }
}

/// The records of one stream that have been numbered and haven't committed. `T` is what is kept of a record meanwhile.
#[derive(Debug)]
pub struct CommitQueue<T> {
    streams: Arc<Streams>,
    stream: StreamId,
    committed: u64,
    /// Records after `committed`; `None` while a record isn't written.
    waiting: VecDeque<Option<T>>,
}

impl<T> CommitQueue<T> {
    /// Queue of a stream, after its last committed record.
    pub fn new(streams: Arc<Streams>, stream: StreamId) -> Self {
        let committed = streams.committed(stream);
        CommitQueue { streams, stream, committed, waiting: VecDeque::new() }
    }

    /// Numbers the next record.
    pub fn issue(&mut self) -> u64 {
        self.waiting.push_back(None);
        self.committed + self.waiting.len() as u64
    }

    /// Notes that a record is written.
    pub fn written(&mut self, sequence: u64, record: T) {
        let place = (sequence - self.committed - 1) as usize;
        debug_assert!(self.waiting[place].is_none(), "record {sequence} was written twice");
        self.waiting[place] = Some(record);
    }

    /// Commits the next record and returns it, if it is written.
    pub fn commit_next(&mut self) -> Option<T> {
        if !matches!(self.waiting.front(), Some(Some(_))) {
            return None;
        }
        self.committed += 1;
        let record = self.waiting.pop_front().flatten();
        self.streams.0[self.stream.index()].committed.store(self.committed, Ordering::Release);
        record
    }

    /// The records that are written and can't commit yet.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut().flatten()
    }

    /// Takes all records that are written and can't commit; for a log that has failed.
    pub fn take_waiting(&mut self) -> Vec<T> {
        self.waiting.iter_mut().filter_map(Option::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_commit_in_order_whatever_order_they_are_written_in() {
        let last = Sequences::new(&[3, 10]);
        let streams = Arc::new(Streams::new(&last, &Sequences::default()));
        let mut queue = CommitQueue::new(streams.clone(), StreamId(1));
        assert_eq!([queue.issue(), queue.issue(), queue.issue()], [11, 12, 13]);
        queue.written(13, 'c');
        assert_eq!(queue.commit_next(), None);
        queue.written(11, 'a');
        assert_eq!((queue.commit_next(), queue.commit_next()), (Some('a'), None));
        queue.written(12, 'b');
        assert_eq!((queue.commit_next(), queue.commit_next()), (Some('b'), Some('c')));
        assert_eq!(
            (streams.committed(StreamId(1)), streams.durable(StreamId(1)), queue.issue()),
            (13, 10, 14)
        );
        assert_eq!(streams.all_committed(), Sequences::new(&[3, 13]));
    }

    #[test]
    fn watermarks_only_rise() {
        let streams = Streams::new(&Sequences::new(&[5]), &Sequences::new(&[2]));
        streams.set_durable(StreamId(0), 4);
        streams.set_covered(&Sequences::new(&[1]));
        assert_eq!((streams.durable(StreamId(0)), streams.covered(StreamId(0))), (5, 2));
        streams.set_covered(&Sequences::new(&[5]));
        assert_eq!(streams.all_covered(), Sequences::new(&[5]));
    }
}
