//! Hit ratios from the status of caches.
//!
//! The status of a cache has counters since it was opened: `read_hits`, `read_misses`, `write_hits` and
//! `write_misses`. The hits during a measurement are the difference.

use crate::results::HitRatio;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Hit ratios between two states of a stack's layers, by the names of the layers that count hits and had
/// requests.
pub(super) fn between(before: &Map<String, Value>, after: &Map<String, Value>) -> BTreeMap<String, HitRatio> {
    let ratio = |(name, status): (&String, &Value)| {
        let counted = |key: &str| {
            let end = status.get(key)?.as_u64()?;
            let begin = before.get(name).and_then(|status| status.get(key)).and_then(Value::as_u64);
            Some(end.saturating_sub(begin.unwrap_or(0)))
        };
        let reads = (counted("read_hits")?, counted("read_misses")?);
        let writes = (counted("write_hits").unwrap_or(0), counted("write_misses").unwrap_or(0));
        let share = |(hits, misses): (u64, u64)| {
            let all = hits + misses;
            (all > 0).then(|| hits as f64 / all as f64)
        };
        let all = share((reads.0 + writes.0, reads.1 + writes.1))?;
        Some((name.clone(), HitRatio { all, reads: share(reads), writes: share(writes) }))
    };
    after.iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn layers(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn only_what_was_asked_for_in_between_counts() {
        let status = |hits: u64, misses: u64, write_hits: u64, write_misses: u64| {
            layers(json!({
                "disk": { "writes": 7 },
                "top": { "read_hits": hits, "read_misses": misses, "write_hits": write_hits, "write_misses": write_misses },
            }))
        };
        let found = between(&status(100, 100, 5, 0), &status(190, 110, 5, 100));
        let expected = HitRatio { all: 0.45, reads: Some(0.9), writes: Some(0.0) };
        assert_eq!(found, BTreeMap::from([("top".to_owned(), expected)]));
        assert!(between(&status(1, 1, 1, 1), &status(1, 1, 1, 1)).is_empty(), "nothing was asked for");
        let only_reads = between(&Map::new(), &layers(json!({ "c": { "read_hits": 1, "read_misses": 3 } })));
        assert_eq!(only_reads["c"], HitRatio { all: 0.25, reads: Some(0.25), writes: None });
    }
}
