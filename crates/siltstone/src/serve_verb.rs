//! `siltstone serve` and `siltstone format`: open a stack for clients, or format it.

use crate::address::address;
use crate::arguments::{Format, Serve};
use crate::attach::process::prepare_for_swap;
use crate::attach::server::{Attached, HolderConnection};
use crate::control::operated::{ExtraDoor, OperatedStack, ServerFacts};
use crate::control::place::{ControlAddress, Identity};
use crate::control::turn::{self, PAUSE, WAIT_LIMIT, Wanted};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::log_target;
use crate::metrics::Endpoint;
use crate::operators::{Addresses, OperatorServers, Required, observing};
use crate::output::{print_json, print_line};
use crate::overwriting;
use crate::service;
use crate::stdio::{self, Relay};
use crate::stop::watch::Watch;
use crate::stop::{Further, Stop};
use crate::warnings::{FullnessWatch, WatchedPart, warn_command};
use block::{DevicePart, Error, Result};
use doors::nbd::door::NbdDoor;
use doors::nbd::server::{ExportConfig, ServerConfig};
use doors::nbd::single::SingleNbdDoor;
use doors::ublk::backing::Backing;
use doors::vhost_user::door::{DEFAULT_QUEUES, VhostUserConfig, VhostUserDoor};
use doors::vhost_user::request::ID_BYTES;
use layers::observation::Observation;
use runtime::Config;
use runtime::net::{Access, Address, unused_passed_sockets};
use serde_json::json;
use stack::{Built, BuiltStack, Contract, Door, Plan, Stack};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Limit of the clients of one `--nbd` door.
const MAX_CONNECTIONS: usize = 256;
/// Name of the door of `-s`.
const STDIO: &str = "stdio";

/// Name of the door of an attachment.
const ATTACHED: &str = "attached";

/// Reads the stack, from the holder of an attachment if there is one.
fn stack_of(argument: &str, holder: Option<&HolderConnection>) -> Result<Stack, Failure> {
    let Some(text) = holder.and_then(HolderConnection::text) else {
        return load::stack(argument, &registry());
    };
    let folder = Path::new(argument).parent().unwrap_or(Path::new(""));
    Ok(Stack::from_toml(argument, text, &registry())?.with_base_directory(folder))
}

/// Serves a stack until a signal.
///
/// # Errors
/// A wrong stack or address; errors of building, listening or closing.
pub fn serve(arguments: &Serve) -> Result<(), Failure> {
    if arguments.stdio && arguments.stack == "-" {
        return Err(Failure::Usage(
            "stack \"-\": standard input is the connection to the client of -s; expected a file or one line"
                .into(),
        ));
    }
    let holder = match arguments.holder {
        true => Some(HolderConnection::greet()?),
        false => None,
    };
    let stack = stack_of(&arguments.stack, holder.as_ref())?;
    let listen = |text: &String| address("--nbd", text, arguments.allow_remote);
    let addresses = arguments.nbd.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let has_door = stack.parts().any(|part| part.kind().contract == Contract::Door);
    let vhost_user = arguments.vhost_user.as_deref().map(absolute).transpose()?;
    let (stdio, relay) = match arguments.stdio {
        true => stdio_of(arguments, has_door).map(|(socket, relay)| (Some(socket), relay))?,
        false => (None, Relay::default()),
    };
    let doors = Doors { nbd: addresses, vhost_user, stdio, holder };
    let warn_command = warn_command(arguments.warnings.warn_command.as_deref())?;
    if !has_door && doors.are_none() {
        return Err(Failure::Usage(format!(
            "{}: this stack has no door: give an address to serve it at, such as --nbd unix:vol.sock or --vhost-user vm.sock",
            arguments.stack
        )));
    }
    let endpoint = Endpoint::of(&arguments.metrics, arguments.allow_remote)?;
    if arguments.swap {
        prepare_for_swap();
    }
    // Clients of -s may start any number of servers of the same text.
    let no_control = arguments.no_control || arguments.stdio && arguments.control.is_none();
    let place = control_place(no_control, arguments.control.as_deref(), &arguments.stack, &stack)?;
    let plan = stack.check(arguments.format)?;
    // For a holder, siltstone attach has done this check.
    if doors.holder.is_none() {
        overwriting::check(
            &stack,
            &arguments.format.into(),
            "if it may be lost, run siltstone format with --force first, and serve without --format",
        )?;
    }
    let (name, as_json) = (arguments.stack.clone(), arguments.json);
    // Threads of a server of swap space are real-time: polling would keep a processor from the program that
    // waits for its pages.
    let config = Config { poll: !arguments.swap, ..Config::default().with_shards(stack.shards()) };
    let addresses = Addresses { place, endpoint };
    runtime::run(
        config,
        move || async move { open(&plan, name, doors, addresses, as_json, warn_command).await },
    )
    .inspect(|_| relay.finish())?
}

