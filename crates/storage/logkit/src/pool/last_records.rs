//! The last record of each stream in a zone: the zone can be reset once all of them are covered.

use crate::record::StreamId;
use crate::stream::Sequences;
use smallvec::SmallVec;

/// Number of the last record of each stream in a zone. Few streams share a zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastRecords(SmallVec<[(StreamId, u64); 2]>);

impl LastRecords {
    /// Notes a record.
    #[inline]
    pub fn note(&mut self, stream: StreamId, sequence: u64) {
        match self.0.iter_mut().find(|(own, _)| *own == stream) {
            Some((_, last)) => *last = (*last).max(sequence),
            None => self.0.push((stream, sequence)),
        }
    }

    /// Number of the last record of this stream; 0 if there is none.
    pub fn of(&self, stream: StreamId) -> u64 {
        self.0.iter().find(|(own, _)| *own == stream).map_or(0, |(_, last)| *last)
    }

    /// Whether every record is at or below the number of its stream.
    pub fn is_within(&self, sequences: &Sequences) -> bool {
        self.0.iter().all(|(stream, last)| *last <= sequences.of(*stream))
    }

    /// Lowers every number to at most that of its stream.
    pub fn lower_to(&mut self, sequences: &Sequences) {
        self.0.iter_mut().for_each(|(stream, last)| *last = (*last).min(sequences.of(*stream)));
    }

    /// The streams with their last records.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<(StreamId, u64)> for LastRecords {
    fn from_iter<I: IntoIterator<Item = (StreamId, u64)>>(numbers: I) -> Self {
        let mut last = LastRecords::default();
        numbers
            .into_iter()
            .filter(|(_, sequence)| *sequence > 0)
            .for_each(|(stream, it)| last.note(stream, it));
        last
    }
}
