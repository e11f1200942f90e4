//! Simulated runtime: the same executor and API over a [`World`] that is generated from a seed.
//!
//! All shards run on one thread. The next shard and the next of its ready tasks are drawn; operations take a
//! drawn time and end in the order of their times; time passes only when no task is ready. Results don't
//! depend on the machine: the same seed gives the same run, event for event, and the [`Trace`] records it.
//!
//! Not simulated: operations outside of this crate (`uring_cmd`, threads).

use crate::clock;
use crate::config::ShardIndex;
use crate::mailbox::Mailbox;
use crate::random::Random;
use crate::shard::{self, Driver, Shard};
use crate::task::TaskFuture;
use crate::world::{Simulation, Trace, World};
use block::{Error, Result};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Result of a simulation.
#[derive(Debug)]
pub struct Simulated<T> {
    /// Return value of `main`.
    pub value: T,
    /// Events.
    pub trace: Trace,
    /// Virtual time that passed.
    pub elapsed: Duration,
    /// Files at the end, without a power cut: initial files of a following simulation.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

/// Runs `main` on shard 0 of a simulated world, and returns once it has returned.
///
/// # Errors
/// [`Error::TimedOut`] if `main` waits without a pending event, or takes more than `most_events`; the text
/// names the seed.
pub fn simulate<T, F, Fut>(simulation: Simulation, main: F) -> Result<Simulated<T>>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    let output = Rc::new(RefCell::new(None));
    let slot = output.clone();
    let make_main = || -> TaskFuture<()> {
        let main = main();
        Box::pin(async move {
            let value = main.await;
            *slot.borrow_mut() = Some(value);
        })
    };
    let Simulated { value: (), trace, elapsed, files } = simulate_boxed(&simulation, Box::new(make_main))?;
    let value = output.borrow_mut().take().expect("the main task has returned");
    Ok(Simulated { value, trace, elapsed, files })
}

/// Part of [`simulate`] that doesn't depend on the types of `main`.
fn simulate_boxed(
    simulation: &Simulation,
    make_main: Box<dyn FnOnce() -> TaskFuture<()> + '_>,
) -> Result<Simulated<()>> {
    if !(1..=256).contains(&simulation.shards) {
        return Err(Error::invalid(format!("{} shards: expected 1 to 256", simulation.shards)));
    }
    let mailboxes = (0..simulation.shards).map(|_| Mailbox::new()).collect::<Result<Arc<[_]>>>()?;
    let world = Rc::new(World::new(simulation));
    let mut order = Random::new(simulation.seed ^ 0x0DE5_0DE5);
    let shards: Vec<Rc<Shard>> = (0..simulation.shards)
        .map(|index| {
            Rc::new(Shard {
                index: ShardIndex(index),
                driver: Driver::Simulated(world.clone()),
                slots: RefCell::default(),
                timers: RefCell::default(),
                queue: RefCell::default(),
                cut_short: RefCell::default(),
                tasks: RefCell::default(),
                random: RefCell::new(Random::new(order.next_u64())),
                mailbox: mailboxes[index].clone(),
                all: mailboxes.clone(),
            })
        })
        .collect();
    let before = shard::set_current(Some(shards[0].clone()));
    let scheduler = Scheduler { world: world.clone(), shards, order, before: Some(before) };
    clock::set_virtual(Some(1));
    let has_returned = Rc::new(Cell::new(false));
    let returned = has_returned.clone();
    let main = make_main();
    let main = async move {
        main.await;
        returned.set(true);
    };
    crate::task::spawn_in(&scheduler.shards[0], Box::pin(main)).detach();
    let result = scheduler.run(&has_returned, simulation);
    let files = world.contents();
    result.map(|()| Simulated {
        value: (),
        trace: world.trace(),
        elapsed: Duration::from_nanos(world.time()),
        files,
    })
}

struct Scheduler {
    world: Rc<World>,
    shards: Vec<Rc<Shard>>,
    order: Random,
    before: Option<Option<Rc<Shard>>>,
}

impl Scheduler {
    fn run(mut self, has_returned: &Cell<bool>, simulation: &Simulation) -> Result<()> {
        let seed = simulation.seed;
        while !has_returned.get() {
            if self.world.trace_length() > simulation.most_events {
                let most = simulation.most_events;
                return Err(Error::timed_out(format!("seed {seed}: not completed after {most} events")));
            }
            if self.run_one() || self.advance() {
                continue;
            }
            let text = format!("seed {seed}: deadlock: every task waits and no event is pending");
            return Err(Error::timed_out(text));
        }
        Ok(())
    }

    /// Runs one ready task, drawn from all of them.
    fn run_one(&mut self) -> bool {
        for shard in &self.shards {
            shard::set_current(Some(shard.clone()));
            shard.deliver();
        }
        let ready: usize = self.shards.iter().map(|shard| shard.queue.borrow().len()).sum();
        if ready == 0 {
            return false;
        }
        let mut choice = self.order.below(ready as u64) as usize;
        for shard in &self.shards {
            let length = shard.queue.borrow().len();
            if choice >= length {
                choice -= length;
                continue;
            }
            self.world.note(format_args!("run {} of {length} on shard {}", choice, shard.index));
            let runnable = shard.queue.borrow_mut().remove(choice);
            shard::set_current(Some(shard.clone()));
            if let Some(runnable) = runnable {
                runnable.run();
            }
            return true;
        }
        unreachable!("the choice is below the number of ready tasks");
    }

    /// Advances time to the next event.
    fn advance(&mut self) -> bool {
        let deadline = self.shards.iter().filter_map(|shard| shard.timers.borrow().next_deadline()).min();
        let deadline = deadline.map(clock::Instant::nanoseconds);
        let Some(time) = self.world.next_event().into_iter().chain(deadline).min() else { return false };
        self.world.set_time(time);
        clock::set_virtual(Some(self.world.time()));
        while let Some((index, key, result)) = self.world.pop_due(|shard| &self.shards[shard.0].slots) {
            let shard = &self.shards[index.0];
            shard::set_current(Some(shard.clone()));
            shard.complete(key, result);
        }
        for shard in &self.shards {
            shard::set_current(Some(shard.clone()));
            shard.expire_timers();
        }
        true
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // Tasks of one shard may hold data of another shard's tasks, so all shards are emptied twice.
        for _ in 0..2 {
            for shard in &self.shards {
                shard::set_current(Some(shard.clone()));
                shard.drop_tasks();
                let slots = shard.slots.take();
                drop(slots);
            }
        }
        clock::set_virtual(None);
        shard::set_current(self.before.take().flatten());
    }
}

/// Returns the contents of the simulated files after a power cut at this moment: for each, the synced data,
/// and a drawn part of later writes, torn at 512 bytes. They are the initial files of a following simulation.
///
/// # Panics
/// Outside of [`simulate`].
pub fn power_cut() -> Vec<(PathBuf, Vec<u8>)> {
    shard::with_world(World::power_cut)
}
