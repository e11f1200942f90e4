//! Status of an open file system.

use crate::file_system::FileSystem;
use crate::format::BLOCK;
use block::{Result, Status};
use serde_json::json;

impl FileSystem {
    /// Status for operators.
    ///
    /// # Errors
    /// [`Error::Closed`](block::Error::Closed).
    pub async fn status(&self) -> Result<Status> {
        let (found, properties) = (self.statistics().await?, self.properties().await?);
        let mut status = Status::new();
        status.insert("block_size".into(), json!(properties.block_size));
        status.insert("bytes".into(), json!(found.blocks * BLOCK));
        status.insert("free_bytes".into(), json!(found.free * BLOCK));
        status.insert("files".into(), json!(found.inodes));
        status.insert("replayed_records".into(), json!(found.replayed));
        if self.is_salvaged().await? {
            let lost = self.lost().await?;
            status.insert("lost".into(), json!(lost.lines));
            status.insert("lost_count".into(), json!(lost.count));
        }
        let classes = self.classes().await?.into_iter().map(|class| {
            json!({
                "class": *class.name,
                "shares": class.shares,
                "requests": class.requests,
                "bytes": class.bytes,
                "waited": class.waited(),
                "wait_mean_ns": class.mean_wait().as_nanos() as u64,
                "wait_p99_ns": class.wait_quantile(0.99).as_nanos() as u64,
            })
        });
        status.insert("classes".into(), classes.collect());
        Ok(status)
    }
}