/// Returns the connection of `-s`.
fn stdio_of(arguments: &Serve, has_door: bool) -> Result<(OwnedFd, Relay), Failure> {
    if has_door {
        return Err(Failure::Usage(format!(
            "{}: the stack has doors; expected one without doors with -s; leave -s out to serve its doors",
            arguments.stack
        )));
    }
    stdio::connection()
}

/// Returns the address at which the server of a stack listens for operators; `None` with `--no-control`.
///
/// # Errors
/// A path without a working directory.
pub fn control_place(
    no_control: bool,
    control: Option<&Path>,
    argument: &str,
    stack: &Stack,
) -> Result<Option<ControlAddress>, Failure> {
    if no_control {
        return Ok(None);
    }
    if let Some(path) = control {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::Usage(format!("--control {}: {error}", path.display())))?;
        return Ok(Some(ControlAddress::At(path)));
    }
    let identity = Identity::of_file(argument).map_or_else(|| Identity::of_text(stack), Ok);
    Ok(Some(ControlAddress::Of(identity?)))
}

/// Makes the path of an address absolute: clients may have another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Doors of the command line.
struct Doors {
    nbd: Vec<Address>,
    vhost_user: Option<PathBuf>,
    /// Connection to the one client of `-s`.
    stdio: Option<OwnedFd>,
    holder: Option<HolderConnection>,
}

impl Doors {
    fn are_none(&self) -> bool {
        self.nbd.is_empty() && self.vhost_user.is_none() && self.stdio.is_none() && self.holder.is_none()
    }
}

async fn open(
    plan: &Plan,
    name: String,
    doors: Doors,
    addresses: Addresses,
    as_json: bool,
    warn_command: Option<PathBuf>,
) -> Result<(), Failure> {
    // The control socket is first: a second server of the stack is refused before it opens anything, and
    // meanwhile requests get the error that the stack is being opened. The node of a holder stays in service
    // without a socket, which no other server can have: the lost one was the stack's only server.
    let is_needed = doors.holder.is_none();
    let operators =
        OperatorServers::listen(addresses, Required { control: is_needed, metrics: is_needed }).await?;
    let facts = ServerFacts::new(name, operators.metrics_address());
    let (watch, observation) = (Watch::default(), Observation::default());
    let (outcome, stop, stack) = match open_stack(plan, facts, doors, &watch, observation).await {
        Ok((stack, attached)) => {
            let _warnings = FullnessWatch::start(WatchedPart::all_of(&stack.built), warn_command);
            let served = serve_stack(&stack, attached.as_ref(), &operators, &watch, as_json).await;
            (served.outcome, served.stop, Some(stack))
        }
        Err(error) => (Err(error), None, None),
    };
    let served = stack.clone();
    let ending = async move {
        // In the reverse order of opening. Closing the stack stops its own doors.
        let mut ended = Ok(());
        for extra in stack.iter().flat_map(|stack| stack.extra_doors.iter().rev()) {
            ended = ended.and(extra.door.stop().await);
        }
        operators.stop().await;
        match stack {
            Some(stack) => ended.and(stack.built.close().await),
            None => ended,
        }
    };
    let ended = match (&stop, &served) {
        (Some(stop), Some(served)) => stop.wait(&**served, ending).await,
        // Signals have their default effect.
        _ => ending.await,
    };
    outcome?;
    Ok(ended?)
}

