//! The queue's decisions, without I/O: a simulated device ends requests in the order of their start.

use super::*;
use proptest::prelude::*;

const THIRD: ClassNumber = 2;
const FOURTH: ClassNumber = 3;

/// Returns queues with these classes after the two that each file system has.
fn queue(depth: u64, shares: &[u32]) -> FairQueue<(ClassNumber, u64)> {
    let mut queue = FairQueue::new(depth);
    let all = [100, 20].into_iter().chain(shares.iter().copied());
    all.enumerate().for_each(|(class, shares)| queue.set(class, shares));
    queue
}

/// A device that ends requests in the order of their start; each is followed by another request of its class.
struct Device {
    queue: FairQueue<(ClassNumber, u64)>,
    flying: VecDeque<(ClassNumber, u64)>,
}

impl Device {
    fn new(depth: u64, shares: &[u32]) -> Self {
        Device { queue: queue(depth, shares), flying: VecDeque::new() }
    }

    /// Adds requests of a class, with more cost than the depth.
    fn keep_busy(&mut self, class: ClassNumber, cost: u64) {
        for _ in 0..2 * self.queue.depth / cost + 4 {
            match self.queue.try_start(class, cost) {
                true => self.flying.push_back((class, cost)),
                false => _ = self.queue.wait(class, cost, (class, cost)),
            }
        }
    }

    /// Ends some requests. Returns the cost of the requests that each class started.
    fn run(&mut self, requests: u32) -> Vec<u64> {
        let mut done = vec![0; self.queue.classes()];
        for _ in 0..requests {
            let (class, cost) = self.flying.pop_front().expect("something is in flight");
            self.queue.ended(class, cost);
            self.queue.wait(class, cost, (class, cost));
            while let Some((class, cost)) = self.queue.start_next() {
                done[class] += cost;
                self.flying.push_back((class, cost));
            }
        }
        done
    }
}

fn ratio(done: &[u64], of: ClassNumber, to: ClassNumber) -> f64 {
    done[of] as f64 / done[to] as f64
}

#[test]
fn backlogged_classes_get_their_shares_whatever_the_sizes_of_their_requests() {
    for (sizes, depth) in [((4096, 4096), 16_384), ((4096, 262_144), 16_384), ((262_144, 4096), 1 << 20)] {
        let mut device = Device::new(depth, &[100, 300]);
        device.keep_busy(THIRD, sizes.0);
        device.keep_busy(FOURTH, sizes.1);
        device.run(1000);
        let done = device.run(40_000);
        let ratio = ratio(&done, FOURTH, THIRD);
        assert!((2.94..3.06).contains(&ratio), "{sizes:?}: {ratio}");
    }
}

