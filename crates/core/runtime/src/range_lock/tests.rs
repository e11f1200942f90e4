use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// Counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<A: Access>(asked: &mut Asked<A>) -> Option<Held<A>> {
    match Pin::new(asked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(held) => Some(held),
        Poll::Pending => None,
    }
}

#[test]
fn ranges_are_granted_in_the_order_of_asking() {
    let lock = RangeLock::default();
    let first = poll(&mut lock.ask(10..20)).expect("it is free");
    let mut second = lock.ask(0..12);
    let mut third = lock.ask(0..5);
    assert!(poll(&mut lock.ask(20..30)).is_some() && poll(&mut lock.ask(15..15)).is_some());
    assert!(poll(&mut second).is_none());
    assert!(poll(&mut third).is_none(), "it would overtake the second one");
    drop(first);
    assert!(poll(&mut third).is_none());
    drop(poll(&mut second).expect("its turn"));
    drop(poll(&mut third).expect("its turn"));
    assert!(lock.is_free());
}

/// The waiter in the middle delays a request that doesn't overlap the first one.
#[test]
fn a_dropped_waiter_wakes_those_that_it_held_up() {
    let lock = SharedRangeLock::default();
    let first = poll(&mut lock.ask(0..10)).expect("it is free");
    let second = lock.ask(0..20);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let (mut behind, mut apart) = (lock.ask(5..6), lock.ask(10..20));
    assert!(Pin::new(&mut apart).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(poll(&mut behind).is_none());
    drop(second);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "no request delays it now");
    assert!(poll(&mut apart).is_some());
    assert!(poll(&mut behind).is_none(), "the first one still has these blocks");
    // The blocks of the dropped request belong to the first one again.
    assert!(poll(&mut lock.ask(9..10)).is_none());
    drop(first);
    assert!(poll(&mut behind).is_some());
    assert!(lock.is_free());
}

#[test]
fn a_waiter_is_woken_once_all_before_it_have_gone() {
    let lock = RangeLock::default();
    let mut held: Vec<_> =
        (0..10).map(|block| poll(&mut lock.ask(block..block + 1)).expect("it is free")).collect();
    let mut all = lock.ask(0..10);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    assert!(Pin::new(&mut all).poll(&mut Context::from_waker(&waker)).is_pending());
    while held.pop().is_some() {
        assert_eq!(wakes.0.load(Ordering::SeqCst), usize::from(held.is_empty()));
    }
    assert!(all.try_take().is_ok());
}

/// Many waiters for one block, and for everything around it: each is linked only to its direct predecessors.
#[test]
fn a_long_line_has_few_links() {
    let lock = RangeLock::default();
    let asked: Vec<_> =
        (0..4000_u64).map(|number| lock.ask(if number % 2 == 0 { 7..8 } else { 0..u64::MAX })).collect();
    let links: usize = lock.0.with(|table| table.requests.iter().map(|request| request.after.len()).sum());
    // A wide request waits for the small one before it, and for the wide one before that.
    assert_eq!(links, 2000 + 2 * 1999);
    for mut place in asked {
        assert!(poll(&mut place).is_some());
    }
    assert!(lock.is_free());
}

/// Pieces of the table where one request covers many others and is fragmented by many more.
#[test]
fn wide_ranges_over_many_small_ones() {
    let lock = RangeLock::default();
    let ask_small = || (0..1000_u64).map(|number| lock.ask(3 * number..3 * number + 1)).collect::<Vec<_>>();
    let before = ask_small();
    let mut wide = lock.ask(0..3000);
    let after = ask_small();
    let mut wide_again = lock.ask(0..3000);
    let links: usize = lock.0.with(|table| table.requests.iter().map(|request| request.after.len()).sum());
    assert_eq!(
        links,
        1000 + 1000 + 1000 + 1,
        "the second wide request waits for the first in the remaining gaps"
    );
    before.into_iter().for_each(|mut place| drop(poll(&mut place).expect("it is the first")));
    drop(poll(&mut wide).expect("its turn"));
    after.into_iter().for_each(|mut place| drop(poll(&mut place).expect("its turn")));
    drop(poll(&mut wide_again).expect("its turn"));
    assert!(lock.is_free());
}

