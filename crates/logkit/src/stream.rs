//! Streams: sequences of numbered records, and up to where each has committed, is durable and is covered by a checkpoint.
//!
//! [`Streams`] holds these watermarks for all shards. [`CommitQueue`] belongs to the shard that appends to a stream: it
//! lets records commit in order, in whatever order they are written.
//!
//! A *joint* record is a member of several streams: it has a number in each, and commits in each when all earlier records of
//! all of them have. The numbers of a joint record are drawn together, so two of them have the same order in every stream
//! that both are members of, and none waits for itself.
//!
//! The durable watermark is closed under links: recovery, which cuts off a record with the one that it depends on, then finds
//! every record below it. [`Streams::all_committed`] is closed, too, and is what a flush makes durable.

use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Last number issued.
    issued: AtomicU64,
    /// The last number issued isn't written, and none may be issued after it.
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
    /// Its number in each of its streams.
    pub fn members(&self) -> &[(StreamId, u64)] {
        &self.members
    }
}

/// What is needed to keep watermarks closed under links. Changed by flushes and by records with links.
#[derive(Debug, Default)]
struct Closure {
    /// By stream, the last joint record that has committed in all its streams. Its shard may not have applied it yet.
    decided: Sequences,
    /// Of each flusher, what had committed when its last successful flush began.
    flushed: Vec<(u64, Sequences)>,
    next_flusher: u64,
}

/// Watermarks of all streams. Any shard may read them; a stream's own shard raises `committed`, the flushes of all shards
/// raise `durable`, and the shard that writes roots raises `covered`.
#[derive(Debug)]
pub struct Streams {
    marks: Box<[Watermarks]>,
    closure: Mutex<Closure>,
}

impl Streams {
    /// Streams whose records up to `last` are durable, and up to `covered` are in the newest durable checkpoint.
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

    /// Numbers the next record of a stream. Every number that is issued has to be [written](CommitQueue::written).
    pub fn issue(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].issued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends a stream before its last number, which isn't written. Returns false, and changes nothing, if a later number was issued: its record
    /// could never commit.
    pub(crate) fn end_before(&self, stream: StreamId, sequence: u64) -> bool {
        let marks = &self.marks[stream.index()];
        marks.has_ended.store(true, Ordering::SeqCst);
        let is_last = marks.issued.load(Ordering::SeqCst) == sequence;
        marks.has_ended.store(is_last, Ordering::SeqCst);
        is_last
    }

    /// Whether a stream has [ended](Self::end_before): a record that was numbered since can't commit, and no recovery would find it.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        self.marks[stream.index()].has_ended.load(Ordering::SeqCst)
    }

    /// Numbers a record that is a member of these streams, which differ.
    pub fn issue_joint(&self, streams: impl IntoIterator<Item = StreamId>) -> Arc<Joint> {
        // Held over all numbers, so that no other joint record comes between.
        let _closure = self.closure();
        let members = streams.into_iter().map(|stream| (stream, self.issue(stream))).collect();
        Arc::new(Joint { members, ready: Mutex::new(0), is_decided: AtomicBool::new(false) })
    }

    /// Notes that a joint record is the next to commit in one more of its streams. Returns whether it is in all.
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

    /// The last record up to which every record is written and has taken effect.
    #[inline]
    pub fn committed(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].committed.load(Ordering::Acquire)
    }

    /// The last record up to which every record survives a power cut.
    #[inline]
    pub fn durable(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].durable.load(Ordering::Acquire)
    }

    /// The last record up to which every record is in the newest durable checkpoint.
    pub fn covered(&self, stream: StreamId) -> u64 {
        self.marks[stream.index()].covered.load(Ordering::Acquire)
    }

    /// [`committed`](Self::committed) of all streams.
    pub fn all_committed(&self) -> Sequences {
        Sequences(self.marks.iter().map(|marks| marks.committed.load(Ordering::Acquire)).collect())
    }

    /// Whether a record that was numbered, of any stream, hasn't committed.
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

    /// The records that have committed, closed under links: with each record, those on which it depends. A joint record that
    /// has committed in all its streams is among them even if the shard of a stream hasn't applied it yet.
    pub fn all_closed(&self) -> Sequences {
        // A record with links commits under this lock, after what it depends on.
        let closure = self.closure();
        let mut committed = self.all_committed();
        for (number, decided) in closure.decided.numbers().iter().enumerate() {
            committed.raise(StreamId(number as u16), *decided);
        }
        committed
    }

    /// Adds a flusher: a shard with zones of its own to flush. Returns its number.
    pub fn add_flusher(&self) -> u64 {
        let mut closure = self.closure();
        closure.next_flusher += 1;
        let (number, durable) = (closure.next_flusher, self.marks.iter());
        let durable = durable.map(|marks| marks.durable.load(Ordering::Acquire)).collect();
        closure.flushed.push((number, Sequences(durable)));
        number
    }

    /// Removes a flusher that has flushed everything. One that leaves before that stays: what it had appended since may be lost, and
    /// joint records depend on it.
    pub fn remove_flusher(&self, number: u64) {
        self.closure().flushed.retain(|(other, _)| *other != number);
    }

    /// Notes that a flusher has made durable what its shard had appended of the records up to `closed`, a result of
    /// [`all_closed`](Self::all_closed) before the flush began; raises the durable watermark of the streams `own`, which
    /// have no records elsewhere but joint ones.
    pub fn flushed(&self, flusher: u64, closed: Sequences, own: &[StreamId]) {
        let mut closure = self.closure();
        let is_pending = |stream: &StreamId| closure.decided.of(*stream) > self.durable(*stream);
        if !own.iter().any(is_pending) {
            own.iter().for_each(|stream| self.set_durable(*stream, closed.of(*stream)));
        }
        if let Some((_, flushed)) = closure.flushed.iter_mut().find(|(number, _)| *number == flusher) {
            *flushed = closed;
        }
        // A joint record, and all before it, are durable once every shard has flushed after it committed.
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

    /// Notes that these records and all before them are durable.
    pub fn set_durable(&self, stream: StreamId, sequence: u64) {
        self.marks[stream.index()].durable.fetch_max(sequence, Ordering::Release);
    }

    /// Notes that a durable checkpoint has everything up to these records.
    pub fn set_covered(&self, covered: &Sequences) {
        for (marks, sequence) in self.marks.iter().zip(covered.numbers()) {
            marks.covered.fetch_max(*sequence, Ordering::Release);
        }
    }
}

