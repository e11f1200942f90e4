//! `siltstone objects drain`: the planned end of the server of a volume in a bucket.
//!
//! 1. The caches above the bucket, and then the part itself, upload what they have, while clients write.
//!    Each round has less to upload, as long as the store is faster than the clients.
//! 2. The server ends as by `siltstone stop`. Its caches upload the rest before they are closed, and the
//!    volume is closed cleanly.
//! 3. The bucket is looked at: its last manifest must be that of a clean end.

use super::{Bucket, page};
use crate::arguments::{BucketPart, ObjectsDrain};
use crate::control::client::Client;
use crate::control::protocol::{Recipient, Request};
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print_json, print_line, say};
use crate::server_process::{END_LIMIT, ServerProcess};
use serde_json::{Value, json};
use stack::Stack;
use std::time::Duration;

/// Most rounds of uploads before the end.
const ROUNDS: u32 = 8;
/// Time of a round after which little enough is left.
const SHORT: Duration = Duration::from_millis(250);
/// Door of an attachment's server, which its holder would start again.
const ATTACHED: &str = "attached";

/// Uploads everything, ends the server, and verifies that the volume is closed.
///
/// # Errors
/// A wrong stack or part; a stack that isn't served; errors of the store; a server that doesn't end.
pub fn drain(arguments: &ObjectsDrain) -> Result<(), Failure> {
    let BucketPart { part, json } = &arguments.bucket;
    let argument = &arguments.operated.stack;
    let bucket = Bucket::of(argument, part.as_deref())?;
    if bucket.options.follow.is_some() {
        return Err(Failure::Usage(format!(
            "{argument}: \"{}\" is a reader, which has nothing to upload; expected the stack of the writer",
            bucket.name
        )));
    }
    let Some(mut server) = reach::server(&arguments.operated, &registry())? else {
        return unserved(argument, &bucket, *json);
    };
    let status = ask(&mut server, Request::Status)?;
    if status["doors"][ATTACHED].is_object() {
        return Err(Failure::Usage(format!(
            "{argument}: it is attached as a block device, whose holder would start the server again; siltstone detach ends both"
        )));
    }
    let epoch = status["zones"][&bucket.name]["epoch"].as_u64();
    let caches = caches_above(&bucket.stack, &bucket.name);
    check_others(argument, &bucket, &caches, &status)?;
    let rounds = upload(&mut server, &bucket.name, &caches)?;
    for cache in &caches {
        tell(&mut server, cache, "flush_on_suspend")?;
    }
    let process = ServerProcess::of_peer(argument, server.stream())?;
    drop(server);
    let began = runtime::now();
    process.terminate()?;
    if !process.has_ended(END_LIMIT)? {
        return Err(Failure::World(format!(
            "{argument}: its server (process {}) hasn't ended within {} s; expected its end",
            process.number(),
            END_LIMIT.as_secs()
        )));
    }
    let pause = began.elapsed();
    let found = bucket.look(async move |volume| volume.epoch().await)?;
    if !found.is_closed || epoch.is_some_and(|epoch| epoch != u64::from(found.epoch)) {
        return Err(Failure::World(format!(
            "{argument}: the server has ended, and the volume isn't closed: {}{}; expected a clean end: see the server's messages",
            found.describe(),
            page::ended(&found)
        )));
    }
    match json {
        true => print_drained(found.epoch, rounds, pause),
        false => print_line(&format!(
            "{argument}: everything is in the bucket, and the volume is closed; {:.2} s without writes",
            pause.as_secs_f64()
        )),
    }
}

fn print_drained(epoch: u32, rounds: u32, pause: Duration) -> Result<(), Failure> {
    print_json(&json!({
        "drained": true,
        "epoch": epoch,
        "upload_rounds": rounds,
        "pause_seconds": pause.as_secs_f64(),
    }))
}

/// Result for a stack that isn't served: success if the volume is closed and no write cache above it may have
/// data to upload; otherwise an error with the command that uploads it.
fn unserved(argument: &str, bucket: &Bucket, json: bool) -> Result<(), Failure> {
    let found = bucket.look(async move |volume| volume.epoch().await)?;
    let caches = caches_above(&bucket.stack, &bucket.name);
    Err(Failure::World(match (found.is_closed, caches.is_empty()) {
        (true, true) if json => return print_drained(found.epoch, 0, Duration::ZERO),
        (true, true) => {
            return print_line(&format!(
                "{argument}: nothing to do: it isn't served, and its volume is closed; any machine can open it"
            ));
        }
        (true, false) => format!(
            "{argument}: not served, and its volume is closed, but its caches may hold more ({}): serve the stack once, then \
             drain it",
            caches.join(", ")
        ),
        (false, _) => format!(
            "{argument}: not served here, and its volume isn't closed: {}{}; expected a server to drain; if there is none any more, \
             serve the stack once, so that its caches are uploaded",
            found.describe(),
            page::ended(&found)
        ),
    }))
}