#[test]
fn a_class_that_was_idle_has_saved_nothing_up() {
    let mut device = Device::new(16_384, &[100, 100]);
    device.keep_busy(THIRD, 4096);
    device.run(10_000);
    device.keep_busy(FOURTH, 4096);
    let done = device.run(400);
    let ratio = ratio(&done, FOURTH, THIRD);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn shares_that_change_hold_for_what_waits() {
    let mut device = Device::new(16_384, &[1, 100]);
    device.keep_busy(THIRD, 4096);
    device.keep_busy(FOURTH, 4096);
    device.run(5000);
    device.queue.set(THIRD, 1000);
    let now = ratio(&device.run(5000), THIRD, FOURTH);
    assert!((9.0..11.0).contains(&now), "{now}");
    assert_eq!((device.queue.shares(THIRD), device.queue.shares(FOURTH)), (1000, 100));
}

#[test]
fn a_new_request_of_large_shares_is_next() {
    let mut queue = queue(16_384, &[100, 1000]);
    while queue.try_start(THIRD, 4096) {}
    (0..50).for_each(|_| _ = queue.wait(THIRD, 4096, (THIRD, 4096)));
    queue.ended(THIRD, 4096);
    assert_eq!(queue.start_next(), Some((THIRD, 4096)));
    queue.wait(FOURTH, 4096, (FOURTH, 4096));
    queue.ended(THIRD, 4096);
    assert_eq!(queue.start_next(), Some((FOURTH, 4096)));
}

#[test]
fn only_classes_that_compete_are_bounded() {
    let mut queue = queue(4096, &[]);
    assert!((0..100).all(|_| queue.try_start(DEFAULT, 4096)), "no other class competes");
    assert!(!queue.try_start(BACKGROUND, 4096));
    queue.wait(BACKGROUND, 4096, (BACKGROUND, 4096));
    assert!(!queue.try_start(DEFAULT, 4096), "the background waits");
    (0..100).for_each(|_| queue.ended(DEFAULT, 4096));
    assert_eq!(queue.start_next(), Some((BACKGROUND, 4096)));
    assert!(!queue.try_start(DEFAULT, 4096), "the background is in flight");
    queue.ended(BACKGROUND, 4096);
    assert!((0..100).all(|_| queue.try_start(DEFAULT, 4096)));
    queue.set(THIRD, 100);
    assert!(!queue.try_start(DEFAULT, 4096), "another class may compete");
}

#[test]
fn a_request_larger_than_the_depth_is_started() {
    let mut queue = queue(4096, &[100]);
    assert!(queue.try_start(THIRD, 1 << 20));
    assert!(!queue.try_start(THIRD, 4096));
    queue.wait(THIRD, 1 << 20, (THIRD, 1 << 20));
    assert_eq!(queue.start_next(), None);
    queue.ended(THIRD, 1 << 20);
    assert_eq!(queue.start_next(), Some((THIRD, 1 << 20)));
}

#[derive(Debug, Clone)]
enum Step {
    Ask(ClassNumber, u64),
    Leave(usize),
    End(usize),
    Set(ClassNumber, u32),
    Now(ClassNumber, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize, 1..300_000_u64).prop_map(|(class, cost)| Step::Ask(class, cost)),
        1 => any::<usize>().prop_map(Step::Leave),
        4 => any::<usize>().prop_map(Step::End),
        1 => (0..4_usize, 1..=MAX_SHARES).prop_map(|(class, shares)| Step::Set(class, shares)),
        1 => (0..4_usize, 1..300_000_u64).prop_map(|(class, cost)| Step::Now(class, cost)),
    ]
}

proptest! {
    /// After any sequence of arrivals, departures and changes: no request waits while there is capacity, none
    /// is lost, and all cost is returned.
    #[test]
    fn nothing_waits_for_ever(steps in prop::collection::vec(step(), 1..300)) {
        let depth = 500_000;
        let mut queue = queue(depth, &[100, 300]);
        let (mut flying, mut waiting) = (Vec::new(), Vec::new());
        let start = |queue: &mut FairQueue<(ClassNumber, u64)>, flying: &mut Vec<_>, waiting: &mut Vec<(ClassNumber, u64)>| {
            while let Some(started) = queue.start_next() {
                let place = waiting.iter().position(|it| *it == started).expect("it waited");
                waiting.remove(place);
                flying.push(started);
            }
        };
        let mut numbers = Vec::new();
        for step in steps {
            match step {
                Step::Ask(class, cost) => match queue.try_start(class, cost) {
                    true => flying.push((class, cost)),
                    false => {
                        numbers.push((class, queue.wait(class, cost, (class, cost))));
                        waiting.push((class, cost));
                    }
                },
                Step::Leave(which) if !numbers.is_empty() => {
                    let (class, number) = numbers.swap_remove(which % numbers.len());
                    if let Some(left) = queue.leave(class, number) {
                        let place = waiting.iter().position(|it| *it == left).expect("it waited");
                        waiting.remove(place);
                    }
                }
                Step::End(which) if !flying.is_empty() => {
                    let (class, cost) = flying.swap_remove(which % flying.len());
                    queue.ended(class, cost);
                }
                Step::Set(class, shares) => queue.set(class, shares),
                Step::Now(class, cost) => {
                    queue.start_now(class, cost);
                    flying.push((class, cost));
                }
                Step::Leave(_) | Step::End(_) => {}
            }
            start(&mut queue, &mut flying, &mut waiting);
            prop_assert_eq!(queue.waiting(), waiting.len());
            prop_assert_eq!(queue.in_flight(), flying.iter().map(|(_, cost)| cost).sum::<u64>());
            prop_assert!(waiting.is_empty() || queue.in_flight() >= depth);
        }
        while let Some((class, cost)) = flying.pop() {
            queue.ended(class, cost);
            start(&mut queue, &mut flying, &mut waiting);
        }
        prop_assert!(waiting.is_empty() && queue.in_flight() == 0);
    }
}
