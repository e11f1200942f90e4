//! Requests of a batch at the origin: its appends, and changes of zones.

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry};
use crate::pending::Pending;
use block::{Data, EraseGuarantee, Error, Payload, Result, ZoneAddress, ZoneChange, ZoneIndex, ZoneReport};
use std::collections::BTreeMap;

/// Limit of an append to the origin that joins several appends of users, and of their part of the log, in
/// bytes.
const MAX_JOINED: u64 = 1 << 20;
/// Number of zones that are appended to at a time.
const MAX_ZONES_AT_ONCE: usize = 4;
/// Number of reads of the log at a time, each of at most [`MAX_JOINED`]: one after the other they take as
/// long as requests to a bucket nearby.
const MAX_READS: usize = 4;
/// Bytes of the log that are read for a byte of appends, where several are read at once.
const MOST_READ: u64 = 2;
/// Number of zones that are reported with one call.
const ZONES_OF_REPORT: u32 = 4096;

/// Consecutive appends of a zone, joined to chunks of at most `most` bytes of the log each, what lies between
/// included, or of one append.
fn joined(appends: &[Pending], most: u64) -> Vec<&[Pending]> {
    let (mut chunks, mut rest) = (Vec::new(), appends);
    while let Some(first) = rest.first() {
        let fits = rest.iter().take_while(|append| append.data + append.entry.length() - first.data <= most);
        let (chunk, others) = rest.split_at(fits.count().max(1));
        chunks.push(chunk);
        rest = others;
    }
    chunks
}

/// Appends by zone, in the order of the log.
pub type Appends = BTreeMap<ZoneIndex, Vec<Pending>>;

impl Core {
    /// Reports of all zones of the origin.
    ///
    /// # Errors
    /// Errors of the origin.
    pub async fn origin_reports(origin: &dyn block::Zones) -> Result<Vec<ZoneReport>> {
        let zones = origin.geometry().zones;
        let mut reports = Vec::with_capacity(zones as usize);
        while (reports.len() as u32) < zones {
            let some = origin.report(ZoneIndex(reports.len() as u32), ZONES_OF_REPORT).await?;
            if some.is_empty() {
                break;
            }
            reports.extend(some);
        }
        Ok(reports)
    }

    /// Sends appends, which aren't durable before a flush.
    ///
    /// # Errors
    /// Errors of the origin and of the fast device.
    pub async fn send_appends(&self, appends: Appends) -> Result<()> {
        // Over a bucket one zone after the other: a zone's open piece needs memory until its upload begins.
        let at_once = if self.changes_in_order { 1 } else { appends.len().clamp(1, MAX_ZONES_AT_ONCE) };
        let uploads = appends.into_values().map(|appends| self.upload_zone(appends, MAX_READS / at_once));
        runtime::join_limited(at_once, uploads).await.into_iter().collect()
    }

    /// Sends the appends of one zone, which are consecutive, with this number of reads at a time.
    async fn upload_zone(&self, appends: Vec<Pending>, reads: usize) -> Result<()> {
        let geometry = self.origin.geometry();
        let unit = u64::from(geometry.append_granularity).max(1);
        let most = (MAX_JOINED.min(geometry.max_append) / unit * unit).max(unit);
        for chunks in joined(&appends, most).chunks(reads.max(1)) {
            let payloads = runtime::join_all(chunks.iter().map(|chunk| self.read_appends(chunk)));
            for (chunk, payload) in chunks.iter().zip(payloads.await) {
                let Entry { zone, offset, .. } = chunk[0].entry;
                self.send(ZoneAddress::new(zone.0, offset), payload?, most as usize).await?;
                // Copying takes as long as some writes of users.
                runtime::yield_now().await;
            }
        }
        // No other append of the batch follows: the zone's upload begins before those of other zones.
        match appends.first() {
            Some(first) if self.changes_in_order => self.origin.close(first.entry.zone).await,
            _ => Ok(()),
        }
    }

    /// Appends to the origin, in pieces of at most `most` bytes: one append of a user may be longer.
    async fn send(&self, at: ZoneAddress, payload: Payload, most: usize) -> Result<()> {
        let mut sent = 0;
        while sent < payload.len() {
            let end = payload.len().min(sent + most);
            let place = ZoneAddress::new(at.zone.0, at.offset.0 + sent as u64);
            self.origin.append_at(place, payload.slice(sent..end)).await?;
            count(&self.counters.origin_appends, 1);
            count(&self.counters.uploaded_bytes, (end - sent) as u64);
            sent = end;
        }
        Ok(())
    }

