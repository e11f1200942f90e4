//! `siltstone status`: status of the parts of a stack.

use crate::arguments;
use crate::control::protocol::Request;
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print, print_json};
use crate::table;
use serde_json::{Map, Value};
use stack::Contract;

/// Shows the status.
///
/// # Errors
/// A wrong stack, or one that can't be opened.
pub fn status(arguments: &arguments::Status) -> Result<(), Failure> {
    let reached = reach::ask(&arguments.operated, &registry(), Request::Status)?;
    let Value::Object(mut status) = reached.answer else {
        return Err(Failure::World("the status is no JSON object".into()));
    };
    if arguments.json {
        status.insert("live".into(), reached.is_live.into());
        return print_json(&status.into());
    }
    print(&page(&status))
}

/// Formats the server, the doors, and the parts below them, from the top down.
fn page(status: &Map<String, Value>) -> String {
    let mut text = String::new();
    if let Some(server) = status.get("server").and_then(Value::as_object) {
        table::section(&mut text, "server", server);
    }
    for (key, contract) in
        [("doors", Contract::Door), ("devices", Contract::Device), ("zones", Contract::Zones)]
    {
        let parts = status.get(key).and_then(Value::as_object);
        // JSON has the parts from the bottom up.
        for (name, part) in parts.into_iter().flatten().rev() {
            let Some(part) = part.as_object() else { continue };
            let kind = part.get("kind").and_then(Value::as_str).unwrap_or("?");
            let said = part.iter().filter(|(key, _)| *key != "kind");
            let said: Map<String, Value> = said.map(|(key, value)| (key.clone(), value.clone())).collect();
            let title = format!("{contract} \"{}\", {}", table::plain(name), table::plain(kind));
            table::section(&mut text, &title, &said);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page() {
        let status = json!({
            "devices": {
                "disk": { "kind": "file", "path": "/d/disk.img", "bytes": 1_048_576 },
                "top": { "kind": "stats",
                    "read": { "operations": 12, "bytes": 49152, "latency_ns": { "p50": 1200, "max": 53_000 } },
                    "write": { "operations": 0, "bytes": 0 } },
            },
            "zones": {},
            "doors": { "unix:/d/a.sock": { "kind": "nbd", "connections": 1 } },
            "server": { "process": 7, "addresses": ["nbd+unix:///?socket=/d/a.sock"] },
        });
        let expected = r#"
server
  process    7
  addresses  nbd+unix:///?socket=/d/a.sock

door "unix:/d/a.sock", nbd
  connections  1

device "top", stats
         operations   bytes      p50      max
  read           12  48 KiB  1.20 µs  53.0 µs
  write           0     0 B        -        -

device "disk", file
  path   /d/disk.img
  bytes  1 MiB
"#;
        assert_eq!(page(status.as_object().unwrap()), expected.trim_start());
    }
}
