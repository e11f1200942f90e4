//! `siltstone metrics`: the metrics of a stack, once.

use crate::arguments;
use crate::control::protocol::Request;
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::metrics::Format;
use crate::output::print;

/// Prints the metrics.
///
/// # Errors
/// A wrong stack, or one that can't be opened.
pub fn metrics(arguments: &arguments::Metrics) -> Result<(), Failure> {
    let format = if arguments.openmetrics { Format::OpenMetrics } else { Format::Prometheus };
    let reached = reach::ask(&arguments.operated, &registry(), Request::Metrics(format))?;
    match reached.answer.as_str() {
        Some(text) => print(text),
        None => Err(Failure::World(
            "the answer is no text: use the program that the server was started with".into(),
        )),
    }
}
