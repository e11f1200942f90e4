//! `siltstone message`: tells a part of a stack something.

use crate::arguments::Message;
use crate::control::protocol::{Recipient, Request};
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print_json, print_line};
use serde_json::{Value, json};

/// Passes it on, and prints what the part answers.
///
/// # Errors
/// A wrong stack or part; what the part says.
pub fn message(arguments: Message) -> Result<(), Failure> {
    let request = Request::Message { to: Recipient::Part(arguments.part), text: arguments.text.join(" ") };
    let reached = reach::ask(&arguments.operated, &registry(), request)?;
    match (arguments.json, &reached.answer) {
        (true, answer) => print_json(&json!({ "answer": answer, "live": reached.is_live })),
        (false, Value::String(text)) => print_line(text),
        (false, other) => print_line(&other.to_string()),
    }
}
