//! Waits for points in time.

use crate::clock::{Instant, now};
use crate::shard;
use block::{Error, Result};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// Waits for a duration.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Waits for a point in time.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, entry: None }
}

/// Time before the deadline from which a precise sleep polls: a sleeping processor takes some 30 to 100 us to
/// wake.
const AWAKE_BEFORE: Duration = Duration::from_micros(100);

/// Waits for a point in time, to about a microsecond if the shard's tasks are short. It polls for the last
/// 100 µs, which uses the processor.
pub async fn sleep_until_precisely(deadline: Instant) {
    if shard::is_simulated() {
        // Virtual time passes only while all tasks sleep, and is exact.
        return sleep_until(deadline).await;
    }
    let now_ = now();
    if deadline > now_ + AWAKE_BEFORE {
        sleep_until(now_ + (deadline - now_ - AWAKE_BEFORE)).await;
    }
    while now() < deadline {
        crate::task::yield_now().await;
    }
}

/// Future of [`sleep`].
#[derive(Debug)]
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    deadline: Instant,
    entry: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now() >= self.deadline {
            return Poll::Ready(());
        }
        shard::with_current(|shard| {
            let mut timers = shard.timers.borrow_mut();
            let arrival = self.entry.unwrap_or_else(|| timers.arrive());
            self.entry = Some(arrival);
            timers.insert(self.deadline, arrival, context.waker().clone());
        });
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(arrival) = self.entry {
            shard::try_with_current(|shard| {
                let waker = shard.timers.borrow_mut().remove(self.deadline, arrival);
                drop(waker);
            });
        }
    }
}

/// Error of [`timeout`]: its limit. Converted to [`Error::TimedOut`] on demand, because the text allocates
/// and periodic waits ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed(Duration);

impl From<Elapsed> for Error {
    fn from(Elapsed(limit): Elapsed) -> Self {
        Error::timed_out(format!("not completed within {limit:?}"))
    }
}

/// Waits for a future for at most `limit`, and then drops it.
///
/// # Errors
/// [`Elapsed`] if the time is over first.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(limit));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed(limit)))
    })
    .await
}

/// Retries while the result is [`Error::Busy`], for at most `limit`. The kernel releases the locks and
/// listening sockets of a killed process some tens of milliseconds after its end, and its successor waits for
/// that.
pub async fn retry_while_busy<T>(limit: Duration, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    const BETWEEN: Duration = Duration::from_millis(20);
    let deadline = now() + limit;
    loop {
        match attempt().await {
            Err(Error::Busy(_)) if now() < deadline => sleep(BETWEEN).await,
            other => return other,
        }
    }
}
