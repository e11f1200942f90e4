//! Losses between two lives, and the contents that must be left.

use super::life::{File, Files};
use super::model::Stop;
use runtime::Random;
use std::path::PathBuf;

/// Change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// All zeros: another device has replaced it.
    Zeros,
    /// Missing.
    Gone,
    /// Present, but every request fails.
    Fails,
    /// Some bits are flipped.
    Rots {
        /// Largest number of places with flipped bits.
        places: u64,
        /// Only bytes below this offset change.
        below: u64,
    },
    /// Reset to its contents at the end of an earlier life.
    Lags,
    /// Missing in the next life, and back with the same contents in the one after.
    Away,
}

/// Result that the stack may have then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finds {
    /// All data: the next life continues with it, and knows which file was lost.
    Everything,
    /// The contents after such a stop, or after the actual stop if it leaves less: the next life continues
    /// with them.
    Less(Stop),
    /// Nothing: opening fails, with an error that contains these words.
    Nothing(&'static str),
    /// Correct contents, or an error, of the whole or of single blocks. If the stack wasn't closed, contents
    /// after this stop are correct as well.
    ErrorOrTruth(Stop),
}

/// A possible loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Position of the file in the list.
    pub file: usize,
    /// Change of the file.
    pub change: Change,
    /// Result of the whole stack.
    pub finds: Finds,
}

impl Loss {
    /// Changes the files, which are in any order. `earlier` holds the files at the ends of earlier lives.
    pub(super) fn happen(&self, files: &mut Files, all: &[File], earlier: &[Files], random: &mut Random) {
        let path = all[self.file].path;
        let Some(contents) = contents(files, path) else { return };
        match self.change {
            Change::Zeros => contents.fill(0),
            Change::Gone => files.retain(|(name, _)| name.as_os_str() != path),
            Change::Fails | Change::Away => {}
            Change::Rots { places, below } => {
                for _ in 0..1 + random.below(places) {
                    // Half of the places are at the beginning, which has most of the data that exists only
                    // once.
                    let part = if random.chance(0.5) { contents.len() as u64 } else { 8192 };
                    let at = random.below(part.min(contents.len() as u64).min(below)) as usize;
                    contents[at] ^= 1 << random.below(8);
                }
            }
            Change::Lags => {
                let earlier = &earlier[random.below(earlier.len() as u64) as usize];
                let before = earlier.iter().find(|(name, _)| name.as_os_str() == path);
                contents.clone_from(&before.expect("it was there").1);
            }
        }
    }

    /// Takes out a file that is absent in this life. The caller puts it back afterwards.
    pub(super) fn hide(&self, files: &mut Files, all: &[File]) -> Option<(PathBuf, Vec<u8>)> {
        let is_it = |(name, _): &(PathBuf, Vec<u8>)| name.as_os_str() == all[self.file].path;
        let place = files.iter().position(is_it).filter(|_| self.change == Change::Away)?;
        Some(files.swap_remove(place))
    }

    /// Replaces a lost file by a new one. A file that was only damaged, lags or was absent stays as it is.
    pub(super) fn replace(&self, files: &mut Files, all: &[File]) {
        let File { path, bytes, .. } = &all[self.file];
        match (self.change, contents(files, path)) {
            (Change::Zeros | Change::Rots { .. } | Change::Lags | Change::Away, _) => {}
            (_, Some(contents)) => contents.fill(0),
            (_, None) => files.push((path.into(), vec![0; *bytes as usize])),
        }
    }
}

fn contents<'a>(files: &'a mut Files, path: &str) -> Option<&'a mut Vec<u8>> {
    files.iter_mut().find(|(name, _)| name.as_os_str() == path).map(|(_, contents)| contents)
}
