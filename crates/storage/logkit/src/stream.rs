//! Streams: sequences of numbered records, with watermarks for committed, durable and covered records.
//!
//! [`Streams`] holds the watermarks for all shards. [`CommitQueue`] belongs to the shard that appends to a
//! stream: records commit in the order of their numbers, in whatever order they are written.
//!
//! A *joint* record is a member of several streams: it has a number in each, and commits when all earlier
//! records of all these streams have. The numbers of a joint record are drawn together, so two of them have
//! the same order in every stream that they share, which excludes deadlocks.
//!
//! The durable watermark is closed under links: recovery drops a record together with the record that it
//! depends on, so it finds every record below the watermark. [`Streams::all_closed`] is closed in the same
//! way, and is the state that a flush makes durable.

use crate::record::StreamId;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A sequence number per stream, indexed by stream; 0 for streams beyond the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequences(SmallVec<[u64; 4]>);

impl Sequences {
    /// Creates the sequences with these numbers, for streams 0 and up.
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
    /// Last number issued.
    issued: AtomicU64,
    /// The last issued number isn't written, and none may be issued after it.
    has_ended: AtomicBool,
    committed: AtomicU64,
    durable: AtomicU64,
    covered: AtomicU64,
}

/// A record that is a member of several streams, while it is written and commits.
#[derive(Debug)]
pub struct Joint {
    members: SmallVec<[(StreamId, u64); 2]>,
    /// Number of streams in which every earlier record has committed and this one is written.
    ready: Mutex<usize>,
    is_decided: AtomicBool,
}

impl Joint {
    /// Numbers of the record in its streams.
    pub fn members(&self) -> &[(StreamId, u64)] {
        &self.members
    }
}

/// State that keeps watermarks closed under links. Changed by flushes and by records with links.
#[derive(Debug, Default)]
struct Closure {
    /// By stream, the last joint record that has committed in all its streams. The stream's shard may not
    /// have applied it yet.
    decided: Sequences,
    /// For each flusher, the closed watermarks when its last successful flush began.
    flushed: Vec<(u64, Sequences)>,
    next_flusher: u64,
}

/// Watermarks of all streams. Any shard may read them; a stream's own shard raises `committed`, the flushes
/// of all shards raise `durable`, and the shard that writes roots raises `covered`.
#[derive(Debug)]
pub struct Streams {
    marks: Box<[Watermarks]>,
    closure: Mutex<Closure>,
}

impl Streams {
    /// Creates streams whose records up to `last` are durable, and up to `covered` are in the newest durable
    /// checkpoint.
    pub fn new(last: &Sequences, covered: &Sequences) -> Self {
        let streams = 0..last.numbers().len() as u16;
        let watermarks = streams.map(StreamId).map(|stream| Watermarks {
            issued: AtomicU64::new(last.of(stream)),
            has_ended: AtomicBool::new(false),
            committed: AtomicU64::new(last.of(stream)),
            durable: AtomicU64::new(last.of(stream)),
            covered: AtomicU64::new(covered.of(stream)),
        });
        Streams { marks: watermarks.collect(), closure: Mutex::default() }
    }

    fn closure(&self) -> MutexGuard<'_, Closure> {
        self.closure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the next record of a stream. Every issued number has to be [written](CommitQueue::written).
    pub fn issue(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].issued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends a stream before its last issued number, which won't be written. Returns false, without a change,
    /// if a later number was issued, since its record could then never commit.
    pub(crate) fn end_before(&self, stream: StreamId, sequence: u64) -> bool {
        let marks = &self.marks[stream.index()];
        marks.has_ended.store(true, Ordering::SeqCst);
        let is_last = marks.issued.load(Ordering::SeqCst) == sequence;
        marks.has_ended.store(is_last, Ordering::SeqCst);
        is_last
    }

