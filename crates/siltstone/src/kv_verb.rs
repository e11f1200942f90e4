//! `siltstone kv`: serves key-value stores to redis clients, and reads, changes, checks and copies them.

mod audit;
mod page;
mod reach;
mod text;

use crate::arguments::{
    KvBackup, KvCheck, KvCompact, KvDelete, KvGet, KvLogin, KvPut, KvScan, KvServe, KvStatus, KvStore,
    KvVerb, Serve,
};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::lifted;
use crate::load;
use crate::output::{counted, findings, print, print_json, print_line};
use crate::overwriting;
use crate::progress::Reading;
use crate::serve_verb;
use bench::units;
use block::Error;
use kv::{Pair, Scan};
use reach::{Planned, Reached, Walk, copy, with_store};
use serde_json::{Map, json};
use std::io::{Read, Write};
use text::{bytes_of, end_of_prefix, escaped, insert, shown};

/// Limit of the keys in one request of a scan.
const PAGE_KEYS: usize = 1000;

/// Runs the verb.
///
/// # Errors
/// A wrong stack, key or value; a missing key; errors of opening, of the connection, and of reading and
/// writing.
pub fn kv(verb: KvVerb) -> Result<(), Failure> {
    match verb {
        KvVerb::Serve(arguments) => serve(&arguments),
        KvVerb::Get(arguments) => get(&arguments),
        KvVerb::Put(arguments) => put(&arguments),
        KvVerb::Delete(arguments) => delete(&arguments),
        KvVerb::Scan(arguments) => scan(arguments),
        KvVerb::Status(arguments) => status(&arguments),
        KvVerb::Check(arguments) => check(&arguments),
        KvVerb::Backup(arguments) => backup(&arguments),
        KvVerb::Compact(arguments) => compact(&arguments),
        KvVerb::Audit(arguments) => audit::audit(&arguments),
    }
}

fn serve(arguments: &KvServe) -> Result<(), Failure> {
    let stack = load::stack(&arguments.stack, &registry())?;
    if !stack.parts().any(|part| part.kind().name == redis_door::KIND.name) {
        return Err(Failure::Usage(format!(
            "{}: this stack has no part of kind \"{}\"; expected one; siltstone serve serves other stacks",
            arguments.stack,
            redis_door::KIND.name
        )));
    }
    serve_verb::serve(&Serve {
        stack: arguments.stack.clone(),
        nbd: Vec::new(),
        allow_remote: arguments.allow_remote,
        metrics: arguments.metrics.clone(),
        vhost_user: None,
        stdio: false,
        control: None,
        no_control: false,
        format: arguments.format,
        json: arguments.json,
        background: false,
        warnings: arguments.warnings.clone(),
        holder: false,
        swap: false,
    })
}

fn get(arguments: &KvGet) -> Result<(), Failure> {
    let key = bytes_of("KEY", &arguments.key, arguments.hex)?;
    let wanted = key.clone();
    let found =
        with_store(&arguments.store, async move |store: &mut Reached| Ok(store.get(&wanted).await?))?;
    let Some(stored) = found else {
        return Err(Failure::World(format!("key \"{}\": there is no such key", escaped(&key))));
    };
    if arguments.json {
        let mut object = Map::new();
        insert(&mut object, "key", &key, arguments.hex);
        insert(&mut object, "value", &stored.value, arguments.hex);
        object.insert("expires".to_owned(), json!(stored.expires));
        return print_json(&object.into());
    }
    if arguments.raw {
        let mut stdout = std::io::stdout().lock();
        return match stdout.write_all(&stored.value).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::World(format!("writing to standard output: {error}")))
            }
            _ => Ok(()),
        };
    }
    print(&format!("{}\n", shown(&stored.value, arguments.hex)))
}

fn put(arguments: &KvPut) -> Result<(), Failure> {
    let key = bytes_of("KEY", &arguments.key, arguments.hex)?;
    let value = match arguments.value == "-" {
        true => {
            let mut bytes = Vec::new();
            // One byte over the limit of a value is enough to refuse it.
            let most = kv::MAX_VALUE_BYTES as u64 + 1;
            let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
            read.map_err(|error| Failure::World(format!("reading the value from standard input: {error}")))?;
            bytes
        }
        false => bytes_of("VALUE", &arguments.value, arguments.hex)?,
    };
    let check = kv::Write::Put { key: &key, value: &value, expires: None }.check();
    check.map_err(|error| Failure::Usage(error.to_string()))?;
    let (json, bytes) = (arguments.json, value.len());
    let expires_in = arguments.expires_in;
    if expires_in.is_some_and(|time| time.as_millis() == 0) {
        let found = expires_in.unwrap_or_default();
        return Err(Failure::Usage(format!("--expires-in {found:?}: expected at least 1ms")));
    }
    with_store(&arguments.store, async move |store: &mut Reached| {
        Ok(store.put(&key, &value, expires_in).await?)
    })?;
    if json { print_json(&json!({ "written": true, "value_bytes": bytes })) } else { Ok(()) }
}

