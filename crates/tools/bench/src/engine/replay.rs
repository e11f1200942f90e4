//! Replay of a log: its requests in their order, with the job's depth, at their times or at once.
//!
//! A request starts when earlier ones have started, its time has come, and one of the `iodepth` tasks is
//! free; a late request delays later ones. A flush doesn't wait for the writes before it, as in fio.

use super::addresses::{Direction, Request};
use super::clone::{Clone, promptly};
use crate::iolog::reader::Reader;
use crate::iolog::{Action, Entry, Log, Settings};
use block::{Buffer, Result};
use runtime::Instant;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Log of a clone.
pub(super) struct Source {
    /// `None` while the reading task owns it.
    reader: RefCell<Option<Reader>>,
    /// Nanoseconds of the run per microsecond of the log; `None`: as fast as possible.
    scale: Option<f64>,
    /// Start of the run.
    begin: Cell<Instant>,
}

impl Source {
    pub async fn open(log: &Log, settings: &Settings) -> Result<Source> {
        let scale = (!settings.no_stall).then(|| 100_000.0 / f64::from(settings.time_scale.max(1)));
        let reader = RefCell::new(Some(Reader::open(log, settings).await?));
        Ok(Source { reader, scale, begin: Cell::default() })
    }

    pub fn begin(&self, now: Instant) {
        self.begin.set(now);
    }

    #[inline]
    fn take(&self) -> Option<Entry> {
        self.reader.borrow_mut().as_mut().and_then(Reader::take)
    }

    /// Returns the next request, and reads more if necessary. Only for the task whose turn it is.
    async fn next(&self) -> Result<Option<Entry>> {
        if let Some(entry) = self.take() {
            return Ok(Some(entry));
        }
        let Some(mut reader) = self.reader.take() else { return Ok(None) };
        let outcome = reader.read_on().await;
        self.reader.replace(Some(reader));
        Ok(if outcome? { self.take() } else { None })
    }

    fn due(&self, entry: &Entry) -> Option<Instant> {
        let nanoseconds = (entry.time as f64 * self.scale?) as u64;
        Some(Instant::from_nanoseconds(self.begin.get().nanoseconds().saturating_add(nanoseconds)))
    }
}

impl Clone {
    /// Body of each task of a replay.
    pub(super) async fn replay_log(&self, source: &Source) {
        // Buffer that is kept from one operation to the next.
        let mut spare: Option<Buffer> = None;
        loop {
            if self.ended() {
                return;
            }
            // A task that doesn't wait needs no turn.
            let at_once = if source.scale.is_none() { source.take() } else { None };
            let entry = match at_once {
                Some(entry) => entry,
                None => {
                    let turn = self.turn().await;
                    let entry = match source.next().await {
                        Ok(Some(entry)) => entry,
                        Ok(None) => return,
                        Err(error) => return self.fail(error.detail().to_owned(), true),
                    };
                    if let Some(due) = source.due(&entry)
                        && !self.wait_until(due).await
                    {
                        return;
                    }
                    drop(turn);
                    entry
                }
            };
            let direction = match entry.action {
                Action::Read => Direction::Read,
                Action::Write => Direction::Write,
                Action::Trim => Direction::Trim,
                Action::Sync | Action::Datasync => {
                    if !self.replay_flush().await {
                        return;
                    }
                    continue;
                }
            };
            let request = Request { direction, offset: entry.offset, length: entry.length };
            if !self.is_inside(&request) {
                let Entry { line, offset, length, .. } = entry;
                let error = format!(
                    "line {line} of the log: {length} bytes at byte {offset} don't fit the device: the log has changed \
                     since it was checked"
                );
                return self.fail(error, true);
            }
            let started = runtime::now();
            let result = match source.scale {
                Some(_) => promptly(self.perform(&request, &mut spare)).await,
                None => self.perform(&request, &mut spare).await,
            };
            let ended = runtime::now();
            if let Err(error) = result {
                return self.fail(format!("line {} of the log: {error}", entry.line), true);
            }
            if !self.account(&request, started, ended) {
                return;
            }
        }
    }

    /// Waits until a time. Returns false if the clone has ended.
    async fn wait_until(&self, due: Instant) -> bool {
        const LOOK: Duration = Duration::from_millis(50);
        // The end of the wait is a busy loop, so that starts are punctual.
        const AWAKE: Duration = Duration::from_micros(60);
        while !self.ended() {
            let now = runtime::now();
            if now >= due {
                return true;
            }
            if !self.goes_on(now) {
                return false;
            }
            if due - now > AWAKE {
                runtime::sleep(LOOK.min((due - now) - AWAKE).min(self.time_left(now))).await;
            } else {
                runtime::yield_now().await;
            }
        }
        false
    }
}
