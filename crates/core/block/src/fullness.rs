//! Use of the resource that limits a part.

use serde_json::{Value, json};

/// Use of the resource that limits a part: space, or memory for data that isn't written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fullness {
    /// The resource, a noun phrase for messages: `space`, `remote memory`.
    pub resource: &'static str,
    /// Used bytes.
    pub used_bytes: u64,
    /// Bytes at which the part refuses or delays writes.
    pub limit_bytes: u64,
    /// Whether writes of users can reach the limit. A part whose users have less space than the limit only
    /// reports its use.
    pub can_fill: bool,
    /// Advice to operators, an imperative phrase.
    pub remedy: &'static str,
}

impl Fullness {
    /// Used part of the limit in percent, rounded down. More than 100 if a limit has shrunk below the use;
    /// 100 if the limit is 0 and something is used.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.used_bytes) * 100;
        match (self.used_bytes, self.limit_bytes) {
            (0, _) => 0,
            (_, 0) => 100,
            (_, limit) => u64::try_from(percent / u128::from(limit)).unwrap_or(u64::MAX),
        }
    }

    /// Returns the entry `fullness` of a status.
    pub fn to_json(&self) -> Value {
        json!({
            "resource": self.resource,
            "used_bytes": self.used_bytes,
            "limit_bytes": self.limit_bytes,
            "percent": self.percent(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_of_any_limit() {
        let percent = |used_bytes, limit_bytes| {
            let (resource, remedy) = ("space", "discard some data");
            Fullness { resource, used_bytes, limit_bytes, can_fill: true, remedy }.percent()
        };
        assert_eq!([percent(0, 0), percent(0, 5), percent(1, 0)], [0, 0, 100]);
        assert_eq!([percent(899, 1000), percent(900, 1000), percent(1000, 1000)], [89, 90, 100]);
        assert_eq!([percent(u64::MAX, u64::MAX), percent(u64::MAX, 1)], [100, u64::MAX]);
        assert_eq!(percent(u64::MAX - 1, u64::MAX), 99);
    }
}