async fn open_stack(
    plan: &Plan,
    facts: ServerFacts,
    doors: Doors,
    watch: &Watch,
    observation: Observation,
) -> Result<(Rc<OperatedStack>, Option<Attached>), Failure> {
    let built = build_in_turn(plan, &facts.stack, watch, &observation).await?;
    match extra_doors(plan.stack(), &built, doors, &observation) {
        Ok((extra_doors, attached)) => {
            let (server, observation) =
                (Some(ServerFacts { since: runtime::now(), ..facts }), Some(observation));
            Ok((Rc::new(OperatedStack { built, extra_doors, server, observation }), attached))
        }
        Err(error) => {
            // The door's error has the remedy.
            let _ = built.close().await;
            Err(error)
        }
    }
}

/// Builds a stack. Waits while another program that started at the same time has it open for a request.
async fn build_in_turn(
    plan: &Plan,
    name: &str,
    watch: &Watch,
    observation: &Observation,
) -> Result<BuiltStack> {
    let (mut waiting, begun) = (false, runtime::now());
    let over = observing(plan, watch, observation);
    loop {
        let error = match plan.build_observed(&over).await {
            Err(error @ Error::Busy(_)) if begun.elapsed() < WAIT_LIMIT => error,
            other => return other,
        };
        // The other program may have just ended.
        let Some(process) = turn::other(Wanted::Verb, name) else {
            return if waiting { plan.build_observed(&over).await } else { Err(error) };
        };
        turn::tell(&mut waiting, "a program that has the stack open", process);
        runtime::sleep(PAUSE).await;
    }
}

/// Creates the doors of the command line.
fn extra_doors(
    stack: &Stack,
    built: &BuiltStack,
    Doors { nbd, vhost_user, stdio, holder }: Doors,
    observation: &Observation,
) -> Result<(Vec<ExtraDoor>, Option<Attached>), Failure> {
    let mut doors = Vec::new();
    for address in nbd {
        let name = address.to_string();
        doors.push(ExtraDoor { name, door: Arc::new(nbd_door(built, address, observation)?) });
    }
    if let Some(socket) = vhost_user {
        let name = socket.display().to_string();
        doors.push(ExtraDoor { name, door: Arc::new(vhost_user_door(built, socket, observation)?) });
    }
    if let Some(connection) = stdio {
        let (name, device) = top(built, STDIO, "nbd", observation)?;
        let door = SingleNbdDoor::new(name, device, connection)?;
        doors.push(ExtraDoor { name: STDIO.to_owned(), door: Arc::new(door) });
    }
    let attached = match holder {
        Some(holder) => {
            let top = stack.top()?;
            let part = match top.kind().contract {
                Contract::Zones => Built::Zones(built.zones(top.name())?),
                _ => Built::Device(built.device(top.name())?),
            };
            let observed = observation.of_door(ATTACHED, ATTACHED, top.name(), part);
            let backing = match observed {
                Built::Zones(zones) => Backing::Zones(zones),
                Built::Device(device) => Backing::Device(device),
                Built::Door(_) => return Err(Failure::Usage("the top of a stack is no door".into())),
            };
            Some(Attached::new(holder, backing, top.name().to_owned())?)
        }
        None => None,
    };
    if let Some(attached) = &attached {
        doors.push(ExtraDoor { name: ATTACHED.to_owned(), door: attached.door() });
    }
    Ok((doors, attached))
}

/// Result of serving; `stop` is `None` before the handler of signals is installed.
struct Outcome {
    outcome: Result<(), Failure>,
    stop: Option<Stop>,
}

impl Outcome {
    fn failed(failure: impl Into<Failure>) -> Outcome {
        Outcome { outcome: Err(failure.into()), stop: None }
    }
}

