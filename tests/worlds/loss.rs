//! What may be lost between two lives, and what is left to be found then.

use super::life::{File, Files};
use super::model::Stop;
use runtime::Random;
use std::path::PathBuf;

/// What becomes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It holds zeros: another device took its place.
    Zeros,
    /// It isn't there.
    Gone,
    /// It is there, and every request fails.
    Fails,
    /// Some bits of it are others.
    Rots {
        /// In so many places at most.
        places: u64,
        /// All of them among so many bytes at its beginning.
        below: u64,
    },
    /// It is as it was at the end of an earlier life.
    Lags,
    /// It isn't there in the next life, and is as it was in the one after it.
    Away,
}

/// What the stack may show then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finds {
    /// Everything: the next life goes on with it, and knows what was lost.
    Everything,
    /// What such a stop leaves, or what the stop that was leaves, if that is less: the next life goes on with it.
    Less(Stop),
    /// Nothing: opening fails, with an error that has these words in it.
    Nothing(&'static str),
    /// The truth, or an error: of all of it, or of single blocks. If it hadn't been closed, this counts as the truth, too.
    ErrorOrTruth(Stop),
}

/// Something that may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Which file, by its place in the list.
    pub file: usize,
    /// What becomes of it.
    pub change: Change,
    /// What the whole stack shows then.
    pub finds: Finds,
}

impl Loss {
    /// Changes the files, which are in any order. `earlier` are those at the ends of earlier lives.
    pub(super) fn happen(&self, files: &mut Files, all: &[File], earlier: &[Files], random: &mut Random) {
        let path = all[self.file].path;
        let Some(contents) = contents(files, path) else { return };
        match self.change {
            Change::Zeros => contents.fill(0),
            Change::Gone => files.retain(|(name, _)| name.as_os_str() != path),
            Change::Fails | Change::Away => {}
            Change::Rots { places, below } => {
                for _ in 0..1 + random.below(places) {
                    // Half of it at the beginning, where there is most that only is there once.
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

    /// Takes a file out that is away in this life, to be put back after it.
    pub(super) fn hide(&self, files: &mut Files, all: &[File]) -> Option<(PathBuf, Vec<u8>)> {
        let is_it = |(name, _): &(PathBuf, Vec<u8>)| name.as_os_str() == all[self.file].path;
        let place = files.iter().position(is_it).filter(|_| self.change == Change::Away)?;
        Some(files.swap_remove(place))
    }

    /// The lost file is there again, as a new one; one that only rots, lags or was away stays as it is.
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
