//! Costs of a bucket, by prices that the operator gives.

use serde_json::{Map, Value, json};
use std::str::FromStr;

/// Bytes of a GB, as stores bill it.
const GB: f64 = 1e9;
/// Seconds of a month.
const MONTH: f64 = 30.0 * 86400.0;
/// Requests of one price.
const THOUSAND: f64 = 1000.0;

/// Prices of a store.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    /// For 1000 requests that write.
    put: f64,
    /// For 1000 requests that read an object.
    get: f64,
    /// For 1000 listings.
    list: f64,
    /// For 1000 deletions.
    delete: f64,
    /// For a GB and a month.
    storage: f64,
    currency: String,
}

const EXPECTED: &str = "expected put=X,get=X,storage=X and, if wanted, list=X, delete=X and currency=TEXT, as in put=0.005,get=0.0004,storage=0.023";

impl FromStr for Prices {
    type Err = String;

    fn from_str(text: &str) -> Result<Prices, String> {
        const NAMES: [&str; 5] = ["put", "get", "list", "delete", "storage"];
        let (mut prices, mut currency) = ([None; 5], None);
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').ok_or_else(|| format!("\"{pair}\": {EXPECTED}"))?;
            let (name, value) = (name.trim(), value.trim());
            if name == "currency" && currency.is_none() && !value.is_empty() {
                currency = Some(value.to_owned());
                continue;
            }
            let at = NAMES.iter().position(|known| *known == name).filter(|at| prices[*at].is_none());
            let price = value.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
            match (at, price) {
                (Some(at), Some(_)) => prices[at] = price,
                (Some(_), None) => return Err(format!("{name}={value}: expected a price of at least 0")),
                (None, _) => return Err(format!("\"{pair}\": {EXPECTED}")),
            }
        }
        let needed = |at: usize| prices[at].ok_or_else(|| format!("{} is missing: {EXPECTED}", NAMES[at]));
        let put = needed(0)?;
        Ok(Prices {
            put,
            get: needed(1)?,
            list: prices[2].unwrap_or(put),
            delete: prices[3].unwrap_or(0.0),
            storage: needed(4)?,
            currency: currency.unwrap_or_default(),
        })
    }
}

/// Requests of a server.
pub struct Requests<'r> {
    /// Numbers by kind, as in the status of a part.
    pub counts: &'r Map<String, Value>,
    /// Time in which they were sent.
    pub seconds: f64,
}

impl Prices {
    /// Price of one request of a kind.
    fn of(&self, kind: &str) -> f64 {
        let price = match kind {
            "get" | "head" => self.get,
            "list" => self.list,
            "delete" | "delete_batch" | "abort_upload" => self.delete,
            _ => self.put,
        };
        price / THOUSAND
    }

    /// Estimates the costs of this many stored bytes, and of the requests of a server.
    pub fn estimate(&self, bytes: u64, requests: Option<&Requests<'_>>) -> Value {
        let storage = bytes as f64 / GB * self.storage;
        let mut estimate = json!({ "currency": self.currency, "storage_per_month": storage });
        if let Some(Requests { counts, seconds }) = requests {
            let costs = counts.iter().map(|(kind, count)| count.as_f64().unwrap_or(0.0) * self.of(kind));
            let so_far: f64 = costs.sum();
            estimate["requests_so_far"] = so_far.into();
            if *seconds >= 1.0 {
                estimate["requests_per_month_at_this_rate"] = (so_far / seconds * MONTH).into();
            }
        }
        estimate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_prices() {
        let prices: Prices = "put=5,get=0.4,storage=20,currency=EUR".parse().unwrap();
        assert_eq!(prices.estimate(2_500_000_000, None)["storage_per_month"], 50.0);
        let counts = json!({ "put": 2000, "get": 500, "head": 500, "list": 1000, "delete_batch": 9 });
        let requests = Requests { counts: counts.as_object().unwrap(), seconds: MONTH / 2.0 };
        let estimate = prices.estimate(0, Some(&requests));
        let near = |key: &str, expected: f64| {
            assert!((estimate[key].as_f64().unwrap() - expected).abs() < 1e-9, "{estimate}");
        };
        near("requests_so_far", 10.0 + 0.4 + 5.0);
        near("requests_per_month_at_this_rate", 30.8);
        assert_eq!(estimate["currency"], "EUR");
    }

    #[test]
    fn wrong_prices_say_what_was_expected() {
        for (text, said) in [
            ("put=1,get=1", "storage is missing"),
            ("put=1,get=1,storage", "\"storage\": expected put=X"),
            ("put=1,get=1,storage=-1", "storage=-1: expected a price"),
            ("put=1,put=2,get=1,storage=1", "\"put=2\": expected"),
            ("put=1,get=NaN,storage=1", "get=NaN: expected a price"),
            ("post=1", "\"post=1\": expected"),
            ("", "\"\": expected"),
        ] {
            let error = text.parse::<Prices>().unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
