//! Start of the shards, their loop, and their end.

use crate::clock::{self, now};
use crate::config::{Config, ShardIndex};
use crate::mailbox::{Mailbox, lock};
use crate::polling::EndedBy;
use crate::random::Random;
use crate::ring::Ring;
use crate::shard::{Driver, Shard, set_current};
use crate::slots::Key;
use crate::task::TaskFuture;
use block::{Error, Result};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

impl Shard {
    /// Runs the ready tasks; tasks that become ready meanwhile wait for the next turn.
    #[inline]
    fn run_ready(&self) {
        let ready = self.queue.borrow().len();
        for _ in 0..ready {
            let Some(runnable) = self.queue.borrow_mut().pop_front() else { break };
            runnable.run();
        }
    }

    /// One turn of the loop: tasks, messages, timers, the kernel.
    fn turn(&self, ring: &RefCell<Option<Box<Ring>>>) {
        self.run_ready();
        self.deliver();
        self.expire_timers();
        let is_idle = self.queue.borrow().is_empty();
        let deadline = self.timers.borrow().next_deadline().filter(|_| is_idle);
        let limit = || deadline.map(|deadline| deadline - now());
        {
            let mut ring = ring.borrow_mut();
            let ring = ring.as_mut().expect("a shard that turns has its ring");
            let idle_since = (is_idle && ring.polling().is_allowed()).then(now);
            let wait = is_idle
                && !ring.poll(limit, || self.mailbox.has_letters() || self.mailbox.is_stopped())
                && self.mailbox.fall_asleep();
            ring.turn(wait, limit());
            if wait {
                self.mailbox.wake_up();
            }
            if let Some(since) = idle_since {
                let by = if self.mailbox.has_letters() { EndedBy::Message } else { EndedBy::Other };
                ring.polling().waited(now() - since, by);
            }
            ring.reap(|key, result| self.complete_inside_turn(key, result));
        }
        self.start_cut_short();
    }

    /// Restarts the operations that [`complete_inside_turn`](Self::complete_inside_turn) set aside.
    #[inline]
    fn start_cut_short(&self) {
        loop {
            let Some(key) = self.cut_short.borrow_mut().pop() else { return };
            self.start_again(key);
        }
    }

    /// As [`complete`](Self::complete). Dropping an operation may release a file's slot, which needs the ring
    /// that is borrowed here, so an abandoned operation is dropped by a task of its own.
    #[inline]
    fn complete_inside_turn(&self, key: Key, result: i32) {
        if self.slots.borrow_mut().goes_on(key, result) {
            return self.cut_short.borrow_mut().push(key);
        }
        let (waker, abandoned) = self.slots.borrow_mut().complete(key, result);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(operation) = abandoned {
            crate::task::drop_later(self, self.discarded(operation, result));
        }
    }

    /// Drops every task with its data, and waits for the operations of the kernel to end.
    fn end(self: &Rc<Self>, ring: &RefCell<Option<Box<Ring>>>) {
        self.mailbox.close();
        self.drop_tasks();
        let deadline = now() + Duration::from_secs(30);
        while self.slots.borrow().using_memory() > 0 && now() < deadline {
            if let Some(ring) = ring.borrow_mut().as_mut() {
                ring.cancel_all();
                ring.turn(true, Some(Duration::from_millis(20)));
                ring.reap(|key, result| self.complete_inside_turn(key, result));
            }
            self.start_cut_short();
            self.drop_tasks();
        }
        let ring = ring.borrow_mut().take();
        if self.slots.borrow().using_memory() > 0 {
            tracing::error!("shard {}: operations did not end in 30 s; their memory is leaked", self.index);
            std::mem::forget(self.slots.take());
        }
        if let Some(ring) = ring {
            ring.close();
        }
    }
}

/// Runs `main` on shard 0, and returns its result once all shards have ended.
///
/// # Errors
/// [`Error::Invalid`] for a number of shards out of range; the kernel's error if it can't create a ring.
///
/// # Panics
/// With the panic of any task.
pub fn run<T, F, Fut>(config: Config, main: F) -> Result<T>
where
    F: FnOnce() -> Fut + Send,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let output = Arc::new(Mutex::new(None));
    let slot = output.clone();
    run_boxed(
        &config,
        Box::new(move || {
            // Called on shard 0, so that what it makes is made there.
            let main = main();
            Box::pin(async move {
                let value = main.await;
                *lock(&slot) = Some(value);
            })
        }),
    )?;
    let value = lock(&output).take();
    Ok(value.expect("the main task has returned"))
}

