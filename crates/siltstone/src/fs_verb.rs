//! `siltstone fs`: formats, mounts, shows and checks log-structured file systems. The module `server` has the
//! server of a mount, `mounted` the verbs for mounted file systems.

pub mod mounted;
mod options;
mod server;
mod snapshots;

use crate::arguments::{FsCheck, FsFormat, FsStatus, FsVerb};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::output::{findings, print, print_json, print_line};
use crate::table;
use block::{
    BlockRange, Buffer, DevicePart, Error, ExtentState, Result, Status, ZoneIndex, ZoneState, ZonesPart,
};
use fs::sizes::{default_memory, zones_on, zones_to_read};
use fs::{FileSystem, Goal, Properties, Settings};
use runtime::Config;
use serde_json::json;
use stack::{Built, BuiltStack, Contract, Plan, Stack, format_size};
use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;

/// Bytes at the start of an image that must be zeros before it is formatted: other formats have superblocks
/// there.
const BLANK_BYTES: u64 = 1 << 20;

/// Runs the verb.
///
/// # Errors
/// A wrong image, size or directory; errors of opening, formatting, mounting and closing.
pub fn fs(verb: &FsVerb) -> Result<(), Failure> {
    match verb {
        FsVerb::Format(arguments) => format(arguments),
        FsVerb::Mount(arguments) => server::mount(arguments),
        FsVerb::Unmount(arguments) => mounted::unmount(arguments),
        FsVerb::Status(arguments) => show(arguments),
        FsVerb::Snapshot(verb) => snapshots::snapshot(verb),
        FsVerb::Check(arguments) => check(arguments),
        FsVerb::Scrub(arguments) => mounted::scrub(arguments),
        FsVerb::Defrag(arguments) => mounted::defrag(arguments),
    }
}

/// Whether an argument is the path of a stack file; others are paths of files and devices.
fn is_stack(image: &str) -> bool {
    image.ends_with(".toml")
}

/// Returns the stack of an image. `size` is the size of a file to create.
fn stack_of(image: &str, size: Option<u64>) -> Result<Stack, Failure> {
    if is_stack(image) {
        let stack = load::stack(image, &registry())?;
        if let Some(door) = stack.parts().find(|part| part.kind().contract == Contract::Door) {
            return Err(Failure::Usage(format!(
                "{image}: the stack has the door \"{}\"; expected a stack without doors; a door of the kind fs is formatted by: \
                 siltstone format {image}, and mounted by: siltstone serve {image}; to check it, write the same stack without its doors",
                door.name()
            )));
        }
        return Ok(stack);
    }
    let path = std::path::absolute(image).map_err(|error| Failure::Usage(format!("{image}: {error}")))?;
    let Some(path) = path.to_str() else {
        return Err(Failure::Usage(format!("{image}: the path isn't UTF-8; expected one that is")));
    };
    let quoted = serde_json::Value::from(path).to_string();
    let size = size.map_or_else(String::new, |size| format!("size = {size}\n"));
    let text = format!("[device.image]\nkind = \"file\"\npath = {quoted}\nblock_size = 4096\n{size}");
    Stack::from_toml(image, &text, &registry()).map_err(|problems| of_parts(image, problems))
}

/// Returns the plan of an image, or of a stack.
fn plan_of(image: &str, stack: &Stack) -> Result<Plan, Failure> {
    stack.check(false).map_err(|problems| of_parts(image, problems))
}

/// Returns the problems of an image. Users haven't written the stack of one that isn't a stack file.
fn of_parts(image: &str, problems: stack::Problems) -> Failure {
    if is_stack(image) {
        return problems.into();
    }
    let details = problems.iter().map(|problem| problem.message.trim_start_matches("file \"image\": "));
    Failure::Usage(format!("image \"{image}\": {}", details.collect::<Vec<_>>().join("; ")))
}