/// Starts all doors and serves them. The caller stops them.
async fn serve_stack(
    stack: &Rc<OperatedStack>,
    attached: Option<&Attached>,
    operators: &OperatorServers,
    watch: &Watch,
    as_json: bool,
) -> Outcome {
    if let Err(error) = start(stack).await {
        return Outcome::failed(error);
    }
    operators.opened(stack);
    // The handler is installed before the addresses are printed.
    match stop_of(stack, attached.is_some(), watch) {
        Ok(stop) => Outcome {
            outcome: until_stopped(stack, attached, operators.control_path(), as_json, &stop).await,
            stop: Some(stop),
        },
        Err(error) => Outcome::failed(error),
    }
}

async fn start(stack: &OperatedStack) -> Result<()> {
    stack.built.start().await?;
    for extra in &stack.extra_doors {
        extra.door.start().await?;
    }
    Ok(())
}

/// Returns the effect of a second signal on a server with these doors.
fn further<'a>(is_attached: bool, mut doors: impl Iterator<Item = &'a Arc<dyn Door>>) -> Further {
    match is_attached || doors.any(|door| door.serves_kernel()) {
        true => Further::ShortensPatience,
        false => Further::EndsProcess,
    }
}

/// Installs the handler of signals.
fn stop_of(stack: &OperatedStack, is_attached: bool, watch: &Watch) -> Result<Stop> {
    let further = further(is_attached, stack.doors());
    let name = stack.server.as_ref().map_or("-", |server| &server.stack);
    let loss = "changes that weren't durable are lost, such as writes without a flush after them; \
                once the storage answers again, serve the stack again";
    Stop::new(name, loss.to_owned(), further, watch)
}

/// Announces that clients are served, and waits for a signal, or for the end of the attachment's mount.
async fn until_stopped(
    stack: &OperatedStack,
    attached: Option<&Attached>,
    control: Option<&Path>,
    as_json: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let addresses = stack.addresses();
    let mut signal = std::pin::pin!(stop.signal());
    let early = std::future::poll_fn(|context| std::task::Poll::Ready(signal.as_mut().poll(context))).await;
    if let Some(attached) = attached {
        attached.ready().await?;
    }
    match as_json {
        // Standard output may be the connection to the client.
        _ if stack.extra_doors.iter().any(|extra| extra.name == STDIO) => {}
        true => {
            let control = control.map(|path| path.display().to_string());
            let metrics = stack.server.as_ref().and_then(|server| server.metrics.as_ref());
            let mut line = json!({ "addresses": addresses, "control": control });
            if let Some(metrics) = metrics {
                line["metrics"] = metrics.as_str().into();
            }
            print_line(&line.to_string())?;
        }
        false => print_line(&addresses.join("\n"))?,
    }
    for address in unused_passed_sockets() {
        tracing::warn!(
            "systemd passed the socket {address}, and no door listens there: its clients wait for ever"
        );
    }
    log_target::serving();
    // A holder's server belongs to the holder, which is the service.
    if attached.is_none() {
        service::ready();
    }
    if let std::task::Poll::Ready(result) = early {
        return Ok(result?);
    }
    let ended = async {
        match attached {
            // After an error the holder starts another server.
            Some(attached) => attached.ended().await,
            None => all_ended(stack).await,
        }
    };
    let mut ended = std::pin::pin!(ended);
    let outcome = std::future::poll_fn(|context| match signal.as_mut().poll(context) {
        std::task::Poll::Ready(result) => std::task::Poll::Ready(result),
        std::task::Poll::Pending => ended.as_mut().poll(context),
    });
    Ok(outcome.await?)
}

/// Waits until all doors have ended without this process, such as a mount by umount(8).
async fn all_ended(stack: &OperatedStack) -> Result<()> {
    let mut outcome = Ok(());
    for door in stack.doors() {
        outcome = outcome.and(door.ended().await);
    }
    outcome
}

