//! The path of a record, from the queue to the commit. In the order of this module:
//!
//! 1. [`push`]: the owner queues an entry for a class of zones ([`Appender`](crate::Appender)).
//! 2. `run`: a *lane* waits until it should append entries of a class. Meanwhile it answers requests to seal
//!    its zones, and appends marks.
//! 3. `LaneZones::take`: it takes its open zone of that class. If it has none, it opens one, which may wait
//!    for a permit, for the drive and for the cleaner (`zones`).
//! 4. `write_next`: it takes its share of the queue, as much as fits the zone, as the entries of a record.
//! 5. `number_and_freeze`: the record gets its number, and is fixed except for its place.
//! 6. [`write_record`]: it is appended, after an error to another zone, until it is written
//!    (`append_frozen`); if the device below has no space, without its data ([`crate::space`]).
//! 7. `note_written`: the record waits for those before it; a joint one is passed to other shards.
//! 8. [`commit`]: records that can commit now take effect, in the order of their numbers.
//!
//! The records of moves and of marks begin at step 6, those without data at step 5.
//!
//! A lane has its own open zones, and one append in flight at a time. Entries are queued while the appends of
//! all lanes are in flight; a lane whose append has completed takes its share as the next record. With two
//! lanes the disk writes one record while clients learn of the other and send their next writes. One lane
//! would leave the disk idle meanwhile; three make records small.

mod zones;

use crate::entry::{Batch, Entry, Frozen};
use crate::idle;
use crate::kit::count;
use crate::owner::Owner;
use crate::pool::CHECKPOINT_CLASS;
use crate::prepare;
use crate::record::StreamId;
use crate::record::{Header, Kind, Link, Links, Relation};
use crate::seals;
use crate::shards;
use crate::shared;
use crate::space;
use crate::stream::Joint;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zones::{LaneZones, refuse_first};

/// Attempts to append one record, each in another zone, before the log fails.
const MAX_ATTEMPTS: usize = 4;

/// Queues an entry for a class, or refuses it at once if no record can carry it.
#[inline]
pub fn push<O: Owner>(owner: &O, class: u8, entry: O::Entry) {
    match owner.appender().check(&entry) {
        Ok(()) => owner.appender().push(class, entry),
        Err(error) => owner.refuse(&entry, &error),
    }
}

/// Starts the lanes of a shard.
pub fn start<O: Owner>(owner: &Rc<O>) {
    shards::listen(owner);
    seals::start(owner);
    for _ in 0..owner.kit().settings.appends_in_flight {
        owner.kit().tasks.spawn(run(owner.clone())).detach();
    }
    owner.kit().tasks.spawn(idle::run(owner.clone())).detach();
}

/// Runs a lane until the log is closed or has failed.
async fn run<O: Owner>(owner: Rc<O>) {
    let (kit, appender) = (owner.kit(), owner.appender());
    let mut zones = LaneZones::new(kit.policy.borrow().classes());
    let mut frozen = Frozen::default();
    loop {
        let kept = seals::answer(kit, &mut zones.open, |class| !appender.is_empty(class)).await;
        if let Some(class) = appender.ready_class() {
            if let Some(zone) = zones.take(&owner, class, &mut frozen).await {
                write_next(&owner, zone, &mut zones, &mut frozen).await;
            }
            continue;
        }
        if kit.is_closing() && appender.queued() == 0 || kit.failure().is_some() {
            break;
        }
        if kit.marks.is_wanted() && appender.queued() == 0 && zones.any_has_records() {
            idle::append(&owner, &mut zones.open, &mut frozen).await;
            continue;
        }
        wait_for_work(&*owner, kept).await;
    }
    // Other lanes and the cleaner may have waited for the empty queue.
    kit.events.work.notify_all();
    kit.events.cleaner.notify_all();
    kit.events.freed.notify_all();
    kit.seal_all(&mut zones.open).await;
    space::seal_filler(kit).await;
    prepare::put_back(kit).await;
}

/// Waits until a lane may have something to do, or has to seal a zone that it has `kept` for some time.
async fn wait_for_work<O: Owner>(owner: &O, kept: Option<Duration>) {
    let (kit, appender) = (owner.kit(), owner.appender());
    match kept {
        None => kit.events.work.notified().await,
        // A zone is kept only while entries are queued for it.
        Some(_) => {
            let changed = seals::first_of(kit.events.work.notified(), appender.next_drained());
            seals::until(kept, changed).await;
        }
    }
    // Clients that got the same completion, or arrive in the same turn, join the record.
    runtime::yield_now().await;
}

