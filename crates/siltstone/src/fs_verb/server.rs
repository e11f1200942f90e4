//! `siltstone fs mount`: the server of a mount, until a signal or an unmount.
//!
//! # Promises
//! - Operators find it as they find the server of a stack: by the image, through a control socket. The mount
//!   is the only door, and its calls and those of the parts below it are observed.
//! - Without a folder for control sockets, it mounts all the same.

use super::{Base, base, check_exists, is_stack, open, options, plan_of, stack_of};
use crate::arguments::FsMount;
use crate::control::operated::{ExtraDoor, OperatedStack, ServerFacts};
use crate::control::place::ControlAddress;
use crate::failure::Failure;
use crate::metrics::Endpoint;
use crate::operators::{Addresses, OperatorServers, Required, observing};
use crate::output::{print_line, say};
use crate::serve_verb::control_place;
use crate::service;
use crate::stop::watch::Watch;
use crate::stop::{Further, Stop};
use crate::warnings::{FullnessWatch, WatchedPart, warn_command};
use block::{Call, Error, Result};
use fs::mount::kind::allows_other_by_default;
use fs::sizes::default_memory;
use fs::{FileSystem, FsDoor, Goal, KIND, MountConfig, Settings};
use layers::observation::Observation;
use runtime::Config;
use stack::{Built, BuiltStack, Door, FullnessWarning, Plan};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Arguments of a mount, checked.
struct Wanted {
    image: String,
    config: MountConfig,
    settings: Settings,
    addresses: Addresses,
    warn_command: Option<PathBuf>,
}

/// Mounts the file system of an image, and serves it.
///
/// # Errors
/// A wrong image, option or directory; errors of opening, mounting and closing.
pub fn mount(arguments: &FsMount) -> Result<(), Failure> {
    check_exists(&arguments.image)?;
    let stack = stack_of(&arguments.image, None)?;
    let plan = plan_of(&arguments.image, &stack)?;
    let shards = (arguments.shards as usize).max(if is_stack(&arguments.image) { stack.shards() } else { 1 });
    let mut config = MountConfig {
        path: arguments.directory.clone(),
        source: absolute(&arguments.image),
        allow_other: arguments.allow_other || allows_other_by_default(),
        warning: Some(Arc::new(FullnessWarning::new(arguments.warn_at.clone()))),
        ..MountConfig::default()
    };
    if let Some(list) = &arguments.options {
        options::apply(list, &mut config).map_err(|error| Failure::Usage(format!("-o: {error}")))?;
    }
    let settings = Settings {
        metadata_bytes: arguments.memory.unwrap_or_else(default_memory),
        background_shares: arguments.background_shares,
        goal: if arguments.salvage { Goal::Salvage } else { Goal::Serve },
        ..Settings::default()
    };
    let place = control_place(arguments.no_control, arguments.control.as_deref(), &arguments.image, &stack)?;
    let endpoint = Endpoint::of(&arguments.metrics, arguments.allow_remote)?;
    let wanted = Wanted {
        image: arguments.image.clone(),
        config,
        settings,
        addresses: Addresses { place, endpoint },
        warn_command: warn_command(arguments.warnings.warn_command.as_deref())?,
    };
    let config = Config::default().with_shards(shards).polling();
    runtime::run(config, move || async move { serve(&plan, wanted).await })?
}

/// Returns the path of an image with symbolic links resolved.
fn absolute(image: &str) -> String {
    let path = std::fs::canonicalize(image).ok();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| image.to_owned())
}