fn delete(arguments: &KvDelete) -> Result<(), Failure> {
    let keys = arguments.keys.iter().map(|key| bytes_of("KEY", key, arguments.hex));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let count = keys.len();
    let deleted = with_store(&arguments.store, async move |store: &mut Reached| {
        let mut deleted = 0;
        for key in &keys {
            deleted += usize::from(store.delete(key).await?);
        }
        Ok(deleted)
    })?;
    match arguments.json {
        true => print_json(&json!({ "keys": count, "deleted": deleted })),
        false => {
            print_line(&format!("deleted {deleted} of {count} {}", if count == 1 { "key" } else { "keys" }))
        }
    }
}

/// Returns the range of a scan.
fn range_of(arguments: &KvScan) -> Result<Scan, Failure> {
    let bytes = |name, argument: &Option<std::ffi::OsString>| {
        argument.as_deref().map(|text| bytes_of(name, text, arguments.hex)).transpose()
    };
    let mut from = bytes("--from", &arguments.from)?.unwrap_or_default();
    let mut to = bytes("--to", &arguments.to)?;
    if let Some(prefix) = bytes("--prefix", &arguments.prefix)? {
        let end = end_of_prefix(&prefix);
        from = from.max(prefix);
        to = match (to, end) {
            (Some(to), Some(end)) => Some(to.min(end)),
            (to, end) => to.or(end),
        };
    }
    Ok(Scan { to, is_backward: arguments.reverse, ..Scan::from(from, PAGE_KEYS) })
}

fn scan(arguments: KvScan) -> Result<(), Failure> {
    let range = range_of(&arguments)?;
    let store = arguments.store.clone();
    with_store(&store, async move |store: &mut Reached| {
        let mut left = arguments.limit.unwrap_or(u64::MAX);
        let most = left.min(PAGE_KEYS as u64) as usize;
        if most == 0 {
            return Ok(());
        }
        let mut walk = Walk::new(Scan { most, ..range }, arguments.keys);
        while left > 0 {
            let page = walk.next(store).await?;
            if page.is_empty() {
                break;
            }
            let mut out = String::new();
            for Pair { key, value, expires } in page.iter().take(left.min(PAGE_KEYS as u64) as usize) {
                if arguments.json {
                    let mut object = Map::new();
                    insert(&mut object, "key", key, arguments.hex);
                    if !arguments.keys {
                        insert(&mut object, "value", value, arguments.hex);
                        object.insert("expires".to_owned(), json!(expires));
                    }
                    out += &serde_json::Value::from(object).to_string();
                } else {
                    out += &shown(key, arguments.hex);
                    if !arguments.keys {
                        out.push('\t');
                        out += &shown(value, arguments.hex);
                    }
                }
                out.push('\n');
            }
            left = left.saturating_sub(page.len() as u64);
            print(&out)?;
        }
        Ok(())
    })
}

fn status(arguments: &KvStatus) -> Result<(), Failure> {
    let status = with_store(&arguments.store, async |store: &mut Reached| Ok(store.status().await?))?;
    match arguments.json {
        true => print_json(&page::with_ratios(status).into()),
        false => print(&page::page(&status)),
    }
}

