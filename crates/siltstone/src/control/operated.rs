//! What answers the requests of operators: an open stack, whether it is being served or was opened for this request, or a
//! served flash chip.

use super::protocol::{self, Answer, Recipient, Refusal, Request};
use block::{Call, Status};
use serde_json::{Value, json};
use stack::{BuiltStack, Door};
use std::sync::Arc;

/// What answers the requests of operators: a stack, or a flash chip.
pub trait Operated {
    /// Carries out a request.
    ///
    /// # Errors
    /// An unknown recipient or message; its error.
    fn carry_out<'a>(&'a self, request: &'a Request) -> Call<'a, Answer>;
}

impl Operated for OperatedStack {
    fn carry_out<'a>(&'a self, request: &'a Request) -> Call<'a, Answer> {
        Call::new(self.answer(request))
    }
}

/// An open stack.
pub struct OperatedStack {
    /// Stack.
    pub built: BuiltStack,
    /// Doors besides those of the stack.
    pub extra_doors: Vec<ExtraDoor>,
    /// Its server; `None` if it isn't served.
    pub server: Option<ServerFacts>,
}

/// A door of the command line.
pub struct ExtraDoor {
    /// Its address.
    pub name: String,
    /// The door.
    pub door: Arc<dyn Door>,
}

/// Constant properties of a server.
pub struct ServerFacts {
    /// Stack, as named on the command line.
    pub stack: String,
    /// Time of opening.
    pub since: runtime::Instant,
}

/// Answer that a server is running.
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

    /// [`BuiltStack::status`] with the additional doors by their addresses, and `server` if there is one.
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
        }
        status
    }

    /// Addresses of its doors for clients.
    pub fn addresses(&self) -> Vec<String> {
        self.doors().flat_map(|door| door.addresses()).collect()
    }

    /// Doors of the stack, then the additional ones.
    fn doors(&self) -> impl Iterator<Item = &Arc<dyn Door>> {
        self.built.doors().map(|(_, door)| door).chain(self.extra_doors.iter().map(|extra| &extra.door))
    }
}