    /// Reads the data of appends from the log, and verifies it: with one read, unless much else lies between
    /// them.
    async fn read_appends(&self, appends: &[Pending]) -> Result<Payload> {
        let mut payload = Payload::new();
        let wanted: u64 = appends.iter().map(|append| append.entry.length()).sum();
        let (Some(first), Some(last)) = (appends.first(), appends.last()) else { return Ok(payload) };
        let (start, end) = (first.data, last.data + last.entry.length());
        let is_one_read = appends.len() > 1
            && end - start <= MOST_READ * wanted
            && end - start <= self.layout.bytes_to_lap_end(start);
        let all = match is_one_read {
            // Of a block between the appends that can't be read nothing is needed.
            true => self.read_log(start, end - start).await.ok(),
            false => None,
        };
        for append in appends {
            let length = append.entry.length();
            let data = match &all {
                Some(all) => {
                    let from = (append.data - start) as usize;
                    all.slice(from..from + length as usize)
                }
                None => self.read_log(append.data, length).await?,
            };
            self.check_append(append, &data)?;
            payload.push(data);
        }
        Ok(payload)
    }

    /// Verifies data that was read for an append.
    fn check_append(&self, append: &Pending, data: &Data) -> Result<()> {
        if self.sum_of(std::slice::from_ref(data)) == append.entry.sum {
            return Ok(());
        }
        let Entry { zone, offset, .. } = append.entry;
        let error = Error::corrupt(format!(
            "data of zone {zone} byte {offset} in the log of the write cache of zones, at address {}: wrong checksum: the fast \
             device has damaged it, and it isn't uploaded; expected the bytes that were appended; restore the device",
            append.data
        ));
        // A repetition would read the same bytes.
        self.end_uploads(&error);
        Err(error)
    }

    /// Waits until no read of the origin is in progress of the zones that are reset.
    pub async fn wait_until_unread(&self, changes: &[ZoneChange]) {
        let resets = changes.iter().filter(|change| matches!(change, ZoneChange::Reset(_)));
        // At the same time: each wait has a limit, and a batch has many resets.
        let waits = resets.map(|change| self.read_cache.wait_until_fetches_ended(change.zone()));
        runtime::join_all(waits).await;
    }

    /// Makes the appends to these zones durable at the origin, and changes zones. No fetches of a zone that
    /// is reset are in progress.
    ///
    /// # Errors
    /// Errors of the origin.
    pub async fn make_durable_at_origin(
        &self,
        mut appended: Vec<ZoneIndex>,
        mut changes: Vec<ZoneChange>,
    ) -> Result<()> {
        count(&self.counters.origin_flushes, u64::from(!appended.is_empty()));
        if changes.is_empty() {
            return match appended.is_empty() {
                true => Ok(()),
                false => self.origin.flush(&appended).await,
            };
        }
        count(&self.counters.origin_changes, changes.len() as u64);
        appended.retain(|zone| changes.iter().all(|change| change.zone() != *zone));
        changes.extend(appended.into_iter().map(ZoneChange::Flush));
        self.origin.change_together(changes).await
    }

    /// Finishes, resets or closes a zone of the origin; the first operation of an epoch closes all open ones.
    /// No fetches of a zone that is reset are in progress.
    ///
    /// # Errors
    /// Errors of the origin; [`Error::Protocol`] if another writer uses it.
    pub async fn change_origin(&self, entry: Entry) -> Result<()> {
        let Entry { action, zone, generation, .. } = entry;
        count(&self.counters.origin_changes, 1);
        match action {
            Action::Finish => self.origin.finish(zone).await,
            Action::Reset => {
                let erase = self.origin.geometry().erase.min(EraseGuarantee::Deallocated);
                let raised = self.origin.reset(zone, erase).await?;
                match raised == generation + 1 {
                    true => Ok(()),
                    false => {
                        let error = Error::protocol(format!(
                            "zone {zone} of the origin has generation {raised} after a reset; expected {}: another \
                             writer uses the origin",
                            generation + 1
                        ));
                        self.end_uploads(&error);
                        Err(error)
                    }
                }
            }
            Action::Unclean | Action::Clean => {
                let reports = Self::origin_reports(&*self.origin).await?;
                for report in reports.iter().filter(|report| report.state.is_open()) {
                    self.origin.close(report.zone).await?;
                }
                Ok(())
            }
            _ => {
                // A zone that was only opened locally, or was rewound, isn't open at the origin.
                let report = self.origin.report(zone, 1).await?;
                match report.first().is_some_and(|report| report.state.is_open()) {
                    true => self.origin.close(zone).await,
                    false => Ok(()),
                }
            }
        }
    }
}
