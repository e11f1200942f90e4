//! Appending records: lanes of users' entries, each with its own open zones and one append in flight at a
//! time.
//!
//! Entries are queued while the appends of all lanes are in flight; a lane whose append has completed takes
//! its share of the queue as the next record. With two lanes the disk writes one record while clients learn
//! of the other and send their next writes. One lane would leave the disk idle meanwhile; three make records
//! small.

use crate::entry::{Batch, Entry, Frozen};
use crate::idle;
use crate::kit::count;
use crate::opening_zones::Attempts;
use crate::owner::Owner;
use crate::pool::CHECKPOINT_CLASS;
use crate::pool::budget::Permit;
use crate::prepare;
use crate::record::{Header, Kind, Link, Links, Relation};
use crate::seals;
use crate::shards;
use crate::shared;
use crate::space;
use crate::stream::{Joint, StreamId};
use crate::zone_writer::ZoneWriter;
use block::{Error, Result, ZoneIndex};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Attempts to append one record, each in another zone, before the log fails.
const MAX_ATTEMPTS: usize = 4;

/// Time that acknowledged entries without data wait for a zone before the log fails, and time between two
/// attempts to find one.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

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
        owner.kit().tasks.spawn(lane(owner.clone())).detach();
    }
    owner.kit().tasks.spawn(idle::run(owner.clone())).detach();
}

async fn lane<O: Owner>(owner: Rc<O>) {
    let (kit, appender) = (owner.kit(), owner.appender());
    let stream = kit.settings.user_stream;
    let classes = usize::from(kit.policy.borrow().classes());
    let mut zones: Vec<Option<ZoneWriter>> = (0..classes).map(|_| None).collect();
    let mut frozen = Frozen::default();
    // Since when no zone was free.
    let mut refusing: Option<runtime::Instant> = None;
    loop {
        let kept = seals::answer(kit, &mut zones, |class| !appender.is_empty(class)).await;
        let Some(class) = appender.ready_class() else {
            if kit.is_closing() && appender.queued() == 0 || kit.failure().is_some() {
                break;
            }
            if kit.marks.is_wanted() && appender.queued() == 0 && has_open(&zones) {
                idle::append(&owner, &mut zones, &mut frozen).await;
                continue;
            }
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
            continue;
        };
        let zone = match zones[usize::from(class)].take() {
            Some(zone) => zone,
            None => match open_zone(&owner, class, &mut zones).await {
                Ok(Some(zone)) => {
                    refusing = None;
                    zone
                }
                Ok(None) => continue,
                Err(error) => {
                    let is_short = kit.space.is_short();
                    let acknowledged = is_short && appender.any(class, has_acknowledged_data);
                    let opened = match acknowledged {
                        true => Some(kit.open_zone_beside(class, 1, &mut zones).await),
                        false => None,
                    };
                    zones[usize::from(class)] = match opened {
                        Some(Some(zone)) => Some(zone),
                        None if is_short => {
                            space::write_without_data(&owner, class, &mut frozen, &error, &mut zones).await;
                            None
                        }
                        _ => {
                            let since = *refusing.get_or_insert_with(runtime::now);
                            let keeps = since.elapsed() < PATIENCE;
                            refuse_queued(&*owner, class, &error, &mut zones, keeps).await
                        }
                    };
                    if refusing.is_some() && zones[usize::from(class)].is_none() && !appender.is_empty(class)
                    {
                        // Kept entries go to the zone of another lane that has one, or to one that is freed.
                        kit.events.work.notify_one();
                        let _freed = runtime::timeout(LOOK, kit.events.freed.notified()).await;
                    }
                    continue;
                }
            },
        };
        let batch = appender.take(class, &zone, |entry, blocks| owner.cut(entry, blocks));
        if batch.entries.is_empty() {
            appender.recycle(batch.entries);
            // Another lane may have taken everything; otherwise the zone has no space for the first entry.
            if !zone.is_empty() && !appender.is_empty(class) {
                kit.seal(zone).await;
                continue;
            }
            zones[usize::from(class)] = Some(zone);
            refuse_first(&*owner, class);
            continue;
        }
        let entries = batch.entries.len();
        appender.submitted(entries);
        let mut written = write_record(&owner, stream, batch, zone, &mut frozen, &mut zones).await.zone;
        if let Some(zone) = &mut written {
            prepare::look_ahead(&owner, zone, 1 + frozen.blocks());
        }
        zones[usize::from(class)] = written;
        completed(&*owner, entries);
        runtime::yield_now().await;
    }
    // Other lanes and the cleaner may have waited for the empty queue.
    kit.events.work.notify_all();
    kit.events.cleaner.notify_all();
    kit.events.freed.notify_all();
    kit.seal_all(&mut zones).await;
    space::seal_filler(kit).await;
    prepare::put_back(kit).await;
}