/// Returns the device on top with its name, for a door of the command line.
fn top(
    built: &BuiltStack,
    door: &str,
    kind: &'static str,
    observation: &Observation,
) -> Result<(String, Arc<dyn DevicePart>)> {
    let device = built.top()?;
    let is_it = |built: &Built| matches!(built, Built::Device(other) if is_same(other, &device));
    let name = built.parts().find(|part| is_it(&part.built)).map(|part| part.name.clone());
    let name = name.unwrap_or_default();
    match observation.of_door(door, kind, &name, Built::Device(device.clone())) {
        Built::Device(observed) => Ok((name, observed)),
        _ => Ok((name, device)),
    }
}

/// Creates a vhost-user door for the device on top, with the default number of queues: QEMU asks for one per
/// processor of the guest.
fn vhost_user_door(
    built: &BuiltStack,
    socket: PathBuf,
    observation: &Observation,
) -> Result<VhostUserDoor, Failure> {
    let (name, device) = top(built, &socket.display().to_string(), "vhost-user", observation)?;
    let serial = name.chars().filter(char::is_ascii).take(ID_BYTES).collect();
    let (access, queues) = (Access::default(), DEFAULT_QUEUES);
    Ok(VhostUserDoor::new(VhostUserConfig {
        name,
        device,
        socket,
        access,
        queues,
        serial,
        read_only: false,
    })?)
}

/// Creates an NBD door for the device on top, under its name in the stack.
fn nbd_door(built: &BuiltStack, address: Address, observation: &Observation) -> Result<NbdDoor, Failure> {
    let (name, device) = top(built, &address.to_string(), "nbd", observation)?;
    let export = ExportConfig { name, description: String::new(), device, read_only: false };
    Ok(NbdDoor::new(ServerConfig {
        address,
        access: Access::default(),
        exports: vec![export],
        max_connections: MAX_CONNECTIONS,
        // Addresses were checked with the arguments.
        allow_remote: true,
        tls: None,
    })?)
}

fn is_same(one: &Arc<dyn DevicePart>, other: &Arc<dyn DevicePart>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Formats a stack.
///
/// # Errors
/// A wrong stack; errors of building or closing.
pub fn format(arguments: &Format) -> Result<(), Failure> {
    let stack = load::stack(&arguments.stack, &registry())?;
    let mut only = Vec::new();
    for word in &arguments.parts {
        let Some(part) = stack.part_or_kind(word) else {
            let known = stack.parts().map(|part| part.name()).collect::<Vec<_>>().join(", ");
            return Err(Failure::Usage(format!(
                "PART {word}: the stack has no part of this name, nor exactly one of this kind; its parts: {known}"
            )));
        };
        only.push(part.name().to_owned());
    }
    let format = if only.is_empty() { stack::Format::Everything } else { stack::Format::Only(only) };
    if !arguments.force {
        overwriting::check(&stack, &format, "give --force if it may be lost")?;
    }
    let plan = stack.check(format)?;
    let config = Config::default().with_shards(stack.shards());
    let status = runtime::run(config, move || async move {
        let built = plan.build().await?;
        let status = built.status().await;
        built.close().await.map(|()| status)
    })??;
    match arguments.json {
        true => print_json(&status),
        false => print_line(&format!("created: {}", arguments.stack)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Effect of a second signal on the server of a stack with this door on `ram`.
    fn further_of(door: &'static str) -> Further {
        let main = move || async move {
            let stack = Stack::from_line("test", &format!("{door}(ram(size=64MiB))"), &registry()).unwrap();
            let plan = stack.check(stack::Format::Nothing).unwrap();
            let built = plan.build().await.unwrap();
            let further = further(false, built.doors().map(|(_, door)| door));
            built.close().await.unwrap();
            further
        };
        runtime::run(Config::default(), main).unwrap()
    }

    #[test]
    fn a_second_signal_leaves_no_node_of_the_kernel_without_its_server() {
        assert_eq!(further_of("ublk"), Further::ShortensPatience);
    }
}
