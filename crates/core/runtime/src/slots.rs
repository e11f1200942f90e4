//! Slots of the operations in flight of a shard, at addresses that don't move.

use crate::kernel_memory::KernelMemory;
use crate::operation::Operation;
use std::task::{Context, Poll, Waker};

/// Number of slots that are allocated together. They aren't moved or freed before the shard ends: the kernel
/// reads message headers and vectors from them.
const CHUNK: usize = 64;

/// Identifies one use of one slot; passed to the kernel as `user_data`. A reused slot has another key, so
/// that a late cancellation can't hit its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub index: u32,
    pub generation: u32,
}

impl Key {
    pub(crate) fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_user_data(user_data: u64) -> Self {
        Key { index: user_data as u32, generation: (user_data >> 32) as u32 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Running,
    /// The waiter was dropped; the operation's data is dropped when the operation ends.
    Abandoned,
    Done(i32),
}

/// One operation and the memory that the kernel needs for it.
pub(crate) struct Slot {
    state: State,
    generation: u32,
    waker: Option<Waker>,
    pub(crate) operation: Option<Operation>,
    pub(crate) kernel: KernelMemory,
}

impl Slot {
    fn new() -> Self {
        Slot {
            state: State::Free,
            generation: 0,
            waker: None,
            operation: None,
            kernel: KernelMemory::default(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Slots {
    chunks: Vec<Box<[Slot]>>,
    free: Vec<u32>,
}

impl Slots {
    /// Number of operations in flight that [use memory](Operation::uses_memory). Visits every slot: for the
    /// shard's end.
    pub(crate) fn using_memory(&self) -> usize {
        let uses = |slot: &&Slot| {
            matches!(slot.state, State::Running | State::Abandoned)
                && slot.operation.as_ref().is_some_and(Operation::uses_memory)
        };
        self.chunks.iter().flatten().filter(uses).count()
    }

    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn insert(&mut self, operation: Operation) -> Key {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let slot = self.slot(index);
        slot.state = State::Running;
        slot.generation = slot.generation.wrapping_add(1) & 0x7FFF_FFFF;
        slot.operation = Some(operation);
        Key { index, generation: slot.generation }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let first = (self.chunks.len() * CHUNK) as u32;
        self.chunks.push((0..CHUNK).map(|_| Slot::new()).collect());
        self.free.extend((first + 1..first + CHUNK as u32).rev());
        first
    }

    /// Whether the kernel cut a write of a file short, so that the rest has to be written. This is decided
    /// here and not where the write is awaited, so that the write completes even without a waiter.
    #[inline]
    pub(crate) fn goes_on(&mut self, key: Key, result: i32) -> bool {
        let Some(Operation::Write { payload, skip, .. }) = &mut self.slot(key.index).operation else {
            return false;
        };
        let left = payload.len() - *skip;
        if result <= 0 || result as usize >= left {
            return false;
        }
        *skip += result as usize;
        true
    }

    /// Records the end of an operation. Returns the waker of its waiter, or the operation if it was
    /// abandoned. The caller wakes or discards it after it has released its borrow
    /// of the slots: both may use the slots.
    #[inline]
    pub(crate) fn complete(&mut self, key: Key, result: i32) -> (Option<Waker>, Option<Operation>) {
        let slot = self.slot(key.index);
        debug_assert_eq!(slot.generation, key.generation, "an operation ended twice");
        if slot.state == State::Abandoned {
            slot.state = State::Free;
            let operation = slot.operation.take();
            self.free.push(key.index);
            return (None, operation);
        }
        slot.state = State::Done(result);
        (slot.waker.take(), None)
    }

    /// Result and data of an operation that has ended; keeps the waker until then.
    #[inline]
    pub(crate) fn poll(&mut self, key: Key, context: &mut Context<'_>) -> Poll<(i32, Operation)> {
        let slot = self.slot(key.index);
        let State::Done(result) = slot.state else {
            match &mut slot.waker {
                Some(waker) if waker.will_wake(context.waker()) => {}
                other => *other = Some(context.waker().clone()),
            }
            return Poll::Pending;
        };
        slot.state = State::Free;
        let operation = slot.operation.take().expect("an operation that ended is in its slot");
        self.free.push(key.index);
        Poll::Ready((result, operation))
    }

    /// Abandons an operation. Returns whether it is still in flight; if not, its result and the operation.
    pub(crate) fn abandon(&mut self, key: Key) -> (bool, Option<Waker>, Option<(i32, Operation)>) {
        let slot = self.slot(key.index);
        let waker = slot.waker.take();
        let State::Done(result) = slot.state else {
            slot.state = State::Abandoned;
            return (true, waker, None);
        };
        slot.state = State::Free;
        let operation = slot.operation.take();
        self.free.push(key.index);
        (false, waker, operation.map(|operation| (result, operation)))
    }
}