/// A record that is written and can't commit yet.
#[derive(Debug)]
struct Waiting<T> {
    record: T,
    /// Whether it has links and isn't joint.
    is_linked: bool,
    joint: Option<Arc<Joint>>,
    /// Whether it is first in the queue and has been counted in `Joint::ready`.
    has_joined: bool,
}

/// The records of one stream that have been numbered and haven't committed. `T` is what is kept of a record meanwhile.
#[derive(Debug)]
pub struct CommitQueue<T> {
    streams: Arc<Streams>,
    stream: StreamId,
    committed: u64,
    /// Records after `committed`; `None` while a record isn't written.
    waiting: VecDeque<Option<Waiting<T>>>,
}

impl<T> CommitQueue<T> {
    /// Queue of a stream, after its last committed record.
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

    /// Notes that a record is written, which may have links to records that have committed.
    pub fn written(&mut self, sequence: u64, record: T, is_linked: bool) {
        self.push(sequence, Waiting { record, is_linked, joint: None, has_joined: false });
    }

    /// Notes that a joint record is written.
    ///
    /// # Panics
    /// If it is no member of this stream.
    pub fn joint_written(&mut self, joint: Arc<Joint>, record: T) {
        let own = joint.members.iter().find(|(stream, _)| *stream == self.stream);
        let sequence = own.expect("a member of this stream").1;
        self.push(sequence, Waiting { record, is_linked: false, joint: Some(joint), has_joined: false });
    }

    /// Commits the next record and returns it, if it is written. A joint record commits once it is next in all its streams;
    /// `decided` is set if that is so from this call on, and the shards of its other streams should try again.
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

    /// The records that are written and can't commit yet.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut().flatten().map(|waiting| &mut waiting.record)
    }

    /// Takes all records that are written and can't commit; for a log that has failed.
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
        // The record before it in the other stream isn't written.
        assert_eq!([commit(&mut a), commit(&mut b), commit(&mut a)], [(None, false); 3]);
        assert_eq!(streams.all_closed(), Sequences::new(&[3, 10]));
        b.written(before, 'b', false);
        assert_eq!((commit(&mut b), commit(&mut b)), ((Some('b'), false), (Some('J'), true)));
        // It has committed, and with it what a flush takes for committed, before the shard of A has looked.
        assert_eq!(streams.all_committed(), Sequences::new(&[3, 12]));
        assert_eq!(streams.all_closed(), Sequences::new(&[4, 12]));
        assert_eq!((commit(&mut a), commit(&mut a)), ((Some('j'), false), (Some('c'), false)));
    }

    /// Each of two shards writes a joint record, and is told of the other one's first.
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
        // Record 11 of B has committed and isn't flushed when the joint record is.
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
