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
use crate::control::server::ControlServer;
use crate::failure::Failure;
use crate::metrics::Endpoint;
use crate::metrics::server::MetricsServer;
use crate::output::{print_line, say};
use crate::serve_verb::{control_place, serve_metrics};
use crate::service;
use crate::stop::watch::Watch;
use crate::stop::{Further, Stop};
use block::{Error, Result};
use fs::mount::kind::allows_other_by_default;
use fs::sizes::default_memory;
use fs::{FileSystem, FsDoor, Goal, KIND, MountConfig, Settings};
use layers::observation::Observation;
use runtime::Config;
use stack::{Built, BuiltStack, Door, Plan, User};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Arguments of a mount, checked.
struct Wanted {
    image: String,
    config: MountConfig,
    settings: Settings,
    place: Option<ControlAddress>,
    endpoint: Option<Endpoint>,
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
    let wanted = Wanted { image: arguments.image.clone(), config, settings, place, endpoint };
    let config = Config::default().with_shards(shards).polling();
    runtime::run(config, move || async move { serve(&plan, wanted).await })?
}

/// Returns the path of an image with symbolic links resolved.
fn absolute(image: &str) -> String {
    let path = std::fs::canonicalize(image).ok();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| image.to_owned())
}

/// Opens the file system, mounts it, waits for its end, and closes it.
async fn serve(plan: &Plan, mut wanted: Wanted) -> Result<(), Failure> {
    let operators = Operators::listen(wanted.place.as_ref(), wanted.endpoint.take()).await?;
    let (watch, observation) = (Watch::default(), Observation::default());
    let over = |user: User<'_>, part: Built| {
        let part = match user {
            User::All(user) if user.is_leaf() => watch.over(part),
            _ => part,
        };
        observation.of_part(plan.stack(), user, part)
    };
    let built = match plan.build_observed(&over).await {
        Ok(built) => built,
        Err(error) => {
            operators.stop().await;
            return Err(error.into());
        }
    };
    let files = match open_files(&built, plan, &wanted, &observation).await {
        Ok(files) => files,
        Err(failure) => {
            operators.stop().await;
            // The first error has the remedy.
            let _ = built.close().await;
            return Err(failure);
        }
    };
    let Wanted { image, config, .. } = wanted;
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
        Ok(stop) => (serve_mount(&stack, &door, &operators, &image, &stop).await, Some(stop)),
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

/// Listens for operators. The mount is served without them if the default socket can't be created: if
/// another server has it, the lock of the image tells.
async fn listen(place: Option<&ControlAddress>) -> Result<Option<ControlServer>> {
    let Some(place) = place else { return Ok(None) };
    match (ControlServer::start(place).await, place) {
        (Ok(control), _) => Ok(Some(control)),
        (Err(error), ControlAddress::At(_)) => Err(error),
        (Err(error @ Error::Busy(_)), _) => {
            tracing::info!("continuing without a control socket: {error}");
            Ok(None)
        }
        (Err(error), _) => {
            tracing::warn!("continuing without a control socket: {error}");
            Ok(None)
        }
    }
}

/// Servers for operators and for monitoring systems.
struct Operators {
    control: Option<ControlServer>,
    metrics: Option<MetricsServer>,
}

impl Operators {
    async fn listen(place: Option<&ControlAddress>, endpoint: Option<Endpoint>) -> Result<Operators> {
        let control = listen(place).await?;
        match serve_metrics(endpoint, true).await {
            Ok(metrics) => Ok(Operators { control, metrics }),
            Err(error) => {
                Operators { control, metrics: None }.stop().await;
                Err(error)
            }
        }
    }

    fn metrics_address(&self) -> Option<String> {
        self.metrics.as_ref().map(|metrics| metrics.address().to_owned())
    }

    fn opened(&self, stack: &Rc<OperatedStack>) {
        if let Some(control) = &self.control {
            control.opened(stack.clone());
        }
        if let Some(metrics) = &self.metrics {
            metrics.opened(stack.clone());
        }
    }

    async fn stop(self) {
        if let Some(metrics) = self.metrics {
            metrics.stop().await;
        }
        if let Some(control) = self.control {
            control.stop().await;
        }
    }
}

/// Opens the file system, whose calls to its storage are observed, and lists what a salvage lost.
async fn open_files(
    built: &BuiltStack,
    plan: &Plan,
    wanted: &Wanted,
    observation: &Observation,
) -> Result<FileSystem, Failure> {
    let (name, base) = base(built, plan)?;
    let part = match base {
        Base::Device(device) => Built::Device(device),
        Base::Zones(zones) => Built::Zones(zones),
    };
    let door = door_name(&wanted.config);
    let base = match observation.of_door(&door, KIND.name, &name, part) {
        Built::Device(device) => Base::Device(device),
        Built::Zones(zones) => Base::Zones(zones),
        Built::Door(_) => return Err(Error::invalid(format!("part \"{name}\" is a door")).into()),
    };
    let files = open(base, &wanted.image, &wanted.settings).await?;
    tell_lost(&files).await?;
    Ok(files)
}

/// Name of the mount among the doors: the absolute path of the mount point.
fn door_name(config: &MountConfig) -> String {
    let path = std::path::absolute(&config.path).unwrap_or_else(|_| config.path.clone());
    // Without a slash at its end.
    path.components().collect::<PathBuf>().display().to_string()
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
    operators: &Operators,
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
