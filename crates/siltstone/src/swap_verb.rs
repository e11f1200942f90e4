//! `siltstone swap`: stacks as swap space.

mod page;

use crate::arguments::{
    Attach, Detach, LogLevel, MetricsAddress, Operated, SwapOff, SwapOn, SwapStatus, SwapVerb, Warnings,
};
use crate::attach::folder::{self, Folder};
use crate::attach::process::MAX_SWAP_REQUEST;
use crate::attach::record::Record;
use crate::attach_verb;
use crate::control::protocol::Request;
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::output::{print, print_json, print_line, say};
use block::Error;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, Stdio};

/// Kinds of devices that are empty when they are opened.
const VOLATILE: [&str; 2] = ["remote", "ram"];

/// Runs the verb.
///
/// # Errors
/// A wrong stack or name; errors of attaching and detaching, and of mkswap, swapon and swapoff.
pub fn swap(verb: SwapVerb, log: LogLevel) -> Result<(), Failure> {
    match verb {
        SwapVerb::On(arguments) => on(&arguments, log),
        SwapVerb::Off(arguments) => off(&arguments),
        SwapVerb::Status(arguments) => status(&arguments),
    }
}

/// Runs a program of util-linux. The error has its output.
fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::World(format!("{program}: {error}; install util-linux")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::World(format!("{program} {}: {}", arguments.join(" "), said.trim())))
}

fn on(arguments: &SwapOn, log: LogLevel) -> Result<(), Failure> {
    let stack = load::stack(&arguments.stack, &registry())?;
    let top = stack.top().map_err(|error| Failure::Usage(error.detail().to_owned()))?;
    let kind = top.kind().name;
    if !VOLATILE.contains(&kind) && !arguments.overwrite {
        return Err(Failure::Usage(format!(
            "{}: the device on top is of kind {kind}, whose contents would be lost; expected kind remote or ram, or --overwrite",
            arguments.stack
        )));
    }
    let name = arguments.name.clone().unwrap_or_else(|| folder::name_for(&arguments.stack, top.name()));
    let attached = attach_verb::attach_in_background(
        &Attach {
            stack: arguments.stack.clone(),
            name: Some(name.clone()),
            via: arguments.via,
            sector_size: None,
            recover_within: arguments.recover_within,
            metrics: MetricsAddress::default(),
            allow_remote: false,
            format: false,
            foreground: false,
            systemd: false,
            json: true,
            warnings: Warnings::default(),
            background: false,
            swap: true,
        },
        log,
    )?;
    let node = attached["node"].as_str().unwrap_or_default().to_owned();
    let priority = arguments.priority.to_string();
    let used = limit_requests(&node)
        .and_then(|()| run("mkswap", &[&node]))
        .and_then(|()| run("swapon", &["--discard=pages", "--priority", &priority, &node]));
    if let Err(failure) = used {
        // The first failure is reported.
        let _detached = attach_verb::detach(&Detach { name });
        return Err(failure);
    }
    print_line(&format!(
        "{name}: swapping to {node}, {}",
        bench::units::bytes(attached["bytes"].as_f64().unwrap_or(0.0))
    ))
}

/// Limits the size of requests to a node, for which its server has reserved memory.
fn limit_requests(node: &str) -> Result<(), Failure> {
    let queue = Path::new("/sys/block").join(Path::new(node).file_name().unwrap_or_default()).join("queue");
    let failed = |file: &Path, error: &dyn Display| Failure::World(format!("{}: {error}", file.display()));
    let (present, limit) = (queue.join("max_sectors_kb"), MAX_SWAP_REQUEST >> 10);
    let text = std::fs::read_to_string(&present).map_err(|error| failed(&present, &error))?;
    let is_larger = text.trim().parse::<u64>().map_err(|error| failed(&present, &error))? > limit;
    match is_larger {
        true => std::fs::write(&present, limit.to_string()).map_err(|error| failed(&present, &error)),
        false => Ok(()),
    }
}

/// Swap space in the kernel's list: node, size in bytes, used bytes, priority.
type Space = (String, u64, u64, i64);

