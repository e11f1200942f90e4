//! Synchronization of tasks under the simulated runtime, in random orders.

use runtime::sync::{Notify, Semaphore, StopSource, channel, oneshot};
use runtime::{ShardIndex, Simulation};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

fn simulate<Fut: Future<Output = ()> + 'static>(main: impl Fn() -> Fut) {
    for seed in 0..50 {
        println!("seed {seed}");
        runtime::simulate(Simulation::new(seed).with_shards(2), &main).expect("it ends");
    }
}

#[test]
fn a_notification_is_waited_for() {
    simulate(|| async {
        let notify = Rc::new(Notify::new());
        let woken = Rc::new(Cell::new(0));
        let tasks = (0..5).map(|_| {
            let (notify, woken) = (notify.clone(), woken.clone());
            runtime::spawn(async move {
                notify.notified().await;
                woken.set(woken.get() + 1);
            })
        });
        let tasks: Vec<_> = tasks.collect();
        runtime::sleep(Duration::from_secs(1)).await;
        assert_eq!(woken.get(), 0, "none was notified");
        notify.notify_one();
        runtime::sleep(Duration::from_secs(1)).await;
        assert_eq!(woken.get(), 1);
        notify.notify_all();
        runtime::join_all(tasks).await;
        // A waiter that timed out must not take the notification of another one.
        assert!(runtime::timeout(Duration::from_secs(1), notify.notified()).await.is_err());
        let other = notify.notified();
        notify.notify_one();
        other.await;
    });
}

