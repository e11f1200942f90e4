//! Declaration of the metrics of a kind: which numbers of its status monitoring systems read, under which
//! names.
//!
//! A metric names a number of the status by its path, so that a part says each of its numbers once. The
//! program adds the labels `part` and `kind`, and encodes.

use block::Status;
use serde_json::Value;

/// Meaning of a metric's value over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows, while the part is open.
    Counter,
    /// Grows and shrinks.
    Gauge,
}

/// A number of the status of a kind's parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Path in the status: keys separated by dots. `*` is every element of an array or an object.
    pub path: &'static str,
    /// Name without the prefix of the program and, for a counter, without `_total`. It ends with its unit:
    /// `_seconds`, `_bytes`, `_ratio`, or the plural of what is counted. Kinds may share a name.
    pub name: &'static str,
    /// Meaning of the value.
    pub metric_type: MetricType,
    /// Meaning, as a noun phrase without a full stop. The same for all kinds that share the name.
    pub help: &'static str,
    /// A label with a constant value, for several numbers under one name.
    pub label: Option<(&'static str, &'static str)>,
    /// Label of the elements of `*`, and the key of its value in them; an empty key is the key of the element
    /// in its object.
    pub of_each: Option<(&'static str, &'static str)>,
    /// Factor from the unit of the status to that of the name.
    pub factor: f64,
    /// Text of the status for which the value is 1; it is 0 for any other text.
    pub word: Option<&'static str>,
}

impl Metric {
    /// Declares a counter.
    pub const fn counter(path: &'static str, name: &'static str, help: &'static str) -> Metric {
        let metric_type = MetricType::Counter;
        Metric { path, name, metric_type, help, label: None, of_each: None, factor: 1.0, word: None }
    }

    /// Declares a gauge.
    pub const fn gauge(path: &'static str, name: &'static str, help: &'static str) -> Metric {
        Metric { metric_type: MetricType::Gauge, ..Metric::counter(path, name, help) }
    }

    /// Adds a label with a constant value.
    pub const fn with_label(self, label: &'static str, value: &'static str) -> Metric {
        Metric { label: Some((label, value)), ..self }
    }

    /// Declares the label of the elements of `*`, with the key of its value in them.
    pub const fn of_each(self, label: &'static str, key: &'static str) -> Metric {
        Metric { of_each: Some((label, key)), ..self }
    }

    /// Multiplies the number of the status.
    pub const fn times(self, factor: f64) -> Metric {
        Metric { factor, ..self }
    }

    /// Declares that the status has a text, and the value is 1 if it is this one.
    pub const fn if_word(self, word: &'static str) -> Metric {
        Metric { word: Some(word), ..self }
    }

    /// Reads the values in a status, each with that of the label of its element. Keys that are missing, null
    /// or no numbers have no values.
    pub fn read(&self, status: &Status) -> Vec<(Option<String>, Number)> {
        let mut found = Vec::new();
        let (first, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        if let Some(value) = status.get(first) {
            self.collect(value, rest, None, &mut found);
        }
        found
    }

    fn collect(
        &self,
        value: &Value,
        path: &str,
        of_element: Option<&str>,
        found: &mut Vec<(Option<String>, Number)>,
    ) {
        let (key, rest) = path.split_once('.').unwrap_or((path, ""));
        match (key, value) {
            ("", value) => {
                found.extend(self.number(value).map(|number| (of_element.map(str::to_owned), number)));
            }
            ("*", Value::Array(elements)) => {
                elements.iter().for_each(|it| self.collect(it, rest, self.label_in(it), found));
            }
            ("*", Value::Object(elements)) => elements.iter().for_each(|(key, it)| {
                self.collect(it, rest, self.label_in(it).or(Some(key)), found);
            }),
            (key, Value::Object(members)) => {
                if let Some(value) = members.get(key) {
                    self.collect(value, rest, of_element, found);
                }
            }
            _ => {}
        }
    }

    /// Value of the label in an element of `*`.
    fn label_in<'a>(&self, element: &'a Value) -> Option<&'a str> {
        let (_, key) = self.of_each?;
        element.get(key)?.as_str()
    }

    fn number(&self, value: &Value) -> Option<Number> {
        if let Some(word) = self.word {
            return value.as_str().map(|found| Number::Whole(u64::from(found == word)));
        }
        match value {
            Value::Bool(is_so) => Some(Number::Whole(u64::from(*is_so))),
            Value::Number(number) => match number.as_u64() {
                Some(whole) if self.factor == 1.0 => Some(Number::Whole(whole)),
                _ => number.as_f64().map(|number| Number::Real(number * self.factor)),
            },
            _ => None,
        }
    }
}

/// Value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
}

