//! Log lines of the server for reads of programs that fail because of the medium: one for each place of a
//! file, however often it is read, up to a limit.

use crate::metadata::inode::InodeNumber;
use crate::metadata::versions::SnapshotNumber;
use block::{Error, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Most lines of a mount.
const MAX_LINES: usize = 1000;

/// Lines that have been logged.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusedReads(Arc<Mutex<BTreeSet<String>>>);

impl RefusedReads {
    /// Logs a failure of the medium, and returns the result of the read for its program: EIO for damaged
    /// data.
    pub fn log<T>(
        &self,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
        outcome: Result<T>,
    ) -> Result<T> {
        outcome.map_err(|error| {
            if let Some(line) = self.line(version, inode, &error) {
                tracing::error!("{line}");
            }
            match error {
                Error::Corrupt(detail) => Error::io(detail),
                other => other,
            }
        })
    }

    /// Returns the line for a refused read; `None` for other errors, for a line that was logged before, and
    /// above the limit.
    fn line(&self, version: Option<SnapshotNumber>, inode: InodeNumber, error: &Error) -> Option<String> {
        if !matches!(error, Error::Corrupt(_) | Error::Io(_)) {
            return None;
        }
        let snapshot = version.map_or_else(String::new, |number| format!("snapshot number {number}, "));
        let detail = error.detail();
        // Errors about checksums include the inode.
        let own = format!("inode {inode}, ");
        let place = match detail.starts_with(&own) {
            true => format!("{snapshot}{detail}"),
            false => format!("{snapshot}inode {inode}: {detail}"),
        };
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() > MAX_LINES || !logged.insert(place.clone()) {
            return None;
        }
        Some(match logged.len() > MAX_LINES {
            true => {
                "reads of further places are refused, without lines here; siltstone fs scrub lists damage"
                    .to_owned()
            }
            false => format!("a read was refused: {place}; siltstone fs scrub names the path"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_line_and_lines_are_limited() {
        let refused = RefusedReads::default();
        let wrong = |block: u64| {
            Error::corrupt(format!("inode 7, block {block}: wrong checksum in block 2 of zone 3"))
        };
        let line = refused.line(None, 7, &wrong(0)).unwrap();
        assert!(line.starts_with("a read was refused: inode 7, block 0: wrong checksum"), "{line}");
        assert_eq!(refused.line(None, 7, &wrong(0)), None);
        let line = refused.line(Some(4), 7, &wrong(0)).unwrap();
        assert!(line.contains("snapshot number 4, inode 7, block 0"), "{line}");
        let line = refused.line(None, 8, &Error::io("zone 5 is offline")).unwrap();
        assert!(line.contains("inode 8: zone 5 is offline"), "{line}");
        assert_eq!(refused.line(None, 8, &Error::closed("closed")), None);
        let lines: Vec<_> = (1..5000).filter_map(|block| refused.line(None, 7, &wrong(block))).collect();
        assert_eq!(lines.len() + 3, MAX_LINES + 1);
        assert!(lines.last().unwrap().contains("without lines here"), "{lines:?}");
        assert!(matches!(refused.log::<()>(None, 7, Err(wrong(9))), Err(Error::Io(_))));
    }
}
