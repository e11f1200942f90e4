//! Group commit of one shard: entries wait in queues, one for each class of zones, and are taken as the
//! entries of a record when an append can carry them; records commit in the order of their numbers.
//!
//! This module does no I/O: `lane` appends the records.

use crate::entry::{Batch, Entry};
use crate::layout::Layout;
use crate::record::StreamId;
use crate::record::{Header, LINK, MAX_LINKS};
use crate::stream::{CommitQueue, Joint, Streams};
use crate::zone_writer::ZoneWriter;
use block::{Error, Result};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most lists of entries that are kept to be used again.
const SPARE_LISTS: usize = 8;

/// Entries that are queued, and records that are in flight, of the streams that one shard writes.
#[derive(Debug)]
pub struct Appender<E> {
    layout: Layout,
    lanes: usize,
    most_steps: u64,
    queues: RefCell<Vec<VecDeque<E>>>,
    queued: Cell<u64>,
    /// Appends in flight, and the entries in them.
    in_flight: Cell<(u32, u32)>,
    records: Vec<(StreamId, RefCell<CommitQueue<Batch<E>>>)>,
    /// Notified when the last queued entry of a class was taken.
    drained: Notify,
    spare: RefCell<Vec<Vec<E>>>,
}

/// Number of bytes of an entry in its record's header, checksums excluded: meta, and a link for each join.
#[inline]
fn words<E: Entry>(entry: &E) -> usize {
    entry.meta_length() + LINK * entry.joins().len()
}

#[cold]
fn too_many_joins(joins: usize) -> Error {
    Error::invalid(format!(
        "log: an entry joins too many streams: {joins}; expected up to {MAX_LINKS}; divide the change among fewer shards"
    ))
}

impl<E: Entry> Appender<E> {
    /// Creates the appender of a shard that writes the streams `own`, with a queue for each of `classes`
    /// classes of zones. `lanes` is the most appends in flight, `most_steps` the most [steps](Entry::steps)
    /// of a record's entries.
    pub fn new(
        layout: Layout,
        classes: u8,
        lanes: u32,
        most_steps: u64,
        streams: &Arc<Streams>,
        own: &[StreamId],
    ) -> Self {
        let queue = |stream: &StreamId| (*stream, RefCell::new(CommitQueue::new(streams.clone(), *stream)));
        Appender {
            layout,
            lanes: lanes as usize,
            most_steps,
            queues: RefCell::new((0..classes).map(|_| VecDeque::new()).collect()),
            queued: Cell::new(0),
            in_flight: Cell::new((0, 0)),
            records: own.iter().map(queue).collect(),
            drained: Notify::new(),
            spare: RefCell::default(),
        }
    }

    /// Checks that an entry, or the first block of a divisible one, fits an empty zone as a record of its
    /// own. An entry with data must also fit as a move of the cleaner, whose record has a link. (The meta of
    /// a move may differ; the owner checks that.)
    ///
    /// # Errors
    /// [`Error::Invalid`] for an entry that no zone takes, or that joins more than [`MAX_LINKS`] streams.
    #[inline]
    pub fn check(&self, entry: &E) -> Result<()> {
        if entry.joins().len() > MAX_LINKS {
            return Err(too_many_joins(entry.joins().len()));
        }
        let blocks = if entry.is_atomic() { entry.blocks() } else { entry.blocks().min(1) };
        let moved = if blocks > 0 { LINK } else { 0 };
        let header = Header::length(blocks as usize, words(entry).max(entry.meta_length() + moved));
        match self.layout.takes(blocks, header) {
            true => Ok(()),
            false => Err(self.too_large(blocks, header)),
        }
    }

    #[cold]
    fn too_large(&self, blocks: u32, header: usize) -> Error {
        let Layout { zone_blocks, max_append, .. } = self.layout;
        Error::invalid(format!(
            "log: an entry is too large for a record: {blocks} blocks of data and {header} bytes of header with links; expected up to {} \
             blocks and {} bytes, in a zone of {zone_blocks} blocks; divide the change, or format the log with larger zones",
            max_append - 1,
            self.layout.block_bytes()
        ))
    }

    /// Queues an entry for a class. It must have passed [`check`](Self::check);
    /// [`lane::push`](crate::lane::push) does both.
    pub(crate) fn push(&self, class: u8, entry: E) {
        self.queued.set(self.queued.get() + 1);
        self.queues.borrow_mut()[usize::from(class)].push_back(entry);
    }

    /// Number of queued entries.
    pub fn queued(&self) -> u64 {
        self.queued.get()
    }

