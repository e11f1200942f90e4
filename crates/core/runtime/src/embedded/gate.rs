//! Limit of the calls in flight on one shard, and their number for the end of the service.

use crate::mailbox::lock;
use block::Error;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Maximum number of calls in flight on one shard; further calls wait in order.
pub const MAX_IN_FLIGHT: usize = 1024;

/// Number of vain spins after which callers spin only once in [`RETRY_INTERVAL`] calls.
const MAX_VAIN_SPINS: u32 = 4;
const RETRY_INTERVAL: u32 = 16;

/// Key of a call that waits to enter.
pub(super) type Ticket = u64;

/// Message to the shard that begins a call.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// State of a call that learns that it is counted, and has to leave.
pub(super) trait Counted: Send + Sync {
    /// Notes that the call has entered.
    fn set_entered(&self);
}

/// Result of a call's entry.
pub(super) enum Entry {
    /// The call has entered: its caller posts the work. `is_alone`: no other call is in flight.
    Entered { work: Work, is_alone: bool },
    /// The call waits in the queue. The call that leaves posts its work, or it is refused.
    Waiting(Ticket),
    /// The gate is closed for this reason.
    Refused(Error),
}

#[derive(Default)]
struct State {
    /// Number of calls that have entered and not left. All of them are posted, or are being posted, so
    /// they leave without further action of their callers.
    in_flight: usize,
    waiting: VecDeque<Waiting>,
    next: Ticket,
    /// Reason for which no further call enters; `None` while the service is open.
    refusal: Option<Error>,
    /// Waker of the end of the service, which waits for the calls in flight.
    drained: Option<Waker>,
}

/// A call in the queue.
struct Waiting {
    ticket: Ticket,
    work: Work,
    counted: Arc<dyn Counted>,
}

/// Gate of one shard.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// Number of consecutive spins that ended without an answer.
    vain_spins: AtomicU32,
    /// Processor of the caller that spun in vain last, plus 1; 0 once the shard has seen it.
    vain_processor: AtomicUsize,
}

impl Gate {
    /// Enters, or waits in the queue for a call to leave. `counted` is called for the queue only.
    pub(super) fn enter(&self, work: Work, counted: impl FnOnce() -> Arc<dyn Counted>) -> Entry {
        let mut state = lock(&self.state);
        if let Some(refusal) = &state.refusal {
            return Entry::Refused(refusal.clone());
        }
        if state.in_flight < MAX_IN_FLIGHT {
            state.in_flight += 1;
            return Entry::Entered { work, is_alone: state.in_flight == 1 };
        }
        let ticket = state.next;
        state.next += 1;
        state.waiting.push_back(Waiting { ticket, work, counted: counted() });
        Entry::Waiting(ticket)
    }

