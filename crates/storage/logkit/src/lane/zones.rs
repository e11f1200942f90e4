//! Zones of a lane: finding one for queued entries, and refusing entries that get none.

use super::has_acknowledged_data;
use crate::entry::{Entry, Frozen};
use crate::kit::{Kit, count};
use crate::opening_zones::Attempts;
use crate::owner::Owner;
use crate::pool::budget::Permit;
use crate::seals;
use crate::space;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result, ZoneIndex};
use std::rc::Rc;
use std::time::Duration;

/// Time that acknowledged entries wait for a zone before the log fails, and time between two attempts to find
/// one.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// The open zones of a lane, one of each class.
#[derive(Debug)]
pub(super) struct LaneZones {
    pub(super) open: Vec<Option<ZoneWriter>>,
    /// Since when no zone was free for each class: zones of one class don't help the entries of another.
    refusing: Vec<Option<runtime::Instant>>,
}

impl LaneZones {
    pub(super) fn new(classes: u8) -> Self {
        LaneZones { open: (0..classes).map(|_| None).collect(), refusing: vec![None; usize::from(classes)] }
    }

    /// Whether any open zone has records.
    pub(super) fn any_has_records(&self) -> bool {
        self.open.iter().flatten().any(|zone| !zone.is_empty())
    }

    /// Takes the open zone of a class, or opens one. `None` if another lane has taken the entries, or they
    /// were refused or written without their data because there is no zone.
    pub(super) async fn take<O: Owner>(
        &mut self,
        owner: &Rc<O>,
        class: u8,
        frozen: &mut Frozen,
    ) -> Option<ZoneWriter> {
        if let Some(zone) = self.open[usize::from(class)].take() {
            return Some(zone);
        }
        match open_zone(owner, class, &mut self.open).await {
            Ok(mut zone) => {
                self.refusing[usize::from(class)] = None;
                zone.iter_mut().for_each(|zone| owner.kit().count_of_lanes(zone));
                zone
            }
            Err(error) => {
                self.do_without(owner, class, &error, frozen).await;
                None
            }
        }
    }

    /// Keeps a zone for the next record of its class.
    pub(super) fn keep(&mut self, kit: &Kit, mut zone: ZoneWriter) {
        kit.count_of_lanes(&mut zone);
        let class = usize::from(zone.class());
        self.open[class] = Some(zone);
    }

    /// Handles the queued entries of a class for which no zone is free: they go to the zone of another lane,
    /// or get one that is left to others, or are written without their data, or are refused.
    async fn do_without<O: Owner>(&mut self, owner: &Rc<O>, class: u8, error: &Error, frozen: &mut Frozen) {
        let (kit, appender) = (owner.kit(), owner.appender());
        let is_short = kit.space.is_short();
        let opened = match is_short && appender.any(class, has_acknowledged_data) {
            true => Some(kit.open_zone_beside(class, 1, &mut self.open).await),
            false => None,
        };
        let found = match opened {
            Some(Some(zone)) => Some(zone),
            None if is_short => {
                space::write_without_data(owner, class, frozen, error, &mut self.open).await;
                None
            }
            _ => {
                let since = *self.refusing[usize::from(class)].get_or_insert_with(runtime::now);
                let keeps = since.elapsed() < PATIENCE;
                refuse_queued(&**owner, class, error, &mut self.open, keeps).await
            }
        };
        let since = self.refusing[usize::from(class)];
        let is_refusing = since.is_some() && found.is_none() && !appender.is_empty(class);
        found.into_iter().for_each(|zone| self.keep(kit, zone));
        if is_refusing {
            // Kept entries go to the zone of another lane that has one, or to one that is freed.
            kit.events.work.notify_one();
            let _freed = runtime::timeout(LOOK, kit.events.freed.notified()).await;
        }
        if appender.is_empty(class) {
            self.refusing[usize::from(class)] = None;
        }
    }
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
            false => kit.open_with(permit, class, owner.kept_by_records()),
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
    let Some(mut zone) = kit.open_with(permit, class, owner.kept_by_records()) else { return Ok(None) };
    if zone.is_open() {
        return Ok(Some(zone));
    }
    loop {
        let opened = kit
            .attempt(&mut attempts, &mut async || {
                zone.note_opening(kit.budget().requests().for_drive);
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
                return Ok(permit.and_then(|permit| kit.open_with(permit, class, owner.kept_by_records())));
            }
        }
        kit.wait_after_refusal(&mut attempts, held, appender.drained(class)).await;
        if appender.is_empty(class) {
            kit.pool.put_back(zone.zone());
            return Ok(None);
        }
    }
}

/// Refuses the queued entries of a class because no zone is free. If another lane of this shard has a zone,
/// entries that free space, and acknowledged ones, stay queued for it: a further zone would be missing
/// elsewhere. That ends, because the other lane seals its zone if the first of them doesn't fit. If none has
/// one, entries that free space get one of the cleaner's zones; otherwise a full log could never be emptied.
/// With `keeps`, acknowledged entries stay until a zone is free; without, they get one of the cleaner's too,
/// before the log fails.
async fn refuse_queued<O: Owner>(
    owner: &O,
    class: u8,
    error: &Error,
    held: &mut [Option<ZoneWriter>],
    keeps: bool,
) -> Option<ZoneWriter> {
    let (kit, appender) = (owner.kit(), owner.appender());
    let others_have = kit.lanes_have(class);
    let needs_zone = |entry: &O::Entry| entry.frees_space() || !keeps && entry.is_acknowledged();
    let zone = match !others_have && appender.any(class, needs_zone) {
        true => kit.open_zone_beside(class, owner.freeing_zones(), held).await,
        false => None,
    };
    let has_zone = others_have || zone.is_some();
    let is_kept =
        |entry: &O::Entry| has_zone && entry.frees_space() || (has_zone || keeps) && entry.is_acknowledged();
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
pub(super) fn refuse_first<O: Owner>(owner: &O, class: u8) {
    let Some(entry) = owner.appender().take_first(class) else { return };
    let error = owner.kit().space.error().unwrap_or_else(|| {
        Error::no_space("the device below the log has no space for a record of this size; give it more")
    });
    owner.refuse(&entry, &error);
    if entry.is_acknowledged() {
        owner.fail(&error.in_context("acknowledged writes can't be written"));
    }
}
