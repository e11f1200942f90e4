//! The workload of deletions.

use crate::arguments::Job;
use crate::medium::Medium;
use block::Result;
use kv::Store;

pub async fn run(_job: &Job, _store: &Store, _medium: &Medium) -> Result<()> {
    Ok(())
}