fn has_open(zones: &[Option<ZoneWriter>]) -> bool {
    zones.iter().flatten().any(|zone| !zone.is_empty())
}

fn has_acknowledged_data<E: Entry>(entry: &E) -> bool {
    entry.is_acknowledged() && entry.blocks() > 0
}

/// Notes that an append of this many entries has ended.
pub(crate) fn completed<O: Owner>(owner: &O, entries: usize) {
    owner.appender().completed(entries);
    owner.kit().events.work.notify_one();
}

/// Opens a zone for users, waiting until one is free; `None` if the queue of the class is empty. `held` are
/// the lane's other zones.
///
/// # Errors
/// [`Error::NoSpace`] if the cleaner can't free any; the failure of the log.
async fn open_zone<O: Owner>(
    owner: &Rc<O>,
    class: u8,
    held: &mut [Option<ZoneWriter>],
) -> Result<Option<ZoneWriter>> {
    let kit = owner.kit();
    let mut has_waited = false;
    loop {
        if let Some(error) = kit.failure() {
            return Err(error);
        }
        if owner.appender().is_empty(class) {
            return Ok(None);
        }
        // Without queued entries the lane leaves the permit to others: another lane has taken them.
        let drained = owner.appender().drained(class);
        let Some(permit) = kit.permit_beside(class, held, drained).await else { continue };
        // A zone that is open on the drive takes no turn.
        let takes_turn = kit.budget().drive().is_scarce(runtime::now()) && kit.pool.prepared() == 0;
        let opened = match takes_turn {
            false => kit.open_with(permit, class, owner.kept_zones()),
            true => open_in_turn(owner, permit, class, held).await?,
        };
        if let Some(zone) = opened {
            kit.events.cleaner.notify_all();
            return Ok(Some(zone));
        }
        if owner.appender().is_empty(class) {
            return Ok(None);
        }
        if let Some(error) = kit.stuck() {
            if kit.look_for_space() {
                continue;
            }
            return Err(error);
        }
        let freed = kit.events.freed.notified();
        count(&kit.counters.zone_waits, u64::from(!std::mem::replace(&mut has_waited, true)));
        kit.events.cleaner.notify_all();
        seals::park(kit, held, freed).await;
    }
}

