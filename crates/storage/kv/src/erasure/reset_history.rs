//! History of the guarantees of resets: when a promise is added or strengthened, it must also cover zones
//! that were reset before.
//!
//! A zone that was reset with a weaker guarantee than the present one may hold copies of keys that were
//! deleted before. Such zones are *pending*: the eraser resets free ones again; others are reset when they
//! have no live data. The history is part of each checkpoint. A weaker guarantee is used only after a
//! checkpoint has recorded it ([`guarantee`](ResetHistory::guarantee)).

use block::{EraseGuarantee, Error, Result};
use std::collections::BTreeMap;
use zones::bytes::{Reader, Writer};

/// Guarantees in the order of their numbers on the medium.
const GUARANTEES: [EraseGuarantee; 4] =
    [EraseGuarantee::None, EraseGuarantee::Deallocated, EraseGuarantee::Erased, EraseGuarantee::Key];

/// Guarantees of the resets of a store's zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetHistory {
    /// Minimum guarantee of the resets of zones that aren't pending.
    usual: EraseGuarantee,
    /// Minimum guarantee of the resets of pending zones.
    weakest: EraseGuarantee,
    /// Pending zones, with their generations.
    pending: BTreeMap<u32, u64>,
    /// Guarantee in the history on the medium; used while it is stronger than `usual`.
    durable: EraseGuarantee,
}

impl ResetHistory {
    /// Returns the history of a new store.
    pub fn new(guarantee: EraseGuarantee) -> Self {
        ResetHistory { usual: guarantee, weakest: guarantee, pending: BTreeMap::new(), durable: guarantee }
    }

    /// Sets the guarantee for further resets. `reset` has the zones that were reset before, with their
    /// generations. Returns whether a checkpoint is needed.
    pub fn begin(&mut self, guarantee: EraseGuarantee, reset: &[(u32, u64)]) -> bool {
        let before = self.usual;
        // The medium has only the numbers of pending zones.
        let generations: BTreeMap<u32, u64> = reset.iter().copied().collect();
        self.pending.iter_mut().for_each(|(zone, generation)| {
            *generation = generations.get(zone).copied().unwrap_or(u64::MAX);
        });
        self.pending.retain(|_, generation| *generation != u64::MAX);
        if guarantee > before {
            self.weakest = if self.pending.is_empty() { before } else { self.weakest.min(before) };
            self.pending = generations;
        } else if guarantee <= self.weakest {
            self.weakest = guarantee;
            self.pending.clear();
        }
        (self.usual, self.durable) = (guarantee, before);
        guarantee != before
    }

    /// Guarantee for resets of zones.
    pub fn guarantee(&self) -> EraseGuarantee {
        self.usual.max(self.durable)
    }

    /// Notes that a checkpoint with this history is durable.
    pub fn written(&mut self) {
        self.durable = self.usual;
    }

    /// Forgets pending zones that were reset since; `generation` returns the present generation of a zone.
    pub fn look(&mut self, generation: impl Fn(u32) -> u64) {
        self.pending.retain(|zone, noted| generation(*zone) <= *noted);
    }