/// Returns the swap space of an attachment, and whether its holder is alive. Without a holder, another
/// attachment may have the node by now.
fn space_of<'s>(folder: &Folder, record: &Record, spaces: &'s [Space]) -> Option<(&'s Space, bool)> {
    let space = spaces.iter().find(|(node, ..)| Path::new(node) == record.node)?;
    let is_alive = folder.is_alive();
    let is_its = || record.driver.node_driver().nodes(&folder.volume()).contains(&record.node);
    let is_known = is_alive || record.diskseq.is_some() || is_its();
    (record.has_node() && is_known).then_some((space, is_alive))
}

fn spaces() -> Result<Vec<Space>, Failure> {
    let read = |error: std::io::Error| Failure::World(format!("reading /proc/swaps: {error}"));
    Ok(parse_spaces(&std::fs::read_to_string("/proc/swaps").map_err(read)?))
}

fn parse_spaces(text: &str) -> Vec<Space> {
    let space = |line: &str| {
        let mut words = line.split_whitespace();
        let (node, _kind) = (words.next()?, words.next()?);
        let kib = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).map(|kib| kib << 10);
        let (size, used) = (kib(words.next())?, kib(words.next())?);
        Some((node.to_owned(), size, used, words.next()?.parse().ok()?))
    };
    text.lines().skip(1).filter_map(space).collect()
}

fn off(arguments: &SwapOff) -> Result<(), Failure> {
    let folder = attach_verb::find(&arguments.name)?;
    let record = Record::read(&folder)?;
    let record = record.ok_or_else(|| {
        Failure::World(format!("{} is still being attached: try again later", folder.name()))
    })?;
    let node = record.node.display().to_string();
    match space_of(&folder, &record, &spaces()?) {
        Some(((_, _, used, _), _)) => {
            say(&format!("bringing {} back from {node}", bench::units::bytes(*used as f64)));
            run("swapoff", &[&node])?;
        }
        None => say(&format!("{node} isn't used as swap space")),
    }
    attach_verb::detach(&Detach { name: folder.name().to_owned() })
}

fn status(arguments: &SwapStatus) -> Result<(), Failure> {
    let spaces = spaces()?;
    let mut all = Vec::new();
    for folder in Folder::all()? {
        let record = match Record::read(&folder) {
            Ok(Some(record)) => record,
            Ok(None) | Err(Error::PermissionDenied(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(((_, size, used, priority), is_alive)) = space_of(&folder, &record, &spaces) else {
            continue;
        };
        let state = if is_alive { record.state.word() } else { "lost" };
        let operated = Operated { stack: record.stack.clone(), control: None };
        let device = match reach::ask_server(&operated, &registry(), Request::Status)? {
            Some(answer) => device_of(&answer),
            None => Value::Null,
        };
        all.push(json!({
            "name": record.name, "stack": record.stack, "node": record.node, "state": state, "lost_servers": record.lost_servers,
            "size_bytes": size, "used_bytes": used, "priority": priority, "device": device,
        }));
    }
    if arguments.json {
        return print_json(&Value::Array(all));
    }
    if all.is_empty() {
        say("no attachment is used as swap space");
        return Ok(());
    }
    print(&all.iter().map(page::page).collect::<Vec<_>>().join("\n"))
}

/// Returns the status of the part of kind remote; null without one.
fn device_of(status: &Value) -> Value {
    let devices = status["devices"].as_object();
    let remote = devices.and_then(|devices| devices.values().find(|device| device["kind"] == "remote"));
    remote.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_is_read() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/loop0                              partition\t398504\t\t12\t\t100\n\
                    /swapfile                               file\t\t1024\t\t0\t\t-2\n";
        assert_eq!(
            parse_spaces(text),
            [
                ("/dev/loop0".to_owned(), 398_504 << 10, 12 << 10, 100),
                ("/swapfile".to_owned(), 1 << 20, 0, -2)
            ]
        );
        assert!(parse_spaces("").is_empty());
    }
}