fn check(arguments: &KvCheck) -> Result<(), Failure> {
    let argument = &arguments.store.stack;
    let stack = load::stack(argument, &registry())?;
    let stack = if arguments.writable { stack } else { lifted::read_only(argument, &stack)? };
    let planned = Planned::of(&stack, &arguments.store, false)?;
    let report = runtime::run(planned.config(), move || async move {
        let below = planned.plan.build_below_door(&planned.part).await;
        let (built, of_part) = below.map_err(|error| match error {
            Error::Busy(detail) => Error::busy(format!("{detail}; stop the server of the store first")),
            other => other,
        })?;
        let checked = async {
            let zones = redis_door::storage::zones_to_read(&of_part).await?.open().await?;
            let reading = Reading::new();
            kv::check::check(&*zones, kv::check::MAX_PROBLEMS, &|done, all| reading.at(done, all)).await
        };
        let checked = checked.await;
        drop(of_part);
        let closed = built.close().await;
        checked.and_then(|report| closed.map(|()| report))
    })?;
    let report = report.map_err(|error| error.in_context(argument))?;
    if arguments.json {
        print_json(&json!({
            "sound": report.is_sound(),
            "problems": report.problems.iter().map(|problem| json!({
                "shard": problem.table.map(|(shard, _)| shard),
                "table": problem.table.map(|(_, table)| table),
                "detail": problem.detail,
            })).collect::<Vec<_>>(),
            "further_problems": report.further,
            "notes": report.notes,
            "closed_cleanly": report.is_clean,
            "shards": report.shards,
            "tables": report.tables,
            "table_bytes": report.bytes,
            "blocks": report.blocks,
            "entries": report.entries,
            "tombstones": report.tombstones,
            "log_bytes": report.log_bytes,
        }))?;
    } else {
        let mut out = format!(
            "{argument}: {}; {} with {} in {}, {} ({}); {} in the log only\n",
            if report.is_clean { "closed cleanly" } else { "not closed cleanly" },
            counted(report.tables, "table", "tables"),
            units::bytes(report.bytes as f64),
            counted(report.blocks, "block", "blocks"),
            counted(report.entries, "entry", "entries"),
            counted(report.tombstones, "tombstone", "tombstones"),
            units::bytes(report.log_bytes as f64)
        );
        out += &findings(&report.problems, report.further, &report.notes, report.is_sound());
        print(&out)?;
    }
    if report.is_sound() { Ok(()) } else { Err(Failure::Said) }
}

fn backup(arguments: &KvBackup) -> Result<(), Failure> {
    let to = KvStore { stack: arguments.destination.clone(), part: None, login: KvLogin::default() };
    let (present, empty) = (Planned::new(&to, false)?, Planned::new(&to, true)?);
    overwriting::check(
        empty.plan.stack(),
        &true.into(),
        "if it may be lost, run siltstone format with --force first, and kv backup again",
    )?;
    let from = Planned::new(&arguments.store, false)?;
    let shards = from.plan.stack().shards().max(empty.plan.stack().shards());
    let force = arguments.format;
    let copied = runtime::run(runtime::Config::default().with_shards(shards), move || async move {
        if !force {
            check_empty(&present).await?;
        }
        from.with(async move |source: &mut Reached| {
            let (built, of_part) = empty.plan.build_below_door(&empty.part).await?;
            let copied = async {
                let store = redis_door::storage::open(&of_part).await?;
                let copied = async {
                    source.take_snapshot().await?;
                    copy(source, &store).await
                };
                let copied = copied.await;
                let closed = store.close().await;
                copied.and_then(|copied| closed.map(|()| copied))
            };
            let copied = copied.await;
            drop(of_part);
            let closed = built.close().await;
            Ok(copied.and_then(|copied| closed.map(|()| copied))?)
        })
        .await
    })?;
    let (keys, bytes) = copied?;
    match arguments.json {
        true => print_json(&json!({ "keys": keys, "bytes": bytes })),
        false => print_line(&format!(
            "copied {keys} keys with {} to {}",
            units::bytes(bytes as f64),
            arguments.destination
        )),
    }
}

/// Refuses a destination that isn't empty.
async fn check_empty(destination: &Planned) -> Result<(), Failure> {
    let (built, of_part) = match destination.plan.build_below_door(&destination.part).await {
        Ok(below) => below,
        // The copy creates missing storage.
        Err(Error::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let found = redis_door::storage::contents(&of_part).await;
    drop(of_part);
    let closed = built.close().await;
    match found? {
        None => Ok(closed?),
        Some(contents) => Err(Failure::World(format!(
            "{}: it holds {contents}; expected empty storage; give --format if its contents may be lost",
            destination.argument
        ))),
    }
}

fn compact(arguments: &KvCompact) -> Result<(), Failure> {
    let status = with_store(&arguments.store, async |store: &mut Reached| {
        store.compact().await?;
        Ok(store.status().await?)
    })?;
    let number = |name: &str| status.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let (tables, bytes) = (number("tables"), number("table_bytes"));
    match arguments.json {
        true => print_json(&json!({ "tables": tables, "table_bytes": bytes })),
        false => print_line(&format!("compacted: {} in {tables} tables", units::bytes(bytes as f64))),
    }
}
