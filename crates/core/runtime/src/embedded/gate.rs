//! Limit of the calls in flight on one shard, and their number for the end of the service.

use crate::mailbox::lock;
use block::{Error, Result};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

/// Maximum number of calls in flight on one shard; further calls wait in order.
pub const MAX_IN_FLIGHT: usize = 1024;

/// Number of vain spins after which callers spin only once in [`RETRY_INTERVAL`] calls.
const MAX_VAIN_SPINS: u32 = 4;
const RETRY_INTERVAL: u32 = 16;

/// Key of a call that waits to enter.
pub(super) type Ticket = u64;

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    waiting: VecDeque<(Ticket, Waker)>,
    /// Tickets of calls that may enter and haven't been polled since; each is counted in `in_flight`.
    granted: Vec<Ticket>,
    next: Ticket,
    /// Reason for which no further call enters; `None` while the service is open.
    refusal: Option<Error>,
    /// Waker of the end of the service, which waits for the calls in flight.
    drained: Option<Waker>,
}

/// Gate of one shard.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// Number of consecutive spins that ended without an answer.
    vain_spins: AtomicU32,
}

impl Gate {
    /// Enters, or waits for a call to leave. `ticket` is `None` in a call's first poll. Returns whether no
    /// other call is in flight.
    pub(super) fn poll_enter(
        &self,
        ticket: &mut Option<Ticket>,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool>> {
        let mut state = lock(&self.state);
        if let Some(own) = *ticket
            && let Some(at) = state.granted.iter().position(|granted| *granted == own)
        {
            state.granted.swap_remove(at);
            *ticket = None;
            return Poll::Ready(Ok(false));
        }
        if let Some(refusal) = &state.refusal {
            *ticket = None;
            return Poll::Ready(Err(refusal.clone()));
        }
        if let Some(own) = *ticket {
            if let Some((_, waker)) = state.waiting.iter_mut().find(|(ticket, _)| *ticket == own) {
                waker.clone_from(context.waker());
            }
            return Poll::Pending;
        }
        if state.in_flight < MAX_IN_FLIGHT && state.waiting.is_empty() {
            state.in_flight += 1;
            return Poll::Ready(Ok(state.in_flight == 1));
        }
        let own = state.next;
        state.next += 1;
        *ticket = Some(own);
        state.waiting.push_back((own, context.waker().clone()));
        Poll::Pending
    }

    /// Leaves: the next call in the queue enters.
    pub(super) fn leave(&self) {
        let waker = {
            let mut state = lock(&self.state);
            match state.waiting.pop_front() {
                Some((ticket, waker)) => {
                    state.granted.push(ticket);
                    Some(waker)
                }
                None => {
                    state.in_flight -= 1;
                    if state.in_flight == 0 { state.drained.take() } else { None }
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Removes a call that was dropped before it entered.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let was_granted = {
            let mut state = lock(&self.state);
            let granted = state.granted.iter().position(|granted| *granted == ticket);
            match granted {
                Some(at) => {
                    state.granted.swap_remove(at);
                }
                None => state.waiting.retain(|(waiting, _)| *waiting != ticket),
            }
            granted.is_some()
        };
        if was_granted {
            self.leave();
        }
    }

    /// Refuses further calls, and those that wait to enter. The first reason stays.
    pub(super) fn refuse(&self, reason: &Error) {
        let waiting = {
            let mut state = lock(&self.state);
            state.refusal.get_or_insert_with(|| reason.clone());
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
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

    /// Records whether a spin ended with the answer.
    pub(super) fn spun(&self, is_answered: bool) {
        let vain = self.vain_spins.load(Ordering::Relaxed);
        let next = if is_answered { 0 } else { vain.wrapping_add(1).max(1) };
        self.vain_spins.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(gate: &Gate, ticket: &mut Option<Ticket>) -> Poll<Result<bool>> {
        gate.poll_enter(ticket, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn calls_beyond_the_limit_enter_in_order_and_a_dropped_one_passes_its_turn_on() {
        let gate = Gate::default();
        for number in 0..MAX_IN_FLIGHT {
            assert_eq!(enter(&gate, &mut None), Poll::Ready(Ok(number == 0)));
        }
        let mut tickets = [None; 3];
        for ticket in &mut tickets {
            assert_eq!(enter(&gate, ticket), Poll::Pending);
        }
        gate.leave();
        assert_eq!(enter(&gate, &mut tickets[1]), Poll::Pending, "the first one has the turn");
        gate.abandon(tickets[0].unwrap());
        assert_eq!(enter(&gate, &mut tickets[1]), Poll::Ready(Ok(false)));
        gate.abandon(tickets[2].unwrap());
        gate.leave();
        assert_eq!(enter(&gate, &mut None), Poll::Ready(Ok(false)), "nobody waits, and one has left");
    }

    #[test]
    fn a_refusal_reaches_waiting_calls_but_not_one_that_has_its_turn() {
        let gate = Gate::default();
        (0..MAX_IN_FLIGHT).for_each(|_| drop(enter(&gate, &mut None)));
        let (mut first, mut second) = (None, None);
        assert!(enter(&gate, &mut first).is_pending() && enter(&gate, &mut second).is_pending());
        gate.leave();
        gate.refuse(&Error::closed("first reason"));
        gate.refuse(&Error::closed("second reason"));
        assert_eq!(enter(&gate, &mut first), Poll::Ready(Ok(false)));
        assert_eq!(enter(&gate, &mut second), Poll::Ready(Err(Error::closed("first reason"))));
        let mut context = Context::from_waker(Waker::noop());
        (0..MAX_IN_FLIGHT - 1).for_each(|_| gate.leave());
        assert!(gate.poll_drained(&mut context).is_pending());
        gate.leave();
        assert!(gate.poll_drained(&mut context).is_ready());
    }
}
