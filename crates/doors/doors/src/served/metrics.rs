//! Declarations of the metrics of requests, which all doors of devices have.

use stack::Metric;

/// Declares a number of requests of one kind.
pub(crate) const fn requests(path: &'static str, request: &'static str) -> Metric {
    Metric::counter(path, "door_requests", "Requests of clients").with_label("request", request)
}

/// Declares the bytes of the requests of one kind.
pub(crate) const fn request_bytes(path: &'static str, request: &'static str) -> Metric {
    let help = "Bytes that requests of clients read, wrote, discarded or zeroed";
    Metric::counter(path, "door_request_bytes", help).with_label("request", request)
}

/// Totals in the status of a door with one export.
pub(crate) const REQUEST_METRICS: &[Metric] = &[
    requests("reads", "read"),
    request_bytes("read_bytes", "read"),
    requests("writes", "write"),
    request_bytes("written_bytes", "write"),
    requests("flushes", "flush"),
    requests("write_zeroes", "write_zeroes"),
    request_bytes("zeroed_bytes", "write_zeroes"),
    Metric::counter("errors", "door_errors", "Requests of clients that failed"),
];

/// Totals of a door whose clients can trim.
pub(crate) const TRIM_METRICS: &[Metric] =
    &[requests("trims", "trim"), request_bytes("trimmed_bytes", "trim")];
