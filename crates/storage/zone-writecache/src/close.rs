//! The close of a cache, which ends within a time limit whatever the origin does.

use crate::checkpoint;
use crate::core::Core;
use crate::format::Superblock;
use crate::opening::Unsent;
use block::{Error, Result};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time without progress of the origin after which a close ends its wait for uploads.
const MAX_STALL: Duration = Duration::from_secs(60);

impl Core {
    /// Ends all tasks, and records a clean stop in the superblock. Operations that the origin lacks stay on
    /// the fast device; after the message `flush_on_suspend` they are uploaded first.
    ///
    /// # Errors
    /// Errors of the fast device; errors of the origin after `flush_on_suspend`.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        let drained = match self.demand.on_close.get() {
            true => self.drain_while_it_progresses().await,
            false => Ok(()),
        };
        if drained.is_err() {
            // So that the stack doesn't close the origin cleanly: it would seem to have everything.
            self.is_stalled.store(true, Ordering::Release);
        }
        self.health.set_closing();
        self.wake_all();
        // Open handles don't delay a close: a client may keep one forever.
        self.tasks.ended().await;
        self.end_log().await?;
        self.report_close();
        drained
    }

    /// Logs the number of uploaded bytes, and the operations that stay on the fast device.
    fn report_close(&self) {
        let (uploaded, unsent) = (self.counters.uploaded_bytes.get(), Unsent::of(&self.pending.borrow()));
        let next = match self.health.check_conflict() {
            _ if unsent.is_empty() => "",
            Ok(()) => "; the next start uploads it",
            Err(_) => "; it can't be uploaded any more",
        };
        let text = format!(
            "the write cache of zones is closed: {uploaded} bytes were uploaded; only on the fast device: {unsent}{next}"
        );
        match unsent.is_empty() {
            true => tracing::info!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }

    /// Drains, until the origin has taken no append and nothing has become durable there for [`MAX_STALL`]:
    /// over a slow link one batch takes longer.
    async fn drain_while_it_progresses(&self) -> Result<()> {
        let progress = || (self.superblock.get().tail, self.counters.uploaded_bytes.get());
        let mut drain = pin!(self.drain());
        loop {
            let before = progress();
            match runtime::timeout(MAX_STALL, drain.as_mut()).await {
                Ok(outcome) => return outcome,
                Err(_elapsed) if progress() != before => {}
                Err(_elapsed) => {
                    return Err(Error::timed_out(format!(
                        "uploading to the origin before the close: it took nothing for {} s; the rest stays on \
                         the fast device",
                        MAX_STALL.as_secs()
                    )));
                }
            }
        }
    }

    /// Makes the log durable, and records a clean stop. The next open begins at a checkpoint of the cut.
    async fn end_log(&self) -> Result<()> {
        self.make_durable(self.log.completed()).await?;
        let Superblock { tail, checkpoint_at, .. } = self.superblock.get();
        if tail != checkpoint_at && self.health.check_conflict().is_ok() {
            checkpoint::write(self).await?;
        }
        self.write_superblock(|superblock| superblock.clean = true).await
    }
}