/// Refuses an image that doesn't exist.
fn check_exists(image: &str) -> Result<(), Failure> {
    match std::fs::metadata(image) {
        Ok(_) => Ok(()),
        // A mount point whose server was killed.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Err(Failure::World(format!(
            "{image}: the server of this mount has ended; unmount it with: umount {image}; or mount the image there again"
        ))),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::World(format!("{image}: {error}")))
        }
        Err(_) => Err(Failure::Usage(format!(
            "{image}: no such file; expected the image of a file system; make one with: siltstone fs format {image} --size 8GiB"
        ))),
    }
}

/// Storage below a file system.
enum Base {
    Device(Arc<dyn DevicePart>),
    Zones(Arc<dyn ZonesPart>),
}

/// Returns the only part on top of a stack, with its name.
fn base(built: &BuiltStack, plan: &Plan) -> Result<(String, Base)> {
    let is_used = |name: &str| {
        plan.stack()
            .parts()
            .any(|part| part.values().any(|(_, value)| value.children().iter().any(|it| it == name)))
    };
    let tops: Vec<_> = built.parts().filter(|part| !is_used(&part.name)).collect();
    match tops.as_slice() {
        [only] => match &only.built {
            Built::Device(device) => Ok((only.name.clone(), Base::Device(device.clone()))),
            Built::Zones(zones) => Ok((only.name.clone(), Base::Zones(zones.clone()))),
            Built::Door(_) => {
                Err(Error::invalid(format!("part \"{}\" is a door; expected a device or zones", only.name)))
            }
        },
        several => {
            let names = several.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::invalid(format!(
                "{} parts are on top of the stack ({names}); expected one device, or zones",
                several.len()
            )))
        }
    }
}

/// Refuses a missing size of a new image, and one that differs from the size of a file or is set by a stack.
fn check_size(
    image: &str,
    is_stack: bool,
    existing: Option<&Metadata>,
    size: Option<u64>,
) -> Result<(), Failure> {
    Err(Failure::Usage(match (size, existing) {
        (Some(_), _) if is_stack => {
            format!("--size: {image} is a stack, whose parts have their sizes; leave --size out")
        }
        _ if is_stack => return Ok(()),
        (None, None) => format!(
            "{image}: no such file; expected --size with the size of the new one, such as --size 8GiB"
        ),
        (None, Some(found)) if found.is_file() && found.len() == 0 => {
            format!("image \"{image}\": 0 bytes; expected --size with the size, such as --size 8GiB")
        }
        (Some(size), Some(found)) if found.is_file() && ![0, size].contains(&found.len()) => format!(
            "{image}: --size is {}; expected {}, the size of the file; leave --size out, or remove the file first",
            format_size(size),
            format_size(found.len())
        ),
        _ => return Ok(()),
    }))
}

fn format(arguments: &FsFormat) -> Result<(), Failure> {
    let image = arguments.image.clone();
    let properties = Properties { block_size: arguments.block_size, ..Properties::default() };
    properties
        .check()
        .map_err(|error| Failure::Usage(format!("--{}", error.detail().replacen(' ', "-", 1))))?;
    let is_stack = is_stack(&image);
    let existing = std::fs::metadata(&image).ok();
    check_size(&image, is_stack, existing.as_ref(), arguments.size)?;
    let is_file = !is_stack && existing.as_ref().is_some_and(Metadata::is_file);
    let stack = stack_of(&image, arguments.size)?;
    let plan = plan_of(&image, &stack)?;
    let config = Config::default().with_shards(stack.shards());
    let (force, zone_size) = (arguments.force, arguments.zone_size);
    let shown = image.clone();
    let bytes = runtime::run(config, move || async move {
        let built = plan.build().await?;
        let formatted = async {
            let (_, base) = base(&built, &plan)?;
            if !force {
                check_empty(&base, &shown, is_file).await?;
            }
            make(base, properties, zone_size).await
        };
        let formatted = formatted.await;
        let closed = built.close().await;
        formatted.and_then(|bytes| closed.map(|()| bytes))
    })
    .flatten();
    let bytes = bytes.inspect_err(|_| {
        if !is_stack && existing.is_none() {
            // The file was created for this file system. A failed removal leaves an empty file.
            std::fs::remove_file(&image).ok();
        }
    })?;
    print_line(&format!(
        "{image}: a file system for {} of files, with blocks of {}",
        format_size(bytes),
        format_size(properties.block_size)
    ))
}

