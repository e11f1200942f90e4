//! Marks: empty records that state, on an idle shard, which records are durable.
//!
//! A record's header names the earlier records that were durable when it was written, so no header covers the
//! last records. Recovery couldn't distinguish damage to one of those from a torn end, and would drop the
//! record. So once a shard has appended nothing for [`IDLE`], its appends are flushed, and an empty record,
//! the mark, is appended to each stream that has records since its last mark. Its header states that all of
//! them are durable. The mark is then flushed.
//!
//! There is at most one mark per stream and idle period, and no mark after a mark alone: an idle log stops
//! writing. After the device below had no space there are no marks until the log is opened again. The mark
//! goes to the open zone of a lane; if no lane has one, the last records are in zones with summaries, which
//! recovery trusts without reading the data.
//!
//! A flush that fails ends the log, as a client's does: the data may be lost. A mark without space doesn't,
//! because no data is lost with it. Its number must be filled as that of any record
//! ([`space`](crate::space)), except when the log is being closed and no record follows. A mark goes to an
//! open zone, so no limit of open zones refuses it.

use crate::entry::{Batch, Frozen};
use crate::flusher;
use crate::lane::write_record;
use crate::owner::Owner;
use crate::zone_writer::ZoneWriter;
use std::rc::Rc;
use std::time::Duration;

/// Time without appends after which a shard is idle. It is checked once in this time, so a mark is durable
/// within twice this time.
pub const IDLE: Duration = Duration::from_secs(2);

/// Requests a mark whenever the shard has become idle, until the log is closed or has failed.
pub(crate) async fn run<O: Owner>(owner: Rc<O>) {
    let kit = owner.kit();
    let marks = &kit.marks;
    while !kit.is_closing() && kit.failure().is_none() {
        if marks.is_unflushed.replace(false) {
            flush(&*owner).await;
            continue;
        }
        let seen = marks.appended.get();
        if seen == marks.asked.get() {
            marks.changed.notified().await;
            continue;
        }
        // Only closing the log wakes the task early.
        let _elapsed = runtime::timeout(IDLE, marks.changed.notified()).await;
        let is_idle = seen == marks.appended.get() && owner.appender().in_flight().0 == 0;
        if is_idle && !kit.is_closing() {
            marks.asked.set(seen);
            flush(&*owner).await;
            let may_write = !marks.is_off.get() && !kit.space.is_doubtful();
            marks.is_wanted.set(may_write && seen == marks.appended.get());
            kit.events.work.notify_all();
        }
    }
}

async fn flush<O: Owner>(owner: &O) {
    if let Err(error) = flusher::flush(owner).await {
        // A later flush may succeed although data of this one is lost.
        owner.fail(&error.in_context("making records of an idle log durable"));
    }
}

/// Appends a mark to each stream with records since its last mark, to an open zone of this lane, if there is
/// one. A zone without space for it is sealed, which makes its records durable; another lane may have a zone
/// with space.
pub(crate) async fn append<O: Owner>(owner: &Rc<O>, zones: &mut [Option<ZoneWriter>], frozen: &mut Frozen) {
    let kit = owner.kit();
    let marks = &kit.marks;
    marks.is_wanted.set(false);
    for (stream, last) in &marks.streams {
        while kit.streams.committed(*stream) > last.get() {
            let open = |zone: &Option<ZoneWriter>| zone.as_ref().is_some_and(|zone| !zone.is_empty());
            let place = zones.iter().position(open);
            let Some((zone, place)) = place.and_then(|place| Some((zones[place].take()?, place))) else {
                marks.is_wanted.set(true);
                return kit.events.work.notify_all();
            };
            if !zone.takes(&kit.layout, 0, crate::record::LINK) {
                kit.seal(zone).await;
                continue;
            }
            let written = write_record(owner, *stream, Batch::default(), zone, frozen, zones).await;
            zones[place] = written.zone;
            if zones[place].is_none() {
                return;
            }
            last.set(kit.streams.committed(*stream));
            marks.is_unflushed.set(true);
        }
    }
    marks.wake();
}
