//! Numbers of operations that end in about the order in which they began, and up to which one all have ended.

use std::collections::VecDeque;

/// Operations that haven't ended, and later ones.
#[derive(Debug)]
pub struct Tickets {
    /// Number of the first of them.
    first: u64,
    /// Which have ended, from the first on.
    ended: VecDeque<bool>,
}

impl Default for Tickets {
    fn default() -> Self {
        Tickets { first: 1, ended: VecDeque::new() }
    }
}

impl Tickets {
    /// Numbers an operation: from 1 on.
    pub fn issue(&mut self) -> u64 {
        self.ended.push_back(false);
        self.issued()
    }

    /// The last number.
    pub fn issued(&self) -> u64 {
        self.first + self.ended.len() as u64 - 1
    }

    /// The last number up to which all operations have ended.
    pub fn done(&self) -> u64 {
        self.first - 1
    }

    /// Notes that an operation has ended. 0 is no operation.
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