/// Writes the next record of a class to a zone: this lane's share of the queued entries.
async fn write_next<O: Owner>(owner: &Rc<O>, zone: ZoneWriter, zones: &mut LaneZones, frozen: &mut Frozen) {
    let (kit, appender, class) = (owner.kit(), owner.appender(), zone.class());
    let batch = appender.take(class, &zone, |entry, blocks| owner.cut(entry, blocks));
    if batch.entries.is_empty() {
        appender.recycle(batch.entries);
        // Another lane may have taken everything; otherwise the zone has no space for the first entry.
        if !zone.is_empty() && !appender.is_empty(class) {
            return kit.seal(zone).await;
        }
        zones.keep(kit, zone);
        return refuse_first(&**owner, class);
    }
    let entries = batch.entries.len();
    appender.note_append(entries);
    let stream = kit.settings.user_stream;
    let written = write_record(owner, stream, batch, zone, frozen, &mut zones.open).await;
    if let Some(mut zone) = written.zone {
        prepare::look_ahead(owner, &mut zone, 1 + frozen.blocks());
        zones.keep(kit, zone);
    }
    note_end_of_append(&**owner, entries);
    runtime::yield_now().await;
}

fn has_acknowledged_data<E: Entry>(entry: &E) -> bool {
    entry.is_acknowledged() && entry.blocks() > 0
}

/// Notes that an append of this many entries has ended.
pub(crate) fn note_end_of_append<O: Owner>(owner: &O, entries: usize) {
    owner.appender().note_end_of_append(entries);
    owner.kit().events.work.notify_one();
}

/// Sequence numbers of a record: in its stream and, for a joint record, in others.
#[derive(Debug)]
pub(crate) struct Number {
    pub(crate) stream: StreamId,
    pub(crate) sequence: u64,
    joint: Option<Arc<Joint>>,
    /// The record follows a record of another stream.
    is_linked: bool,
}

impl Number {
    /// Whether the record is a member of one stream only.
    pub(crate) fn is_alone(&self) -> bool {
        self.joint.is_none()
    }

    /// All sequence numbers of the record, with their streams.
    fn all(&self) -> SmallVec<[(StreamId, u64); 2]> {
        match &self.joint {
            None => SmallVec::from_elem((self.stream, self.sequence), 1),
            Some(joint) => SmallVec::from_slice(joint.members()),
        }
    }
}

/// Numbers a record and fixes all of it except its location.
pub(crate) fn number_and_freeze<O: Owner>(
    owner: &O,
    stream: StreamId,
    batch: &Batch<O::Entry>,
    class: u8,
    frozen: &mut Frozen,
) -> Number {
    let kit = owner.kit();
    let user = kit.settings.user_stream;
    let joins = batch.entries.first().map_or(&[][..], Entry::joins);
    let joint = match joins {
        [] => None,
        others => Some(kit.streams.issue_joint([stream].into_iter().chain(others.iter().copied()))),
    };
    let sequence = joint.as_ref().map_or_else(|| kit.streams.issue(stream), |joint| joint.members()[0].1);
    let links: Links = match &joint {
        Some(joint) => {
            let link = |(stream, sequence): &_| Link {
                relation: Relation::Member,
                stream: *stream,
                sequence: *sequence,
            };
            joint.members()[1..].iter().map(link).collect()
        }
        None if stream == user => Links::new(),
        // Data that the cleaner moves had committed when the victim was chosen.
        None => {
            let committed = owner.appender().committed(user);
            Links::from_elem(Link { relation: Relation::Follows, stream: user, sequence: committed }, 1)
        }
    };
    let header = Header {
        kind: Kind::Entries,
        stream,
        class,
        epoch: kit.epoch,
        sequence,
        durable: kit.streams.durable(stream),
        clock: kit.clock(),
        zone: 0,
        generation: 0,
        position: 0,
        blocks: 0,
    };
    let is_linked = joint.is_none() && !links.is_empty();
    frozen.freeze(header, links, &batch.entries, kit.layout.block_bytes());
    let number = Number { stream, sequence, joint, is_linked };
    if number.all().iter().any(|(stream, _)| kit.streams.has_ended(*stream)) {
        owner.fail(&Error::no_space(format!(
            "record {sequence} of stream {}: there was no space for the record before it, and the log is being closed",
            stream.0
        )));
    }
    number
}

/// Outcome of writing a record.
#[derive(Debug, Default)]
pub struct Written {
    /// The zone, if it has space left.
    pub zone: Option<ZoneWriter>,
    /// Reason why the data wasn't written, if the device below had no space for it.
    pub refused: Option<Error>,
}

