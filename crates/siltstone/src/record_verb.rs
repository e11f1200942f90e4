//! `siltstone record`: shows timelines, and creates logs of fio and the images that a power cut could have
//! left.

mod export;

use crate::arguments::RecordVerb;
use crate::failure::Failure;
use crate::input;
use crate::output::{print, print_json, print_line};
use layers::record::Timeline;
use layers::record::format::{Shape, Submission};
use layers::record::replay::{Choice, write_image};
use layers::record::timeline::{Ending, Event, EventKind};
use runtime::Config;
use serde_json::json;
use stack::format_size;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Runs one of the verbs.
///
/// # Errors
/// A file that isn't a timeline; an event or device that it doesn't have; an existing image or log.
pub fn record(verb: RecordVerb) -> Result<(), Failure> {
    match verb {
        RecordVerb::Show { file, events, json } => show(&read(file)?, events, json),
        RecordVerb::Replay { file, image, device, at, choice } => {
            let choice: Choice =
                choice.parse().map_err(|error: block::Error| Failure::Usage(error.detail().to_owned()))?;
            let timeline = read(file)?;
            let last = timeline.events.len() as u64;
            let cut = at.unwrap_or(last);
            if cut > last {
                return Err(Failure::Usage(format!(
                    "--at {cut}: after the end of the timeline; expected 0 to {last}"
                )));
            }
            replay(timeline, device, cut, choice, &image)
        }
        RecordVerb::Export { file, iolog, device } => {
            print_line(&export::export(&read(file)?, device, &iolog)?)
        }
    }
}

fn read(file: PathBuf) -> Result<Timeline, Failure> {
    let opened = std::fs::File::open(&file).and_then(|opened| match opened.metadata()?.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Ok(()),
    });
    let expected = "a file that a part of kind record wrote";
    opened.map_err(|error| input::unreadable("timeline", &file, &error, expected))?;
    Ok(runtime::run(Config::default(), move || async move { Timeline::read(&file).await })??)
}

fn replay(timeline: Timeline, device: u16, cut: u64, choice: Choice, image: &Path) -> Result<(), Failure> {
    let path = image.to_owned();
    runtime::run(Config::default(), move || async move {
        write_image(&timeline, device, cut, choice, &path).await
    })??;
    print_line(&format!(
        "{}: device {device} after a power cut before event {cut}, {choice}",
        image.display()
    ))
}

fn show(timeline: &Timeline, events: bool, as_json: bool) -> Result<(), Failure> {
    let devices: Vec<_> = (0..timeline.devices.len()).map(|number| Device::of(timeline, number)).collect();
    if as_json {
        let ending = ending(&timeline.ending);
        let devices: Vec<_> = devices.iter().map(Device::to_json).collect();
        return print_json(&json!({ "events": timeline.events.len(), "ending": ending, "devices": devices }));
    }
    let mut text = String::new();
    if events {
        for (number, event) in timeline.events.iter().enumerate() {
            let _ =
                writeln!(text, "{number:8}  {:>12} ns  {:3}  {}", event.time, event.device, describe(event));
        }
        return print(&text);
    }
    let _ = writeln!(text, "{} events; {}", timeline.events.len(), ending(&timeline.ending));
    for device in &devices {
        let _ =
            writeln!(text, "device {}: {} \"{}\", {}", device.number, device.role, device.name, device.shape);
        for (what, (count, bytes)) in &device.counts {
            let bytes = if *bytes > 0 { format!(", {}", format_size(*bytes)) } else { String::new() };
            let _ = writeln!(text, "  {what}: {count}{bytes}");
        }
    }
    print(&text)
}

/// Summary of a device.
struct Device {
    number: usize,
    name: String,
    role: String,
    shape: String,
    /// Number of operations and of their bytes, by name.
    counts: BTreeMap<&'static str, (u64, u64)>,
}

impl Device {
    fn of(timeline: &Timeline, number: usize) -> Device {
        let entry = &timeline.devices[number];
        let shape = match &entry.shape {
            Shape::Device(geometry) => format_size(geometry.bytes()),
            Shape::Zones(geometry) => format!("{} zones", geometry.zones),
        };
        let mut counts: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
        let events = timeline.events.iter().filter(|event| usize::from(event.device) == number);
        for event in events {
            if let EventKind::Submitted(submission) = &event.what {
                let (what, _, bytes) = parts(submission);
                let count = counts.entry(what).or_default();
                *count = (count.0 + 1, count.1 + bytes);
            }
        }
        let role = format!("{:?}", entry.role).to_lowercase();
        Device { number, name: entry.name.clone(), role, shape, counts }
    }

    fn to_json(&self) -> serde_json::Value {
        let count = |(what, (count, bytes)): (&&str, &(u64, u64))| {
            ((*what).to_owned(), json!({ "operations": count, "bytes": bytes }))
        };
        let counts: serde_json::Map<_, _> = self.counts.iter().map(count).collect();
        json!({ "number": self.number, "name": self.name, "role": self.role, "shape": self.shape, "submitted": counts })
    }
}

/// Returns the operation's name, address and length in bytes.
fn parts(submission: &Submission) -> (&'static str, String, u64) {
    match submission {
        Submission::Write { offset, content, durability } => {
            let fua = if *durability == block::Durability::Durable { " FUA" } else { "" };
            ("write", format!("{offset}+{}{fua}", content.len()), content.len())
        }
        Submission::WriteZeroes { offset, length, .. } => {
            ("write_zeroes", format!("{offset}+{length}"), *length)
        }
        Submission::Discard { offset, length } => ("discard", format!("{offset}+{length}"), *length),
        Submission::Flush => ("flush", String::new(), 0),
        Submission::Read { offset, length } => ("read", format!("{offset}+{length}"), *length),
        Submission::Append { zone, at, content } => {
            let place = at.map_or(String::new(), |at| format!(" at byte {at}"));
            ("append", format!("zone {zone}{place}, {} bytes", content.len()), content.len())
        }
        Submission::Open { zone } => ("open", format!("zone {zone}"), 0),
        Submission::Close { zone } => ("close", format!("zone {zone}"), 0),
        Submission::FlushZones { zones } => ("flush_zones", format!("{zones:?}"), 0),
        Submission::Finish { zone } => ("finish", format!("zone {zone}"), 0),
        Submission::Reset { zone, erase } => ("reset", format!("zone {zone}, {erase:?}"), 0),
    }
}

fn describe(event: &Event) -> String {
    match &event.what {
        EventKind::Joined => "joined".into(),
        EventKind::Submitted(submission) => {
            let (what, place, _) = parts(submission);
            format!("{what} {place}").trim_end().to_owned()
        }
        EventKind::Completed(completion) if completion.errno == 0 => {
            format!("completed {}", completion.submitted)
        }
        EventKind::Completed(completion) => {
            format!("failed {} (errno {})", completion.submitted, completion.errno)
        }
        EventKind::Ended => "the end".into(),
    }
}

fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Clean => "ended in order".into(),
        Ending::Unfinished => "cut off after a whole record".into(),
        Ending::Torn { offset, reason, valid_again: None } => format!("torn at byte {offset}: {reason}"),
        Ending::Torn { offset, reason, valid_again: Some(again) } => {
            format!("damaged at byte {offset}: {reason}; valid again at byte {again}")
        }
    }
}
