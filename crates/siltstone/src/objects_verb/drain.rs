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
        return Err(unserved(argument, &bucket)?);
    };
    let status = ask(&mut server, Request::Status)?;
    if status["doors"][ATTACHED].is_object() {
        return Err(Failure::Usage(format!(
            "{argument}: it is attached as a block device, whose holder would start the server again; siltstone detach ends both"
        )));
    }
    let epoch = status["zones"][&bucket.name]["epoch"].as_u64();
    let caches = caches_above(&bucket.stack, &bucket.name);
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
        true => print_json(&json!({
            "drained": true,
            "epoch": found.epoch,
            "upload_rounds": rounds,
            "pause_seconds": pause.as_secs_f64(),
        })),
        false => print_line(&format!(
            "{argument}: everything is in the bucket, and the volume is closed; {:.2} s without writes",
            pause.as_secs_f64()
        )),
    }
}

/// Returns the failure for a stack that isn't served.
fn unserved(argument: &str, bucket: &Bucket) -> Result<Failure, Failure> {
    let found = bucket.look(async move |volume| volume.epoch().await)?;
    Ok(Failure::World(match found.is_closed {
        true => format!("{argument}: not served, and its volume is closed already: any machine can open it"),
        false => format!(
            "{argument}: not served here, and its volume isn't closed: {}{}; expected a server to drain; if there is none any more, \
             serve the stack once, so that its caches are uploaded",
            found.describe(),
            page::ended(&found)
        ),
    }))
}

/// Names of the write caches above a part, from the top down.
fn caches_above(stack: &Stack, below: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in stack.parts() {
        let is_above = part.value("origin").is_some_and(|origin| {
            origin.children().iter().any(|name| *name == below || is_below(stack, name, below))
        });
        if is_above && part.kind().name == zone_writecache::KIND.name {
            names.push(part.name().to_owned());
        }
    }
    names
}

/// Whether a part is below another one.
fn is_below(stack: &Stack, above: &str, wanted: &str) -> bool {
    let below =
        stack.part(above).into_iter().flat_map(|part| part.values().flat_map(|(_, it)| it.children()));
    let mut below = below.into_iter();
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
