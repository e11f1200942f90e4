//! `siltstone objects`: zones in a bucket, without opening them; and the planned end of their server.

mod drain;
mod page;

use crate::arguments::{
    BucketPart, ObjectsCheck, ObjectsFence, ObjectsGc, ObjectsStatus, ObjectsVerb, Operated,
};
use crate::control::protocol::{Recipient, Request};
use crate::control::reach;
use crate::failure::{Failure, advice};
use crate::kinds::registry;
use crate::lifted;
use crate::load;
use crate::output::{counted, print, print_json, print_line};
use crate::prices::Requests;
use crate::progress::{Listing, Reading};
use objects::{Options, Volume};
use runtime::Config;
use serde_json::{Map, Value as Json, json};
use stack::{Part, Stack, Value};

/// Runs the verb.
///
/// # Errors
/// A wrong stack or part; no volume in the bucket; errors of the store.
pub fn objects(verb: &ObjectsVerb) -> Result<(), Failure> {
    match verb {
        ObjectsVerb::Status(arguments) => status(arguments),
        ObjectsVerb::Check(arguments) => check(arguments),
        ObjectsVerb::Gc(arguments) => gc(arguments),
        ObjectsVerb::Fence(arguments) => fence(arguments),
        ObjectsVerb::Drain(arguments) => drain::drain(arguments),
    }
}

/// A part of kind "objects" of a stack.
struct Bucket {
    /// The stack on the command line.
    argument: String,
    stack: Stack,
    name: String,
    options: Options,
}

/// An error of a volume, with a remedy.
fn advised(error: block::Error) -> block::Error {
    match &error {
        block::Error::Corrupt(text) => block::Error::corrupt(format!(
            "{text}; restore this object, such as from a version that the bucket keeps; siltstone objects check tells what is damaged"
        )),
        _ => error,
    }
}

impl Bucket {
    /// Finds the part, and reads its keys.
    fn of(argument: &str, part: Option<&str>) -> Result<Bucket, Failure> {
        let stack = load::stack(argument, &registry())?;
        let name = chosen(argument, &stack, part)?.name().to_owned();
        let plan = stack.check(false)?;
        let arguments = plan.arguments_of(&name);
        let arguments = arguments.ok_or_else(|| Failure::World(format!("{argument}: no part \"{name}\"")))?;
        let kind = objects::KIND.name;
        let options = objects::options_of_look(&arguments).map_err(|error| {
            let text = format!("{argument}: {kind} \"{name}\": {}", error.detail());
            Failure::Usage(format!("{text}{}", advice(&text)))
        })?;
        Ok(Bucket { argument: argument.to_owned(), stack, name, options })
    }

    /// Runs `work` on the volume.
    fn look<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Volume) -> block::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let options = self.options.clone();
        let outcome = runtime::run(Config::default().with_shards(1), move || async move {
            work(Volume::new(options)?).await
        })?;
        Ok(outcome.map_err(|error| self.named(advised(error)))?)
    }

    fn named(&self, error: block::Error) -> block::Error {
        error.in_context(format!("{} \"{}\"", objects::KIND.name, self.name))
    }

    /// As [`look`](Self::look), with the key store, if the stack has one: it is opened for reading, beside
    /// the server that writes it.
    fn read<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(Volume) -> block::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let part = self.stack.part(&self.name);
        let Some(Value::Part(device)) = part.and_then(|part| part.value(objects::KEY_STORE)) else {
            return self.look(work);
        };
        let plan = lifted::beside_writer(&self.argument, &self.stack, &self.name)?.check(false)?;
        let (mut options, name, device) = (self.options.clone(), self.name.clone(), device.clone());
        let outcome = runtime::run(Config::default().with_shards(1), move || async move {
            let below = plan.build_below(&name).await?;
            let work = async {
                if let Some(encryption) = &mut options.encryption {
                    encryption.key_store = Some(below.device(&device)?);
                }
                work(Volume::new(options)?).await
            };
            let outcome = work.await;
            let closed = below.close().await;
            outcome.and_then(|value| closed.map(|()| value))
        })?;
        Ok(outcome.map_err(|error| self.named(advised(error)))?)
    }
}

/// Chooses the part of kind "objects".
fn chosen<'s>(argument: &str, stack: &'s Stack, wanted: Option<&str>) -> Result<&'s Part, Failure> {
    let kind = objects::KIND.name;
    let wrong = |what: String| Failure::Usage(format!("{argument}: {what}"));
    let parts: Vec<&Part> = stack.parts().filter(|part| part.kind().name == kind).collect();
    let names = || parts.iter().map(|part| format!("\"{}\"", part.name())).collect::<Vec<_>>().join(", ");
    match (wanted, parts.as_slice()) {
        (_, []) => Err(wrong(format!("this stack has no part of kind \"{kind}\"; expected one"))),
        (Some(name), parts) => {
            parts.iter().find(|part| part.name() == name).copied().ok_or_else(|| {
                wrong(format!("--part {name}: expected a part of kind \"{kind}\": {}", names()))
            })
        }
        (None, [only]) => Ok(only),
        (None, several) => Err(wrong(format!(
            "{} parts are of kind \"{kind}\": expected --part with one of {}",
            several.len(),
            names()
        ))),
    }
}

/// Status of the part by its server, with the server's time; `None` if the stack isn't served.
fn served(operated: &Operated, part: &str) -> Result<Option<Map<String, Json>>, Failure> {
    let Some(status) = reach::ask_server(operated, &registry(), Request::Status)? else { return Ok(None) };
    let found = status["zones"][part].as_object().cloned();
    Ok(found.map(|mut found| {
        found.insert("up_seconds".into(), status["server"]["up_seconds"].clone());
        found
    }))
}

