//! Recipients of operators' requests: an open stack, served or opened for one request, or a served flash
//! chip.

use super::observed;
use super::protocol::{self, Answer, Recipient, Refusal, Request};
use crate::metrics::server::Measured;
use crate::metrics::{Format, Scraper};
use crate::stop::Served;
use block::{Call, Result, Status};
use layers::observation::Observation;
use serde_json::{Value, json};
use stack::{BuiltStack, Door};
use std::sync::Arc;

/// Recipient of operators' requests: a stack or a flash chip.
pub trait Operated {
    /// Carries out a request.
    ///
    /// # Errors
    /// An unknown recipient or message; the recipient's error.
    fn carry_out<'a>(&'a self, request: &'a Request) -> Call<'a, Answer>;

    /// Observation of the calls to its parts; `None` if they aren't observed.
    fn observation(&self) -> Option<&Observation> {
        None
    }
}

impl Operated for OperatedStack {
    fn carry_out<'a>(&'a self, request: &'a Request) -> Call<'a, Answer> {
        Call::new(self.answer(request))
    }

    fn observation(&self) -> Option<&Observation> {
        self.observation.as_ref()
    }
}

impl Measured for OperatedStack {
    /// Returns the metrics, without calls if the stack isn't served.
    fn metrics(&self, format: Format) -> Call<'_, Result<String>> {
        let scraper = self.server.as_ref().map(|server| server.scraper.clone()).unwrap_or_default();
        Call::new(async move { scraper.text(self.observation.as_ref(), self.status().await, format).await })
    }
}

impl Served for OperatedStack {
    fn is_waiting_for_space(&self) -> bool {
        self.doors().any(|door| door.is_waiting_for_space())
    }

    fn abort(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            let mut outcome = Ok(());
            for door in self.doors() {
                outcome = outcome.and(door.abort().await);
            }
            outcome
        })
    }
}

/// An open stack.
pub struct OperatedStack {
    /// The stack.
    pub built: BuiltStack,
    /// Doors besides those of the stack.
    pub extra_doors: Vec<ExtraDoor>,
    /// Properties of the server; `None` if the stack isn't served.
    pub server: Option<ServerFacts>,
    /// Observation of the calls to the parts; `None` if the stack isn't served.
    pub observation: Option<Observation>,
}

/// A door of the command line.
pub struct ExtraDoor {
    /// Address of the door.
    pub name: String,
    /// The door.
    pub door: Arc<dyn Door>,
}

/// Constant properties of a server.
pub struct ServerFacts {
    /// Stack on the command line.
    pub stack: String,
    /// Time at which the server opened the stack.
    pub since: runtime::Instant,
    /// Address of the server of metrics; `None` without one.
    pub metrics: Option<String>,
    /// Maker of the metrics.
    pub scraper: Scraper,
}

impl ServerFacts {
    /// Creates the properties of a server that opens this stack now.
    pub fn new(stack: String, metrics: Option<String>) -> ServerFacts {
        ServerFacts { stack, since: runtime::now(), metrics, scraper: Scraper::default() }
    }
}

/// Returns the refusal of a trace of what isn't observed.
pub fn not_traced() -> Refusal {
    Refusal::wrongly_asked(block::Error::unsupported(
        "its calls can't be traced; expected a stack that is served: by siltstone serve, kv serve, fs mount or attach",
    ))
}

/// Returns the answer to [`Request::Hello`].
pub fn hello() -> Value {
    json!({ "protocol": protocol::VERSION, "process": std::process::id() })
}

impl OperatedStack {
    /// Carries out a request.
    ///
    /// # Errors
    /// An unknown part; the part's error for its message.
    pub async fn answer(&self, request: &Request) -> Answer {
        match request {
            Request::Hello => Ok(hello()),
            Request::Status => Ok(self.status().await),
            Request::Observe => match &self.observation {
                Some(observation) => {
                    let mut answer = observed::observe(observation);
                    answer["status"] = self.status().await;
                    Ok(answer)
                }
                None => Err(Refusal::wrongly_asked(block::Error::unsupported(
                    "the stack isn't served; expected one whose calls a server passes on",
                ))),
            },
            Request::Metrics(format) => Ok(Value::String(self.metrics(*format).await?)),
            // The server, which has the observation, carries these out.
            Request::Trace(_) | Request::TraceNext => Err(not_traced()),
            Request::Message { to, text } => {
                let found = match to {
                    Recipient::Part(word) => self.built.part(word),
                    Recipient::Kind(kind) => self.built.part_of_kind(kind),
                };
                let part = found.map_err(Refusal::wrongly_asked)?;
                let answer = part.built.part().message(text).await;
                let named =
                    |error: block::Error| error.in_context(format!("{} \"{}\"", part.kind, part.name));
                let answer = answer.map_err(named)?;
                self.doors().for_each(|door| door.refresh());
                Ok(Value::String(answer))
            }
        }
    }

    /// Returns [`BuiltStack::status`] with the additional doors by their addresses, and `server` if it is
    /// served.
    async fn status(&self) -> Value {
        let mut status = self.built.status().await;
        for ExtraDoor { name, door } in &self.extra_doors {
            let mut entry = Status::new();
            entry.insert("kind".to_owned(), door.kind().into());
            entry.extend(door.status().await);
            status["doors"][name] = entry.into();
        }
        if let Some(server) = &self.server {
            status["server"] = json!({
                "process": std::process::id(),
                "stack": server.stack,
                "shards": runtime::shard_count(),
                "up_seconds": server.since.elapsed().as_secs(),
                "addresses": self.addresses(),
            });
            if let Some(metrics) = &server.metrics {
                status["server"]["metrics"] = metrics.as_str().into();
            }
        }
        status
    }

    /// Returns the addresses of the doors for clients.
    pub fn addresses(&self) -> Vec<String> {
        self.doors().flat_map(|door| door.addresses()).collect()
    }

    /// Returns the doors of the stack, then the additional ones.
    pub fn doors(&self) -> impl Iterator<Item = &Arc<dyn Door>> {
        self.built.doors().map(|(_, door)| door).chain(self.extra_doors.iter().map(|extra| &extra.door))
    }
}