    /// Numbers of the pending zones.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = u32> {
        self.pending.keys().copied()
    }

    /// Weakest guarantee with which pending zones were reset.
    pub fn weakest(&self) -> EraseGuarantee {
        self.weakest
    }

    /// Appends the encoded history; pending zones are encoded as runs of numbers.
    pub fn encode(&self, writer: &mut Writer) {
        for guarantee in [self.usual, self.weakest] {
            writer.u8(GUARANTEES.iter().position(|known| *known == guarantee).unwrap_or(0) as u8);
        }
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for zone in self.pending() {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == zone => *count += 1,
                _ => runs.push((zone, 1)),
            }
        }
        writer.u32(runs.len() as u32);
        runs.into_iter().for_each(|(first, count)| {
            writer.u32(first);
            writer.u32(count);
        });
    }

    /// Decodes a history, of at most 2^24 zones.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut guarantee = || -> Result<EraseGuarantee> {
            let number = reader.u8()?;
            let known = GUARANTEES.get(usize::from(number)).copied();
            known.ok_or_else(|| {
                Error::corrupt(format!("the manifest names the erase guarantee {number}; expected 0 to 3"))
            })
        };
        let (usual, weakest) = (guarantee()?, guarantee()?);
        let (mut pending, mut last) = (BTreeMap::new(), 0);
        for _ in 0..reader.count(8)? {
            let (first, count) = (reader.u32()?, reader.u32()?);
            let is_possible = first >= last && u64::from(count) + pending.len() as u64 <= MAX_ZONES;
            let end = first.checked_add(count).filter(|_| is_possible);
            let end = end
                .ok_or_else(|| Error::corrupt(format!("the manifest names {count} zones from {first} on")))?;
            pending.extend((first..end).map(|zone| (zone, 0)));
            last = end;
        }
        Ok(ResetHistory { usual, weakest, pending, durable: usual })
    }
}

/// Maximum number of zones of a history.
const MAX_ZONES: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(history: &ResetHistory) -> ResetHistory {
        let mut writer = Writer::default();
        history.encode(&mut writer);
        ResetHistory::decode(&mut Reader::new(&writer.0, "a history")).unwrap()
    }

    fn pending(history: &ResetHistory) -> Vec<u32> {
        history.pending().collect()
    }

    #[test]
    fn runs_of_zones_are_disjoint_and_bounded() {
        let decode = |runs: &[(u32, u32)]| {
            let mut writer = Writer::default();
            ResetHistory::new(EraseGuarantee::None).encode(&mut writer);
            writer.0.truncate(2);
            writer.u32(runs.len() as u32);
            runs.iter().for_each(|(first, count)| {
                writer.u32(*first);
                writer.u32(*count);
            });
            ResetHistory::decode(&mut Reader::new(&writer.0, "a history"))
                .map(|history| pending(&history).len())
        };
        assert_eq!(decode(&[(0, 2), (2, 3), (9, 1)]), Ok(6));
        for wrong in [&[(0, 2), (1, 3)][..], &[(5, 1), (3, 1)], &[(0, 1 << 25)], &[(u32::MAX, 2)]] {
            assert!(matches!(decode(wrong), Err(Error::Corrupt(_))), "{wrong:?}");
        }
    }

    #[test]
    fn zones_that_were_reset_with_less_are_pending_until_they_are_reset_again() {
        use EraseGuarantee::{Deallocated, Erased, None};
        let reset = [(1, 4), (2, 1), (3, 7), (9, 1)];
        let mut history = ResetHistory::new(None);
        assert!(!history.begin(None, &reset) && pending(&history).is_empty());
        assert!(read(&history).begin(Deallocated, &reset));
        assert!(history.begin(Erased, &reset));
        assert_eq!(
            (pending(&history), history.weakest(), history.guarantee()),
            (vec![1, 2, 3, 9], None, Erased)
        );
        // Two zones were reset; the others are still pending after a crash.
        let present = BTreeMap::from([(1, 5), (2, 2), (3, 7), (9, 1)]);
        history.look(|zone| present[&zone]);
        assert_eq!(pending(&history), [3, 9]);
        let mut history = read(&history);
        assert!(!history.begin(Erased, &reset));
        assert_eq!((pending(&history), history.weakest()), (vec![3, 9], None));
        // A weaker guarantee is used after it is recorded on the medium; pending zones stay.
        assert!(history.begin(Deallocated, &reset));
        assert_eq!((history.guarantee(), pending(&history)), (Erased, vec![3, 9]));
        history.written();
        assert_eq!(history.guarantee(), Deallocated);
        // Without a promise no zone is pending; a new promise makes all zones pending.
        let mut history = read(&history);
        assert!(history.begin(None, &reset) && pending(&history).is_empty());
        assert!(read(&history).begin(Erased, &reset));
    }
}
