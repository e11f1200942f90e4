use super::*;

fn seen(watch: &Watch) -> (u64, bool) {
    let Progress { completed, in_flight, .. } = watch.observe();
    (completed, in_flight)
}

impl User {
    /// A request that succeeds.
    fn succeed(&self, request: Watched<'_>) {
        Observer::<()>::end(self, request, 0, None);
    }
}

#[test]
fn requests_are_in_flight_until_they_succeed_or_are_cancelled() {
    let watch = Watch::default();
    assert_eq!(seen(&watch), (0, false));
    let (user, other) = (watch.user(), watch.user());
    let mut stuck = user.watched(Call::<()>::new(std::future::pending()));
    assert_eq!(seen(&watch), (0, false), "it hasn't begun");
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::Pin::new(&mut stuck).poll(&mut context).is_pending());
    assert_eq!(seen(&watch), (0, true));
    let quick = other.request();
    other.succeed(quick);
    drop(other);
    assert_eq!(seen(&watch), (1, true), "another one is in flight");
    drop(stuck);
    assert_eq!(seen(&watch), (1, false));
    drop(user);
    assert_eq!(seen(&watch), (1, false), "a user's requests stay counted after its end");
}

/// A node that is connected again and again, while requests to it fail or are dropped after their time limit.
#[test]
fn only_successful_io_is_progress() {
    let watch = Watch::default();
    let user = watch.user();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..10 {
        let mut open = user.watched(Call::ready(()));
        assert!(std::pin::Pin::new(&mut open).poll(&mut context).is_ready());
        Observer::<()>::end(&user, user.request(), 4096, Some(&Error::io("a failure")));
        drop(user.request());
        assert_eq!(seen(&watch), (0, false));
    }
    user.succeed(user.request());
    assert_eq!(seen(&watch), (1, false));
}

/// Requests that always overlap leave some in flight at every moment.
#[test]
fn generations_go_on_until_a_request_hangs() {
    let watch = Watch::default();
    let user = watch.user();
    let mut overlapping = user.request();
    for generation in 1..10 {
        user.succeed(std::mem::replace(&mut overlapping, user.request()));
        // A request that has begun in the generation before is replaced by one of this generation.
        assert_eq!(watch.observe().generation, generation);
    }
    let hung = user.request();
    let stopped = watch.observe().generation;
    for completed in 10..20 {
        user.succeed(std::mem::replace(&mut overlapping, user.request()));
        let seen = watch.observe();
        assert!(seen.generation <= stopped + 1, "{seen:?}");
        assert_eq!((seen.completed, seen.in_flight), (completed, true));
    }
    drop(hung);
    assert!(watch.observe().generation > stopped);
}