    /// Whether a stream has [ended](Self::end_before): a record that was numbered afterwards can't commit,
    /// and recovery wouldn't find it.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        self.marks[stream.index()].has_ended.load(Ordering::SeqCst)
    }

    /// Numbers a record that is a member of these streams, which must be distinct.
    pub fn issue_joint(&self, streams: impl IntoIterator<Item = StreamId>) -> Arc<Joint> {
        // Held until all numbers are issued, so that no other joint record comes in between.
        let _closure = self.closure();
        let members = streams.into_iter().map(|stream| (stream, self.issue(stream))).collect();
        Arc::new(Joint { members, ready: Mutex::new(0), is_decided: AtomicBool::new(false) })
    }

    /// Notes that a joint record is the next to commit in one more of its streams. Returns whether it is now
    /// the next in all of them.
    fn join(&self, joint: &Joint) -> bool {
        let mut ready = joint.ready.lock().unwrap_or_else(PoisonError::into_inner);
        *ready += 1;
        if *ready < joint.members.len() {
            return false;
        }
        let mut closure = self.closure();
        joint.members.iter().for_each(|(stream, sequence)| closure.decided.raise(*stream, *sequence));
        joint.is_decided.store(true, Ordering::Release);
        true
    }

    /// Last record up to which every record is written and has taken effect.
    #[inline]
    pub fn committed(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].committed.load(Ordering::Acquire)
    }

    /// Last record up to which every record survives a power cut.
    #[inline]
    pub fn durable(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].durable.load(Ordering::Acquire)
    }

    /// Last record up to which every record is in the newest durable checkpoint.
    pub fn covered(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].covered.load(Ordering::Acquire)
    }

    /// [`committed`](Self::committed) of all streams.
    pub fn all_committed(&self) -> Sequences {
        Sequences(self.marks.iter().map(|marks| marks.committed.load(Ordering::Acquire)).collect())
    }

    /// Whether any numbered record, of any stream, hasn't committed.
    pub fn has_uncommitted(&self) -> bool {
        let is_behind = |marks: &Watermarks| {
            marks.issued.load(Ordering::Acquire) != marks.committed.load(Ordering::Acquire)
        };
        self.marks.iter().any(is_behind)
    }

    /// [`covered`](Self::covered) of all streams.
    pub fn all_covered(&self) -> Sequences {
        Sequences(self.marks.iter().map(|marks| marks.covered.load(Ordering::Acquire)).collect())
    }

    /// Committed records, closed under links: with each record, those on which it depends. A joint record
    /// that has committed in all its streams is included even if the shard of a stream hasn't applied it yet.
    pub fn all_closed(&self) -> Sequences {
        // A record with links commits under this lock, after the records that it depends on.
        let closure = self.closure();
        let mut committed = self.all_committed();
        for (number, decided) in closure.decided.numbers().iter().enumerate() {
            committed.raise(StreamId(number as u16), *decided);
        }
        committed
    }

    /// Adds a flusher for a shard with zones of its own. Returns the flusher's number.
    pub fn add_flusher(&self) -> u64 {
        let mut closure = self.closure();
        closure.next_flusher += 1;
        let (number, durable) = (closure.next_flusher, self.marks.iter());
        let durable = durable.map(|marks| marks.durable.load(Ordering::Acquire)).collect();
        closure.flushed.push((number, Sequences(durable)));
        number
    }

    /// Removes a flusher that has flushed everything. Any other flusher must stay when its shard leaves:
    /// unflushed appends may be lost, and joint records depend on them.
    pub fn remove_flusher(&self, number: u64) {
        self.closure().flushed.retain(|(other, _)| *other != number);
    }

    /// Notes that a flusher has made its shard's appends durable, for the records up to `closed`, a result of
    /// [`all_closed`](Self::all_closed) before the flush began. Raises the durable watermark of the streams
    /// `own`, whose records, except joint ones, are all written by this shard.
    pub fn flushed(&self, flusher: u64, closed: Sequences, own: &[StreamId]) {
        let mut closure = self.closure();
        let is_pending = |stream: &StreamId| closure.decided.of(*stream) > self.durable(*stream);
        if !own.iter().any(is_pending) {
            own.iter().for_each(|stream| self.set_durable(*stream, closed.of(*stream)));
        }
        if let Some((_, flushed)) = closure.flushed.iter_mut().find(|(number, _)| *number == flusher) {
            *flushed = closed;
        }
        // A joint record and all earlier ones are durable once every shard has flushed after its commit.
        for stream in (0..self.marks.len() as u16).map(StreamId) {
            let by_all = closure.flushed.iter().map(|(_, flushed)| flushed.of(stream)).min();
            self.set_durable(stream, by_all.unwrap_or(0));
        }
    }

    /// Whether the durable watermark of any of these streams waits for flushes of other shards.
    pub fn waits_for_others(&self, own: &[StreamId]) -> bool {
        let closure = self.closure();
        own.iter().any(|stream| closure.decided.of(*stream) > self.durable(*stream))
    }

    /// Notes that all records of a stream up to `sequence` are durable.
    pub fn set_durable(&self, stream: StreamId, sequence: u64) {
        self.marks[stream.index()].durable.fetch_max(sequence, Ordering::Release);
    }

    /// Notes that a durable checkpoint covers all records up to these.
    pub fn set_covered(&self, covered: &Sequences) {
        for (marks, sequence) in self.marks.iter().zip(covered.numbers()) {
            marks.covered.fetch_max(*sequence, Ordering::Release);
        }
    }
}

