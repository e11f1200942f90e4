//! Ranges of blocks that one operation has at a time.
//!
//! Promises: of two that overlap, the one that asked first has its range first, and the other one only after it has let go;
//! those that don't overlap never wait for each other. Taking a range that nobody has costs a look into an ordered map
//! of as many pieces as there are operations; waiting costs as much as its own overlaps, however many others wait.
//!
//! How: the map says for each block which operation asked for it last. A new one waits for those that it finds there, once each,
//! and takes their place; those before them have gone when they have.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The ranges of one shard.
#[derive(Default)]
pub struct RangeLocks(RefCell<State>);

#[derive(Default)]
struct State {
    /// By first block: where the piece ends, and who asked for it last.
    pieces: BTreeMap<u64, (u64, usize)>,
    askers: Vec<Asker>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Asker {
    range: Range<u64>,
    /// How many it waits for.
    before: usize,
    /// Who waits for it.
    behind: Vec<usize>,
    waker: Option<Waker>,
    /// Nobody wants the range any more; it is let go as soon as it is had.
    is_abandoned: bool,
}

impl RangeLocks {
    /// Asks for a range, now: the place in the line is the one of this call. An empty one is had at once.
    pub fn ask(self: &Rc<Self>, range: Range<u64>) -> Asked {
        let number = self.0.borrow_mut().enter(range);
        Asked { held: Some(Held { locks: self.clone(), number }) }
    }

    /// Whether nobody has or waits for any block.
    #[cfg(test)]
    fn are_all_free(&self) -> bool {
        self.0.borrow().pieces.is_empty()
    }
}

impl State {
    fn enter(&mut self, range: Range<u64>) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.askers.push(Asker::default());
            self.askers.len() - 1
        });
        self.askers[number].range = range.clone();
        if range.is_empty() {
            return number;
        }
        // The common case: nobody is there.
        let left = self.pieces.range(..range.start).next_back().filter(|(_, piece)| piece.0 > range.start);
        if left.is_some() || self.pieces.range(range.clone()).next().is_some() {
            self.displace(&range, number);
        }
        self.pieces.insert(range.start, (range.end, number));
        number
    }

    /// Takes out what others have of a range, and waits for them.
    fn displace(&mut self, range: &Range<u64>, number: usize) {
        let left = self.pieces.range(..range.start).next_back().filter(|(_, piece)| piece.0 > range.start);
        let mut found: Vec<(u64, u64, usize)> =
            left.map(|(start, (end, asker))| (*start, *end, *asker)).into_iter().collect();
        found.extend(self.pieces.range(range.clone()).map(|(start, (end, asker))| (*start, *end, *asker)));
        for (start, end, asker) in found {
            self.pieces.remove(&start);
            if start < range.start {
                self.pieces.insert(start, (range.start, asker));
            }
            if end > range.end {
                self.pieces.insert(range.end, (end, asker));
            }
            if !self.askers[asker].behind.contains(&number) {
                self.askers[asker].behind.push(number);
                self.askers[number].before += 1;
            }
        }
    }

    /// Lets go, and gives those who can go on now.
    fn leave(&mut self, number: usize, woken: &mut Vec<Waker>) {
        // Nothing is allocated where nobody waits.
        let (mut current, mut leaving) = (Some(number), Vec::new());
        while let Some(number) = current {
            let asker = &mut self.askers[number];
            let (range, behind) = (std::mem::take(&mut asker.range), std::mem::take(&mut asker.behind));
            (asker.waker, asker.is_abandoned) = (None, false);
            if !range.is_empty() {
                self.forget(range, number);
            }
            self.free.push(number);
            for next in behind {
                let asker = &mut self.askers[next];
                asker.before -= 1;
                if asker.before == 0 {
                    match asker.is_abandoned {
                        true => leaving.push(next),
                        false => woken.extend(asker.waker.take()),
                    }
                }
            }
            current = leaving.pop();
        }
    }

    fn forget(&mut self, range: Range<u64>, number: usize) {
        // Nearly always the one piece that was put there.
        if let Some(piece) = self.pieces.get(&range.start)
            && *piece == (range.end, number)
        {
            self.pieces.remove(&range.start);
            return;
        }
        let own = self.pieces.range(range).filter(|(_, piece)| piece.1 == number).map(|(start, _)| *start);
        let own: Vec<u64> = own.collect();
        for start in own {
            self.pieces.remove(&start);
        }
    }
}