/// Formats the storage. Returns the capacity for files in bytes.
async fn make(base: Base, properties: Properties, zone_size: Option<u64>) -> Result<u64> {
    let settings = Settings::default();
    let (zones, is_lent) = match base {
        Base::Device(device) => (zones_on(device, true, zone_size).await?, false),
        Base::Zones(_) if zone_size.is_some() => {
            return Err(Error::invalid(
                "--zone-size: the stack has zones, which have a size; leave --zone-size out",
            ));
        }
        Base::Zones(zones) => (zones, true),
    };
    let files = FileSystem::format(zones, properties, &settings).await?;
    let files = if is_lent { files.on_lent_zones() } else { files };
    let statistics = files.statistics().await;
    files.close().await?;
    Ok(statistics?.blocks * fs::format::BLOCK)
}

/// Refuses an image that isn't empty.
async fn check_empty(base: &Base, image: &str, is_file: bool) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::already_exists(format!(
            "{image}: it holds {what}; expected an empty image; format it with --force if its contents may be lost"
        )))
    };
    let part = match base {
        Base::Zones(part) => {
            let zones = part.open().await?;
            for report in zones.report(ZoneIndex(0), zones.geometry().zones).await? {
                if report.state != ZoneState::Empty {
                    return refuse(format!("zones that aren't empty (zone {})", report.zone));
                }
            }
            return Ok(());
        }
        Base::Device(part) => part,
    };
    let device = part.open().await?;
    let (size, all) = (device.geometry().block_size, device.geometry().blocks);
    let count = (BLANK_BYTES >> size.shift()).min(all.0);
    let (outcome, first) =
        device.read(block::BlockIndex(0), Buffer::new((count << size.shift()) as usize)).await;
    outcome?;
    if let Some(at) = first.filled().iter().position(|byte| *byte != 0) {
        return refuse(format!("{} (byte {at} isn't zero)", zones::sector::describe(first.filled())));
    }
    // Only a regular file reports where it has data.
    let mut block = 0;
    while is_file && block < all.0 {
        let mut next = block;
        for extent in device.extents(BlockRange::new(block, all.0 - block)).await? {
            if extent.state == ExtentState::Data {
                return refuse(format!("data from byte {} on", extent.range.start.0 << size.shift()));
            }
            next = next.max(extent.range.end().0);
        }
        if next == block {
            break;
        }
        block = next;
    }
    Ok(())
}

/// Returns the zones of a file system on a device, writable or read-only.
async fn zones_for(device: Arc<dyn DevicePart>, goal: Goal) -> block::Result<Arc<dyn ZonesPart>> {
    match goal {
        Goal::Serve => zones_on(device, false, None).await,
        Goal::Salvage => zones_to_read(device).await,
    }
}

/// Returns the error for a device without zones. Their error advises another verb after a semicolon.
fn no_file_system(detail: &str) -> Error {
    let found = detail.split(';').next().unwrap_or_default();
    Error::protocol(format!("no file system of siltstone: {found}; expected the image of one"))
}

/// Opens the file system on a device or on zones.
async fn open(base: Base, image: &str, settings: &Settings) -> Result<FileSystem> {
    let opened = match base {
        Base::Device(device) => match zones_for(device, settings.goal).await {
            Ok(zones) => FileSystem::open(zones, settings).await,
            Err(Error::Protocol(detail)) => Err(no_file_system(&detail)),
            Err(error) => Err(error),
        },
        Base::Zones(zones) => FileSystem::open(zones, settings).await.map(FileSystem::on_lent_zones),
    };
    opened.map_err(|error| match error {
        Error::Protocol(detail) => {
            Error::protocol(format!(
                "{image}: {detail}; if the contents may be lost, make one with: siltstone fs format {image} --force"
            ))
        }
        Error::Corrupt(detail) if settings.goal == Goal::Serve => Error::corrupt(format!(
            "{image}: {detail}; siltstone fs mount {image} DIRECTORY --salvage shows what can be read"
        )),
        error @ Error::Io(_) if settings.goal == Goal::Serve => error.with_detail(format!(
            "{image}: {}; siltstone fs mount {image} DIRECTORY --salvage shows what can be read",
            error.detail()
        )),
        other => other.in_context(image),
    })
}

