//! The two queues of the policy: doubly linked lists in arrays, so that a slot is removed or moved in
//! constant time.
//!
//! A slot is in one of them or in none. Memory per slot: eight bytes of links and one byte for the queue.

/// End of a list.
const NONE: u32 = u32::MAX;

/// Queue of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// None: the slot is free or being evicted.
    None,
    /// Queue of new blocks.
    Small,
    /// Queue of blocks with further hits.
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

/// The two queues.
#[derive(Debug)]
pub(crate) struct Queues {
    queue: Vec<Queue>,
    previous: Vec<u32>,
    next: Vec<u32>,
    small: Ends,
    main: Ends,
}

impl Queues {
    /// Creates empty queues for this number of slots.
    pub fn new(slots: usize) -> Self {
        Queues {
            queue: vec![Queue::None; slots],
            previous: vec![NONE; slots],
            next: vec![NONE; slots],
            small: Ends::EMPTY,
            main: Ends::EMPTY,
        }
    }

    /// Returns the queue of a slot.
    #[inline]
    pub fn of(&self, slot: u32) -> Queue {
        self.queue[slot as usize]
    }

    /// Returns the number of slots in a queue.
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

    /// Appends a slot that is in no queue to the end of one, where it stays longest.
    pub fn push_back(&mut self, queue: Queue, slot: u32) {
        debug_assert!(self.of(slot) == Queue::None && queue != Queue::None);
        let last = self.ends(queue).last;
        (self.previous[slot as usize], self.next[slot as usize]) = (last, NONE);
        match last {
            NONE => self.ends(queue).first = slot,
            last => self.next[last as usize] = slot,
        }
        self.ends(queue).last = slot;
        self.ends(queue).length += 1;
        self.queue[slot as usize] = queue;
    }

    /// Prepends a slot that is in no queue to the front of one, where it is the next candidate.
    pub fn push_front(&mut self, queue: Queue, slot: u32) {
        debug_assert!(self.of(slot) == Queue::None && queue != Queue::None);
        let first = self.ends(queue).first;
        (self.previous[slot as usize], self.next[slot as usize]) = (NONE, first);
        match first {
            NONE => self.ends(queue).last = slot,
            first => self.previous[first as usize] = slot,
        }
        self.ends(queue).first = slot;
        self.ends(queue).length += 1;
        self.queue[slot as usize] = queue;
    }

    /// Removes and returns the first slot.
    pub fn pop_front(&mut self, queue: Queue) -> Option<u32> {
        let first = self.ends(queue).first;
        (first != NONE).then(|| {
            self.remove(first);
            first
        })
    }

    /// Removes a slot from its queue, if it is in one.
    pub fn remove(&mut self, slot: u32) {
        let queue = std::mem::replace(&mut self.queue[slot as usize], Queue::None);
        if queue == Queue::None {
            return;
        }
        let (previous, next) = (self.previous[slot as usize], self.next[slot as usize]);
        match previous {
            NONE => self.ends(queue).first = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.ends(queue).last = previous,
            next => self.previous[next as usize] = previous,
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
