//! Turns of I/O classes that depend on the log: those of syncs and of the cleaner.

use super::Core;
use crate::broken::if_broken;
use crate::classes::Turn;
use crate::classes::fair_queue::{BACKGROUND, ClassNumber};
use block::Result;
use logkit::pace::watermarks;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

impl Core {
    /// Makes operations durable as [`sync`](Self::sync) does, in the turn of a class.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub async fn sync_in(&self, class: ClassNumber, ticket: u64) -> Result<()> {
        let _turn = match self.durability.is_durable(ticket) {
            true => None,
            false => Some(self.admission.classes.take(class, 0).await),
        };
        self.sync(ticket).await
    }

    /// Takes a turn for the cleaner: without waiting while free zones are below the low watermark, else in
    /// the order of its class. Writes that hold turns may wait for zones, so the cleaner must not wait for
    /// these writes.
    pub(crate) async fn turn_of_cleaner(&self, bytes: u64) -> Turn {
        let mut turn = pin!(self.admission.classes.take(BACKGROUND, bytes));
        loop {
            // A writer that begins to wait for a zone notifies the cleaner.
            let mut changed = pin!(self.kit.events.cleaner.notified());
            if self.needs_cleaning_now() {
                return self.admission.classes.take_now(BACKGROUND, bytes);
            }
            let first = poll_fn(|context| match turn.as_mut().poll(context) {
                Poll::Ready(turn) => Poll::Ready(Some(turn)),
                Poll::Pending => changed.as_mut().poll(context).map(|()| None),
            });
            if let Some(turn) = first.await {
                return turn;
            }
        }
    }

    /// Whether free zones are below the low watermark.
    fn needs_cleaning_now(&self) -> bool {
        if_broken!(CleanerWaits, return false);
        self.kit.pool.free() < watermarks(self).0
    }
}