    /// Number of appends in flight, and of the entries in them.
    pub fn in_flight(&self) -> (u32, u32) {
        self.in_flight.get()
    }

    /// Whether nothing of this class is queued.
    pub fn is_empty(&self, class: u8) -> bool {
        self.queues.borrow()[usize::from(class)].is_empty()
    }

    /// Whether any queued entry of this class is wanted.
    pub fn any(&self, class: u8, is_wanted: impl Fn(&E) -> bool) -> bool {
        self.queues.borrow()[usize::from(class)].iter().any(is_wanted)
    }

    /// Returns the class whose entries a lane should append now; `None` if it should wait.
    ///
    /// While other appends are in flight, a lane waits until as many entries are queued as one of those
    /// appends has. Appends then share the clients' queue depth evenly, however requests arrive.
    pub fn ready_class(&self) -> Option<u8> {
        let queues = self.queues.borrow();
        let (class, queue) = queues.iter().enumerate().max_by_key(|(_, queue)| queue.len())?;
        if queue.is_empty() {
            return None;
        }
        let (appends, entries) = self.in_flight.get();
        let is_enough = self.queued.get() * u64::from(appends) >= u64::from(entries);
        (appends == 0 || is_enough).then_some(class as u8)
    }

    /// Takes the entries of one record: those that fit the zone, at most the lane's share of the queue. `cut`
    /// divides an entry that is too large: it splits off the given number of blocks from the start of the
    /// entry and returns them.
    pub fn take(&self, class: u8, zone: &ZoneWriter, mut cut: impl FnMut(&mut E, u32) -> E) -> Batch<E> {
        let mut batch = self.batch();
        let mut queues = self.queues.borrow_mut();
        let queue = &mut queues[usize::from(class)];
        let share = match self.in_flight.get().0 {
            0 if queue.len() > self.lanes => queue.len().div_ceil(self.lanes),
            _ => queue.len(),
        };
        let (mut blocks, mut meta, mut steps) = (0_u32, 0_usize, 0_u64);
        let mut was_cut = false;
        while batch.entries.len() < share {
            let Some(entry) = queue.front_mut() else { break };
            let (wanted, words) = (entry.blocks(), words(entry));
            // An entry that is numbered in other streams is a record of its own.
            let is_joint = !entry.joins().is_empty();
            if is_joint && !batch.entries.is_empty() {
                break;
            }
            // All entries of a record take effect in one turn.
            steps += entry.steps();
            if steps > self.most_steps && entry.steps() > 0 && !batch.entries.is_empty() {
                break;
            }
            if zone.takes(&self.layout, blocks + wanted, meta + words) {
                blocks += wanted;
                meta += words;
                batch.entries.extend(queue.pop_front());
                if is_joint {
                    break;
                }
                continue;
            }
            if entry.is_atomic() {
                break;
            }
            // The start of a large entry may be appended, if that delays no other entry of the record.
            let is_worth_cutting = batch.entries.is_empty() || wanted > self.layout.max_append / 2;
            let most = blocks + wanted.saturating_sub(1);
            let fits = zone.most_blocks(&self.layout, most, |_| meta + words).saturating_sub(blocks);
            if fits > 0 && is_worth_cutting {
                batch.entries.push(cut(entry, fits));
                was_cut = true;
            }
            break;
        }
        let taken = batch.entries.len() as u64 - u64::from(was_cut);
        self.note_taken(taken, queue.is_empty());
        batch
    }

    /// Notes that entries were taken from a queue, which may be empty now.
    fn note_taken(&self, entries: u64, is_empty: bool) {
        self.queued.set(self.queued.get().saturating_sub(entries));
        if entries > 0 && is_empty {
            self.drained.notify_all();
        }
    }

    /// Waits until the last queued entry of some class is taken.
    pub(crate) async fn next_drained(&self) {
        self.drained.notified().await;
    }

    /// Waits until nothing of a class is queued.
    pub(crate) async fn drained(&self, class: u8) {
        while !self.is_empty(class) {
            self.drained.notified().await;
        }
    }

    /// Takes the first queued entry of a class.
    pub(crate) fn take_first(&self, class: u8) -> Option<E> {
        let queue = &mut self.queues.borrow_mut()[usize::from(class)];
        let first = queue.pop_front();
        self.note_taken(u64::from(first.is_some()), queue.is_empty());
        first
    }

