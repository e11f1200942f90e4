//! Shards for programs that aren't built on the runtime.

use block::{Error, Result};
use runtime::embedded::{Embedded, MAX_IN_FLIGHT, Pending, start};
use runtime::{Config, ShardIndex};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

/// Service of these tests: counts calls, and records that it was closed.
#[derive(Clone, Default)]
struct Service {
    calls: Arc<AtomicUsize>,
    is_closed: Arc<AtomicBool>,
}

fn open(shards: usize) -> (Embedded<Service>, Service) {
    let service = Service::default();
    let opened = service.clone();
    let close = |service: Arc<Service>| async move {
        service.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    };
    let config = Config::default().with_shards(shards).polling();
    (start(config, || async { Ok(opened) }, close).blocking().unwrap(), service)
}

/// A call that counts itself and returns `value` after a turn of its shard.
fn count(embedded: &Embedded<Service>, shard: usize, value: usize) -> Pending<usize> {
    embedded.call(ShardIndex(shard), move |service| async move {
        runtime::yield_now().await;
        service.calls.fetch_add(1, Ordering::SeqCst);
        Ok(value)
    })
}

/// A call that ends when the returned sender is used or dropped.
fn held(embedded: &Embedded<Service>, shard: usize) -> (mpsc::Sender<()>, Pending<()>) {
    let (sender, receiver) = mpsc::channel();
    let call = embedded.call(ShardIndex(shard), move |_| async move {
        while receiver.try_recv() == Err(mpsc::TryRecvError::Empty) {
            runtime::yield_now().await;
        }
        Ok(())
    });
    (sender, call)
}

fn poll_once<T: Send + 'static>(call: &mut Pending<T>) -> Poll<Result<T>> {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
}

fn is_shared<T: Send + Sync + Clone>(_: &T) {}
fn is_future<T: Future + Send + Unpin + 'static>(_: &T) {}

#[test]
fn threads_call_all_shards_and_each_gets_its_own_answers() {
    for shards in [1, 2, 8] {
        for threads in [1, 4, 32] {
            let ((embedded, service), calls) = (open(shards), 2000 / threads);
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let embedded = embedded.clone();
                    scope.spawn(move || {
                        for number in 0..calls {
                            let value = thread * calls + number;
                            assert_eq!(count(&embedded, value % shards, value).blocking(), Ok(value));
                        }
                    });
                }
            });
            assert_eq!(service.calls.load(Ordering::SeqCst), threads * calls);
            is_shared(&embedded);
            is_future(&count(&embedded, 0, 0));
        }
    }
}

#[test]
fn more_calls_than_the_limit_wait_and_all_return() {
    let (embedded, _) = open(2);
    let (release, mut first) = held(&embedded, 1);
    assert!(poll_once(&mut first).is_pending());
    let calls = 2 * MAX_IN_FLIGHT;
    let mut waiting: Vec<_> = (0..calls).map(|value| count(&embedded, 1, value)).collect();
    // All of them are begun; every third one is dropped, whether it waits to enter or runs.
    // Those that enter may be answered at once.
    waiting.retain_mut(|call| poll_once(call).is_pending());
    let mut number = 0;
    waiting.retain(|_| {
        number += 1;
        number % 3 != 0
    });
    drop(release);
    assert_eq!(first.blocking(), Ok(()));
    for call in waiting {
        assert!(call.blocking().is_ok());
    }
    assert_eq!(embedded.close().blocking(), Ok(()));
}

#[test]
fn dropping_the_last_handle_closes_and_waits_for_it() {
    let (embedded, service) = open(3);
    let clone = embedded.clone();
    drop(embedded);
    assert!(!service.is_closed.load(Ordering::SeqCst));
    let call = count(&clone, 2, 7);
    drop(clone);
    assert!(!service.is_closed.load(Ordering::SeqCst), "a call that hasn't begun keeps it open");
    assert_eq!(call.blocking(), Ok(7));
    assert!(service.is_closed.load(Ordering::SeqCst));
}

