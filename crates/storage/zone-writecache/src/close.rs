//! The close of a cache: it ends within limits of time, whatever the origin does.

use crate::checkpoint;
use crate::core::Core;
use crate::format::Superblock;
use crate::opening::Unsent;
use block::{Error, Result};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time without progress of the origin after which a close doesn't wait for uploads any more.
const DRAIN_STALL: Duration = Duration::from_secs(60);

impl Core {
    /// Ends all tasks, and records a clean stop in the superblock. What isn't at the origin stays on the fast
    /// device.
    ///
    /// # Errors
    /// Errors of the fast device; those of the origin if everything is uploaded before a close.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        let drained = match self.demand.on_close.get() {
            true => self.drain_while_it_moves().await,
            false => Ok(()),
        };
        if drained.is_err() {
            // An origin that is closed cleanly would seem to have everything.
            self.is_stalled.store(true, Ordering::Release);
        }
        self.health.set_closing();
        self.wake_all();
        // Open handles don't delay a close: a client may keep one forever.
        self.tasks.ended().await;
        self.end_log().await?;
        self.tell_end();
        drained
    }

    /// Logs for operators what was uploaded, and what stays on the fast device.
    fn tell_end(&self) {
        let (uploaded, unsent) = (self.counters.uploaded_bytes.get(), Unsent::of(&self.pending.borrow()));
        let next = match self.health.check_conflict() {
            _ if unsent.is_nothing() => "",
            Ok(()) => "; the next start uploads it",
            Err(_) => "; the origin takes no more of it",
        };
        let text = format!(
            "the write cache of zones is closed: {uploaded} bytes were uploaded; only on the fast device: {unsent}{next}"
        );
        match unsent.is_nothing() {
            true => tracing::info!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }

    /// Drains, unless the origin doesn't take anything for some time.
    async fn drain_while_it_moves(&self) -> Result<()> {
        let mut drain = pin!(self.drain());
        loop {
            let before = self.superblock.get().tail;
            match runtime::timeout(DRAIN_STALL, drain.as_mut()).await {
                Ok(outcome) => return outcome,
                Err(_elapsed) if self.superblock.get().tail != before => {}
                Err(_elapsed) => {
                    return Err(Error::timed_out(format!(
                        "uploading to the origin before the close: nothing became durable there for {} s; the rest stays on \
                         the fast device",
                        DRAIN_STALL.as_secs()
                    )));
                }
            }
        }
    }

    /// Makes the log durable, and records a clean stop. The next open begins at a checkpoint of the cut.
    async fn end_log(&self) -> Result<()> {
        self.make_durable(self.log.completed.get()).await?;
        let Superblock { tail, checkpoint_at, .. } = self.superblock.get();
        if tail != checkpoint_at && self.health.check_conflict().is_ok() {
            checkpoint::write(self).await?;
        }
        self.write_superblock(|superblock| superblock.clean = true).await
    }
}