/// Opens a zone for users on a scarce drive, after the tasks that the drive refused earlier, and before
/// entries are taken for it: they stay in the queue meanwhile. `None` if no zone is free, or the queue of the
/// class is empty.
///
/// # Errors
/// The failure of the log; the log fails if the drive opened no zone for 10 s.
async fn open_in_turn<O: Owner>(
    owner: &Rc<O>,
    permit: Permit,
    class: u8,
    held: &mut [Option<ZoneWriter>],
) -> Result<Option<ZoneWriter>> {
    let (kit, appender) = (owner.kit(), owner.appender());
    let mut attempts = Attempts::default();
    kit.wait_for_turn(&mut attempts, held, appender.drained(class)).await;
    if appender.is_empty(class) {
        return Ok(None);
    }
    // Taken only now, so that lanes that wait take no free zones from others.
    let Some(mut zone) = kit.open_with(permit, class, owner.kept_zones()) else { return Ok(None) };
    if zone.is_open() {
        return Ok(Some(zone));
    }
    loop {
        let opened = kit
            .attempt(&mut attempts, &mut async || {
                zone.begin(kit.budget().requests().for_drive);
                kit.zones.open(ZoneIndex(zone.zone())).await
            })
            .await;
        match opened {
            Ok(Some(())) => {
                kit.pool.note_opened(zone.zone());
                zone.set_open();
                return Ok(Some(zone));
            }
            Ok(None) => {}
            Err(error @ Error::Busy(_)) => {
                kit.pool.put_back(zone.zone());
                owner.fail(&error.in_context("no zone can be opened for records"));
                return Err(kit.failure().unwrap_or(error));
            }
            Err(error) => {
                if let Some(failure) = kit.failure() {
                    kit.pool.put_back(zone.zone());
                    return Err(failure);
                }
                tracing::warn!("zone {} could not be opened: {error}", zone.zone());
                kit.abandon(zone.zone(), 0).await;
                kit.note_no_space(&error);
                // Its first append opens the next one, with as many attempts as a record has.
                let permit = zone.take_permit();
                return Ok(permit.and_then(|permit| kit.open_with(permit, class, owner.kept_zones())));
            }
        }
        kit.wait_after_refusal(&mut attempts, held, appender.drained(class)).await;
        if appender.is_empty(class) {
            kit.pool.put_back(zone.zone());
            return Ok(None);
        }
    }
}

/// Refuses the queued entries of a class because no zone is free. Entries that free space stay queued and get
/// one of the cleaner's zones: otherwise a full log could never be emptied. With `keeps`, acknowledged
/// entries without data also stay: another lane may have a zone for them.
async fn refuse_queued<O: Owner>(
    owner: &O,
    class: u8,
    error: &Error,
    held: &mut [Option<ZoneWriter>],
    keeps: bool,
) -> Option<ZoneWriter> {
    let appender = owner.appender();
    let zone = match appender.any(class, O::Entry::frees_space) {
        true => owner.kit().open_zone_beside(class, owner.freeing_zones(), held).await,
        false => None,
    };
    let is_kept = |entry: &O::Entry| match zone.is_some() {
        true => entry.frees_space(),
        false => keeps && entry.is_acknowledged() && entry.blocks() == 0,
    };
    let entries = appender.take_refused(Some(class), is_kept);
    entries.iter().for_each(|entry| owner.refuse(entry, error));
    // Acknowledged entries can't be refused. Reads find them while the log is open, and no further entry is
    // accepted.
    if entries.iter().any(Entry::is_acknowledged) {
        owner.fail(&error.in_context("acknowledged writes can't be written"));
    }
    zone
}

/// Refuses the first queued entry of a class, if any, because a zone without records has no space for it. The
/// entry fits a whole zone, so only the backed part of this zone may be written.
fn refuse_first<O: Owner>(owner: &O, class: u8) {
    let Some(entry) = owner.appender().take_first(class) else { return };
    let error = owner.kit().space.error().unwrap_or_else(|| {
        Error::no_space("the device below the log has no space for a record of this size; give it more")
    });
    owner.refuse(&entry, &error);
    if entry.is_acknowledged() {
        owner.fail(&error.in_context("acknowledged writes can't be written"));
    }
}

/// Outcome of writing a record.
#[derive(Debug, Default)]
pub struct Written {
    /// The zone, if it has space left.
    pub zone: Option<ZoneWriter>,
    /// Reason why the data wasn't written, if the device below had no space for it.
    pub refused: Option<Error>,
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
pub(crate) fn freeze<O: Owner>(
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
    let number = freeze(&**owner, stream, &batch, class, frozen);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let position = zone.position() + 1;
        let error = match append(&**owner, &number, &batch, &mut zone, frozen, held).await {
            Ok(()) => {
                (batch.zone, batch.position) = (zone.zone(), position);
                kit.note_space();
                written(&**owner, number, batch);
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
pub(crate) async fn append<O: Owner>(
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
    let outcome = kit.append(zone, frozen.encoded(), payload, held).await;
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
pub(crate) fn written<O: Owner>(owner: &O, number: Number, batch: Batch<O::Entry>) {
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