#[test]
fn the_last_handle_may_be_dropped_on_a_shard() {
    let (embedded, service) = {
        let (embedded, service) = open(2);
        (embedded, service)
    };
    let (watch, last) = (embedded.clone(), embedded.clone());
    let call = embedded.call(ShardIndex(1), move |_| async move {
        drop(last);
        Ok(())
    });
    assert_eq!(call.blocking(), Ok(()));
    let blocked = watch.call(ShardIndex(0), {
        let inner = count(&embedded, 1, 1);
        move |_| async move { inner.blocking() }
    });
    assert!(matches!(blocked.blocking(), Err(Error::Invalid(_))), "a shard would wait for itself");
    drop((watch, embedded));
    assert!(service.is_closed.load(Ordering::SeqCst));
}

#[test]
fn close_waits_for_calls_in_flight_and_refuses_later_ones() {
    let (embedded, service) = open(2);
    let (release, mut pending) = held(&embedded, 1);
    assert!(poll_once(&mut pending).is_pending());
    let mut closing = embedded.close();
    assert!(poll_once(&mut closing).is_pending());
    assert!(matches!(count(&embedded, 0, 0).blocking(), Err(Error::Closed(_))));
    assert!(poll_once(&mut closing).is_pending() && poll_once(&mut pending).is_pending());
    release.send(()).unwrap();
    assert_eq!(pending.blocking(), Ok(()));
    assert_eq!(closing.blocking(), Ok(()));
    assert_eq!(embedded.close().blocking(), Ok(()), "a second close has the same result");
    assert!(service.is_closed.load(Ordering::SeqCst));
}

#[test]
fn a_close_that_is_dropped_halfway_still_closes() {
    let (embedded, service) = open(1);
    let mut closing = embedded.close();
    drop(poll_once(&mut closing));
    drop(closing);
    assert!(matches!(count(&embedded, 0, 0).blocking(), Err(Error::Closed(_))));
    drop(embedded);
    assert!(service.is_closed.load(Ordering::SeqCst));
}

#[test]
fn a_panic_of_a_shard_fails_every_call_with_its_text() {
    for panicking in 0..3 {
        let (embedded, _) = open(3);
        let calls: Vec<_> = (0..3)
            .map(|shard| {
                let call = embedded.call::<(), _>(ShardIndex(shard), |_| std::future::pending());
                let mut call = Box::new(call);
                assert!(poll_once(&mut call).is_pending());
                call
            })
            .collect();
        let panics = embedded.call::<(), _>(ShardIndex(panicking), move |_| async move {
            panic!("on purpose, on shard {panicking}")
        });
        let text = format!("on purpose, on shard {panicking}");
        for call in [panics].into_iter().chain(calls.into_iter().map(|call| *call)) {
            let error = call.blocking().unwrap_err();
            assert!(matches!(&error, Error::Cancelled(detail) if detail.contains(&text)), "{error}");
        }
        for shard in 0..3 {
            let error = count(&embedded, shard, 0).blocking().unwrap_err();
            assert!(error.to_string().contains(&text), "{error}");
        }
        assert!(embedded.close().blocking().unwrap_err().to_string().contains(&text));
    }
}

#[test]
fn errors_of_opening_and_closing_reach_the_caller() {
    let opened = start(
        Config::default(),
        || async { Err::<(), _>(Error::protocol("no service here")) },
        |_| async { Ok(()) },
    );
    assert_eq!(opened.blocking().unwrap_err(), Error::protocol("no service here"));
    let panics =
        start(Config::default(), || async { panic!("while opening") }, |_: Arc<()>| async { Ok(()) });
    assert!(panics.blocking().unwrap_err().to_string().contains("while opening"));
    let none = start(Config::default().with_shards(0), || async { Ok(()) }, |_| async { Ok(()) });
    assert!(matches!(none.blocking(), Err(Error::Invalid(_))));
    let close = |_| async { Err(Error::io("the disk is gone")) };
    let embedded = start(Config::default(), || async { Ok(()) }, close).blocking().unwrap();
    assert_eq!(embedded.close().blocking(), Err(Error::io("the disk is gone")));
}

