//! `siltstone stop`: ends the server of a stack.

use crate::arguments::StopServer;
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::print_line;
use crate::server_process::{END_LIMIT, ServerProcess};
use std::path::Path;

/// Stops a server and waits for its end.
///
/// # Errors
/// A wrong stack; one that isn't served; a server of another user, or one that doesn't end within
/// [`END_LIMIT`].
pub fn stop(arguments: &StopServer) -> Result<(), Failure> {
    let name = &arguments.operated.stack;
    let process = match name.strip_prefix("unix:") {
        Some(path) => ServerProcess::of_socket(Path::new(path))?,
        None => of_stack(arguments)?,
    };
    let process = process.ok_or_else(|| {
        Failure::World(format!("{name}: not served; expected a stack or a socket with a server"))
    })?;
    process.terminate()?;
    match process.has_ended(END_LIMIT)? {
        true => print_line(&format!("{name}: its server has ended")),
        false => Err(Failure::World(format!(
            "{name}: its server (process {}) hasn't ended within {} s; expected its end; what it has accepted is durable once it \
             has ended",
            process.number(),
            END_LIMIT.as_secs()
        ))),
    }
}

/// Returns the process of the server of a stack; `None` if it isn't served.
fn of_stack(arguments: &StopServer) -> Result<Option<ServerProcess>, Failure> {
    let client = reach::server(&arguments.operated, &registry())?;
    client.map(|client| ServerProcess::of_peer(&arguments.operated.stack, client.stream())).transpose()
}
