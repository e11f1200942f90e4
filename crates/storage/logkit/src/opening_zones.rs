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

/// Number of attempts between two requests to other shards to seal their zones, while no zone is finished.
const ATTEMPTS_TO_ASK: u32 = 100;

/// Attempts of a task to open a zone on the drive.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Place among the tasks that the drive refused.
    turn: Option<DriveTurn>,
    /// Number of zones that were finished before the last attempt, and before the last request to seal some.
    finished: u64,
    asked: Option<u64>,
    /// Number of attempts since that request.
    since_asked: u32,
}

impl Kit {
    /// Purpose of a class's zones in the budget of open zones.
    fn purpose(&self, class: u8) -> Purpose {
        match class {
            CHECKPOINT_CLASS => Purpose::Checkpoint,
            class if self.is_users(class) => Purpose::Log,
            _ => Purpose::Tables,
        }
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
    pub(crate) async fn append_opening(
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
            zone.note_opening(self.budget().requests().for_drive);
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
        let mut attempts = Attempts::default();
        if self.budget().has_refused() {
            self.wait_for_turn(&mut attempts, held, std::future::pending()).await;
        }
        loop {
            if let Some(opened) = self.attempt(&mut attempts, &mut open).await? {
                return Ok(opened);
            }
            self.wait_after_refusal(&mut attempts, held, std::future::pending()).await;
        }
    }

    /// Waits until all tasks that the drive refused earlier have opened their zones or given up, or `is_over`
    /// ends; for a task that holds zones. The task then has its place among them.
    pub(crate) async fn wait_for_turn(
        &self,
        attempts: &mut Attempts,
        held: &mut [Option<ZoneWriter>],
        is_over: impl Future<Output = ()>,
    ) {
        let turn = attempts.turn.get_or_insert_with(|| self.budget().drive().join());
        if !turn.is_first() {
            seals::park(self, held, seals::first_of(is_over, turn.first())).await;
        }
    }

    /// Tries to open a zone once; `None` if the drive refuses.
    ///
    /// # Errors
    /// As those of [`until_opened`](Self::until_opened).
    pub(crate) async fn attempt<T>(
        &self,
        attempts: &mut Attempts,
        open: &mut impl AsyncFnMut() -> Result<T>,
    ) -> Result<Option<T>> {
        let drive = self.budget().drive();
        let given_up = || attempts.turn.as_ref().and_then(DriveTurn::given_up);
        if let Some(error) = self.failure().or_else(given_up) {
            return Err(error);
        }
        attempts.finished = drive.finished();
        match open().await {
            Err(error @ Error::Busy(_)) => {
                let turn = attempts.turn.get_or_insert_with(|| drive.join());
                turn.note_refused(&error, runtime::now());
                tracing::trace!("a zone can't be opened yet: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(opened) => {
                drive.note_opened();
                Ok(Some(opened))
            }
        }
    }

    /// Waits until the drive may open a zone for a task that it refused, or `is_over` ends. The task's zones
    /// are sealed, and the holders of others are asked: at once, after each zone that was finished in vain,
    /// and after a second.
    pub(crate) async fn wait_after_refusal(
        &self,
        attempts: &mut Attempts,
        held: &mut [Option<ZoneWriter>],
        is_over: impl Future<Output = ()>,
    ) {
        let Some(turn) = &attempts.turn else { return };
        if turn.given_up().is_some() {
            return;
        }
        if !turn.is_first() {
            return self.wait_for_turn(attempts, held, is_over).await;
        }
        if attempts.asked != Some(attempts.finished) || attempts.since_asked >= ATTEMPTS_TO_ASK {
            (attempts.asked, attempts.since_asked) = (Some(attempts.finished), 0);
            self.seal_all(held).await;
            seal_filler(self).await;
            checkpoint::seal(self).await;
            prepare::put_back(self).await;
            self.budget().ask_for_drive();
        }
        attempts.since_asked += 1;
        let _finished =
            runtime::timeout(BETWEEN_BUSY, seals::first_of(is_over, turn.finish(attempts.finished))).await;
    }
}