#[test]
fn a_service_whose_start_is_dropped_is_closed() {
    let is_closed = Arc::new(AtomicBool::new(false));
    let (sender, closed) = mpsc::channel();
    let closing = is_closed.clone();
    let mut starting = start(
        Config::default(),
        || async { Ok(()) },
        move |_| async move {
            closing.store(true, Ordering::SeqCst);
            sender.send(()).unwrap();
            Ok(())
        },
    );
    drop(poll_once(&mut starting));
    drop(starting);
    closed.recv().unwrap();
    assert!(is_closed.load(Ordering::SeqCst));
}

#[test]
fn any_waker_is_woken_once_the_answer_is_there() {
    struct Sender(mpsc::Sender<()>);
    impl Wake for Sender {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }
    let (embedded, _) = open(1);
    let (release, mut call) = held(&embedded, 0);
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Sender(sender)));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut call).poll(&mut context).is_pending());
    release.send(()).unwrap();
    woken.recv().unwrap();
    assert_eq!(Pin::new(&mut call).poll(&mut context), Poll::Ready(Ok(())));
}

/// Runs a test that would hang without the mend: fails after a while.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let work = move || {
        test();
        sender.send(()).unwrap();
    };
    let thread = std::thread::Builder::new().spawn(work).unwrap();
    let result = ended.recv_timeout(std::time::Duration::from_secs(20));
    assert!(result != Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

#[test]
fn a_call_that_is_polled_after_its_result_fails() {
    in_time(|| {
        let (embedded, _) = open(1);
        let other = Pending::of(std::future::ready(Ok(7)));
        let failed = Pending::failed(Error::io("on purpose"));
        for mut call in [count(&embedded, 0, 7), other, failed] {
            while poll_once(&mut call).is_pending() {
                std::thread::yield_now();
            }
            assert!(matches!(call.blocking(), Err(Error::Invalid(_))));
        }
    });
}

#[test]
fn calls_that_were_polled_once_hold_no_other_call() {
    in_time(|| {
        let (embedded, service) = open(1);
        let calls = (0..3 * MAX_IN_FLIGHT).map(|value| (value, count(&embedded, 0, value)));
        let mut begun: Vec<_> = calls.collect();
        // The first one may be answered at once.
        begun.retain_mut(|(_, call)| poll_once(call).is_pending());
        // None of them is polled while this one is waited for.
        assert_eq!(count(&embedded, 0, 7).blocking(), Ok(7));
        assert_eq!(service.calls.load(Ordering::SeqCst), 3 * MAX_IN_FLIGHT + 1, "they ran in order");
        for (value, call) in begun {
            assert_eq!(call.blocking(), Ok(value));
        }
    });
}

#[test]
fn close_and_the_last_handle_wait_for_no_call_that_was_polled_once() {
    for closes in [true, false] {
        in_time(move || {
            let (embedded, service) = open(1);
            let (release, mut first) = held(&embedded, 0);
            assert!(poll_once(&mut first).is_pending());
            let calls = 2 * MAX_IN_FLIGHT;
            let mut begun: Vec<_> = (0..calls).map(|value| (value, count(&embedded, 0, value))).collect();
            // Those that enter may be answered at once.
            begun.retain_mut(|(_, call)| poll_once(call).is_pending());
            // Some of those in the queue get their turn.
            while service.calls.load(Ordering::SeqCst) < MAX_IN_FLIGHT / 2 {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            match closes {
                true => assert_eq!(embedded.close().blocking(), Ok(())),
                false => {
                    // The calls keep it open, and are dropped with it, or refused in the queue.
                    drop((first, embedded));
                    drop(begun);
                    assert!(service.is_closed.load(Ordering::SeqCst));
                    return;
                }
            }
            assert!(service.is_closed.load(Ordering::SeqCst));
            let mut answers = begun
                .into_iter()
                .map(|(value, call)| (value, call.blocking()))
                .skip_while(|(value, answer)| answer == &Ok(*value));
            assert!(
                answers.all(|(_, answer)| matches!(answer, Err(Error::Closed(_)))),
                "refused from the end on"
            );
        });
    }
}
