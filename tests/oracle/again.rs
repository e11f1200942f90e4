//! Power cuts during a recovery: a recovery is recorded like any run, cut at its own events, and followed by
//! another.
//!
//! ```text
//! stack under test, opened again ─ record(role=disk) ─ disk with what the first cut left
//! ```
//! The contents after the second recovery must be legal for the client at the first cut. If the first
//! recovery had returned, they must equal its contents, because a client that has read a device may rely on
//! them.

use super::{Check, Opening, Violation, read_all};
use block::{DevicePart, Result};
use layers::record::replay::{CrashState, CrashStates, History, ImageDisk, Search};
use layers::record::{RecordDevicePart, Recorder, Role};
use std::sync::Arc;

/// A recovery that was recorded.
struct Recovery {
    history: Arc<History>,
    /// From this event on, the disk holds durably what the first cut left.
    first: u64,
    /// Event at which the stack was open and `found` had been read.
    opened: u64,
    found: Vec<u8>,
}

impl<F> Check<'_, F>
where
    F: AsyncFn(Arc<dyn DevicePart>, Opening) -> Result<Arc<dyn DevicePart>>,
{
    /// Cuts the recovery from a state at all its events.
    pub(super) async fn recover_again(&mut self, state: &CrashState) -> Result<(), Box<Violation>> {
        let cut = *state.cuts.start();
        let recovery = self.recorded(state).await.map_err(|error| {
            let what = format!("the recovery that is to be cut failed: {error}");
            self.oracle.violation(cut, Some(state.clone()), what)
        })?;
        let seed = self.oracle.seed ^ cut;
        let search = Search { seed, single: 2, subsets: 1, torn: 2, scattered: 1 };
        let last = recovery.history.events();
        for again in CrashStates::new(recovery.history.clone(), recovery.first..last + 1, search) {
            if self.recoveries > 0 && self.oracle.budget.is_over() {
                return Ok(());
            }
            self.recoveries += 1;
            let (second, choice) = (*again.cuts.start(), again.choice);
            let violation = |what: String| {
                let what = format!(
                    "{what}\n  in a second recovery: the first one was cut before its event {second} of \
                     {}..{last} (open at {}), the disk with {choice}",
                    recovery.first, recovery.opened
                );
                self.oracle.violation(cut, Some(state.clone()), what)
            };
            let contents = match self.reopened(&again, false).await {
                Ok(contents) => contents,
                Err(error) => return Err(violation(format!("the stack can't be used: {error}"))),
            };
            if second >= recovery.opened && contents != recovery.found {
                let differs = contents.iter().zip(&recovery.found).position(|(one, other)| one != other);
                return Err(violation(format!(
                    "what the first recovery had found is no longer there, from byte {differs:?} on"
                )));
            }
            self.compare(&contents).map_err(|(_, what)| violation(what))?;
        }
        Ok(())
    }

    async fn recorded(&self, state: &CrashState) -> Result<Recovery> {
        let recorder = Recorder::in_memory();
        let geometry = state.image.history().geometry().clone();
        let empty = Arc::new(ImageDisk::empty(geometry));
        let disk = Arc::new(RecordDevicePart::new(empty, recorder.clone(), "disk", Role::Disk)?);
        let handle = disk.open().await?;
        state.image.write_to(&*handle).await?;
        handle.flush().await?;
        drop(handle);
        let first = recorder.events();
        let part = (self.open)(disk.clone(), Opening::Recover).await?;
        let handle = part.open().await?;
        let found = read_all(&*handle).await?;
        drop(handle);
        let opened = recorder.events();
        part.close().await?;
        let timeline = recorder.timeline().expect("a recorder in memory has its timeline");
        Ok(Recovery { history: History::new(&timeline, disk.number())?, first, opened, found })
    }
}