    /// Takes the wanted entries of one record without data; further wanted entries stay queued. All others
    /// are removed from the queue and returned.
    pub fn take_without_data(&self, class: u8, is_wanted: impl Fn(&E) -> bool) -> (Batch<E>, Vec<E>) {
        let mut batch = self.batch();
        let mut others = Vec::new();
        let mut queues = self.queues.borrow_mut();
        let queue = &mut queues[usize::from(class)];
        let before = queue.len();
        let (mut meta, mut steps) = (0, 0);
        let mut kept = VecDeque::new();
        for entry in queue.drain(..) {
            if !is_wanted(&entry) {
                others.push(entry);
                continue;
            }
            meta += entry.meta_length();
            steps += entry.steps();
            let fits = Header::length(0, meta) <= self.layout.block_bytes()
                && (batch.entries.is_empty() || steps <= self.most_steps);
            match fits && kept.is_empty() {
                true => batch.entries.push(entry),
                false => kept.push_back(entry),
            }
        }
        *queue = kept;
        self.note_taken((before - queue.len()) as u64, queue.is_empty());
        (batch, others)
    }

    /// Removes and returns the queued entries that `is_kept` rejects, of one class or of all.
    pub fn take_refused(&self, class: Option<u8>, is_kept: impl Fn(&E) -> bool) -> Vec<E> {
        let mut refused = Vec::new();
        for (number, queue) in self.queues.borrow_mut().iter_mut().enumerate() {
            if class.is_none_or(|class| usize::from(class) == number) {
                let (kept, rest): (VecDeque<E>, VecDeque<E>) = queue.drain(..).partition(&is_kept);
                *queue = kept;
                self.note_taken(rest.len() as u64, queue.is_empty());
                refused.extend(rest);
            }
        }
        refused
    }

    fn batch(&self) -> Batch<E> {
        Batch { entries: self.spare.borrow_mut().pop().unwrap_or_default(), ..Batch::default() }
    }

    /// Keeps the allocation of a list of entries for reuse.
    pub fn recycle(&self, mut entries: Vec<E>) {
        entries.clear();
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_LISTS {
            spare.push(entries);
        }
    }

    /// Notes that an append of this many entries is in flight.
    pub fn note_append(&self, entries: usize) {
        let (appends, all) = self.in_flight.get();
        self.in_flight.set((appends + 1, all + entries as u32));
    }

    /// Notes that an append of this many entries has ended.
    pub fn note_end_of_append(&self, entries: usize) {
        let (appends, all) = self.in_flight.get();
        self.in_flight.set((appends - 1, all - entries as u32));
    }

    fn records(&self, stream: StreamId) -> &RefCell<CommitQueue<Batch<E>>> {
        let found = self.records.iter().find(|(own, _)| *own == stream);
        &found.expect("a stream of this shard").1
    }

    /// Notes that a record has been written. `is_linked` is whether it has links to other records.
    /// [`commit_next`](Self::commit_next) follows.
    ///
    /// # Panics
    /// If another shard writes the stream.
    pub fn written(&self, stream: StreamId, sequence: u64, batch: Batch<E>, is_linked: bool) {
        self.records(stream).borrow_mut().written(sequence, batch, is_linked);
    }

    /// Notes that a joint record has been written; `batch` is the part that this stream commits.
    /// [`commit_next`](Self::commit_next) follows.
    ///
    /// # Panics
    /// If another shard writes the stream, or it has no such record.
    pub fn joint_written(&self, stream: StreamId, joint: Arc<Joint>, batch: Batch<E>) {
        self.records(stream).borrow_mut().joint_written(joint, batch);
    }

    /// Commits the next record of a stream and returns it; `None` if it isn't written yet. `decided` is set
    /// if a joint record has become the next one in all its streams: the shards of those streams should then
    /// commit.
    pub fn commit_next(&self, stream: StreamId, decided: &mut bool) -> Option<Batch<E>> {
        self.records(stream).borrow_mut().commit_next(decided)
    }

    /// Number of the last record of a stream that has committed on this shard.
    pub fn committed(&self, stream: StreamId) -> u64 {
        self.records(stream).borrow().committed()
    }

    /// Visits the entries of records that have been written and can't commit yet, because an earlier record
    /// isn't written.
    pub fn for_each_waiting(&self, mut visit: impl FnMut(&mut E)) {
        for (_, records) in &self.records {
            records.borrow_mut().waiting_mut().flat_map(|batch| &mut batch.entries).for_each(&mut visit);
        }
    }

