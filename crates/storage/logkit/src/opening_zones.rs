//! Opening zones for appends, within the budget of open zones and the limit of the drive.

use crate::checkpoint;
use crate::kit::Kit;
use crate::pool::CHECKPOINT_CLASS;
use crate::pool::budget::drive::{BETWEEN_BUSY, DriveTurn};
use crate::pool::budget::{Permit, Purpose};
use crate::prepare;
use crate::seals;
use crate::space::seal_filler;
use crate::zone_writer::ZoneWriter;
use block::{Error, Payload, Result};
use std::rc::Rc;

/// Number of attempts between two requests to other shards to seal their zones.
const ATTEMPTS_TO_ASK: u32 = 100;

impl Kit {
    /// Purpose of a class's zones in the budget of open zones.
    fn purpose(&self, class: u8) -> Purpose {
        match class {
            CHECKPOINT_CLASS => Purpose::Checkpoint,
            class if self.is_users(class) => Purpose::Log,
            _ => Purpose::Tables,
        }
    }

    /// Opens a zone for a class, if more than `keep` are free and the budget of open zones has a permit.
    pub fn try_open_zone(&self, class: u8, keep: u32) -> Option<ZoneWriter> {
        let permit = self.budget().try_take(self.purpose(class))?;
        self.open_with(permit, class, keep)
    }

    /// Opens a zone for a class, after waiting for a permit of the budget of open zones, if more than `keep`
    /// zones are free then.
    pub async fn open_zone(&self, class: u8, keep: u32) -> Option<ZoneWriter> {
        let permit = self.budget().take(self.purpose(class)).await;
        self.open_with(permit, class, keep)
    }

    /// Opens a zone as [`open_zone`](Self::open_zone) does, for a task that holds other zones. If it has to
    /// wait for a permit, it seals the held zones first, because other tasks, or this one, may be waiting for
    /// their permits.
    pub(crate) async fn open_zone_beside(
        &self,
        class: u8,
        keep: u32,
        held: &mut [Option<ZoneWriter>],
    ) -> Option<ZoneWriter> {
        let permit = self.permit_beside(class, held, std::future::pending()).await?;
        self.open_with(permit, class, keep)
    }

    /// Takes a permit for a zone of a class, for a task that holds other zones, and seals these before it
    /// waits. Returns `None` if `is_over` ends before there is a permit.
    pub(crate) async fn permit_beside(
        &self,
        class: u8,
        held: &mut [Option<ZoneWriter>],
        is_over: impl Future<Output = ()>,
    ) -> Option<Permit> {
        let purpose = self.purpose(class);
        if let Some(permit) = self.budget().try_take(purpose) {
            return Some(permit);
        }
        self.seal_all(held).await;
        seal_filler(self).await;
        let taken = async { Some(self.budget().take(purpose).await) };
        let is_over = async {
            is_over.await;
            None
        };
        // A task that needs the permit no more leaves it to the others.
        seals::first_of(is_over, taken).await
    }

    /// Opens a zone for a class with this permit, if more than `keep` zones are free.
    pub(crate) fn open_with(&self, permit: Permit, class: u8, keep: u32) -> Option<ZoneWriter> {
        let taken = self.pool.take(class, keep, self.is_users(class), self.clock())?;
        let before = permit.opened();
        Some(ZoneWriter::new(taken, class, &self.layout, self.take_summary()).with_permit(permit, before))
    }

    /// Appends a record, whose header is given in addition to the payload, to a zone, for a task that holds
    /// other zones. If the drive refuses because it has its maximum of open zones, more are open than the
    /// budget counts: zones are sealed and the append is retried ([`until_opened`](Self::until_opened)). An
    /// append to a zone that is open on the drive waits for no other task: one may be waiting for this zone.
    ///
    /// # Errors
    /// Errors of the append; [`Error::Busy`] if the drive opened no zone for 10 s; the failure of the log.
    /// The zone must not be appended to afterwards.
    pub(crate) async fn append(
        self: &Rc<Self>,
        zone: &mut ZoneWriter,
        header: &[u8],
        payload: Payload,
        held: &mut [Option<ZoneWriter>],
    ) -> Result<()> {
        // Only a call closes a zone of `Zones`, so one that was opened stays open.
        if zone.is_open() {
            return zone.append(&*self.zones, &self.layout, header, payload).await;
        }
        self.until_opened(held, async || {
            zone.begin(self.budget().requests().for_drive);
            zone.append(&*self.zones, &self.layout, header, payload.clone()).await
        })
        .await
    }

    /// Tries to open a zone until the drive permits it, for a task that holds other zones. Where the drive
    /// has as many open zones as it permits, those of the task are sealed at once, and the holders of all
    /// others are [asked](seals) to seal theirs. Tasks that the drive refused try again one after the other,
    /// at each finish of a zone. A task that comes later waits for them, since it may have sealed its zone
    /// for them.
    ///
    /// # Errors
    /// Errors of `open`; [`Error::Busy`] if the drive opened no zone for any waiting task for 10 s, although
    /// every holder was asked; the failure of the log.
    pub(crate) async fn until_opened<T>(
        self: &Rc<Self>,
        held: &mut [Option<ZoneWriter>],
        mut open: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let drive = self.budget().drive();
        let mut turn = None;
        if self.budget().has_refused() {
            let joined = turn.insert(drive.join());
            self.wait_for_turn(joined, held).await;
        }
        let mut attempts = 0;
        loop {
            if let Some(error) = self.failure().or_else(|| turn.as_ref().and_then(DriveTurn::given_up)) {
                return Err(error);
            }
            let finished = drive.finished();
            let error = match open().await {
                Err(error @ Error::Busy(_)) => error,
                outcome => {
                    if outcome.is_ok() {
                        drive.note_opened();
                    }
                    return outcome;
                }
            };
            let turn = turn.get_or_insert_with(|| drive.join());
            turn.note_refused(&error, runtime::now());
            if turn.given_up().is_some() || self.wait_for_turn(turn, held).await {
                continue;
            }
            if attempts % ATTEMPTS_TO_ASK == 0 {
                tracing::debug!("a zone can't be opened yet: {error}");
                self.seal_all(held).await;
                seal_filler(self).await;
                checkpoint::seal(self).await;
                prepare::put_back(self).await;
                self.budget().ask_for_drive();
            }
            attempts += 1;
            let _finished = runtime::timeout(BETWEEN_BUSY, turn.finish(finished)).await;
        }
    }

    /// Waits until all tasks that the drive refused earlier have opened their zones or given up, for a task
    /// that holds zones. Returns whether there were any.
    async fn wait_for_turn(&self, turn: &DriveTurn, held: &mut [Option<ZoneWriter>]) -> bool {
        let waits = !turn.is_first();
        if waits {
            seals::park(self, held, turn.first()).await;
        }
        waits
    }
}
