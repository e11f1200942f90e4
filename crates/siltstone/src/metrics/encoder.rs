//! Encoder of the Prometheus text format 0.0.4 and of OpenMetrics 1.0.
//!
//! A stack of 1000 parts has 50 thousand series, and the texts of most are the same but for a few letters. So
//! a series is a few copies of bytes: its labels come escaped and joined, and durations are counted in
//! nanoseconds and written without floating point.
//!
//! # Promises
//! - Both formats have the same series: the name of a counter ends with `_total`, that of an info metric with
//!   `_info`.
//! - A unit at the end of a name is declared in OpenMetrics.

use stack::Number;
use std::fmt::Write as _;
use std::time::Duration;

/// Text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows.
    Counter,
    /// Grows and shrinks.
    Gauge,
    /// Counts of values up to bounds.
    Histogram,
    /// Labels whose value is 1.
    Info,
}

/// Value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleValue {
    /// A number.
    Number(Number),
    /// A duration, written in seconds.
    Nanoseconds(u128),
}

impl From<u64> for SampleValue {
    fn from(number: u64) -> SampleValue {
        SampleValue::Number(Number::Whole(number))
    }
}

impl From<Duration> for SampleValue {
    fn from(duration: Duration) -> SampleValue {
        SampleValue::Nanoseconds(duration.as_nanos())
    }
}

/// Text of metrics that is being written.
#[derive(Debug)]
pub struct Encoder {
    format: Format,
    text: String,
    /// Name of the series of the metric that was described last.
    name: String,
}

impl Encoder {
    /// Begins a text.
    pub fn new(format: Format) -> Encoder {
        Encoder { format, text: String::new(), name: String::new() }
    }

    /// Describes a metric, whose series follow. The name is without the prefix of the program and the ending
    /// of its type; the help is one line without a backslash.
    pub fn describe(&mut self, name: &str, help: &str, metric_type: MetricType) {
        let is_openmetrics = self.format == Format::OpenMetrics;
        let (ending, word) = match metric_type {
            MetricType::Counter => ("_total", "counter"),
            MetricType::Gauge => ("", "gauge"),
            MetricType::Histogram => ("", "histogram"),
            MetricType::Info => ("_info", if is_openmetrics { "info" } else { "gauge" }),
        };
        self.name = format!("siltstone_{name}{ending}");
        // OpenMetrics describes a metric without the ending of its series.
        let described =
            if is_openmetrics { &self.name[..self.name.len() - ending.len()] } else { &self.name };
        for line in [format_args!("HELP {described} {help}"), format_args!("TYPE {described} {word}")] {
            // Writing to a text can't fail.
            let _ = writeln!(self.text, "# {line}");
        }
        let unit =
            ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)).filter(|_| is_openmetrics);
        if let Some(unit) = unit {
            let _ = writeln!(self.text, "# UNIT {described} {unit}");
        }
    }

    /// Writes a series of the described metric. `labels` are escaped and joined, without braces.
    pub fn series(&mut self, labels: &str, value: impl Into<SampleValue>) {
        self.series_with("", (labels, ""), value.into());
    }

    /// Writes a series with an ending of its name, and labels in two parts that are joined here.
    pub fn series_with(&mut self, ending: &str, (labels, last): (&str, &str), value: SampleValue) {
        let text = &mut self.text;
        let braces = if labels.is_empty() { ["", " "] } else { ["{", "} "] };
        for piece in [&self.name, ending, braces[0], labels, last, braces[1]] {
            text.push_str(piece);
        }
        append_value(text, value);
        text.push('\n');
    }

    /// Ends the text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Appends a value.
pub fn append_value(text: &mut String, value: SampleValue) {
    // Writing to a text can't fail.
    let _ = match value {
        SampleValue::Number(Number::Whole(number)) => write!(text, "{number}"),
        SampleValue::Number(Number::Real(number)) => write!(text, "{number}"),
        SampleValue::Nanoseconds(all) => {
            let (seconds, fraction) = (all / 1_000_000_000, all % 1_000_000_000);
            write!(text, "{seconds}.{fraction:09}")
        }
    };
}

/// Appends a label to the text of labels, after a comma.
pub fn append_label(labels: &mut String, key: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(key);
    labels.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            letter => labels.push(letter),
        }
    }
    labels.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(format: Format) -> String {
        let mut encoder = Encoder::new(format);
        encoder.describe("build", "Version", MetricType::Info);
        encoder.series("version=\"1\"", 1);
        encoder.describe("cpu_seconds", "Processor time", MetricType::Counter);
        encoder.series("", Duration::from_millis(1500));
        encoder.describe("call_seconds", "Latency", MetricType::Histogram);
        let mut labels = String::new();
        append_label(&mut labels, "part", "a\"\\\n{ä");
        append_label(&mut labels, "call", "read");
        encoder.series_with("_bucket", (&labels, ",le=\"+Inf\""), u64::MAX.into());
        encoder.series_with("_sum", (&labels, ""), SampleValue::Nanoseconds(u128::MAX));
        encoder.describe("used_ratio", "Share", MetricType::Gauge);
        encoder.series(&labels, SampleValue::Number(Number::Real(2.5e-10)));
        encoder.finish()
    }

    #[test]
    fn both_formats_are_as_specified() {
        let series = [
            "siltstone_build_info{version=\"1\"} 1\n",
            "siltstone_cpu_seconds_total 1.500000000\n",
            "siltstone_call_seconds_bucket{part=\"a\\\"\\\\\\n{ä\",call=\"read\",le=\"+Inf\"} 18446744073709551615\n\
             siltstone_call_seconds_sum{part=\"a\\\"\\\\\\n{ä\",call=\"read\"} 340282366920938463463374607431.768211455\n",
            "siltstone_used_ratio{part=\"a\\\"\\\\\\n{ä\",call=\"read\"} 0.00000000025\n",
        ];
        let described = |name: &str, help: &str, word: &str| {
            format!("# HELP siltstone_{name} {help}\n# TYPE siltstone_{name} {word}\n")
        };
        let plain = [
            described("build_info", "Version", "gauge"),
            described("cpu_seconds_total", "Processor time", "counter"),
            described("call_seconds", "Latency", "histogram"),
            described("used_ratio", "Share", "gauge"),
        ];
        let with_series = |described: [String; 4]| -> String {
            described.iter().zip(series).map(|(described, series)| format!("{described}{series}")).collect()
        };
        assert_eq!(encoded(Format::Prometheus), with_series(plain));
        let open = [
            described("build", "Version", "info"),
            described("cpu_seconds", "Processor time", "counter") + "# UNIT siltstone_cpu_seconds seconds\n",
            described("call_seconds", "Latency", "histogram") + "# UNIT siltstone_call_seconds seconds\n",
            described("used_ratio", "Share", "gauge"),
        ];
        assert_eq!(encoded(Format::OpenMetrics), with_series(open) + "# EOF\n");
    }
}
