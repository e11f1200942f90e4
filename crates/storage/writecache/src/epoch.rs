//! Flush epochs: a client's flush ends the current one, if it has a record.
//!
//! Every record belongs to one epoch, and the numbers of epochs never decrease along the log.

use std::cell::Cell;

/// The current flush epoch.
#[derive(Debug)]
pub struct FlushEpoch {
    current: Cell<u64>,
    has_records: Cell<bool>,
}

impl FlushEpoch {
    /// Begins with this epoch, which has no record.
    pub fn new(current: u64) -> Self {
        FlushEpoch { current: Cell::new(current), has_records: Cell::new(false) }
    }

    /// The current epoch.
    pub fn current(&self) -> u64 {
        self.current.get()
    }

    /// Adds a record to the current epoch, and returns the epoch.
    pub fn add_record(&self) -> u64 {
        self.has_records.set(true);
        self.current.get()
    }

    /// Ends the current epoch, unless it is empty.
    pub fn flush(&self) {
        if self.has_records.replace(false) {
            self.current.set(self.current.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_epoch_with_records_ends_with_a_flush() {
        let epoch = FlushEpoch::new(5);
        epoch.flush();
        assert_eq!(epoch.add_record(), 5);
        epoch.flush();
        epoch.flush();
        assert_eq!((epoch.current(), epoch.add_record()), (6, 6));
    }
}