/// Messages of the kinds that hold writes, and upload them when they are told to.
const MESSAGES: [&str; 2] = ["flush", "flush_on_suspend"];

/// Names of the parts above another one.
fn above<'s>(stack: &'s Stack, below: &str) -> Vec<&'s stack::Part> {
    stack.parts().filter(|part| is_below(stack, part.name(), below)).collect()
}

/// Names of the write caches above a part, from the top down.
fn caches_above(stack: &Stack, below: &str) -> Vec<String> {
    let mut parts = above(stack, below);
    parts.retain(|part| {
        MESSAGES.iter().all(|text| part.kind().messages.iter().any(|form| form.words == *text))
    });
    let mut names: Vec<String> = parts.iter().map(|part| part.name().to_owned()).collect();
    names.sort_by_key(|name| parts.iter().filter(|part| is_below(stack, part.name(), name)).count());
    names
}

/// Refuses other parts above the bucket that hold writes: nothing makes them upload everything at their end.
fn check_others(argument: &str, bucket: &Bucket, caches: &[String], status: &Value) -> Result<(), Failure> {
    for part in above(&bucket.stack, &bucket.name) {
        let name = part.name();
        let status = &status["devices"][name];
        if caches.iter().any(|cache| cache == name) || !holds_writes(status) {
            continue;
        }
        let kind = part.kind().name;
        return Err(Failure::Usage(format!(
            "{argument}: {kind} \"{name}\" holds writes that aren't in the bucket (mode {}, dirty blocks {}); expected none: siltstone \
             message {argument} {name} 'mode writethrough', wait until no blocks are dirty, and drain again",
            status["mode"].as_str().unwrap_or("unknown"),
            status["dirty_blocks"],
        )));
    }
    Ok(())
}

/// Whether a part with this status writes back, or has something to write back.
fn holds_writes(status: &Value) -> bool {
    status["mode"] == "writeback" || status["dirty_blocks"].as_u64().is_some_and(|blocks| blocks > 0)
}

/// Whether a part is below another one.
fn is_below(stack: &Stack, above: &str, wanted: &str) -> bool {
    let part = stack.parts().find(|part| part.name() == above);
    let mut below = part.into_iter().flat_map(|part| part.values().flat_map(|(_, it)| it.children()));
    below.any(|name| name == wanted || is_below(stack, name, wanted))
}

/// Uploads in rounds until one has little to do. Returns their number.
fn upload(server: &mut Client, bucket: &str, caches: &[String]) -> Result<u32, Failure> {
    for round in 1..=ROUNDS {
        let began = runtime::now();
        for cache in caches {
            tell(server, cache, "flush")?;
        }
        tell(server, bucket, "flush")?;
        let took = began.elapsed();
        say(&format!("uploaded, round {round}: {:.2} s", took.as_secs_f64()));
        if took < SHORT {
            return Ok(round);
        }
    }
    Ok(ROUNDS)
}

fn tell(server: &mut Client, part: &str, text: &str) -> Result<(), Failure> {
    let request = Request::Message { to: Recipient::Part(part.to_owned()), text: text.to_owned() };
    ask(server, request).map(drop)
}

fn ask(server: &mut Client, request: Request) -> Result<Value, Failure> {
    server.ask(&request)?.map_err(|refusal| refusal.error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches(line: &str) -> Vec<String> {
        let stack = crate::load::stack(line, &registry()).unwrap();
        let bucket = stack.parts().find(|part| part.kind().name == objects::KIND.name).unwrap().name();
        let kinds = caches_above(&stack, bucket);
        kinds.iter().map(|name| stack.part(name).unwrap().kind().name.to_owned()).collect()
    }

    #[test]
    fn the_write_caches_above_a_bucket_are_found_from_the_top_down() {
        let bucket = "objects(\"http://127.0.0.1:9\", bucket=vol, prefix=\"a/\")";
        for (line, expected) in [
            (format!("log({bucket})"), vec![]),
            (format!("log(zone-writecache(ram(64MiB), {bucket}))"), vec!["zone-writecache"]),
            (format!("stats(writecache(log({bucket}), ram(64MiB)))"), vec!["writecache"]),
            (
                format!("writecache(stats(log(zone-writecache(ram(64MiB), {bucket}))), ram(64MiB))"),
                vec!["writecache", "zone-writecache"],
            ),
            // The bucket isn't below this one.
            (format!("mirror(log({bucket}), writecache(ram(1GiB), ram(64MiB)))"), vec![]),
        ] {
            assert_eq!(caches(&line), expected, "{line}");
        }
    }

    #[test]
    fn other_parts_that_hold_writes_are_known_by_their_status() {
        for (status, expected) in [
            (Value::Null, false),
            (json!({ "mode": "writethrough", "dirty_blocks": 0 }), false),
            (json!({ "mode": "writethrough", "dirty_blocks": 3 }), true),
            (json!({ "mode": "writeback", "dirty_blocks": 0 }), true),
        ] {
            assert_eq!(holds_writes(&status), expected, "{status}");
        }
    }
}
