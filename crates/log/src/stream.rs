//! A stream's numbers: which records were issued, which are written, up to where none is missing.

use std::collections::VecDeque;

/// The state of one stream. `T` is what is kept of a record until it commits.
#[derive(Debug)]
pub struct Stream<T> {
    /// Every record up to this number is written, and so is its predecessor, and so on.
    committed: u64,
    /// Every record up to this number survives a power cut.
    durable: u64,
    /// The records behind `committed` that were issued; those that are written are there.
    waiting: VecDeque<Option<T>>,
}

impl<T> Stream<T> {
    /// Behind this record, which is durable.
    pub fn behind(sequence: u64) -> Self {
        Stream { committed: sequence, durable: sequence, waiting: VecDeque::new() }
    }

    /// The number of the next record.
    pub fn issue(&mut self) -> u64 {
        self.waiting.push_back(None);
        self.committed + self.waiting.len() as u64
    }

    /// A record is written.
    pub fn written(&mut self, sequence: u64, record: T) {
        let place = (sequence - self.committed - 1) as usize;
        debug_assert!(self.waiting[place].is_none(), "record {sequence} was written twice");
        self.waiting[place] = Some(record);
    }

    /// The next record that commits, if it is written.
    pub fn next_committed(&mut self) -> Option<T> {
        if !matches!(self.waiting.front(), Some(Some(_))) {
            return None;
        }
        self.committed += 1;
        self.waiting.pop_front().flatten()
    }

    /// See the field.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// See the field.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Everything that had committed at this number survives a power cut now.
    pub fn set_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }

    /// The records that are written and can't commit.
    pub fn waiting_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.iter_mut().flatten()
    }

    /// Takes all records that are written and can't commit; for a log that has failed.
    pub fn take_waiting(&mut self) -> Vec<T> {
        self.waiting.iter_mut().filter_map(Option::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_commit_in_order_whatever_order_they_are_written_in() {
        let mut stream = Stream::behind(10);
        assert_eq!([stream.issue(), stream.issue(), stream.issue()], [11, 12, 13]);
        stream.written(13, 'c');
        assert_eq!(stream.next_committed(), None);
        stream.written(11, 'a');
        assert_eq!((stream.next_committed(), stream.next_committed()), (Some('a'), None));
        stream.written(12, 'b');
        assert_eq!((stream.next_committed(), stream.next_committed()), (Some('b'), Some('c')));
        assert_eq!((stream.committed(), stream.durable(), stream.issue()), (13, 10, 14));
    }
}