/// Writes a record and lets it commit. If the device below has no space, the record's data is refused. If it
/// can't be written anywhere for another reason, the log fails. `held` are other zones of the caller.
pub async fn write_record<O: Owner>(
    owner: &Rc<O>,
    stream: StreamId,
    mut batch: Batch<O::Entry>,
    zone: ZoneWriter,
    frozen: &mut Frozen,
    held: &mut [Option<ZoneWriter>],
) -> Written {
    let kit = owner.kit();
    let class = zone.class();
    let mut zone = zone;
    let number = number_and_freeze(&**owner, stream, &batch, class, frozen);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let position = zone.position() + 1;
        let error = match append_frozen(&**owner, &number, &batch, &mut zone, frozen, held).await {
            Ok(()) => {
                (batch.zone, batch.position) = (zone.zone(), position);
                kit.note_space();
                note_written(&**owner, number, batch);
                return Written { zone: Some(zone), refused: None };
            }
            Err(error) => error,
        };
        if let Some(failure) = kit.failure() {
            batch.entries.iter().for_each(|entry| owner.refuse(entry, &failure));
            return Written::default();
        }
        tracing::warn!("a record could not be written to zone {}: {error}", zone.zone());
        let was_refused = zone.was_refused(&error);
        kit.abandon_after(&error, &zone).await;
        drop(zone);
        // Acknowledged data can't be refused; entries without data are written to another zone.
        if matches!(error, Error::NoSpace(_)) && !batch.entries.iter().any(has_acknowledged_data) {
            space::refuse_record(owner, number, batch, frozen, &error, held).await;
            return Written { zone: None, refused: Some(error) };
        }
        // The number has been issued, so the record must be written to another zone; otherwise no later
        // record can commit. A drive that opened no zone in all the time of the append opens no other one.
        let another = match attempts < MAX_ATTEMPTS && !was_refused {
            true => kit.open_zone_beside(class, 1, held).await,
            false => None,
        };
        match another {
            Some(another) => zone = another,
            None => {
                batch.entries.iter().for_each(|entry| owner.refuse(entry, &error));
                owner.fail(&error.in_context(format!("record {} can't be written", number.sequence)));
                return Written::default();
            }
        }
    }
}

/// Appends a record that was frozen to a zone.
///
/// # Errors
/// Errors of the append. The zone must not be appended to afterwards.
pub(crate) async fn append_frozen<O: Owner>(
    owner: &O,
    number: &Number,
    batch: &Batch<O::Entry>,
    zone: &mut ZoneWriter,
    frozen: &mut Frozen,
    held: &mut [Option<ZoneWriter>],
) -> Result<()> {
    let kit = owner.kit();
    let blocks = frozen.blocks();
    debug_assert!(zone.class() != CHECKPOINT_CLASS, "checkpoints have a writer of their own");
    // A record without entries is a mark, or its attempt with data was noted before.
    if !batch.entries.is_empty() {
        owner.before_append(zone.zone(), zone.generation(), &batch.entries);
    }
    let moved = batch.entries.iter().filter(|entry| entry.is_moved()).map(Entry::blocks).sum();
    kit.pool.note_append(zone.zone(), &number.all(), blocks, moved);
    let payload = frozen.encode(&kit.identity, zone, &batch.entries, kit.layout.block_bytes());
    let outcome = kit.append_opening(zone, frozen.encoded(), payload, held).await;
    kit.flusher.appended(zone.zone());
    if !batch.entries.is_empty() {
        kit.marks.appended();
    }
    if outcome.is_ok() {
        owner.note_sums(zone.zone(), zone.position() - blocks, frozen.sums());
        count(&kit.counters.overhead_blocks, 1);
        kit.note_appended(u64::from(blocks) + 1);
    }
    outcome
}

/// Notes that a record is written, and commits what can commit now.
pub(crate) fn note_written<O: Owner>(owner: &O, number: Number, batch: Batch<O::Entry>) {
    let (kit, appender) = (owner.kit(), owner.appender());
    if let Some(error) = kit.failure() {
        // An earlier record may be missing for good.
        batch.entries.iter().for_each(|entry| owner.refuse(entry, &error));
        return;
    }
    match number.joint {
        None => appender.written(number.stream, number.sequence, batch, number.is_linked),
        Some(joint) => {
            owner.share(&joint, &batch.entries, batch.zone, batch.position);
            appender.joint_written(number.stream, joint, batch);
        }
    }
    commit(owner, number.stream);
}

/// Commits the part of a joint record, written by another shard, that belongs to this shard's user stream.
/// The data of the first of these entries is at block `position` of `zone`. `entries` is empty if the other
/// shard had to refuse them.
pub fn joint_written<O: Owner>(
    owner: &O,
    joint: Arc<Joint>,
    entries: Vec<O::Entry>,
    zone: u32,
    position: u32,
) {
    let stream = owner.kit().settings.user_stream;
    if let Some(error) = owner.kit().failure() {
        entries.iter().for_each(|entry| owner.refuse(entry, &error));
        return;
    }
    owner.appender().joint_written(stream, joint, Batch { entries, zone, position, is_unordered: true });
    commit(owner, stream);
}

/// Commits all records of a stream of this shard that can commit. Another shard calls it through the owner
/// after a joint record has committed there, so that the record also takes effect here.
pub fn commit<O: Owner>(owner: &O, stream: StreamId) {
    let (kit, appender) = (owner.kit(), owner.appender());
    let mut has_decided = false;
    while let Some(batch) = appender.commit_next(stream, &mut has_decided) {
        owner.commit(&batch.entries, batch.zone, batch.position);
        let blocks = batch.entries.iter().map(Entry::blocks).sum::<u32>();
        kit.pool.note_committed(batch.zone, batch.position + blocks, !batch.is_unordered);
        if stream == kit.settings.user_stream {
            count(&kit.counters.user_records, u64::from(!batch.entries.is_empty()));
            kit.wake_paced_cleaner();
        }
        appender.recycle(batch.entries);
    }
    if has_decided {
        kit.member().notify_others(shared::JOINT);
    }
    kit.flusher.committed(stream);
}