/// Makes the main task of a shard on its thread.
type MakeMain<'a> = Box<dyn FnOnce() -> TaskFuture<()> + Send + 'a>;

/// Part of [`run`] that doesn't depend on the types of `main`. Returns once `main` has.
fn run_boxed(config: &Config, main: MakeMain<'_>) -> Result<()> {
    if !(1..=256).contains(&config.shards) {
        return Err(Error::invalid(format!("{} shards: expected 1 to 256", config.shards)));
    }
    // Measured once, before any latency is.
    now();
    let mailboxes = (0..config.shards).map(|_| Mailbox::new()).collect::<Result<Arc<[_]>>>()?;
    let processors = &crate::signal::allowed_processors();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..config.shards)
            .map(|index| {
                let mailboxes = mailboxes.clone();
                scope.spawn(move || {
                    let forever: MakeMain<'_> = Box::new(|| Box::pin(std::future::pending()));
                    let ended = run_shard(ShardIndex(index), mailboxes.clone(), config, processors, forever);
                    if let Err(error) = ended {
                        stop_all(&mailboxes, Some(error));
                    }
                })
            })
            .collect();
        let first = {
            let mailboxes = mailboxes.clone();
            scope.spawn(move || run_shard(ShardIndex(0), mailboxes, config, processors, main))
        };
        let result = first.join();
        stop_all(&mailboxes, None);
        for thread in others {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let failure = mailboxes[0].failure();
        match result {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                Err(failure.unwrap_or_else(|| Error::cancelled("another shard ended with a panic")))
            }
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

pub(crate) fn stop_all(mailboxes: &[Arc<Mailbox>], failure: Option<Error>) {
    if let Some(failure) = failure {
        mailboxes[0].fail(failure);
    }
    mailboxes.iter().for_each(|mailbox| mailbox.stop());
}

/// Runs one shard until its main task has returned or the shard is stopped. Returns whether the task has
/// returned.
fn run_shard(
    index: ShardIndex,
    all: Arc<[Arc<Mailbox>]>,
    config: &Config,
    processors: &[usize],
    main: MakeMain<'_>,
) -> Result<bool> {
    crate::signal::prepare_thread(config.pin.then(|| processors[index.0 % processors.len()]));
    let mailbox = all[index.0].clone();
    let ring = Ring::new(config, mailbox.wake_descriptor(), processors.len())?;
    let shard = Rc::new(Shard {
        index,
        driver: Driver::Ring(RefCell::new(Some(Box::new(ring)))),
        slots: RefCell::default(),
        timers: RefCell::default(),
        queue: RefCell::default(),
        cut_short: RefCell::default(),
        tasks: RefCell::default(),
        random: RefCell::new(Random::new(crate::signal::kernel_random())),
        mailbox,
        all,
    });
    let Driver::Ring(ring) = &shard.driver else { unreachable!("made above") };
    // Ends the shard in every case, also after a panic in a task: memory that the kernel may still write to
    // must live.
    let _end = EndGuard(&shard);
    set_current(Some(shard.clone()));
    let has_returned = Rc::new(Cell::new(false));
    let returned = has_returned.clone();
    let main = main();
    let own_mailbox = shard.mailbox.clone();
    let main = async move {
        main.await;
        returned.set(true);
        // So that this turn doesn't wait for the kernel any more.
        own_mailbox.stop();
    };
    crate::task::spawn_in(&shard, Box::pin(main)).detach();
    while !has_returned.get() && !shard.mailbox.is_stopped() {
        shard.turn(ring);
    }
    Ok(has_returned.get())
}

struct EndGuard<'a>(&'a Rc<Shard>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        let Driver::Ring(ring) = &self.0.driver else { return };
        if std::thread::panicking() {
            // The other shards must not wait for this one.
            stop_all(&self.0.all, None);
        }
        self.0.end(ring);
        set_current(None);
        clock::set_virtual(None);
    }
}
