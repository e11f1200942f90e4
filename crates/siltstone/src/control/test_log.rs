//! Part of kind `log` for the tests of this crate: it accepts the messages of snapshots, and keeps only their
//! names. The message `wait` takes five seconds.

use crate::kinds;
use block::{Call, Device, DeviceGeometry, DevicePart, Error, Part, Result};
use serde_json::json;
use stack::{Built, Contract, Key, Kind, Registry, ValueKind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns all kinds, with this one in place of `log`.
pub fn registry() -> Registry {
    let mut registry = kinds::registry();
    registry.kinds.retain(|kind| kind.name != KIND.name);
    registry.kinds.push(&KIND);
    registry
}

const KIND: Kind = Kind {
    name: "log",
    contract: Contract::Device,
    summary: "takes the messages of a log device",
    keys: &[Key::required("on", ValueKind::Device, "the device").positional()],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "log(ram(size=64MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(
            arguments.device("on").map(|on| Built::Device(Arc::new(TestLog { on, names: Mutex::default() }))),
        )
    },
};

struct TestLog {
    on: Arc<dyn DevicePart>,
    names: Mutex<Vec<String>>,
}

impl TestLog {
    fn answer(&self, message: &str) -> Result<String> {
        let mut names = self.names.lock().unwrap();
        let known = |name: &str, names: &[String]| match names.iter().any(|other| other == name) {
            true => Ok(()),
            false => Err(Error::not_found(format!("there is no snapshot \"{name}\""))),
        };
        let answer = match message.split(' ').collect::<Vec<_>>().as_slice() {
            ["snapshot", "create", name] => {
                names.push((*name).to_owned());
                json!({ "name": name, "bytes_unique": 0 })
            }
            ["snapshot", "list"] => {
                let one = |name: &String| {
                    json!({ "name": name, "created": 1_795_234_546, "bytes_unique": 1 << 20, "kind": "snapshot",
                        "parent": null })
                };
                json!({ "snapshots": names.iter().map(one).collect::<Vec<_>>() })
            }
            ["snapshot", "delete", name] => {
                known(name, &names)?;
                names.retain(|other| other != name);
                json!({})
            }
            ["snapshot", "clone", name, new] => {
                known(name, &names)?;
                names.push((*new).to_owned());
                json!({ "name": new, "parent": name })
            }
            ["snapshot", "diff", name, other @ ..] if other.len() <= 1 => {
                known(name, &names)?;
                other.iter().try_for_each(|name| known(name, &names))?;
                json!({ "ranges": [[0, 2], [1000, 30]], "block_size": 4096 })
            }
            ["resize", bytes] => json!({ "bytes": bytes.parse::<u64>().unwrap() }),
            _ => return Err(Error::unsupported(format!("message \"{message}\": unknown"))),
        };
        Ok(answer.to_string())
    }
}

impl Part for TestLog {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        Call::new(async move {
            if message == "wait" {
                runtime::sleep(Duration::from_secs(5)).await;
                self.names.lock().unwrap().push("waited".into());
                return Ok("waited".into());
            }
            self.answer(message)
        })
    }
}

impl DevicePart for TestLog {
    fn geometry(&self) -> &DeviceGeometry {
        self.on.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.on.open()
    }
}
