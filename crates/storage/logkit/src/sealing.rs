//! Sealing zones, and finishing those to which an append failed.

use crate::kit::{Kit, count};
use crate::prepare;
use crate::zone_writer::ZoneWriter;
use block::{Error, ZoneIndex, ZoneState};
use std::rc::Rc;

impl Kit {
    /// Seals these zones.
    pub(crate) async fn seal_all(&self, held: &mut [Option<ZoneWriter>]) {
        for zone in held.iter_mut().filter_map(Option::take) {
            self.seal_now(zone).await;
        }
    }

    /// Seals a zone in a background task: appends the summary and finishes the zone. Returns when the task
    /// has begun. Waits while as many zones are being sealed as there are lanes, because the drive may limit
    /// open zones.
    pub async fn seal(self: &Rc<Self>, mut zone: ZoneWriter) {
        zone.begin_sealing();
        let permit = self.sealing.acquire(1).await;
        let kit = self.clone();
        let sealing = async move {
            kit.seal_now(zone).await;
            drop(permit);
        };
        self.tasks.spawn(sealing).detach();
    }

    /// Seals a zone: appends the summary and finishes the zone. A zone that can't be sealed keeps its records
    /// and takes no more. A zone without records is free again, and reset if it is open on a drive that
    /// refuses to open another.
    pub async fn seal_now(&self, mut zone: ZoneWriter) {
        zone.begin_sealing();
        let _permit = zone.take_permit();
        let (number, end) = (zone.zone(), zone.position());
        if zone.is_empty() {
            self.pool.put_back(number);
            if zone.is_open() && self.budget().has_refused() {
                prepare::put_back(self).await;
            }
            return;
        }
        match zone.seal(&*self.zones, &self.layout, &self.identity).await {
            Ok((blocks, summary)) => {
                count(&self.counters.overhead_blocks, u64::from(blocks - end));
                self.pool.note_end(number, blocks, false);
                self.keep_summary(summary);
                self.pool.set_full(number);
                self.look_again();
            }
            Err(error) => {
                tracing::warn!("zone {number} can't be sealed: {error}; its records are kept");
                self.abandon(number, end).await;
                self.note_no_space(&error);
            }
        }
    }

    /// Ends the use of a zone to which an append failed with this error. A zone that the drive didn't open is
    /// free again if it is still empty.
    pub(crate) async fn abandon_after(&self, error: &Error, zone: &ZoneWriter) {
        match zone.was_refused(error) && self.is_unopened(zone.zone()).await {
            true => self.pool.put_back(zone.zone()),
            false => self.abandon(zone.zone(), zone.position()).await,
        }
        self.note_no_space(error);
    }

    /// Whether the drive reports a zone as empty: `Busy` promises that for an explicit open only.
    async fn is_unopened(&self, zone: u32) -> bool {
        let report = self.zones.report(ZoneIndex(zone), 1).await;
        report.is_ok_and(|reports| reports.iter().all(|report| report.state == ZoneState::Empty))
    }

    /// Finishes a zone to which an append failed, without a summary, so that its records can be read and
    /// cleaned.
    pub async fn abandon(&self, zone: u32, end: u32) {
        self.pool.note_end(zone, end, true);
        match self.zones.finish(ZoneIndex(zone)).await {
            Ok(()) => {
                self.budget().drive().note_finished();
                self.pool.set_full(zone);
                self.look_again();
            }
            Err(error) => {
                tracing::warn!(
                    "zone {zone} can't be finished: {error}; it isn't used until the log is opened again"
                );
                let report = self.zones.report(ZoneIndex(zone), 1).await;
                // The zone is assumed to be active on the drive unless the report shows otherwise.
                if report.is_ok_and(|reports| reports.iter().all(|report| report.state.is_active())) {
                    self.budget().lose();
                }
                self.set_damaged(zone);
            }
        }
    }
}
