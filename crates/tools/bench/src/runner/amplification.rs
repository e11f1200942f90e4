//! Write amplification from the status of layers.
//!
//! A layer that moves blocks or adds metadata has `write_amplification` in its status, with counters since it
//! was opened: `user_blocks`, `moved_blocks` and `metadata_blocks`. The writes during a measurement are the
//! difference.

use crate::results::WriteAmplification;
use serde_json::{Map, Value};

/// Write amplification between two states of a stack's layers; `None` if no layer counts it, or no block was
/// written through it.
pub(super) fn between(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<WriteAmplification> {
    after.iter().find_map(|(name, status)| {
        status.get("write_amplification")?;
        let counted = |key: &str| {
            let at_the_end = status.get(key)?.as_u64()?;
            let begin = before.get(name).and_then(|status| status.get(key)).and_then(Value::as_u64);
            Some(at_the_end.saturating_sub(begin.unwrap_or(0)) as f64)
        };
        let user = counted("user_blocks").filter(|user| *user > 0.0)?;
        let moved = counted("moved_blocks")?;
        let metadata = counted("metadata_blocks").unwrap_or(0.0);
        Some(WriteAmplification { data: (user + moved) / user, all: (user + moved + metadata) / user })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn layers(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn only_what_was_written_in_between_counts() {
        let status = |user: u64, moved: u64, metadata: u64| {
            layers(json!({
                "disk": { "writes": 7 },
                "top": { "write_amplification": { "data": 9.0 }, "user_blocks": user, "moved_blocks": moved,
                         "metadata_blocks": metadata },
            }))
        };
        let found = between(&status(1000, 0, 10), &status(3000, 1000, 110)).unwrap();
        assert_eq!(found, WriteAmplification { data: 1.5, all: 1.55 });
        assert_eq!(between(&status(5, 5, 5), &status(5, 5, 5)), None, "nothing was written");
        assert!(between(&Map::new(), &status(10, 0, 0)).is_some());
        let without = layers(json!({ "disk": { "user_blocks": 5, "moved_blocks": 5 } }));
        assert_eq!(between(&Map::new(), &without), None);
    }
}
