//! The two queues of the policy: lists through arrays, so that a slot is taken out from anywhere, or moved, without a search.
//!
//! A slot is in one of them or in none. Eight bytes per slot, whichever it is in, and a byte that says which.

/// No slot.
const NONE: u32 = u32::MAX;

/// Where a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cache) enum Queue {
    /// In none: it has no block, or one that goes.
    None,
    /// For what is new.
    Small,
    /// For what was asked for again.
    Main,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    length: usize,
}

impl Ends {
    const EMPTY: Ends = Ends { first: NONE, last: NONE, length: 0 };
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Queues {
    queue: Vec<Queue>,
    before: Vec<u32>,
    behind: Vec<u32>,
    small: Ends,
    main: Ends,
}

impl Queues {
    /// For so many slots, all in none.
    pub fn new(slots: usize) -> Self {
        Queues {
            queue: vec![Queue::None; slots],
            before: vec![NONE; slots],
            behind: vec![NONE; slots],
            small: Ends::EMPTY,
            main: Ends::EMPTY,
        }
    }

    /// In which one a slot is.
    #[inline]
    pub fn of(&self, slot: u32) -> Queue {
        self.queue[slot as usize]
    }

    /// How many slots are in a queue.
    pub fn length(&self, queue: Queue) -> usize {
        match queue {
            Queue::None => 0,
            Queue::Small => self.small.length,
            Queue::Main => self.main.length,
        }
    }

    fn ends(&mut self, queue: Queue) -> &mut Ends {
        match queue {
            Queue::Small => &mut self.small,
            _ => &mut self.main,
        }
    }

    /// Puts a slot that is in none at the end of a queue, where it stays longest.
    pub fn push_back(&mut self, queue: Queue, slot: u32) {
        debug_assert!(self.of(slot) == Queue::None && queue != Queue::None);
        let last = self.ends(queue).last;
        (self.before[slot as usize], self.behind[slot as usize]) = (last, NONE);
        match last {
            NONE => self.ends(queue).first = slot,
            last => self.behind[last as usize] = slot,
        }
        self.ends(queue).last = slot;
        self.ends(queue).length += 1;
        self.queue[slot as usize] = queue;
    }

    /// Puts a slot that is in none at the beginning of a queue, where its turn is next.
    pub fn push_front(&mut self, queue: Queue, slot: u32) {
        debug_assert!(self.of(slot) == Queue::None && queue != Queue::None);
        let first = self.ends(queue).first;
        (self.before[slot as usize], self.behind[slot as usize]) = (NONE, first);
        match first {
            NONE => self.ends(queue).last = slot,
            first => self.before[first as usize] = slot,
        }
        self.ends(queue).first = slot;
        self.ends(queue).length += 1;
        self.queue[slot as usize] = queue;
    }

    /// Takes the first slot out.
    pub fn pop_front(&mut self, queue: Queue) -> Option<u32> {
        let first = self.ends(queue).first;
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Takes a slot out of whichever it is in.
    pub fn remove(&mut self, slot: u32) {
        let queue = std::mem::replace(&mut self.queue[slot as usize], Queue::None);
        if queue == Queue::None {
            return;
        }
        let (before, behind) = (self.before[slot as usize], self.behind[slot as usize]);
        match before {
            NONE => self.ends(queue).first = behind,
            before => self.behind[before as usize] = behind,
        }
        match behind {
            NONE => self.ends(queue).last = before,
            behind => self.before[behind as usize] = before,
        }
        self.ends(queue).length -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;
    use std::collections::VecDeque;

    #[test]
    fn they_are_what_lists_are() {
        let slots = 40;
        let mut random = Random::new(3);
        let mut queues = Queues::new(slots);
        let mut lists = [VecDeque::new(), VecDeque::new()];
        let names = [Queue::Small, Queue::Main];
        for step in 0..20_000 {
            let slot = random.below(slots as u64) as u32;
            let which = random.below(2) as usize;
            let is_in = lists.iter().any(|list: &VecDeque<u32>| list.contains(&slot));
            match (random.below(4), is_in) {
                (0, _) => assert_eq!(queues.pop_front(names[which]), lists[which].pop_front(), "step {step}"),
                (_, true) => {
                    queues.remove(slot);
                    lists.iter_mut().for_each(|list| list.retain(|other| *other != slot));
                }
                (1, false) => {
                    queues.push_front(names[which], slot);
                    lists[which].push_front(slot);
                }
                (_, false) => {
                    queues.push_back(names[which], slot);
                    lists[which].push_back(slot);
                }
            }
            for (name, list) in names.iter().zip(&lists) {
                assert_eq!(queues.length(*name), list.len(), "step {step}");
                assert!(list.iter().all(|slot| queues.of(*slot) == *name));
            }
        }
        while let Some(slot) = lists[0].pop_front() {
            assert_eq!(queues.pop_front(Queue::Small), Some(slot));
        }
        assert_eq!(queues.pop_front(Queue::Small), None);
    }
}
