//! Tickets: numbers of operations, and the greatest number up to which all operations have ended. Operations
//! end roughly in the order of their numbers.

use std::collections::VecDeque;

/// Operations beginning with the first that hasn't ended.
#[derive(Debug)]
pub struct Tickets {
    /// Number of the first operation that hasn't ended.
    first: u64,
    /// Whether each operation has ended, beginning with `first`.
    ended: VecDeque<bool>,
}

impl Default for Tickets {
    fn default() -> Self {
        Tickets { first: 1, ended: VecDeque::new() }
    }
}

impl Tickets {
    /// Begins an operation. Returns its number, at least 1.
    pub fn issue(&mut self) -> u64 {
        self.ended.push_back(false);
        self.issued()
    }

    /// Returns the last number that was issued.
    pub fn issued(&self) -> u64 {
        self.first + self.ended.len() as u64 - 1
    }

    /// Returns the greatest number up to which all operations have ended.
    pub fn done(&self) -> u64 {
        self.first - 1
    }

    /// Notes that an operation has ended; 0 means none.
    pub fn end(&mut self, ticket: u64) {
        let Some(at) = ticket.checked_sub(self.first) else { return };
        if let Some(ended) = self.ended.get_mut(at as usize) {
            *ended = true;
        }
        while self.ended.front() == Some(&true) {
            self.ended.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_once_all_before_it_have_ended() {
        let mut tickets = Tickets::default();
        assert_eq!((tickets.issued(), tickets.done()), (0, 0));
        assert_eq!([tickets.issue(), tickets.issue(), tickets.issue()], [1, 2, 3]);
        tickets.end(2);
        tickets.end(0);
        assert_eq!(tickets.done(), 0);
        tickets.end(1);
        assert_eq!((tickets.issued(), tickets.done()), (3, 2));
        tickets.end(1);
        tickets.end(3);
        assert_eq!((tickets.issue(), tickets.done()), (4, 3));
    }
}
