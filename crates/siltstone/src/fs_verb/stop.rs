//! The end of a file system's server: it waits for its storage as long as that answers.

use crate::output::say;
use block::Result;
use fs::Mounted;
use fs::mount::watch::Watch;
use runtime::StopSignals;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Time for which the storage may leave a request unanswered while the server ends.
const STOP_PATIENCE: u64 = 60;
/// The same after a further signal.
const SIGNALLED_PATIENCE: u64 = 10;
/// A turn of the watch.
const TURN: Duration = Duration::from_secs(1);
/// Time for aborting the connection of a mount.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The end of a server. Where the storage leaves a request unanswered for [`STOP_PATIENCE`], or for [`SIGNALLED_PATIENCE`] after a signal
/// meanwhile, the connection of the mount is aborted and the process ends: its threads may wait in the kernel for ever. Signals don't end a
/// server whose storage answers.
pub(super) struct Stop {
    image: String,
    watch: Watch,
    signals: StopSignals,
    /// Seconds for which a request may be unanswered.
    patience: Cell<u64>,
}

impl Stop {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// As [`StopSignals::catch`].
    pub fn new(image: &str, watch: &Watch) -> Result<Stop> {
        let (image, watch, signals) = (image.to_owned(), watch.clone(), StopSignals::catch()?);
        Ok(Stop { image, watch, signals, patience: Cell::new(STOP_PATIENCE) })
    }

    /// Waits for a signal.
    ///
    /// # Errors
    /// As [`StopSignals::next`].
    pub async fn signal(&self) -> Result<()> {
        self.signals.next().await
    }

    /// Carries out a part of the end, with the mount if there is one.
    pub async fn wait<T>(&self, mounted: Option<&Mounted>, ending: impl Future<Output = T>) -> T {
        let mut ending = pin!(ending);
        let mut signal = pin!(self.signals.next());
        loop {
            let mut turn = pin!(runtime::sleep(TURN));
            let ended = std::future::poll_fn(|context| {
                if let Poll::Ready(outcome) = ending.as_mut().poll(context) {
                    return Poll::Ready(Some(outcome));
                }
                if self.patience.get() > SIGNALLED_PATIENCE && signal.as_mut().poll(context).is_ready() {
                    self.patience.set(SIGNALLED_PATIENCE);
                }
                turn.as_mut().poll(context).map(|()| None)
            });
            if let Some(outcome) = ended.await {
                return outcome;
            }
            let silent = self.watch.next_turn();
            if silent > self.patience.get() {
                give_up(&self.image, silent, mounted).await;
            }
        }
    }
}

/// Ends the process without its storage.
async fn give_up(image: &str, silent: u64, mounted: Option<&Mounted>) -> ! {
    if let Some(mounted) = mounted {
        match runtime::timeout(ABORT_LIMIT, mounted.abort()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => say(&format!("{image}: {error}")),
            Err(_) => say(&format!(
                "{image}: aborting the connection of the mount takes longer than {ABORT_LIMIT:?}"
            )),
        }
    }
    say(&format!(
        "{image}: the storage hasn't answered a request for {silent} s; the server ends without it: changes that weren't durable are lost, \
         such as data without an fsync after it; once the storage answers again, look for damage with: siltstone fs check {image}; and \
         mount it again with: siltstone fs mount {image} DIRECTORY"
    ));
    // An orderly end would wait for requests in flight.
    std::process::exit(1);
}