    /// Removes and returns all entries that are queued or haven't committed; for a log that has failed.
    pub fn take_all(&self) -> Vec<E> {
        let mut entries = self.take_refused(None, |_| false);
        for (_, records) in &self.records {
            entries.extend(records.borrow_mut().take_waiting().into_iter().flat_map(|batch| batch.entries));
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Taken;
    use crate::record::FIXED;
    use crate::stream::Sequences;
    use crate::summary::Builder;
    use block::{BlockSize, Payload};
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn layout() -> Layout {
        Layout { block_size: BlockSize::default(), zone_blocks: 64, zones: 8, max_append: 32 }
    }

    /// An indivisible entry of whole blocks.
    #[derive(Debug)]
    struct Piece {
        blocks: u32,
        meta: usize,
        joins: Vec<StreamId>,
        data: Payload,
    }

    impl Entry for Piece {
        fn blocks(&self) -> u32 {
            self.blocks
        }

        fn payload(&self) -> &Payload {
            &self.data
        }

        fn meta_length(&self) -> usize {
            self.meta
        }

        fn encode_meta(&self, meta: &mut Vec<u8>) {
            meta.resize(meta.len() + self.meta, 0);
        }

        fn joins(&self) -> &[StreamId] {
            &self.joins
        }
    }

    fn piece(blocks: u32, meta: usize, joins: usize) -> Piece {
        let joins = (1..=joins as u16).map(StreamId).collect();
        Piece { blocks, meta, joins, data: Payload::default() }
    }

    fn appender() -> Appender<Piece> {
        let streams = Arc::new(Streams::new(&Sequences::new(&[0]), &Sequences::default()));
        Appender::new(layout(), 1, 1, u64::MAX, &streams, &[StreamId(0)])
    }

    /// Number of entries in the record that takes this one into an empty zone.
    fn taken(entry: Piece) -> usize {
        let appender = appender();
        appender.push(0, entry);
        let zone = Taken { zone: 3, generation: 1, limit: None, is_open: false };
        let zone = ZoneWriter::new(zone, 0, &layout(), Builder::default());
        appender.take(0, &zone, |_, _| unreachable!("it is atomic")).entries.len()
    }

    #[test]
    fn whatever_takes_the_last_entry_of_a_class_ends_waiting_for_that() {
        type Take = fn(&Appender<Piece>);
        let takes: [Take; 4] = [
            |appender| drop(appender.take_first(0)),
            |appender| drop(appender.take_without_data(0, |_| true)),
            |appender| drop(appender.take_refused(Some(0), |_| false)),
            |appender| drop(appender.take_all()),
        ];
        let mut context = Context::from_waker(Waker::noop());
        for take in takes {
            let appender = appender();
            appender.push(0, piece(1, 0, 0));
            let mut drained = pin!(appender.drained(0));
            assert!(drained.as_mut().poll(&mut context).is_pending());
            take(&appender);
            assert!(drained.poll(&mut context).is_ready());
            assert_eq!(appender.queued(), 0);
        }
    }

    #[test]
    fn the_header_of_a_record_has_the_links_of_its_joins() {
        let most = layout().block_bytes() - FIXED - 4;
        assert_eq!([taken(piece(1, most - LINK, 1)), taken(piece(1, most, 1))], [1, 0]);
        assert_eq!([taken(piece(1, most - 3 * LINK, 3)), taken(piece(1, most - 3 * LINK + 1, 3))], [1, 0]);
    }

    fn refusal(entry: Piece) -> String {
        appender().check(&entry).expect_err("no zone takes it").detail().to_owned()
    }

    #[test]
    fn an_entry_that_no_zone_takes_is_refused() {
        let most = layout().block_bytes() - FIXED - 4;
        assert!(appender().check(&piece(1, most - LINK, 1)).is_ok());
        assert!(refusal(piece(1, most, 1)).contains("1 blocks of data and 4112 bytes of header"));
        assert!(appender().check(&piece(31, 0, 1)).is_ok());
        assert!(refusal(piece(32, 0, 1)).contains("32 blocks of data"));
        // A divisible entry fits if its first block does.
        assert!(appender().check(&piece(1000, most - LINK, 0)).is_ok());
        assert!(refusal(piece(1000, most + 1, 0)).contains("1 blocks of data and 4113 bytes of header"));
        // A move has a link; an entry without data is never moved.
        assert!(refusal(piece(1, most - LINK + 1, 0)).contains("1 blocks of data and 4097 bytes of header"));
        assert!(appender().check(&piece(0, most + 4, 0)).is_ok());
        assert!(refusal(piece(0, most + 5, 0)).contains("0 blocks of data and 4097 bytes of header"));
    }

    #[test]
    fn an_entry_whose_links_could_not_be_read_is_refused() {
        assert!(appender().check(&piece(1, 0, MAX_LINKS)).is_ok());
        assert!(refusal(piece(1, 0, MAX_LINKS + 1)).contains("too many streams: 17; expected up to 16"));
    }
}
