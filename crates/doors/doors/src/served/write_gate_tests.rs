use super::*;
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake};

struct Unpark(std::thread::Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = Box::pin(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

type Waiting<'g> = Pin<Box<dyn Future<Output = Held<'g>> + 'g>>;

fn poll<'g>(waiting: &mut Waiting<'g>) -> Option<Held<'g>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(held) => Some(held),
        Poll::Pending => None,
    }
}

#[test]
fn whole_writes_pass_until_one_is_announced() {
    let gate = WriteGate::new(2);
    let first = gate.pass(0).expect("none is announced");
    let second = gate.pass(1).expect("writes of whole blocks don't exclude each other");
    let mut exclusive: Waiting<'_> = Box::pin(gate.exclude(BlockRange::new(4, 1)));
    assert!(poll(&mut exclusive).is_none(), "two are counted");
    assert!(gate.pass(0).is_none(), "one is announced");
    drop(first);
    assert!(poll(&mut exclusive).is_none(), "one is counted");
    drop(second);
    let held = poll(&mut exclusive).expect("none is counted");
    let mut elsewhere: Waiting<'_> = Box::pin(gate.queue(BlockRange::new(5, 9)));
    let mut overlapping: Waiting<'_> = Box::pin(gate.queue(BlockRange::new(0, 5)));
    assert!(poll(&mut elsewhere).is_some());
    assert!(poll(&mut overlapping).is_none());
    drop(held);
    let late = poll(&mut overlapping).expect("released");
    assert!(gate.pass(0).is_some(), "the announcement is over");
    // The next exclusive write waits for the one that is still in the table.
    let mut next: Waiting<'_> = Box::pin(gate.exclude(BlockRange::new(4, 1)));
    assert!(poll(&mut next).is_none());
    drop(late);
    assert!(poll(&mut next).is_some());
}

#[test]
fn nobody_is_overtaken() {
    let gate = WriteGate::new(1);
    let range = BlockRange::new(0, 1);
    let held = poll(&mut (Box::pin(gate.queue(range)) as Waiting<'_>)).expect("free");
    let mut exclusive: Waiting<'_> = Box::pin(gate.exclude(range));
    assert!(poll(&mut exclusive).is_none());
    let mut later: Waiting<'_> = Box::pin(gate.queue(range));
    assert!(poll(&mut later).is_none(), "it would overtake the exclusive one");
    drop(held);
    let held = poll(&mut exclusive).expect("its turn");
    assert!(poll(&mut later).is_none());
    drop(held);
    assert!(poll(&mut later).is_some());
}

#[test]
fn only_the_last_counted_write_of_a_shard_wakes() {
    struct Wakes(AtomicU64);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let gate = WriteGate::new(1);
    let counted: Vec<_> = (0..10).map(|_| gate.pass(0).expect("none is announced")).collect();
    let wakes = Arc::new(Wakes(AtomicU64::new(0)));
    let waker = Waker::from(wakes.clone());
    let mut exclusive: Waiting<'_> = Box::pin(gate.exclude(BlockRange::new(4, 1)));
    assert!(exclusive.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    for (index, counted) in counted.into_iter().enumerate() {
        drop(counted);
        assert_eq!(wakes.0.load(Ordering::SeqCst), u64::from(index == 9), "after {} of 10", index + 1);
    }
    assert!(poll(&mut exclusive).is_some());
}

#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    let gate = WriteGate::new(1);
    let range = BlockRange::new(0, 1);
    let counted = gate.pass(0).expect("free");
    let mut draining: Waiting<'_> = Box::pin(gate.exclude(range));
    assert!(poll(&mut draining).is_none());
    drop(draining);
    drop(counted);
    assert!(gate.pass(0).is_some());
    let held = poll(&mut (Box::pin(gate.exclude(range)) as Waiting<'_>)).expect("free");
    let mut waiting: Waiting<'_> = Box::pin(gate.exclude(range));
    assert!(poll(&mut waiting).is_none());
    drop(waiting);
    drop(held);
    assert!(gate.pass(0).is_some());
    assert!(gate.ranges.is_free());
}

/// Several threads write a block in whole and in part, and detect lost writes by its words.
#[test]
fn threads_lose_no_write() {
    const ROUNDS: u64 = 1500;
    let gate = WriteGate::new(4);
    // One block: a word for each partial writer, and one for the writer of whole blocks.
    let block: &[AtomicU64; 4] = &Default::default();
    let read = || [0, 1, 2, 3].map(|word: usize| block[word].load(Ordering::SeqCst));
    let write = |words: [u64; 4]| (0..4).for_each(|word| block[word].store(words[word], Ordering::SeqCst));
    let range = BlockRange::new(0, 1);
    let finished = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        for word in 0..3 {
            let gate = &gate;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let held = wait_for(gate.exclude(range));
                    let mut words = read();
                    words[word] = round;
                    // A write of the whole block could happen here without the gate.
                    std::thread::yield_now();
                    write(words);
                    drop(held);
                    // Only whole writes also change this word, and they set all words to a mark.
                    let found = block[word].load(Ordering::SeqCst);
                    assert!(
                        found == round || found >= 1 << 32,
                        "write {round} of word {word} became {found}"
                    );
                }
                finished.fetch_add(1, Ordering::SeqCst);
            });
        }
        let gate = &gate;
        scope.spawn(move || {
            for round in (1..).take_while(|_| finished.load(Ordering::SeqCst) < 3) {
                let mark = round << 32_u64;
                match gate.pass(3) {
                    Some(_counted) => {
                        std::thread::yield_now();
                        write([mark; 4]);
                    }
                    None => {
                        let _held = wait_for(gate.queue(range));
                        write([mark; 4]);
                    }
                }
                // Only whole writes change the last word: a concurrent exclusive write would restore its old
                // value.
                let found = block[3].load(Ordering::SeqCst);
                assert_eq!(found, mark, "the whole write {round} was lost");
            }
        });
    });
}

proptest! {
    /// For any requests in any order, overlapping ranges are never held together, and every request is
    /// granted.
    #[test]
    fn overlapping_ranges_are_never_held_together(
        asked in prop::collection::vec((0_u64..8, 1_u64..5, any::<bool>()), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let gate = WriteGate::new(1);
        let mut waiting: Vec<(usize, Waiting<'_>)> = Vec::new();
        for (number, (start, count, exclusive)) in asked.iter().enumerate() {
            let range = BlockRange::new(*start, *count);
            waiting.push((number, match exclusive {
                true => Box::pin(gate.exclude(range)),
                false => Box::pin(gate.queue(range)),
            }));
        }
        let mut holding: Vec<(usize, Held<'_>)> = Vec::new();
        let mut turns = 0;
        for choice in order.iter().cycle().take(4000) {
            if waiting.is_empty() && holding.is_empty() {
                break;
            }
            turns += 1;
            let index = choice.index(waiting.len() + holding.len());
            if index >= waiting.len() {
                drop(holding.remove(index - waiting.len()));
            } else if let Some(held) = poll(&mut waiting[index].1) {
                let (number, _) = waiting.remove(index);
                for (other, _) in &holding {
                    let ((a, an, _), (b, bn, _)) = (asked[number], asked[*other]);
                    let overlap = BlockRange::new(a, an).overlaps(&BlockRange::new(b, bn));
                    prop_assert!(!overlap, "{number} and {other} are held together");
                }
                holding.push((number, held));
            }
        }
        prop_assert!(turns < 4000, "a write is starved");
    }
}
