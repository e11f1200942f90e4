//! Turns: a torn write reads the block that it tears, changes the beginning and writes it back, so nothing else may change
//! that block meanwhile. Else bytes come back that another write, which wasn't torn, had replaced.
//!
//! Promises: whoever changes blocks begins in the order of arrival where ranges overlap and one of the two tears; all
//! others go on at once. Shards share the turns.
//!
//! Left to others: to take a turn for all that changes blocks. Without rules that tear nobody needs to.

use block::BlockRange;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// What an operation does to its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It only writes them.
    Plain,
    /// It reads them first, and writes back what it doesn't change.
    Tear,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Vec<Entry>>);

/// An operation that waits or is at it; they stand in the order of their arrival.
#[derive(Debug)]
struct Entry {
    number: u64,
    blocks: BlockRange,
    change: Change,
    waker: Option<Waker>,
}

impl Entry {
    fn excludes(&self, other: &Entry) -> bool {
        (self.change == Change::Tear || other.change == Change::Tear)
            && self.blocks.start < other.blocks.end()
            && other.blocks.start < self.blocks.end()
    }
}

impl Turns {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the blocks may be changed; they may until what this returns is dropped.
    pub async fn take(self: &Arc<Self>, blocks: BlockRange, change: Change) -> Turn {
        let number = {
            let mut entries = self.entries();
            let number = entries.last().map_or(0, |last| last.number + 1);
            entries.push(Entry { number, blocks, change, waker: None });
            number
        };
        let turn = Turn { turns: self.clone(), number };
        poll_fn(|context| {
            let mut entries = self.entries();
            let Some(place) = entries.iter().position(|entry| entry.number == number) else {
                return Poll::Ready(());
            };
            let (before, behind) = entries.split_at_mut(place);
            let entry = &mut behind[0];
            let waits = before.iter().any(|other| other.excludes(entry));
            entry.waker = waits.then(|| context.waker().clone());
            if waits { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        turn
    }
}

/// A turn; dropped, it is the next one's.
pub(super) struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut entries = self.turns.entries();
        entries.retain(|entry| entry.number != self.number);
        let woken: Vec<Waker> = entries.iter_mut().filter_map(|entry| entry.waker.take()).collect();
        drop(entries);
        woken.into_iter().for_each(Waker::wake);
    }
}
