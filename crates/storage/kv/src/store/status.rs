//! Status of a store for operators: the sums of its shards, and its tables.

use super::Store;
use crate::core::{Core, TableFacts};
use block::{Fullness, Result, Status};
use serde_json::json;
use std::rc::Rc;

impl Store {
    /// Returns the tables of all shards.
    ///
    /// # Errors
    /// [`Error::Closed`](block::Error::Closed).
    pub async fn tables(&self) -> Result<Vec<TableFacts>> {
        let mut tables = Vec::new();
        for home in self.homes.iter() {
            tables.extend(home.with(|core: Rc<Core>| async move { Ok(core.table_facts()) }).await?);
        }
        Ok(tables)
    }

    /// Used part of the space for values; `None` once it is closed.
    pub async fn fullness(&self) -> Option<Fullness> {
        self.homes[0].with(|core: Rc<Core>| async move { Ok(core.fullness()) }).await.ok()
    }

    /// Returns numbers for operators.
    ///
    /// # Errors
    /// [`Error::Closed`](block::Error::Closed).
    pub async fn status(&self) -> Result<Status> {
        let mut shards = Vec::new();
        for home in self.homes.iter() {
            shards.push(home.with(|core: Rc<Core>| async move { Ok(core.status()) }).await?);
        }
        let mut status = Status::new();
        status.insert("shards".into(), json!(self.homes.len()));
        let sum = |name: &str| shards.iter().filter_map(|shard| shard.get(name)?.as_u64()).sum::<u64>();
        for (name, _) in shards[0].iter().filter(|(_, value)| value.is_u64()) {
            status.insert(name.clone(), json!(sum(name)));
        }
        // Part of the status of persistent deletes.
        status.remove("tombstones_overdue");
        let overdue = sum("tombstones_overdue");
        let home =
            self.homes[0].with(move |core: Rc<Core>| async move { Ok(core.home_status(overdue)) }).await?;
        status.extend(home);
        if let Some(fullness) = self.fullness().await {
            status.insert("fullness".into(), fullness.to_json());
        }
        let levels = shards.iter().filter_map(|shard| shard.get("levels").cloned());
        status.insert("levels".into(), levels.collect());
        if shards.iter().any(|shard| shard.contains_key("lost")) {
            let lines = shards.iter().filter_map(|shard| shard.get("lost")?.as_array()).flatten().cloned();
            status.insert("lost".into(), lines.collect());
        }
        Ok(status)
    }
}