fn show(arguments: &FsStatus) -> Result<(), Failure> {
    let what = &arguments.what;
    check_exists(what)?;
    let status = match Path::new(what).is_dir() {
        true => mounted::status(Path::new(what))?,
        false => of_image(what)?,
    };
    if arguments.json {
        return print_json(&status.into());
    }
    let mut out = String::new();
    table::object(&mut out, 0, &status);
    print(&out)
}

fn check(arguments: &FsCheck) -> Result<(), Failure> {
    check_exists(&arguments.image)?;
    let stack = stack_of(&arguments.image, None)?;
    let plan = plan_of(&arguments.image, &stack)?;
    let options = fs::check::Options { data: arguments.data, ..fs::check::Options::default() };
    let image = arguments.image.clone();
    let report = runtime::run(Config::default().with_shards(stack.shards()), move || async move {
        let built = plan.build().await?;
        let checked = async {
            let zones = match base(&built, &plan)?.1 {
                Base::Zones(zones) => zones.open().await?,
                Base::Device(device) => {
                    let options = zones::on_device::Options { read_only: true, ..Default::default() };
                    match zones::OnDevice::open(device, options).await {
                        Ok(zones) => zones.open().await?,
                        Err(Error::Protocol(detail)) => return Err(no_file_system(&detail)),
                        Err(error) => return Err(error),
                    }
                }
            };
            fs::check::check(&*zones, options).await
        };
        let checked = checked.await.map_err(|error| error.in_context(&image));
        let closed = built.close().await;
        checked.and_then(|report| closed.map(|()| report))
    })??;
    if arguments.json {
        print_json(&json!({
            "sound": report.is_sound(),
            "problems": report.problems.iter().map(|problem| json!({
                "kind": problem.kind.name(),
                "detail": problem.detail,
            })).collect::<Vec<_>>(),
            "further_problems": report.further,
            "notes": report.notes,
            "files": report.inodes,
            "orphans": report.orphans,
            "blocks": report.blocks,
            "verified_blocks": report.verified,
        }))?;
    } else {
        let mut out = format!(
            "{}: {} files, {} of data, {} compared with checksums\n",
            arguments.image,
            report.inodes,
            format_size(report.blocks * fs::format::BLOCK),
            format_size(report.verified * fs::format::BLOCK)
        );
        out += &findings(&report.problems, report.further, &report.notes, report.is_sound());
        print(&out)?;
    }
    if report.is_sound() { Ok(()) } else { Err(Failure::Said) }
}

fn of_image(image: &str) -> Result<Status, Failure> {
    with_image(image, async |files| files.status().await)
}

/// Opens the file system of an image, calls `work`, and closes the file system.
fn with_image<R: Send + 'static>(
    image: &str,
    work: impl AsyncFnOnce(&FileSystem) -> Result<R> + Send + 'static,
) -> Result<R, Failure> {
    let stack = stack_of(image, None)?;
    let plan = plan_of(image, &stack)?;
    let name = image.to_owned();
    let config = Config::default().with_shards(stack.shards());
    let result = runtime::run(config, move || async move {
        let built = plan.build().await?;
        let found = async {
            let settings = Settings { metadata_bytes: default_memory(), ..Settings::default() };
            let files = open(base(&built, &plan)?.1, &name, &settings).await?;
            let found = work(&files).await;
            let closed = files.close().await;
            found.and_then(|found| closed.map(|()| found))
        };
        let found = found.await;
        let closed = built.close().await;
        found.and_then(|found| closed.map(|()| found))
    })??;
    Ok(result)
}