fn status(arguments: &ObjectsStatus) -> Result<(), Failure> {
    let BucketPart { part, json } = &arguments.bucket;
    let bucket = Bucket::of(&arguments.operated.stack, part.as_deref())?;
    let garbage = arguments.garbage;
    let mut status = bucket.look(async move |volume| {
        let listing = Listing::new();
        volume.status(garbage, &|objects| listing.at(objects)).await
    })?;
    let server = served(&arguments.operated, &bucket.name)?;
    if let Some(prices) = &arguments.prices {
        let requests = server.as_ref().and_then(|server| {
            let seconds = server["up_seconds"].as_f64().unwrap_or(0.0);
            Some(Requests { counts: server.get("requests")?.as_object()?, seconds })
        });
        let estimate = prices.estimate(stored(&status), requests.as_ref());
        status.insert("estimate".into(), estimate);
    }
    if let Some(server) = server {
        const SHOWN: [&str; 8] = [
            "state",
            "up_seconds",
            "unsaved_bytes",
            "garbage_objects",
            "deleted_objects",
            "requests",
            "retries",
            "error",
        ];
        let shown = server.into_iter().filter(|(key, _)| SHOWN.contains(&key.as_str()));
        status.insert("server".into(), Json::Object(shown.collect()));
    }
    match json {
        true => print_json(&Json::Object(status)),
        false => print(&page::status(&bucket.name, status)),
    }
}

/// Bytes that the store bills: those of all objects that were counted.
fn stored(status: &Map<String, Json>) -> u64 {
    let counted = ["manifests", "garbage", "unsettled", "foreign"];
    let counted = counted.iter().filter_map(|key| status.get(*key)?["bytes"].as_u64());
    status.get("object_bytes").and_then(Json::as_u64).unwrap_or(0) + counted.sum::<u64>()
}

fn check(arguments: &ObjectsCheck) -> Result<(), Failure> {
    let BucketPart { part, json } = &arguments.bucket;
    let bucket = Bucket::of(&arguments.stack, part.as_deref())?;
    let data = arguments.data;
    let work = async move |volume: Volume| {
        let (listing, reading) = (Listing::new(), Reading::new());
        let listed = |objects| listing.at(objects);
        let read = |done, total| {
            listing.clear();
            reading.at(done, total);
        };
        volume.check(data, &listed, &read).await
    };
    let report = if data { bucket.read(work)? } else { bucket.look(work)? };
    match json {
        true => print_json(&report.to_json())?,
        false => print(&page::check(&report))?,
    }
    if report.is_damaged() { Err(Failure::Said) } else { Ok(()) }
}

fn gc(arguments: &ObjectsGc) -> Result<(), Failure> {
    let BucketPart { part, json } = &arguments.bucket;
    let bucket = Bucket::of(&arguments.operated.stack, part.as_deref())?;
    if !arguments.dry_run {
        let request = Request::Message { to: Recipient::Part(bucket.name.clone()), text: "gc".to_owned() };
        if let Some(answer) = reach::ask_server(&arguments.operated, &registry(), request)? {
            let answer = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
            return match json {
                true => print_json(&json!({ "by": "server", "answer": answer })),
                false => print_line(&format!("its server: {answer}")),
            };
        }
    }
    let is_dry = arguments.dry_run;
    let found = bucket.look(async move |volume| {
        let listing = Listing::new();
        let deleted = |done: u64, total: u64| listing.deleted(done, total);
        volume.collect(is_dry, &|objects| listing.at(objects), &deleted).await
    })?;
    if *json {
        return print_json(&json!({
            "by": "this command",
            "garbage": { "objects": found.garbage.objects, "bytes": found.garbage.bytes },
            "unsettled": { "objects": found.unsettled.objects, "bytes": found.unsettled.bytes },
            "deleted_objects": found.deleted,
            "waited_seconds": found.waited.as_secs_f64(),
        }));
    }
    print(&page::collected(&found, is_dry))
}

fn fence(arguments: &ObjectsFence) -> Result<(), Failure> {
    let BucketPart { part, json } = &arguments.bucket;
    let bucket = Bucket::of(&arguments.stack, part.as_deref())?;
    let (is_sure, is_carried_out) = (arguments.yes, arguments.yes);
    let epoch =
        bucket.look(async move |volume| if is_sure { volume.fence().await } else { volume.epoch().await })?;
    if *json {
        print_json(&json!({
            "fenced": is_carried_out,
            "epoch": epoch.epoch,
            "writer": epoch.writer,
            "written_at": epoch.time.map(|time| time / 1000),
            "was_closed": epoch.is_closed,
            "was_fenced_by": epoch.sealed.as_ref().map(|seal| seal.creator.clone()),
        }))?;
    } else if is_carried_out {
        print(&page::fenced(&epoch))?;
    }
    match is_carried_out {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{}: this would fence {}{}; expected --yes: {}",
            arguments.stack,
            epoch.describe(),
            page::ended(&epoch),
            match epoch.is_closed || epoch.sealed.is_some() {
                true => "that writer has ended, and loses nothing by it",
                false => "what that writer hasn't flushed is lost",
            }
        ))),
    }
}

/// Formats a number of objects with their bytes.
fn objects_of(count: objects::Count) -> String {
    let number = counted(count.objects, "object", "objects");
    format!("{number}, {}", bench::units::bytes(count.bytes as f64))
}
