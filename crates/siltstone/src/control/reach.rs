//! Requests to a stack: through its server's control socket if it is served, else by opening it, for one
//! request ([`ask`]) or for several ([`converse`]).

use super::client::Client;
use super::operated::OperatedStack;
use super::place::{self, Identity};
use super::protocol::{Answer, Request};
use super::turn::{self, Wanted};
use crate::arguments::Operated;
use crate::failure::Failure;
use crate::load;
use crate::output::say;
use runtime::{Config, Instant};
use serde_json::Value;
use stack::{Registry, Stack};
use std::time::Duration;

/// Answer of a stack.
pub struct Reached {
    /// The answer.
    pub answer: Value,
    /// Whether a server gave the answer.
    pub is_live: bool,
}

/// Sends a request to a stack, and prints the way, server or opening, to standard error.
///
/// # Errors
/// A wrong stack, an unknown part, a part's error for its message, errors of opening and closing.
pub fn ask(operated: &Operated, registry: &Registry, request: Request) -> Result<Reached, Failure> {
    let reached = |answer: Answer, is_live| match answer {
        Ok(answer) => Ok(Reached { answer, is_live }),
        Err(refusal) if refusal.wrongly_asked => {
            Err(Failure::Usage(format!("{}: {}", operated.stack, refusal.error.detail())))
        }
        Err(refusal) => Err(refusal.error.into()),
    };
    match find(operated, registry)? {
        Found::Server(mut client) => {
            say(&format!("live: answered by its server, through {}", client.path().display()));
            reached(client.ask(&request)?, true)
        }
        Found::Nobody(stack) => {
            say("not served: opened for this request, and closed again");
            reached(ask_unserved(&stack, request)?, false)
        }
    }
}

/// Sends a request to the server of a stack; `None` if it isn't served.
///
/// # Errors
/// Errors of [`ask`].
pub fn ask_server(
    operated: &Operated,
    registry: &Registry,
    request: Request,
) -> Result<Option<Value>, Failure> {
    let Some(mut client) = server(operated, registry)? else { return Ok(None) };
    client.ask(&request)?.map(Some).map_err(|refusal| refusal.error.into())
}

/// Returns a connection to the server of a stack; `None` if it isn't served.
///
/// # Errors
/// A wrong stack, several servers, a server that doesn't answer.
pub fn server(operated: &Operated, registry: &Registry) -> Result<Option<Client>, Failure> {
    Ok(match find(operated, registry)? {
        Found::Server(client) => Some(client),
        Found::Nobody(_) => None,
    })
}

/// Longest silence after which a connection is reused: the server closes it after
/// [`SILENCE_LIMIT`](super::server::SILENCE_LIMIT).
const SILENCE: Duration = Duration::from_secs(60);

/// Stack for several requests in sequence.
pub struct Session {
    /// Stack on the command line.
    stack: String,
    end: End,
}

enum End {
    Server { client: Client, asked: Instant },
    Own(OperatedStack),
}

impl Session {
    /// Sends a request. After a long pause, when the server may have closed the connection, it opens a new
    /// one.
    ///
    /// # Errors
    /// Errors of [`ask`].
    pub async fn ask(&mut self, request: &Request) -> Result<Value, Failure> {
        let answer = match &mut self.end {
            End::Own(stack) => stack.answer(request).await,
            End::Server { client, asked } => {
                // No other task runs here, so blocking on the socket delays none.
                if asked.elapsed() > SILENCE {
                    *client = Client::at(client.path())?;
                }
                let answer = client.ask(request)?;
                *asked = runtime::now();
                answer
            }
        };
        answer.map_err(|refusal| match refusal.wrongly_asked {
            true => Failure::Usage(format!("{}: {}", self.stack, refusal.error.detail())),
            false => refusal.error.into(),
        })
    }
}

