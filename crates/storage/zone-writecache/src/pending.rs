//! Operations of the log that aren't durable at the origin, and the batches in which they are applied there.

use crate::format::{Action, Entry, Header, Position};
use runtime::Instant;
use std::collections::{BTreeSet, VecDeque};

/// Number of pending operations at which appends wait; it bounds their memory.
pub const MAX_PENDING: usize = 1 << 16;
/// Number of pending operations at which all changes wait: higher than that of appends, so that changes
/// without data continue while appends wait for the origin.
pub const MAX_CHANGES: usize = MAX_PENDING + MAX_PENDING / 4;

/// Number of zones that a batch finishes and resets.
const MAX_CHANGED: usize = 64;

/// An operation that isn't durable at the origin.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    /// The operation.
    pub entry: Entry,
    /// Address of the data in the log, in bytes.
    pub data: u64,
    /// Number of the operation's record.
    pub record: u64,
    /// Position after the operation.
    pub end: Position,
    /// Number of flushes by users before the operation.
    pub flush_epoch: u64,
    /// Wall-clock time of the record, in ms.
    pub written: u64,
    /// Time since which the operation is pending, in this process.
    pub since: Instant,
}

impl Pending {
    /// Operations of a record, in order; `next` is the position after the record, and `since` the time at
    /// which they became pending.
    pub fn of_record(
        header: &Header,
        block_size: u64,
        next: Position,
        since: Instant,
    ) -> impl Iterator<Item = Pending> + '_ {
        let Header { address, record, flush_epoch, written, .. } = *header;
        let mut data = header.data_address(block_size);
        (1..).zip(&header.entries).map(move |(number, entry)| {
            let end = match number as usize == header.entries.len() {
                true => next,
                false => Position { address, record, entry: number },
            };
            let pending = Pending { entry: *entry, data, record, end, flush_epoch, written, since };
            data += entry.length();
            pending
        })
    }
}

/// Next step at the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Number of operations: appends, operations without an effect at the origin, and changes of zones that
    /// can be joined. They become durable together.
    Joined(usize),
    /// One operation alone: it is durable once it returns, or has to follow the flush of the appends before
    /// it.
    Barrier,
}

/// Limits of a batch, by the kind of the origin.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Limit of the appended bytes of a batch.
    pub bytes: u64,
    /// Whether appends of several flush epochs may be in one batch: the origin flushes atomically.
    pub joins_epochs: bool,
    /// Whether finishes may be in a batch with other operations, and resets: the origin
    /// [changes zones together](block::Zones::change_together).
    pub joins_finishes: bool,
    /// See `joins_finishes`.
    pub joins_resets: bool,
    /// Whether zones are closed at the origin, which has a limit of open zones. The first operation of an
    /// epoch closes all zones that the uploads of earlier epochs have opened.
    pub closes: bool,
}

impl BatchLimits {
    /// Whether an operation is a batch of its own.
    pub fn is_barrier(&self, action: Action) -> bool {
        match action {
            Action::Finish => !self.joins_finishes,
            Action::Reset => !self.joins_resets,
            Action::Close | Action::Unclean | Action::Clean => self.closes,
            Action::Append | Action::Open => false,
        }
    }
}

/// The pending operations, in the order of the log.
#[derive(Debug, Default)]
pub struct PendingList {
    list: VecDeque<Pending>,
    /// Appended bytes of the list.
    bytes: u64,
}

impl PendingList {
    /// Adds an operation after all others.
    pub fn push(&mut self, pending: Pending) {
        self.bytes += pending.entry.length();
        self.list.push_back(pending);
    }

    /// Appended bytes that aren't durable at the origin.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appended bytes of the records after this one.
    pub fn bytes_after(&self, record: u64) -> u64 {
        self.list.iter().rev().take_while(|op| op.record > record).map(|op| op.entry.length()).sum()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The oldest operation.
    pub fn oldest(&self) -> Option<&Pending> {
        self.list.front()
    }

    /// All operations, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> + Clone {
        self.list.iter()
    }

    /// Removes the oldest operation, which is durable at the origin.
    pub fn pop(&mut self) -> Option<Pending> {
        let pending = self.list.pop_front()?;
        self.bytes -= pending.entry.length();
        Some(pending)
    }

