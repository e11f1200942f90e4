//! `siltstone message`: sends a message to a part of a stack.

use crate::arguments::Message;
use crate::control::protocol::{Recipient, Request};
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print_json, print_line};
use serde_json::{Value, json};

/// Sends the message, and prints the part's answer.
///
/// # Errors
/// A wrong stack or part; the part's error.
pub fn message(arguments: Message) -> Result<(), Failure> {
    let request = Request::Message { to: Recipient::Part(arguments.part), text: arguments.text.join(" ") };
    let reached = reach::ask(&arguments.operated, &registry(), request)?;
    match (arguments.json, &reached.answer) {
        (true, answer) => print_json(&json!({ "answer": answer, "live": reached.is_live })),
        (false, Value::String(text)) => print_line(text),
        (false, other) => print_line(&other.to_string()),
    }
}
