//! Access to the disk of a log device without opening the log: nothing is written.
//!
//! The parts below the log, a device or zones, are built as the stack defines them, but files and zones on
//! devices are opened read-only, so that none is created or changed. A `record` or `zone-record` directly
//! below the log is skipped: opening it would overwrite its timeline. A write cache can't be opened
//! without writing, since it continues its log: it is refused, or opened as a server does it, by option.

use crate::control::client::Client;
use crate::control::place::{self, Identity};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use block::{Result, ZonesPart};
use log::recovery::{FileUse, HomeStorage};
use runtime::Config;
use stack::{Contract, Part, Stack, Value};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Kind of the parts whose disks can be read.
const KIND: &str = "log";
/// Kinds that are skipped below the log.
const RECORDS: [&str; 2] = ["record", "zone-record"];
/// Kinds that are opened read-only.
const READ_ONLY: [&str; 2] = ["file", "zones"];

/// Kinds that write to their devices when they are opened.
const WRITE_CACHES: [&str; 2] = ["writecache", "zone-writecache"];

/// Runs `work` on the zones of a log device that isn't served, and on the home of its map, if it has one.
///
/// With `writable` all parts below the log are opened as a server does it.
///
/// # Errors
/// A wrong stack or part; a served stack; errors of opening the disk, and of `work`.
pub fn with_zones<T: Send + 'static>(
    argument: &str,
    part: Option<&str>,
    writable: bool,
    work: impl AsyncFnOnce(Arc<dyn ZonesPart>, Option<Rc<dyn HomeStorage>>) -> Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let stack = load::stack(argument, &registry())?;
    refuse_if_served(argument, &stack)?;
    let (log, on) = log_of(argument, &stack, part)?;
    let home = match stack.part(&log).and_then(|part| part.value("map_home")) {
        Some(Value::Text(said)) => log::kind::file_of_home(said),
        _ => None,
    };
    let home = home.map(|path| stack.absolute(Path::new(path))).transpose()?;
    let is_zones = stack.part(&on).is_some_and(|part| part.kind().contract == Contract::Zones);
    let stack = if writable { stack } else { read_only(argument, &stack)? };
    let plan = stack.check(false)?;
    let config = Config::default().with_shards(stack.shards());
    let outcome = runtime::run(config, move || async move {
        let built = plan.build_below(&log).await?;
        let work = async {
            let home = match &home {
                Some(path) => Some((log::kind::home_files()?.open)(path, FileUse::LookOnly, None).await?),
                None => None,
            };
            let zones = match is_zones {
                true => built.zones(&on)?,
                false => log::check::open_zones(built.device(&on)?)
                    .await
                    .map_err(|error| error.in_context(format!("{KIND} \"{log}\"")))?,
            };
            work(zones, home).await
        };
        let outcome = work.await;
        let closed = built.close().await;
        outcome.and_then(|value| closed.map(|()| value))
    })?;
    Ok(outcome?)
}

/// Refuses a served stack: its disk changes during the check.
fn refuse_if_served(argument: &str, stack: &Stack) -> Result<(), Failure> {
    match server_of(argument, stack)? {
        None => Ok(()),
        Some(path) => Err(Failure::World(format!(
            "{argument}: it is being served (control socket {}): stop its server first",
            path.display()
        ))),
    }
}