    /// Returns the next batch after the first `skip` operations, of those whose records are durable: up to
    /// record `durable`. `None` if there is none.
    ///
    /// Appends of one flush epoch may become durable in any order, as on a device that loses power before the
    /// next flush. A finish and a reset are durable at once, so they are batches of their own, unless the
    /// origin changes zones together. Then a batch has no operation of a zone after its finish or reset, and
    /// no reset of a zone after appends to it.
    pub fn next_batch(
        &self,
        limits: BatchLimits,
        durable: u64,
        skip: usize,
        may_send: impl Fn(&Entry) -> bool,
    ) -> Option<Batch> {
        let mut count = 0;
        let mut bytes = 0;
        let mut epoch = None;
        // Ordered: a batch may have thousands of zones.
        let (mut appended, mut changed) = (BTreeSet::new(), BTreeSet::new());
        for Pending { entry, flush_epoch, .. } in
            self.list.iter().skip(skip).take_while(|op| op.record <= durable)
        {
            if !may_send(entry) {
                break;
            }
            let is_barrier = limits.is_barrier(entry.action);
            if is_barrier {
                return Some(if count == 0 { Batch::Barrier } else { Batch::Joined(count) });
            }
            let is_changed = changed.contains(&entry.zone);
            if is_changed || entry.action == Action::Reset && appended.contains(&entry.zone) {
                break;
            }
            if matches!(entry.action, Action::Finish | Action::Reset) {
                if changed.len() == MAX_CHANGED {
                    break;
                }
                changed.insert(entry.zone);
            }
            if entry.action == Action::Append {
                let other_epoch = epoch.is_some_and(|epoch| epoch != *flush_epoch);
                if other_epoch && !limits.joins_epochs || count > 0 && bytes + entry.length() > limits.bytes {
                    break;
                }
                epoch = Some(*flush_epoch);
                bytes += entry.length();
                appended.insert(entry.zone);
            }
            count += 1;
        }
        (count > 0).then_some(Batch::Joined(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ZoneIndex;

    fn list(operations: &[(Action, u64)]) -> PendingList {
        let mut list = PendingList::default();
        let main = || async { runtime::now() };
        let since = runtime::simulate(runtime::Simulation::new(1), main).expect("it ends").value;
        for (number, (action, flush_epoch)) in operations.iter().enumerate() {
            let mut entry = Entry::of(*action, ZoneIndex(0), 0);
            entry.length = if *action == Action::Append { 100 } else { 0 };
            let record = number as u64 + 1;
            list.push(Pending {
                entry,
                data: 0,
                record,
                end: Position::default(),
                flush_epoch: *flush_epoch,
                written: 0,
                since,
            });
        }
        list
    }

    #[test]
    fn a_batch_ends_at_flushes_and_barriers() {
        use Action::{Append, Close, Finish, Open, Reset};
        let usual = BatchLimits {
            bytes: 1000,
            joins_epochs: false,
            joins_finishes: false,
            joins_resets: false,
            closes: false,
        };
        let joins = BatchLimits { joins_epochs: true, ..usual };
        let pending =
            list(&[(Append, 1), (Open, 1), (Append, 1), (Close, 2), (Append, 2), (Finish, 2), (Append, 3)]);
        assert_eq!(pending.next_batch(usual, 9, 0, |_| true), Some(Batch::Joined(4)));
        assert_eq!(pending.next_batch(joins, 9, 0, |_| true), Some(Batch::Joined(5)));
        assert_eq!(
            pending.next_batch(joins, 2, 0, |_| true),
            Some(Batch::Joined(2)),
            "the rest isn't durable locally"
        );
        assert_eq!(pending.next_batch(joins, 0, 0, |_| true), None);
        assert_eq!(
            pending.next_batch(BatchLimits { closes: true, ..joins }, 9, 0, |_| true),
            Some(Batch::Joined(3))
        );
        assert_eq!(
            pending.next_batch(BatchLimits { bytes: 150, ..joins }, 9, 0, |_| true),
            Some(Batch::Joined(2))
        );
        assert_eq!(
            pending.next_batch(BatchLimits { bytes: 1, ..joins }, 9, 0, |_| true),
            Some(Batch::Joined(2))
        );
        assert_eq!(list(&[(Reset, 1), (Append, 1)]).next_batch(joins, 9, 0, |_| true), Some(Batch::Barrier));
        for start in [Action::Unclean, Action::Clean] {
            let pending = list(&[(Append, 1), (start, 1), (Append, 1)]);
            let closes = BatchLimits { closes: true, ..joins };
            assert_eq!(pending.next_batch(joins, 9, 0, |_| true), Some(Batch::Joined(3)));
            assert_eq!(
                pending.next_batch(closes, 9, 0, |_| true),
                Some(Batch::Joined(1)),
                "{start:?} closes zones"
            );
        }
        assert_eq!(
            pending.next_batch(joins, 9, 2, |_| true),
            Some(Batch::Joined(3)),
            "the first ones are sent"
        );
        assert_eq!(pending.next_batch(joins, 9, 5, |_| true), Some(Batch::Barrier));
        assert_eq!(pending.next_batch(joins, 9, 7, |_| true), None);
        assert_eq!(pending.bytes(), 400);
        assert_eq!([0, 1, 4, 5, 7].map(|record| pending.bytes_after(record)), [400, 300, 200, 100, 0]);
    }

    #[test]
    fn finishes_and_resets_join_a_batch_whose_zones_have_no_later_operation() {
        use Action::{Append, Finish, Reset};
        let joins = BatchLimits {
            bytes: 1000,
            joins_epochs: true,
            joins_finishes: true,
            joins_resets: true,
            closes: false,
        };
        let of = |operations: &[(Action, u32)]| {
            let mut pending = list(&operations.iter().map(|(action, _)| (*action, 1)).collect::<Vec<_>>());
            for (known, (_, zone)) in pending.list.iter_mut().zip(operations) {
                known.entry.zone = ZoneIndex(*zone);
            }
            pending
        };
        let count = |limits, operations: &[(Action, u32)]| of(operations).next_batch(limits, 99, 0, |_| true);
        let joined = |count| Some(Batch::Joined(count));
        assert_eq!(
            count(joins, &[(Append, 0), (Finish, 0), (Append, 1), (Reset, 2), (Append, 1)]),
            joined(5)
        );
        assert_eq!(count(joins, &[(Finish, 0), (Append, 1), (Reset, 0)]), joined(2), "finished, then reset");
        assert_eq!(count(joins, &[(Reset, 0), (Append, 0)]), joined(1), "appended to after its reset");
        assert_eq!(count(joins, &[(Append, 0), (Reset, 0)]), joined(1), "reset after an append");
        let own = BatchLimits { joins_resets: false, ..joins };
        assert_eq!(count(own, &[(Finish, 0), (Reset, 1)]), joined(1), "a reset that may be refused");
        assert_eq!(count(own, &[(Reset, 1)]), Some(Batch::Barrier));
        let many: Vec<_> = (0..MAX_CHANGED as u32 + 9).map(|zone| (Finish, zone)).collect();
        assert_eq!(count(joins, &many), joined(MAX_CHANGED));
    }
}
