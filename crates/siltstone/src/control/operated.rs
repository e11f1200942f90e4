//! A stack that is open, as operators see it: what a request does to it, whether it is being served or was opened
//! for this one request.

use super::protocol::{self, Answer, Recipient, Refusal, Request};
use block::{Part, Status};
use doors::nbd::door::NbdDoor;
use serde_json::{Value, json};
use stack::{BuiltStack, Door};

/// An open stack.
pub struct OperatedStack {
    /// The stack.
    pub built: BuiltStack,
    /// Doors that it has besides its own.
    pub extra_doors: Vec<NbdDoor>,
    /// Its server, if it is served.
    pub server: Option<ServerFacts>,
}

/// What doesn't change while a server runs.
pub struct ServerFacts {
    /// The stack, as it was named on the command line.
    pub stack: String,
    /// When it was opened.
    pub since: runtime::Instant,
}

/// That somebody is there.
pub fn hello() -> Value {
    json!({ "protocol": protocol::VERSION, "process": std::process::id() })
}

impl OperatedStack {
    /// Carries a request out.
    ///
    /// # Errors
    /// A part that there isn't; what a part says to its message.
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
                Ok(Value::String(answer.map_err(named)?))
            }
        }
    }

    /// [`BuiltStack::status`] with the further doors by their addresses, and `server` if there is one.
    async fn status(&self) -> Value {
        let mut status = self.built.status().await;
        for door in &self.extra_doors {
            let mut entry = Status::new();
            entry.insert("kind".to_owned(), door.kind().into());
            entry.extend(door.status().await);
            status["doors"][door.server().address().to_string()] = entry.into();
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

    /// Where clients find its doors.
    pub fn addresses(&self) -> Vec<String> {
        let doors = self.built.doors().map(|(_, door)| door.addresses());
        doors.chain(self.extra_doors.iter().map(Door::addresses)).flatten().collect()
    }
}
