//! Lag of the origin, and the state of the uploads, for operators.

use crate::core::Core;
use block::Status;
use std::time::Duration;

/// State in which uploads succeed.
pub const WRITING: &str = "writing";
/// State in which the origin fails, or doesn't answer.
pub const AWAITED: &str = "waiting for the origin";
/// State after the end of the uploads.
pub const ENDED: &str = "fenced or ended";
/// State after a failure of the fast device.
pub const FAILED: &str = "the fast device failed";
/// Time of an upload without an error after which the state is [`AWAITED`].
const AWAITED_AFTER: Duration = Duration::from_secs(5);

/// State for operators.
fn state(has_device: bool, has_ended: bool, has_error: bool, awaited: Duration) -> &'static str {
    match () {
        () if has_ended => ENDED,
        () if !has_device => FAILED,
        () if has_error || awaited >= AWAITED_AFTER => AWAITED,
        () => WRITING,
    }
}

impl Core {
    /// Bytes that the origin lacks, and the age of the oldest operation that it lacks. The monotonic clock
    /// measures the age in this process, and the wall clock that of earlier operations before the start.
    pub fn lag(&self) -> (u64, Duration) {
        let pending = self.pending.borrow();
        let age = pending.oldest().map_or(Duration::ZERO, |oldest| {
            let before = match oldest.record < self.superblock.get().first_of_epoch {
                true => self.opened.saturating_sub(Duration::from_millis(oldest.written)),
                false => Duration::ZERO,
            };
            before + oldest.since.elapsed()
        });
        (pending.bytes(), age)
    }

    /// Status of the uploads: their state, the writer of the origin, and what isn't durable yet.
    pub fn state(&self) -> Status {
        let (device, ended) = (self.health.check_device(), self.health.check_conflict());
        let awaited = if ended.is_ok() { self.upload_progress.awaited() } else { Duration::ZERO };
        let has_error = self.health.origin_error.borrow().is_some() || self.upload_progress.has_failed();
        let pending = self.pending.borrow();
        let unflushed = pending.bytes_after(self.log.durable()) + self.queue.bytes();
        let superblock = self.superblock.get();
        let mut status = Status::new();
        let word = state(device.is_ok(), ended.is_err(), has_error, awaited);
        status.insert("state".into(), word.into());
        status.insert("ack".into(), self.ack.word().into());
        if superblock.claim > 0 {
            status.insert("claim".into(), superblock.claim.into());
            status.insert("writer".into(), superblock.writer.to_string().into());
        }
        status.insert("unflushed_bytes".into(), unflushed.into());
        status.insert("awaited_seconds".into(), awaited.as_secs_f64().into());
        status.insert("waiting_flushes".into(), self.waiting_flushes.get().into());
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_uploads_comes_before_all_other_states() {
        let (short, long) = (Duration::from_millis(50), AWAITED_AFTER);
        assert_eq!(state(true, false, false, short), WRITING);
        assert_eq!(state(true, false, true, short), AWAITED);
        assert_eq!(state(true, false, false, long), AWAITED);
        assert_eq!(state(false, false, true, long), FAILED);
        assert_eq!(state(false, true, true, long), ENDED);
    }
}