/// Returns the control socket of a server of a stack; `None` if none answers.
///
/// # Errors
/// Errors of searching for sockets, and of a server that doesn't answer.
pub(crate) fn server_of(argument: &str, stack: &Stack) -> Result<Option<PathBuf>, Failure> {
    let identity = Identity::of_file(argument).map_or_else(|| Identity::of_text(stack), Ok)?;
    for (path, stream) in place::servers(&identity)? {
        if Client::new(path.clone(), stream)?.is_some() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the names of the log and of the part below it, its disk or zones.
fn log_of(argument: &str, stack: &Stack, wanted: Option<&str>) -> Result<(String, String), Failure> {
    let wrong = |what: String| Failure::Usage(format!("{argument}: {what}"));
    let logs: Vec<&Part> = stack.parts().filter(|part| part.kind().name == KIND).collect();
    let names = || logs.iter().map(|part| format!("\"{}\"", part.name())).collect::<Vec<_>>().join(", ");
    let mut part = match (wanted, logs.as_slice()) {
        (_, []) => return Err(wrong(format!("this stack has no part of kind \"{KIND}\"; expected one"))),
        (Some(name), logs) => *logs.iter().find(|part| part.name() == name).ok_or_else(|| {
            wrong(format!("--part {name}: expected a part of kind \"{KIND}\": {}", names()))
        })?,
        (None, [only]) => only,
        (None, several) => {
            let what = format!(
                "{} parts are of kind \"{KIND}\": expected --part with one of {}",
                several.len(),
                names()
            );
            return Err(wrong(what));
        }
    };
    loop {
        let Some(Value::Part(on)) = part.value("on") else {
            return Err(wrong(format!("part \"{}\" has no device or zones below it", part.name())));
        };
        match stack.part(on) {
            Some(below) if RECORDS.contains(&below.kind().name) => part = below,
            Some(below) => {
                refuse_records(argument, stack, below)?;
                return Ok((part.name().to_owned(), on.clone()));
            }
            None => return Err(wrong(format!("there is no part \"{on}\""))),
        }
    }
}

/// Refuses write caches.
fn refuse_write_caches(argument: &str, stack: &Stack) -> Result<(), Failure> {
    stack.parts().try_for_each(|part| refuse_write_cache(argument, part))
}

fn refuse_write_cache(argument: &str, part: &Part) -> Result<(), Failure> {
    match WRITE_CACHES.contains(&part.kind().name) {
        false => Ok(()),
        true => Err(Failure::Usage(format!(
            "{argument}: part \"{}\" ({}) continues its log on the fast device when it is opened, and so writes to it: expected \
             --writable, which opens all parts as a server does",
            part.name(),
            part.kind().name
        ))),
    }
}

/// Returns the stack with everything below a part opened for reading, beside a writer that has it open:
/// files are read-only, and aren't locked.
///
/// # Errors
/// A write cache below the part.
pub(crate) fn beside_writer(argument: &str, stack: &Stack, part: &str) -> Result<Stack, Failure> {
    let mut below = Vec::new();
    let mut next: Vec<&str> = stack.part(part).into_iter().flat_map(|part| stack.below(part)).collect();
    while let Some(name) = next.pop() {
        let Some(part) = stack.part(name) else { continue };
        refuse_write_cache(argument, part)?;
        below.push(part);
        next.extend(stack.below(part));
    }
    let mut changed = stack.clone();
    for part in below.iter().filter(|part| READ_ONLY.contains(&part.kind().name)) {
        changed = changed.with_value(part.name(), "read_only", Value::Bool(true));
        changed = changed.with_value(part.name(), "lock", Value::Bool(false));
    }
    Ok(changed)
}

fn refuse_records(argument: &str, stack: &Stack, part: &Part) -> Result<(), Failure> {
    for name in part.values().flat_map(|(_, value)| value.children()) {
        let Some(below) = stack.part(name) else { continue };
        let kind = below.kind().name;
        if RECORDS.contains(&kind) {
            return Err(Failure::Usage(format!(
                "{argument}: opening part \"{name}\" ({kind}) would restart its timeline: leave it out"
            )));
        }
        refuse_records(argument, stack, below)?;
    }
    Ok(())
}

/// Returns the stack with read-only files and zones on devices.
///
/// # Errors
/// A stack with a write cache; errors of reading the stack.
pub(crate) fn read_only(argument: &str, stack: &Stack) -> Result<Stack, Failure> {
    refuse_write_caches(argument, stack)?;
    let mut text = String::new();
    let whole = stack.to_toml();
    // The key `read_only` has the same meaning in every section, and doors aren't built.
    for line in whole.lines().filter(|line| !line.starts_with("read_only = ")) {
        text.push_str(line);
        text.push('\n');
        if READ_ONLY.iter().any(|kind| line == format!("kind = \"{kind}\"")) {
            text.push_str("read_only = true\n");
        }
    }
    let stack = Stack::from_toml(argument, &text, &registry())?.with_shards(stack.shards());
    Ok(match Path::new(argument) {
        path if argument != "-" && (argument.ends_with(".toml") || path.is_file()) => {
            stack.with_base_directory(path.parent().unwrap_or(Path::new("")))
        }
        _ => stack,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_below_the_part_are_opened_for_reading() {
        let bucket = "objects(\"http://127.0.0.1:1\", bucket=b, key_file=k, key_store=stats(file(keys.img, size=8KiB)))";
        let line = format!("log(zone-writecache(file(fast.img, size=64MiB), {bucket}))");
        let stack = load::stack(&line, &registry()).unwrap();
        let bucket = stack.parts().find(|part| part.kind().name == "objects").unwrap().name().to_owned();
        let changed = beside_writer(&line, &stack, &bucket).unwrap();
        let read_only = |stack: &Stack, file: &str| {
            let path = Value::Path(file.to_owned());
            let mut files = stack.parts().filter(|part| part.value("path") == Some(&path));
            let part = files.next().unwrap();
            (part.value("read_only").cloned(), part.value("lock").cloned())
        };
        assert_eq!(read_only(&changed, "keys.img"), (Some(Value::Bool(true)), Some(Value::Bool(false))));
        assert_eq!(read_only(&changed, "fast.img"), (None, None));
        assert_eq!(read_only(&stack, "keys.img"), (None, None));
        // In the order of the kind's keys, as a stack of this text has them.
        assert_eq!(Stack::from_toml(&line, &changed.to_toml(), &registry()).unwrap(), changed);
    }
}
