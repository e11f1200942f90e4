//! `siltstone serve` and `siltstone format`: open a stack for clients, or format it.

use crate::arguments::{Format, Serve};
use crate::control::operated::{OperatedStack, ServerFacts};
use crate::control::place::{Identity, Place};
use crate::control::server::ControlServer;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::output::{print_json, print_line};
use block::{DevicePart, Error, Result};
use doors::nbd::door::NbdDoor;
use doors::nbd::server::{ExportConfig, ServerConfig};
use runtime::Config;
use runtime::net::Address;
use serde_json::json;
use stack::{Built, BuiltStack, Contract, Door, Plan, Stack};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Limit of the clients of a door of `--nbd`.
const MAX_CONNECTIONS: usize = 256;

/// Serves a stack until a signal.
///
/// # Errors
/// A wrong stack or address; those of building, listening or closing.
pub fn serve(arguments: &Serve) -> Result<(), Failure> {
    let stack = load::stack(&arguments.stack, &registry())?;
    let addresses = arguments.nbd.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
    let has_door = stack.parts().any(|part| part.kind().contract == Contract::Door);
    if !has_door && addresses.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: this stack has no door: give an address to serve it at, such as --nbd unix:vol.sock",
            arguments.stack
        )));
    }
    let place = control_place(arguments, &stack)?;
    let plan = stack.check(arguments.format)?;
    let (name, as_json) = (arguments.stack.clone(), arguments.json);
    let config = Config::default().with_shards(stack.shards());
    runtime::run(config, move || async move { open(&plan, name, addresses, place, as_json).await })?
}

/// Address at which it listens for operators; `None` with `--no-control`.
fn control_place(arguments: &Serve, stack: &Stack) -> Result<Option<Place>, Failure> {
    if arguments.no_control {
        return Ok(None);
    }
    if let Some(path) = &arguments.control {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::Usage(format!("--control {}: {error}", path.display())))?;
        return Ok(Some(Place::At(path)));
    }
    let identity = Identity::of_file(&arguments.stack).map_or_else(|| Identity::of_text(stack), Ok);
    Ok(Some(Place::Of(identity?)))
}

/// Parses an address, and makes a relative path in it absolute: clients may have another working directory.
fn address(text: &str) -> Result<Address, Failure> {
    let wrong = |reason: &str| Failure::Usage(format!("--nbd {text}: {reason}"));
    match text.parse::<Address>().map_err(|error| wrong(error.detail()))? {
        Address::Unix(path) => {
            let path = std::path::absolute(path).map_err(|error| wrong(&error.to_string()))?;
            format!("unix:{}", path.display()).parse().map_err(|error: Error| wrong(error.detail()))
        }
        tcp => Ok(tcp),
    }
}

async fn open(
    plan: &Plan,
    name: String,
    addresses: Vec<Address>,
    place: Option<Place>,
    as_json: bool,
) -> Result<(), Failure> {
    // It comes first: a second server of a stack is refused before it opens anything, and requests are meanwhile
    // answered with the error that the stack is being opened.
    let control = match &place {
        Some(place) => Some(ControlServer::start(place).await?),
        None => None,
    };
    let (outcome, stack) = match open_stack(plan, name, addresses).await {
        Ok(stack) => (serve_stack(&stack, control.as_ref(), as_json).await, Some(stack)),
        Err(error) => (Err(error), None),
    };
    // In the reverse order of opening; the stack's own doors are stopped when it is closed.
    if let Some(control) = control {
        control.stop().await;
    }
    let closed = match stack {
        Some(stack) => stack.built.close().await,
        None => Ok(()),
    };
    outcome?;
    Ok(closed?)
}

async fn open_stack(
    plan: &Plan,
    name: String,
    addresses: Vec<Address>,
) -> Result<Rc<OperatedStack>, Failure> {
    let built = plan.build().await?;
    let doors = addresses.into_iter().map(|address| nbd_door(&built, address));
    match doors.collect::<Result<Vec<_>, _>>() {
        Ok(extra_doors) => {
            let server = Some(ServerFacts { stack: name, since: runtime::now() });
            Ok(Rc::new(OperatedStack { built, extra_doors, server }))
        }
        Err(error) => {
            // The error of the door says what to do about it.
            let _ = built.close().await;
            Err(error)
        }
    }
}

async fn serve_stack(
    stack: &Rc<OperatedStack>,
    control: Option<&ControlServer>,
    as_json: bool,
) -> Result<(), Failure> {
    stack.built.start().await?;
    let mut outcome = Ok(());
    let mut started = 0;
    for door in &stack.extra_doors {
        outcome = door.start().await;
        if outcome.is_err() {
            break;
        }
        started += 1;
    }
    let outcome = match outcome {
        Ok(()) => {
            if let Some(control) = control {
                control.opened(stack.clone());
            }
            until_signal(stack, control.and_then(ControlServer::path), as_json).await
        }
        Err(error) => Err(error.into()),
    };
    let mut stopped = Ok(());
    for door in stack.extra_doors[..started].iter().rev() {
        stopped = stopped.and(door.stop().await);
    }
    outcome?;
    Ok(stopped?)
}

async fn until_signal(stack: &OperatedStack, control: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let addresses = stack.addresses();
    // The handler stands before anybody can know that there is something to stop.
    let mut signal = std::pin::pin!(runtime::stop_signal());
    let early = std::future::poll_fn(|context| std::task::Poll::Ready(signal.as_mut().poll(context))).await;
    match as_json {
        true => {
            let control = control.map(|path| path.display().to_string());
            print_line(&json!({ "addresses": addresses, "control": control }).to_string())?;
        }
        false => print_line(&addresses.join("\n"))?,
    }
    match early {
        std::task::Poll::Ready(result) => result?,
        std::task::Poll::Pending => signal.await?,
    }
    Ok(())
}

/// Makes a door for the device on top, under its name in the stack.
fn nbd_door(built: &BuiltStack, address: Address) -> Result<NbdDoor, Failure> {
    let device = built.top()?;
    let is_it = |built: &Built| matches!(built, Built::Device(other) if is_same(other, &device));
    let name = built.parts().find(|part| is_it(&part.built)).map(|part| part.name.clone());
    let export =
        ExportConfig { name: name.unwrap_or_default(), description: String::new(), device, read_only: false };
    Ok(NbdDoor::new(ServerConfig { address, exports: vec![export], max_connections: MAX_CONNECTIONS })?)
}

fn is_same(one: &Arc<dyn DevicePart>, other: &Arc<dyn DevicePart>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Formats a stack.
///
/// # Errors
/// A wrong stack; those of building or closing.
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