#[test]
fn permits_bound_and_come_back_in_order() {
    simulate(|| async {
        let semaphore = Semaphore::new(3);
        let (using, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let tasks = (0..20_usize).map(|index| {
            let (semaphore, using, most) = (semaphore.clone(), using.clone(), most.clone());
            runtime::spawn(async move {
                let wanted = 1 + index % 3;
                let acquire = semaphore.acquire(wanted);
                // Some waiters time out.
                let patience = Duration::from_micros(if index % 5 == 0 { 1 } else { 1_000_000 });
                let Ok(_permit) = runtime::timeout(patience, acquire).await else { return };
                using.set(using.get() + wanted);
                most.set(most.get().max(using.get()));
                runtime::sleep(Duration::from_micros(50)).await;
                using.set(using.get() - wanted);
            })
        });
        let tasks: Vec<_> = tasks.collect();
        runtime::join_all(tasks).await;
        assert!(most.get() <= 3 && most.get() >= 2, "{}", most.get());
        assert_eq!(semaphore.available(), 3);
    });
}

#[test]
fn channels_are_bounded_and_end() {
    simulate(|| async {
        let (sender, mut receiver) = channel(2);
        let sent = Rc::new(RefCell::new(Vec::new()));
        let senders = (0..3_u32).map(|who| {
            let (sender, sent) = (sender.clone(), sent.clone());
            runtime::spawn(async move {
                for number in 0..10 {
                    sender.send((who, number)).await.expect("it is received");
                    sent.borrow_mut().push((who, number));
                }
            })
        });
        let senders: Vec<_> = senders.collect();
        drop(sender);
        runtime::sleep(Duration::from_millis(1)).await;
        assert_eq!(sent.borrow().len(), 2, "the queue holds two");
        let mut received = Vec::new();
        while let Some(value) = receiver.receive().await {
            received.push(value);
        }
        runtime::join_all(senders).await;
        assert_eq!(received.len(), 30);
        for who in 0..3 {
            let numbers: Vec<u32> =
                received.iter().filter(|entry| entry.0 == who).map(|entry| entry.1).collect();
            assert!(numbers.into_iter().eq(0..10), "each sender's values keep their order");
        }
        let (sender, receiver) = oneshot::<u32>();
        drop(receiver);
        assert_eq!(sender.send(1), Err(1));
    });
}

#[test]
fn a_stop_reaches_every_shard() {
    simulate(|| async {
        let source = StopSource::new();
        let waiting = (0..4).map(|index| {
            let token = source.token();
            runtime::spawn_on(ShardIndex(index % 2), move || async move { token.stopped().await })
        });
        let waiting: Vec<_> = waiting.collect();
        let token = source.token();
        assert!(runtime::timeout(Duration::from_secs(1), token.stopped()).await.is_err());
        source.stop();
        for handle in waiting {
            handle.await.expect("it hears of it");
        }
        assert!(token.is_stopped());
        token.stopped().await;
    });
}

#[test]
fn only_so_many_run_at_a_time_and_what_they_return_is_in_order() {
    simulate(|| async {
        for (limit, expected) in [(0, 1), (1, 1), (3, 3), (100, 20)] {
            let (running, most, taken) = (Cell::new(0), Cell::new(0), Cell::new(0));
            let futures = (0..20_u64).map(|number| {
                taken.set(number + 1);
                let (running, most, taken) = (&running, &most, &taken);
                async move {
                    running.set(running.get() + 1);
                    most.set(most.get().max(running.get()));
                    assert!(taken.get() <= number + expected, "a future was taken before its turn");
                    // The futures end in another order.
                    runtime::sleep(Duration::from_micros(1 + number * 7 % 20)).await;
                    running.set(running.get() - 1);
                    number
                }
            });
            let returned = runtime::join_limited(limit, futures).await;
            assert_eq!(returned, (0..20).collect::<Vec<_>>());
            assert_eq!((running.get(), most.get()), (0, expected));
        }
        assert!(runtime::join_limited(3, std::iter::empty::<std::future::Ready<()>>()).await.is_empty());
    });
}

/// Polls once, with a waker that does nothing.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn a_notification_whose_waiter_is_dropped_goes_to_the_next_one() {
    let notify = Notify::new();
    let mut first = Box::pin(notify.notified());
    let mut second = Box::pin(notify.notified());
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    notify.notify_one();
    drop(first);
    assert!(poll(second.as_mut()).is_ready(), "the notification was lost with the first waiter");
    // A notification that was consumed isn't passed on, and neither is one of `notify_all`.
    let (mut first, mut second) = (Box::pin(notify.notified()), Box::pin(notify.notified()));
    notify.notify_one();
    assert!(poll(first.as_mut()).is_ready());
    drop(first);
    assert!(poll(second.as_mut()).is_pending());
    notify.notify_all();
    let mut late = Box::pin(notify.notified());
    drop(second);
    assert!(poll(late.as_mut()).is_pending());
}

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn permits_whose_waiter_is_dropped_go_to_the_next_one() {
    // The first waiter is dropped after it was woken, or while it waits for more permits than there are.
    for wanted in [1, 3] {
        let semaphore = Semaphore::new(2);
        let permit = semaphore.try_acquire(1).expect("a permit is free");
        let other = semaphore.try_acquire(1).expect("a permit is free");
        let mut first = Box::pin(semaphore.acquire(wanted));
        assert!(poll(first.as_mut()).is_pending());
        let wakes = std::sync::Arc::new(Wakes::default());
        let waker = std::task::Waker::from(wakes.clone());
        let mut second = Box::pin(semaphore.acquire(1));
        assert!(second.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        drop(permit);
        drop(first);
        let woken = wakes.0.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(woken, 1, "the second waiter sleeps although a permit is free");
        assert!(poll(second.as_mut()).is_ready());
        drop(other);
    }
}

#[test]
fn free_space_whose_sender_is_dropped_goes_to_the_next_one() {
    let (sender, mut receiver) = channel(1);
    sender.try_send(0).expect("there is space");
    let mut first = Box::pin(sender.send(1));
    let wakes = std::sync::Arc::new(Wakes::default());
    let waker = std::task::Waker::from(wakes.clone());
    let mut second = Box::pin(sender.send(2));
    assert!(poll(first.as_mut()).is_pending());
    assert!(second.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    assert_eq!(receiver.try_receive(), Some(0));
    drop(first);
    let woken = wakes.0.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(woken, 1, "the second sender sleeps although the queue has space");
    assert!(poll(second.as_mut()).is_ready());
    assert_eq!(receiver.try_receive(), Some(2));
}