/// List of all requests in order, each of which waits for all earlier ones that it overlaps.
#[derive(Default)]
struct Model(Vec<(u64, Range<u64>)>);

impl Model {
    fn is_granted(&self, number: u64) -> bool {
        let place = self.0.iter().position(|request| request.0 == number).expect("it is there");
        let range = &self.0[place].1;
        // An empty range has no blocks to wait for.
        range.is_empty()
            || !self.0[..place].iter().any(|other| !other.1.is_empty() && overlap(&other.1, range))
    }

    fn remove(&mut self, number: u64) {
        self.0.retain(|request| request.0 != number);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Ask {
        start: u64,
        length: u64,
    },
    /// Drops a granted request, by its place among those.
    Release(prop::sample::Index),
    /// Drops a waiting request, by its place among those.
    GiveUp(prop::sample::Index),
}

fn steps(width: u64) -> impl Strategy<Value = Vec<Step>> {
    let lengths = prop_oneof![6 => 0..8_u64, 1 => Just(width)];
    let step = prop_oneof![
        5 => (0..width, lengths).prop_map(|(start, length)| Step::Ask { start, length }),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => any::<prop::sample::Index>().prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 1..200)
}

/// Takes the steps and compares the granted requests with the model after each; then releases ranges until no
/// request remains.
fn follow<A: Access>(lock: &Lock<A>, steps: &[Step]) {
    let mut model = Model::default();
    let mut waiting: Vec<(u64, Arc<Wakes>, Asked<A>)> = Vec::new();
    let mut held: Vec<(u64, Held<A>)> = Vec::new();
    let mut number = 0;
    let take_up = |model: &Model, waiting: &mut Vec<(u64, Arc<Wakes>, Asked<A>)>| {
        let mut granted = Vec::new();
        waiting.retain_mut(|(number, wakes, asked)| {
            let expected = model.is_granted(*number);
            // A waiter is polled only after it was woken.
            let is_new = Arc::strong_count(wakes) == 1;
            assert!(
                is_new || (wakes.0.load(Ordering::SeqCst) > 0) == expected,
                "{number} was woken: {}",
                !expected
            );
            let waker = Waker::from(wakes.clone());
            match Pin::new(asked).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(range) => granted.push((*number, range)),
                Poll::Pending => {
                    assert!(!expected, "{number} waits for none");
                    return true;
                }
            }
            assert!(expected, "{number} has overtaken another one");
            false
        });
        granted
    };
    for step in steps {
        match step {
            Step::Ask { start, length } => {
                number += 1;
                let range = *start..start + length;
                model.0.push((number, range.clone()));
                waiting.push((number, Arc::default(), lock.ask(range)));
            }
            Step::Release(index) if !held.is_empty() => {
                let (number, range) = held.swap_remove(index.index(held.len()));
                model.remove(number);
                drop(range);
            }
            Step::GiveUp(index) if !waiting.is_empty() => {
                let (number, _, asked) = waiting.swap_remove(index.index(waiting.len()));
                model.remove(number);
                drop(asked);
            }
            Step::Release(_) | Step::GiveUp(_) => {}
        }
        held.extend(take_up(&model, &mut waiting));
    }
    // Progress: while a request waits, another one has a range, and releasing all ranges grants more.
    while !waiting.is_empty() || !held.is_empty() {
        assert!(!held.is_empty(), "{} wait forever", waiting.len());
        held.drain(..).for_each(|(number, range)| {
            model.remove(number);
            drop(range);
        });
        held.extend(take_up(&model, &mut waiting));
    }
    assert!(lock.is_free());
    lock.0.with(|table| {
        assert!(table.requests.iter().all(|request| request.pieces == 0 && request.after.is_empty()));
        assert_eq!(table.free.len(), table.requests.len());
    });
}

proptest! {
    #[test]
    fn any_order_of_asking_releasing_and_giving_up(steps in steps(30)) {
        follow(&RangeLock::default(), &steps);
    }

    /// Enough pieces for chunks to be split and to become empty.
    #[test]
    fn many_pieces(steps in prop::collection::vec(steps(4000), 1..8)) {
        follow(&SharedRangeLock::default(), &steps.concat());
    }
}