    /// Leaves. If a call waits, it enters in place of this one: returns its work, which must be posted.
    #[must_use]
    pub(super) fn leave(&self) -> Option<Work> {
        let waker = {
            let mut state = lock(&self.state);
            if let Some(next) = state.waiting.pop_front() {
                next.counted.set_entered();
                return Some(next.work);
            }
            state.in_flight -= 1;
            if state.in_flight == 0 { state.drained.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Removes a call from the queue, unless it has entered.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let abandoned = {
            let mut state = lock(&self.state);
            // Tickets in the queue ascend.
            let at = state.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket);
            at.ok().and_then(|at| state.waiting.remove(at))
        };
        // Outside of the lock, since dropping it wakes its caller.
        drop(abandoned);
    }

    /// Refuses further calls, and those that wait to enter: dropping their work wakes their callers. The
    /// first reason stays.
    pub(super) fn refuse(&self, reason: &Error) {
        let waiting = {
            let mut state = lock(&self.state);
            state.refusal.get_or_insert_with(|| reason.clone());
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    /// Drops the calls that wait to enter: the shard has ended, and the reason isn't known yet.
    pub(super) fn drop_waiting(&self) {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        drop(waiting);
    }

    /// Reason for which no further call enters.
    pub(super) fn refusal(&self) -> Option<Error> {
        lock(&self.state).refusal.clone()
    }

    /// Waits until no call is in flight. Only one task waits.
    pub(super) fn poll_drained(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.in_flight == 0 {
            return Poll::Ready(());
        }
        state.drained = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether a caller should spin for its answer, judged by the earlier ones.
    pub(super) fn should_spin(&self) -> bool {
        let vain = self.vain_spins.load(Ordering::Relaxed);
        if vain < MAX_VAIN_SPINS {
            return true;
        }
        self.vain_spins.store(vain.wrapping_add(1).max(MAX_VAIN_SPINS), Ordering::Relaxed);
        vain.is_multiple_of(RETRY_INTERVAL)
    }

    /// Records whether a spin ended with the answer; `processor` is the caller's.
    pub(super) fn spun(&self, is_answered: bool, processor: impl FnOnce() -> usize) {
        let vain = self.vain_spins.load(Ordering::Relaxed);
        let next = if is_answered { 0 } else { vain.wrapping_add(1).max(1) };
        self.vain_spins.store(next, Ordering::Relaxed);
        if !is_answered {
            self.vain_processor.store(processor() + 1, Ordering::Relaxed);
        }
    }

    /// Takes the processor on which a caller has spun in vain. A shard on the same one can't answer while the
    /// caller spins, and the kernel doesn't part two threads that run in turn.
    #[inline]
    pub(super) fn take_vain_processor(&self) -> Option<usize> {
        if self.vain_processor.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.vain_processor.swap(0, Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    impl Counted for () {
        fn set_entered(&self) {}
    }

    fn enter(gate: &Gate, work: Work) -> Entry {
        gate.enter(work, || Arc::new(()))
    }

    fn fill(gate: &Gate) {
        for number in 0..MAX_IN_FLIGHT {
            let Entry::Entered { is_alone, .. } = enter(gate, Box::new(|| {})) else { panic!("{number}") };
            assert_eq!(is_alone, number == 0);
        }
    }

    /// A call that waits, and the end of its work: `Ok` if it ran, an error if it was dropped.
    fn wait(gate: &Gate) -> (Ticket, Receiver<()>) {
        let (sender, receiver) = channel();
        let work = Box::new(move || sender.send(()).unwrap());
        let Entry::Waiting(ticket) = enter(gate, work) else { panic!("there is space") };
        (ticket, receiver)
    }

    #[test]
    fn calls_beyond_the_limit_enter_in_order_and_a_dropped_one_passes_its_turn_on() {
        let gate = Gate::default();
        fill(&gate);
        let [first, second, third, fourth] = [(); 4].map(|()| wait(&gate));
        gate.leave().unwrap()();
        first.1.try_recv().unwrap();
        // It has entered, so its end is that of its work.
        gate.abandon(first.0);
        gate.abandon(third.0);
        assert!(third.1.recv().is_err(), "its work is dropped");
        gate.leave().unwrap()();
        second.1.try_recv().unwrap();
        gate.leave().unwrap()();
        fourth.1.try_recv().unwrap();
        assert!(gate.leave().is_none());
        assert!(matches!(enter(&gate, Box::new(|| {})), Entry::Entered { is_alone: false, .. }));
    }

    #[test]
    fn a_refusal_reaches_waiting_calls_but_not_one_that_has_entered() {
        let gate = Gate::default();
        fill(&gate);
        let (first, second) = (wait(&gate), wait(&gate));
        let entered = gate.leave().unwrap();
        gate.refuse(&Error::closed("first reason"));
        gate.refuse(&Error::closed("second reason"));
        entered();
        first.1.try_recv().unwrap();
        assert!(second.1.recv().is_err(), "its work is dropped");
        assert_eq!(gate.refusal(), Some(Error::closed("first reason")));
        assert!(matches!(enter(&gate, Box::new(|| {})), Entry::Refused(_)));
        let mut context = Context::from_waker(Waker::noop());
        (0..MAX_IN_FLIGHT - 1).for_each(|_| assert!(gate.leave().is_none()));
        assert!(gate.poll_drained(&mut context).is_pending());
        assert!(gate.leave().is_none());
        assert!(gate.poll_drained(&mut context).is_ready());
    }
}
