//! Detection of long sequential runs, which bypass the cache because a disk serves them well.

/// Number of runs that are tracked at a time.
const RUNS: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Run {
    /// End of the run's last request, in bytes.
    next: u64,
    length: u64,
    /// Number of the run's last request.
    seen: u64,
}

/// Tracks the most recent runs.
#[derive(Debug, Default)]
pub(crate) struct Sequential {
    runs: [Run; RUNS],
    requests: u64,
}

impl Sequential {
    /// Notes a request for these bytes. Returns the length of its run so far, this request included.
    #[inline]
    pub fn note(&mut self, at: u64, length: u64) -> u64 {
        self.requests += 1;
        let found = self.runs.iter_mut().find(|run| run.next == at && run.length > 0);
        if let Some(run) = found {
            *run = Run { next: at + length, length: run.length + length, seen: self.requests };
            return run.length;
        }
        if let Some(oldest) = self.runs.iter_mut().min_by_key(|run| run.seen) {
            *oldest = Run { next: at + length, length, seen: self.requests };
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_followed_while_others_go_on() {
        let mut sequential = Sequential::default();
        for step in 0..100 {
            for run in 0..8_u64 {
                assert_eq!(sequential.note((run << 30) + step * 4096, 4096), (step + 1) * 4096);
            }
            assert_eq!(sequential.note((1 << 40) + step * 9999, 4096), 4096);
        }
    }
}
