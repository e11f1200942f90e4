//! Logs of a benchmark: surveyed before any run, except those that the benchmark itself writes.

use crate::job::Job;
use std::path::Path;

/// Surveys the logs of jobs, in the order in which they run. A log that an earlier job writes doesn't exist
/// yet, or is an older one, and is surveyed when its job runs. Returns all problems, each with the number of
/// its job.
pub(super) fn prepare<'j>(
    jobs: impl IntoIterator<Item = &'j mut Job>,
    directory: &Path,
) -> Vec<(usize, String)> {
    let mut written: Vec<String> = Vec::new();
    let mut problems = Vec::new();
    for (number, job) in jobs.into_iter().enumerate() {
        if !job.read_iolog.iter().any(|name| written.contains(name)) {
            problems.extend(job.prepare(directory).err().map(|problem| (number, problem)));
        }
        if let Some(name) = &job.write_iolog {
            if written.contains(name) {
                let message = format!("job {}: write_iolog={name}: another job writes it, too", job.name);
                problems.push((number, message));
            }
            written.push(name.clone());
        }
    }
    problems
}