/// Opens the file system, mounts it, waits for its end, and closes it.
async fn serve(plan: &Plan, wanted: Wanted) -> Result<(), Failure> {
    let Wanted { image, config, settings, addresses, warn_command } = wanted;
    // A mount works without the default control socket: the lock of the image refuses a second server. A
    // socket that --control names is required.
    let needs = Required { control: matches!(addresses.place, Some(ControlAddress::At(_))), metrics: true };
    let operators = OperatorServers::listen(addresses, needs).await?;
    let (watch, observation) = (Watch::default(), Observation::default());
    let built = match plan.build_observed(&observing(plan, &watch, &observation)).await {
        Ok(built) => built,
        Err(error) => {
            operators.stop().await;
            return Err(error.into());
        }
    };
    let files = match open_files(&built, plan, (&image, &config, &settings), &observation).await {
        Ok(files) => files,
        Err(failure) => {
            operators.stop().await;
            // The first error has the remedy.
            let _ = built.close().await;
            return Err(failure);
        }
    };
    let mut parts = WatchedPart::all_of(&built);
    parts.extend(config.warning.clone().map(|warning| watched(&files, &image, warning)));
    let name = door_name(&config);
    let door = Arc::new(FsDoor::new(files.clone(), config));
    let stack = Rc::new(OperatedStack {
        built,
        extra_doors: vec![ExtraDoor { name, door: door.clone() }],
        server: Some(ServerFacts::new(image.clone(), operators.metrics_address())),
        observation: Some(observation),
    });
    // The handler is installed before the mount is announced: a program that reads the line may send a
    // signal.
    let (outcome, stop) = match Stop::new(&image, loss(&image), Further::ShortensPatience, &watch) {
        Ok(stop) => {
            let _warnings = FullnessWatch::start(parts, warn_command);
            (serve_mount(&stack, &door, &operators, &image, &stop).await, Some(stop))
        }
        Err(error) => (Err(error.into()), None),
    };
    let ending = async {
        let unmounted = door.stop().await;
        operators.stop().await;
        let closed = files.close().await;
        unmounted.and(closed).and(stack.built.close().await)
    };
    let ended = match &stop {
        Some(stop) => stop.wait(&*stack, ending).await,
        None => ending.await,
    };
    outcome.and_then(|()| Ok(ended?))
}

/// Opens the file system, whose calls to its storage are observed, and lists what a salvage lost.
async fn open_files(
    built: &BuiltStack,
    plan: &Plan,
    (image, config, settings): (&str, &MountConfig, &Settings),
    observation: &Observation,
) -> Result<FileSystem, Failure> {
    let (name, base) = base(built, plan)?;
    let part = match base {
        Base::Device(device) => Built::Device(device),
        Base::Zones(zones) => Built::Zones(zones),
    };
    let door = door_name(config);
    let base = match observation.of_door(&door, KIND.name, &name, part) {
        Built::Device(device) => Base::Device(device),
        Built::Zones(zones) => Base::Zones(zones),
        Built::Door(_) => return Err(Error::invalid(format!("part \"{name}\" is a door")).into()),
    };
    let files = open(base, image, settings).await?;
    tell_lost(&files).await?;
    Ok(files)
}

/// Name of the mount among the doors: the absolute path of the mount point.
fn door_name(config: &MountConfig) -> String {
    let path = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
    // Without a slash at its end.
    path.components().collect::<PathBuf>().display().to_string()
}

/// The file system as a part whose fullness is watched.
fn watched(files: &FileSystem, image: &str, warning: Arc<FullnessWarning>) -> WatchedPart {
    let files = files.clone();
    WatchedPart::new(KIND.name, image.to_owned(), warning, move || {
        let files = files.clone();
        Call::new(async move { files.fullness().await })
    })
}

/// Loss of a server that ends without its storage.
fn loss(image: &str) -> String {
    format!(
        "changes that weren't durable are lost, such as data without an fsync after it; once the storage answers again, \
         look for damage with: siltstone fs check {image}; and mount it again with: siltstone fs mount {image} DIRECTORY"
    )
}

/// Lists the unreadable parts of a salvaged file system.
async fn tell_lost(files: &FileSystem) -> Result<(), Failure> {
    if files.is_salvaged().await? {
        let lost = files.lost().await?;
        lost.lines.iter().for_each(|line| say(&format!("lost: {line}")));
        say(&format!(
            "salvaged: {} parts of metadata can't be read; files with damaged data give errors",
            lost.count
        ));
    }
    Ok(())
}

/// Mounts, announces the mount, and waits for a signal or the end of the mount.
async fn serve_mount(
    stack: &Rc<OperatedStack>,
    door: &FsDoor,
    operators: &OperatorServers,
    image: &str,
    stop: &Stop,
) -> Result<(), Failure> {
    door.start().await?;
    operators.opened(stack);
    let mut signal = std::pin::pin!(stop.signal());
    let mut ended = door.ended();
    let early = std::future::poll_fn(|context| Poll::Ready(signal.as_mut().poll(context))).await;
    print_line(&format!("{image}: mounted at {}", door.path().display()))?;
    service::ready();
    if let Poll::Ready(result) = early {
        return Ok(result?);
    }
    let first = std::future::poll_fn(|context| match signal.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => std::pin::Pin::new(&mut ended).poll(context),
    });
    Ok(first.await?)
}
