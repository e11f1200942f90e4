//! End of a file system's server, with a time limit for storage that doesn't answer.

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

/// Time limit, in seconds, for an unanswered request of the storage while the server ends.
const STOP_PATIENCE: u64 = 60;
/// Time limit after a further signal, in seconds.
const SIGNALLED_PATIENCE: u64 = 10;
/// Interval between checks.
const TURN: Duration = Duration::from_secs(1);
/// Time limit for aborting the connection of a mount.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// End of a server. If the storage leaves a request unanswered for [`STOP_PATIENCE`], or for
/// [`SIGNALLED_PATIENCE`] after a further signal, the connection of the mount is aborted and the process
/// ends, because its threads may wait in the kernel forever. Signals don't end a server whose storage
/// answers.
pub(super) struct Stop {
    image: String,
    watch: Watch,
    signals: StopSignals,
    /// Time limit of an unanswered request, in seconds.
    patience: Cell<u64>,
}

impl Stop {
    /// Installs the handler of signals.
    ///
    /// # Errors
    /// Errors of [`StopSignals::catch`].
    pub fn new(image: &str, watch: &Watch) -> Result<Stop> {
        let (image, watch, signals) = (image.to_owned(), watch.clone(), StopSignals::catch()?);
        Ok(Stop { image, watch, signals, patience: Cell::new(STOP_PATIENCE) })
    }

    /// Waits for a signal.
    ///
    /// # Errors
    /// Errors of [`StopSignals::next`].
    pub async fn signal(&self) -> Result<()> {
        self.signals.next().await
    }

    /// Awaits a step of the end while it watches the storage. `mounted` is the mount to abort, if any.
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

/// Ends the process without waiting for its storage.
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