/// Checks the declarations of one kind; `earlier` are those of other kinds.
pub(crate) fn verify<'a>(
    metrics: impl Iterator<Item = &'a Metric>,
    earlier: impl Iterator<Item = &'a Metric> + Clone,
) -> Result<(), String> {
    for metric in metrics {
        let Metric { name, help, .. } = metric;
        let of = format!("metric \"{name}\"");
        let is_word = |word: &str| {
            word.starts_with(|first: char| first.is_ascii_lowercase())
                && word.chars().all(|letter| matches!(letter, 'a'..='z' | '0'..='9' | '_'))
        };
        let reserved = ["_total", "_info", "_bucket", "_count", "_sum", "_created"];
        if !is_word(name) || reserved.iter().any(|ending| name.ends_with(ending)) {
            return Err(format!(
                "{of}: expected lower-case letters, digits and _, and no ending of OpenMetrics"
            ));
        }
        let labels = [metric.label.map(|(label, _)| label), metric.of_each.map(|(label, _)| label)];
        if labels.iter().flatten().any(|label| !is_word(label) || matches!(*label, "part" | "kind" | "le")) {
            return Err(format!("{of}: expected labels of lower-case letters other than part, kind and le"));
        }
        if help.is_empty() || help.ends_with('.') || help.contains('\n') {
            return Err(format!("{of}: expected a help of one line without a full stop"));
        }
        if metric.path.split('.').any(str::is_empty) || metric.path.starts_with('*') {
            return Err(format!("{of}: expected a path of keys, not \"{}\"", metric.path));
        }
        if (metric.path.matches('*').count(), metric.of_each.is_some()) != (1, true)
            && (metric.path.contains('*') || metric.of_each.is_some())
        {
            return Err(format!("{of}: expected one * in the path with of_each, and none without"));
        }
        let is_other = |other: &&Metric| {
            other.name == *name && (other.metric_type != metric.metric_type || other.help != *help)
        };
        if earlier.clone().any(|other| is_other(&other)) {
            return Err(format!("{of} is declared by another kind with another type or help"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(metric: Metric, status: &Value) -> Vec<(Option<String>, Number)> {
        metric.read(status.as_object().unwrap())
    }

    #[test]
    fn numbers_are_found_by_their_paths() {
        let status = json!({
            "hits": 7, "zones": {"free": 3}, "share": 0.5, "wait_ns": 1500, "clean": true, "none": null, "state": "up",
            "legs": [{"leg": "fast", "reads": 1}, {"leg": "slow", "reads": 2}, {"leg": "absent"}],
            "exports": {"vol": {"reads": 9}},
        });
        let whole = |number| vec![(None, Number::Whole(number))];
        let real = |number| vec![(None, Number::Real(number))];
        assert_eq!(read(Metric::counter("hits", "x", "x"), &status), whole(7));
        assert_eq!(read(Metric::gauge("zones.free", "x", "x"), &status), whole(3));
        assert_eq!(read(Metric::gauge("share", "x", "x"), &status), real(0.5));
        assert_eq!(read(Metric::gauge("wait_ns", "x", "x").times(1e-9), &status), real(1500.0 * 1e-9));
        assert_eq!(read(Metric::gauge("clean", "x", "x"), &status), whole(1));
        assert_eq!(read(Metric::gauge("state", "x", "x").if_word("up"), &status), whole(1));
        assert_eq!(read(Metric::gauge("state", "x", "x").if_word("down"), &status), whole(0));
        let legs = read(Metric::counter("legs.*.reads", "x", "x").of_each("leg", "leg"), &status);
        let expected = [("fast", 1), ("slow", 2)];
        assert_eq!(legs, expected.map(|(leg, reads)| (Some(leg.to_owned()), Number::Whole(reads))));
        let exports = read(Metric::counter("exports.*.reads", "x", "x").of_each("export", ""), &status);
        assert_eq!(exports, [(Some("vol".to_owned()), Number::Whole(9))]);
        for absent in ["none", "state", "legs", "nothing", "hits.more", "zones.*.x"] {
            assert_eq!(read(Metric::gauge(absent, "x", "x"), &status), [], "{absent}");
        }
    }

    #[test]
    fn wrong_declarations_are_refused() {
        let sound = Metric::counter("hits", "hits", "Hits");
        let check = |metric: Metric| verify([metric].iter(), [sound].iter());
        assert_eq!(check(sound), Ok(()));
        for wrong in [
            Metric { name: "hits_total", ..sound },
            Metric { name: "Hits", ..sound },
            Metric { help: "Hits.", ..sound },
            Metric { help: "Other", ..sound },
            Metric { metric_type: MetricType::Gauge, ..sound },
            Metric { path: "legs.*.hits", ..sound },
            Metric { path: "legs..hits", ..sound },
            sound.of_each("leg", "leg"),
            sound.with_label("part", "x"),
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