/// Runs several requests to a stack in its own runtime, and prints the way, server or opening, to standard
/// error.
///
/// # Errors
/// Errors of [`ask`] and of `work`.
pub fn converse<T: Send + 'static>(
    operated: &Operated,
    registry: &Registry,
    work: impl AsyncFnOnce(&mut Session) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let name = operated.stack.clone();
    match find(operated, registry)? {
        Found::Server(client) => {
            say(&format!("live: answered by its server, through {}", client.path().display()));
            runtime::run(Config::default(), move || async move {
                let end = End::Server { client, asked: runtime::now() };
                work(&mut Session { stack: name, end }).await
            })?
        }
        Found::Nobody(stack) => {
            say("not served: opened for this request, and closed again");
            let plan = stack.check(false)?;
            let config = Config::default().with_shards(stack.shards());
            runtime::run(config, move || async move {
                let built = plan.build().await?;
                let own = OperatedStack { built, extra_doors: Vec::new(), server: None, observation: None };
                let mut session = Session { stack: name, end: End::Own(own) };
                let outcome = work(&mut session).await;
                let End::Own(own) = session.end else { return outcome };
                let closed = own.built.close().await;
                outcome.and_then(|value| closed.map(|()| value).map_err(Failure::from))
            })?
        }
    }
}

enum Found {
    Server(Client),
    Nobody(Box<Stack>),
}

fn find(operated: &Operated, registry: &Registry) -> Result<Found, Failure> {
    let argument = &operated.stack;
    if let Some(path) = &operated.control {
        return Client::at(path).map(Found::Server);
    }
    await_server(argument, registry)?;
    // The server is asked even if its file has changed and is now wrong.
    if let Some(identity) = Identity::of_file(argument) {
        return match the_only_server(argument, &identity)? {
            Some(client) => Ok(Found::Server(client)),
            None => Ok(Found::Nobody(load::stack(argument, registry)?.into())),
        };
    }
    let stack = load::stack(argument, registry)?;
    match the_only_server(argument, &Identity::of_text(&stack)?)? {
        Some(client) => Ok(Found::Server(client)),
        None => Ok(Found::Nobody(stack.into())),
    }
}

/// Waits for a server of the stack that is starting: until it listens and has opened the stack, or has ended.
fn await_server(argument: &str, registry: &Registry) -> Result<(), Failure> {
    if argument == "-" {
        return Ok(());
    }
    let mut waiting = false;
    for _ in 0..turn::WAIT_LIMIT.as_millis() / turn::PAUSE.as_millis() {
        let identity = match Identity::of_file(argument) {
            Some(identity) => identity,
            None => Identity::of_text(&load::stack(argument, registry)?)?,
        };
        let mut opening = None;
        let mut is_open = false;
        for (path, stream) in place::servers(&identity)? {
            if let Some(client) = Client::new(path, stream)? {
                match client.is_opening() {
                    Some(process) => opening = Some(process),
                    None => is_open = true,
                }
            }
        }
        match (is_open, opening.or_else(|| turn::other(Wanted::Server, argument))) {
            (false, Some(process)) => {
                turn::tell(&mut waiting, "the server that is being started", process);
                runtime::run(Config::default(), || async { runtime::sleep(turn::PAUSE).await })?;
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

fn the_only_server(argument: &str, identity: &Identity) -> Result<Option<Client>, Failure> {
    let mut servers = Vec::new();
    for (path, stream) in place::servers(identity)? {
        servers.extend(Client::new(path, stream)?);
    }
    if servers.len() > 1 {
        let options: Vec<_> =
            servers.iter().map(|client| format!("  --control {}", client.path().display())).collect();
        return Err(Failure::Usage(format!(
            "{argument}: {} servers serve this; choose one:\n{}",
            servers.len(),
            options.join("\n")
        )));
    }
    Ok(servers.pop())
}

/// Opens the stack without its doors.
fn ask_unserved(stack: &Stack, request: Request) -> Result<Answer, Failure> {
    let plan = stack.check(false)?;
    let config = Config::default().with_shards(stack.shards());
    let (answer, closed) = runtime::run(config, move || async move {
        let built = plan.build().await?;
        let stack = OperatedStack { built, extra_doors: Vec::new(), server: None, observation: None };
        let answer = stack.answer(&request).await;
        Ok::<_, block::Error>((answer, stack.built.close().await))
    })??;
    // An error of the answer takes precedence; after a success, closing must succeed as well.
    if answer.is_ok() {
        closed?;
    }
    Ok(answer)
}