/// A written record that hasn't committed.
#[derive(Debug)]
struct Waiting<T> {
    record: T,
    /// Whether the record has links and isn't joint.
    is_linked: bool,
    joint: Option<Arc<Joint>>,
    /// Whether the record is first in the queue and has been counted in `Joint::ready`.
    has_joined: bool,
}

/// Records of one stream that have been numbered and haven't committed. `T` is the state kept for each.
#[derive(Debug)]
pub struct CommitQueue<T> {
    streams: Arc<Streams>,
    stream: StreamId,
    committed: u64,
    /// Records after `committed`; `None` while a record isn't written.
    waiting: VecDeque<Option<Waiting<T>>>,
}

impl<T> CommitQueue<T> {
    /// Creates the queue of a stream, after its last committed record.
    pub fn new(streams: Arc<Streams>, stream: StreamId) -> Self {
        let committed = streams.committed(stream);
        CommitQueue { streams, stream, committed, waiting: VecDeque::new() }
    }

    /// Number of the last record that has committed here.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    fn push(&mut self, sequence: u64, waiting: Waiting<T>) {
        let place = (sequence - self.committed - 1) as usize;
        if self.waiting.len() <= place {
            self.waiting.resize_with(place + 1, || None);
        }
        debug_assert!(self.waiting[place].is_none(), "record {sequence} was written twice");
        self.waiting[place] = Some(waiting);
    }

    /// Notes that a record has been written. `is_linked` is whether it has links to committed records.
    pub fn written(&mut self, sequence: u64, record: T, is_linked: bool) {
        self.push(sequence, Waiting { record, is_linked, joint: None, has_joined: false });
    }

    /// Notes that a joint record has been written.
    ///
    /// # Panics
    /// If the record is no member of this stream.
    pub fn joint_written(&mut self, joint: Arc<Joint>, record: T) {
        let own = joint.members.iter().find(|(stream, _)| *stream == self.stream);
        let sequence = own.expect("a member of this stream").1;
        self.push(sequence, Waiting { record, is_linked: false, joint: Some(joint), has_joined: false });
    }

    /// Commits the next record and returns it; `None` if it isn't written yet. A joint record commits once it
    /// is next in all its streams. If this call establishes that, `decided` is set, and the shards of the
    /// other streams should try again.
    pub fn commit_next(&mut self, decided: &mut bool) -> Option<T> {
        let Some(Some(first)) = self.waiting.front_mut() else { return None };
        if let Some(joint) = &first.joint {
            if !std::mem::replace(&mut first.has_joined, true) {
                *decided |= self.streams.join(joint);
            }
            if !joint.is_decided.load(Ordering::Acquire) {
                return None;
            }
        }
        let record = self.waiting.pop_front().flatten()?;
        // Under the lock, so that a reader that sees this record sees its dependencies.
        let _closure = record.is_linked.then(|| self.streams.closure());
        self.committed += 1;
        self.streams.marks[self.stream.index()].committed.store(self.committed, Ordering::Release);
        Some(record.record)
    }

    /// Records that are written and haven't committed.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut().flatten().map(|waiting| &mut waiting.record)
    }

    /// Removes and returns all records that are written and haven't committed; for a log that has failed.
    pub fn take_waiting(&mut self) -> Vec<T> {
        self.waiting.iter_mut().filter_map(|waiting| Some(waiting.take()?.record)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(0);
    const B: StreamId = StreamId(1);

    fn commit<T>(queue: &mut CommitQueue<T>) -> (Option<T>, bool) {
        let mut decided = false;
        (queue.commit_next(&mut decided), decided)
    }

    fn two_streams() -> (Arc<Streams>, [CommitQueue<char>; 2]) {
        let streams = Arc::new(Streams::new(&Sequences::new(&[3, 10]), &Sequences::default()));
        let queues = [A, B].map(|stream| CommitQueue::new(streams.clone(), stream));
        (streams, queues)
    }

    #[test]
    fn records_commit_in_order_whatever_order_they_are_written_in() {
        let (streams, [_, mut queue]) = two_streams();
        assert_eq!([streams.issue(B), streams.issue(B), streams.issue(B)], [11, 12, 13]);
        queue.written(13, 'c', false);
        assert_eq!(commit(&mut queue).0, None);
        queue.written(11, 'a', true);
        assert_eq!((commit(&mut queue).0, commit(&mut queue).0), (Some('a'), None));
        queue.written(12, 'b', false);
        assert_eq!((commit(&mut queue).0, commit(&mut queue).0), (Some('b'), Some('c')));
        assert_eq!((streams.committed(B), streams.durable(B), streams.issue(B)), (13, 10, 14));
        assert_eq!(streams.all_committed(), Sequences::new(&[3, 13]));
    }

    #[test]
    fn a_joint_record_commits_once_it_is_next_in_all_its_streams() {
        let (streams, [mut a, mut b]) = two_streams();
        let before = streams.issue(B);
        let joint = streams.issue_joint([A, B]);
        assert_eq!(joint.members(), [(A, 4), (B, 12)]);
        let after = streams.issue(A);
        a.written(after, 'c', false);
        a.joint_written(joint.clone(), 'j');
        b.joint_written(joint, 'J');
        // The previous record in the other stream isn't written.
        assert_eq!([commit(&mut a), commit(&mut b), commit(&mut a)], [(None, false); 3]);
        assert_eq!(streams.all_closed(), Sequences::new(&[3, 10]));
        b.written(before, 'b', false);
        assert_eq!((commit(&mut b), commit(&mut b)), ((Some('b'), false), (Some('J'), true)));
        // The joint record has committed for flushes before the shard of A has applied it.
        assert_eq!(streams.all_committed(), Sequences::new(&[3, 12]));
        assert_eq!(streams.all_closed(), Sequences::new(&[4, 12]));
        assert_eq!((commit(&mut a), commit(&mut a)), ((Some('j'), false), (Some('c'), false)));
    }

    /// Each of two shards writes a joint record, and first learns of the other one's.
    #[test]
    fn joint_records_do_not_wait_for_each_other() {
        let (streams, [mut a, mut b]) = two_streams();
        let (first, second) = (streams.issue_joint([A, B]), streams.issue_joint([B, A]));
        a.joint_written(second.clone(), '2');
        b.joint_written(first.clone(), '1');
        assert_eq!((commit(&mut a).0, commit(&mut b).0), (None, None));
        a.joint_written(first, '1');
        b.joint_written(second, '2');
        assert_eq!((commit(&mut a).0, commit(&mut b).0), (Some('1'), Some('1')));
        assert_eq!((commit(&mut a).0, commit(&mut b).0, commit(&mut a).0), (None, Some('2'), Some('2')));
    }

    #[test]
    fn a_joint_record_is_durable_once_all_shards_have_flushed() {
        let (streams, [mut a, mut b]) = two_streams();
        let (of_a, of_b) = (streams.add_flusher(), streams.add_flusher());
        a.written(streams.issue(A), 'a', false);
        commit(&mut a);
        streams.flushed(of_a, streams.all_closed(), &[A]);
        assert_eq!((streams.durable(A), streams.waits_for_others(&[A])), (4, false), "one flush is enough");
        // Record 11 of B has committed before the joint record, and isn't flushed.
        b.written(streams.issue(B), 'b', false);
        commit(&mut b);
        let early = streams.all_closed();
        let joint = streams.issue_joint([A, B]);
        a.joint_written(joint.clone(), 'j');
        b.joint_written(joint, 'j');
        commit(&mut a);
        commit(&mut b);
        commit(&mut a);
        assert_eq!(streams.all_committed(), Sequences::new(&[5, 12]));
        streams.flushed(of_a, streams.all_closed(), &[A]);
        assert_eq!((streams.durable(A), streams.waits_for_others(&[A])), (4, true));
        // This flush had begun before the joint record committed.
        streams.flushed(of_b, early, &[B]);
        assert_eq!((streams.durable(A), streams.durable(B)), (4, 11));
        streams.flushed(of_b, streams.all_closed(), &[B]);
        assert_eq!((streams.durable(A), streams.durable(B)), (5, 12));
        assert!(!streams.waits_for_others(&[A]) && !streams.waits_for_others(&[B]));
        streams.remove_flusher(of_b);
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