/// A place in the line. Dropped before its turn, those behind it wait for those before it all the same.
pub struct Asked {
    held: Option<Held>,
}

impl Future for Asked {
    type Output = Held;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Held> {
        let held = self.held.as_ref().expect("a place in the line is not polled again once it has come");
        let mut state = held.locks.0.borrow_mut();
        let asker = &mut state.askers[held.number];
        if asker.before > 0 {
            asker.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.held.take().expect("it was there"))
    }
}

/// A range that is had until this is dropped.
pub struct Held {
    locks: Rc<RangeLocks>,
    number: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        {
            let mut state = self.locks.0.borrow_mut();
            let asker = &mut state.askers[self.number];
            match asker.before {
                0 => state.leave(self.number, &mut woken),
                _ => (asker.is_abandoned, asker.waker) = (true, None),
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    fn poll(asked: &mut Asked) -> Option<Held> {
        match Pin::new(asked).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(held) => Some(held),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_asked_first_is_first() {
        let locks = Rc::new(RangeLocks::default());
        let first = poll(&mut locks.ask(10..20)).expect("it is free");
        let mut second = locks.ask(0..12);
        let mut third = locks.ask(0..5);
        let mut other = locks.ask(20..30);
        assert!(poll(&mut second).is_none() && poll(&mut third).is_none());
        assert!(poll(&mut other).is_some());
        drop(first);
        assert!(poll(&mut third).is_none());
        // Dropped before its turn: the third goes on.
        drop(second);
        drop(poll(&mut third).expect("nobody is before it"));
        assert!(locks.are_all_free());
    }

    #[test]
    fn one_that_gave_up_still_stands_between_those_around_it() {
        let locks = Rc::new(RangeLocks::default());
        let first = poll(&mut locks.ask(0..10)).expect("it is free");
        drop(locks.ask(0..10));
        let mut third = locks.ask(5..6);
        assert!(poll(&mut third).is_none());
        drop(first);
        assert!(poll(&mut third).is_some());
        assert!(locks.are_all_free());
    }

    /// Against a list of all askers, each of which waits for every earlier one that it overlaps.
    #[test]
    fn any_order_of_asking_and_letting_go() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let locks = Rc::new(RangeLocks::default());
            let mut waiting: Vec<(u64, Range<u64>, Asked)> = Vec::new();
            let mut held: Vec<(u64, Range<u64>, Held)> = Vec::new();
            for number in 0..300 {
                match random.below(4) {
                    0 | 1 => {
                        let start = random.below(30);
                        let range = start..start + random.below(8);
                        waiting.push((number, range.clone(), locks.ask(range)));
                    }
                    2 if !held.is_empty() => drop(held.swap_remove(random.below(held.len() as u64) as usize)),
                    3 if !waiting.is_empty() && random.chance(0.2) => {
                        drop(waiting.swap_remove(random.below(waiting.len() as u64) as usize));
                    }
                    _ => {}
                }
                let mut left = Vec::new();
                for (number, range, mut asked) in waiting {
                    match poll(&mut asked) {
                        Some(lock) => held.push((number, range, lock)),
                        None => left.push((number, range, asked)),
                    }
                }
                waiting = left;
                let overlap = |a: &Range<u64>, b: &Range<u64>| a.start.max(b.start) < a.end.min(b.end);
                for (index, (number, range, _)) in held.iter().enumerate() {
                    for (other, its, _) in &held[index + 1..] {
                        assert!(
                            !overlap(range, its),
                            "seed {seed}: {number} and {other} have {range:?} and {its:?}"
                        );
                    }
                    let overtaken =
                        waiting.iter().find(|(other, its, _)| other < number && overlap(range, its));
                    assert!(overtaken.is_none(), "seed {seed}: {number} overtook another one");
                }
            }
            while !held.is_empty() || !waiting.is_empty() {
                held.clear();
                let before = waiting.len();
                waiting.retain_mut(|(_, _, asked)| poll(asked).is_none());
                assert!(waiting.len() < before || before == 0, "seed {seed}: {before} wait for ever");
            }
            assert!(locks.are_all_free(), "seed {seed}");
        }
    }
}
