//! Lock over the commands of a server that write, on all its shards: a command that reads several keys and then writes them excludes
//! the others, which pass together.
//!
//! A command that waits to be alone holds later ones back, so that it doesn't wait without end. Commands that have waited
//! while one was alone go before the next one that is alone.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug, Default)]
struct State {
    /// Commands that passed together with others.
    together: usize,
    is_alone: bool,
    /// Commands that wait to be alone.
    waiting: usize,
    /// Commands that wait to pass together with others.
    passing: usize,
    /// The commands that wait to pass together go first: one was alone while they waited.
    is_their_turn: bool,
    wakers: Vec<Waker>,
}

/// The lock.
#[derive(Debug, Default)]
pub struct Gate(Mutex<State>);

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes together with others; waits for a command that is, or waits to be, alone.
    pub async fn pass(&self) -> Passage<'_> {
        let waiting = Waiting::new(self, false);
        poll_fn(|context| {
            let mut state = self.state();
            if state.is_alone || state.waiting > 0 && !state.is_their_turn {
                return wait(&mut state, context);
            }
            state.together += 1;
            Poll::Ready(())
        })
        .await;
        drop(waiting);
        Passage { gate: self, is_alone: false }
    }

    /// Passes alone.
    pub async fn pass_alone(&self) -> Passage<'_> {
        let waiting = Waiting::new(self, true);
        poll_fn(|context| {
            let mut state = self.state();
            if state.is_alone || state.together > 0 || state.is_their_turn {
                return wait(&mut state, context);
            }
            state.is_alone = true;
            Poll::Ready(())
        })
        .await;
        drop(waiting);
        Passage { gate: self, is_alone: true }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if state.wakers.is_empty() || state.together > 0 && !state.is_alone && state.waiting > 0 {
            return;
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn wait(state: &mut State, context: &Context<'_>) -> Poll<()> {
    if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        state.wakers.push(context.waker().clone());
    }
    Poll::Pending
}

/// Counts a command that waits, to be alone or not, until it has stopped waiting.
struct Waiting<'a> {
    gate: &'a Gate,
    to_be_alone: bool,
}

impl<'a> Waiting<'a> {
    fn new(gate: &'a Gate, to_be_alone: bool) -> Self {
        let mut state = gate.state();
        match to_be_alone {
            true => state.waiting += 1,
            false => state.passing += 1,
        }
        Waiting { gate, to_be_alone }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gate.change(|state| match self.to_be_alone {
            true => state.waiting -= 1,
            false => {
                state.passing -= 1;
                state.is_their_turn &= state.passing > 0;
            }
        });
    }
}

/// Passage through the gate; ends when dropped.
#[derive(Debug)]
#[must_use = "others are excluded as long as this lives"]
pub struct Passage<'a> {
    gate: &'a Gate,
    is_alone: bool,
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.gate.change(|state| match self.is_alone {
            true => (state.is_alone, state.is_their_turn) = (false, state.passing > 0),
            false => state.together -= 1,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn one_is_alone_and_all_get_through() {
        for seed in 0..30 {
            let main = || async {
                let gate = Arc::new(Gate::default());
                let (inside, most, done) =
                    (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
                let tasks = (0..40).map(|index| {
                    let (gate, inside, most, done) =
                        (gate.clone(), inside.clone(), most.clone(), done.clone());
                    runtime::spawn(async move {
                        for step in 0..20u64 {
                            let is_alone = index % 8 == 0;
                            let passage = if is_alone { gate.pass_alone().await } else { gate.pass().await };
                            inside.set(inside.get() + 1);
                            most.set(most.get().max(inside.get()));
                            assert!(!is_alone || inside.get() == 1);
                            runtime::sleep(Duration::from_micros(index + step % 3)).await;
                            assert!(!is_alone || inside.get() == 1);
                            inside.set(inside.get() - 1);
                            drop(passage);
                        }
                        done.set(done.get() + 1);
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await;
                }
                assert_eq!(done.get(), 40);
                assert!(most.get() > 5, "others pass together");
                assert!(gate.state().wakers.is_empty() && gate.state().waiting == 0);
            };
            runtime::simulate(runtime::Simulation::new(seed), main).expect("it ends");
        }
    }

    #[test]
    fn others_pass_between_two_that_are_alone_without_end() {
        runtime::simulate(runtime::Simulation::new(1), || async {
            let (gate, done) = (Arc::new(Gate::default()), Rc::new(Cell::new(false)));
            for _ in 0..2 {
                let (gate, done) = (gate.clone(), done.clone());
                let alone = async move {
                    while !done.get() {
                        let passage = gate.pass_alone().await;
                        runtime::sleep(Duration::from_micros(5)).await;
                        drop(passage);
                    }
                };
                runtime::spawn(alone).detach();
            }
            runtime::sleep(Duration::from_micros(20)).await;
            let passed = runtime::timeout(Duration::from_millis(1), gate.pass()).await;
            assert!(passed.is_ok(), "it waits behind those that come after it");
            done.set(true);
        })
        .expect("it ends");
    }

    #[test]
    fn one_that_gives_up_lets_the_others_in() {
        runtime::simulate(runtime::Simulation::new(1), || async {
            let gate = Gate::default();
            let passage = gate.pass().await;
            assert!(runtime::timeout(Duration::from_micros(1), gate.pass_alone()).await.is_err());
            drop(gate.pass().await);
            drop(passage);
            drop(gate.pass_alone().await);
        })
        .expect("it ends");
    }
}
