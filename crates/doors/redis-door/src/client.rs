//! Client of a store's server, for the verbs of the command line; sends one request at a time.
//!
//! The crate `resp` parses replies. A reply has at most [`MAX_REPLY_BYTES`].

use block::{Buffer, Data, Error, Result, Status};
use kv::{Pair, Pairs, Scan, Stored};
use resp::{Reply, Scanner, parse, put_command};
use runtime::net::Address;
use runtime::net::Stream as Socket;
use serde_json::Value;
use std::time::Duration;
use tls::Stream;

/// Maximum size of a reply, in bytes.
pub const MAX_REPLY_BYTES: usize = 512 << 20;
const RECEIVED_BYTES: usize = 256 << 10;

/// Proof of a client that it may use a store.
#[derive(Default, Clone)]
pub struct Login {
    /// TLS; `None` for plain text.
    pub tls: Option<tls::ClientConfig>,
    /// User to log in as; `None` for the user `default`.
    pub user: Option<String>,
    /// Password of the user; `None` without a login.
    pub password: Option<Vec<u8>>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Login({:?})", self.user)
    }
}

/// A connection to a server.
pub struct Client {
    stream: Stream,
    address: Address,
    received: Vec<u8>,
}

impl Client {
    /// Connects to the server of a store, and logs in.
    ///
    /// # Errors
    /// Errors of connecting and of TLS; [`Error::PermissionDenied`] if the server refuses the user or asks
    /// for one; [`Error::Protocol`] for a server of another kind.
    pub async fn connect(address: &Address, login: &Login) -> Result<Client> {
        let socket = Socket::connect(address).await?;
        let stream = Stream::connect(socket, login.tls.as_ref(), tls::HANDSHAKE_LIMIT).await?;
        let mut client = Client { stream, address: address.clone(), received: Vec::new() };
        if let Some(password) = &login.password {
            let user = login.user.as_deref().unwrap_or("default");
            client.ask_ok(&[b"AUTH", user.as_bytes(), password]).await?;
        }
        match client.ask(&[b"INFO", b"server"]).await? {
            Reply::Bulk(Some(text)) if String::from_utf8_lossy(&text).contains("siltstone_version:") => {
                Ok(client)
            }
            _ => Err(Error::protocol(format!("the server at {address} isn't one of siltstone"))),
        }
    }

    /// Address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a command and returns its reply.
    ///
    /// # Errors
    /// The error that the server replies; [`Error::Disconnected`]; errors of the connection.
    pub async fn ask(&mut self, words: &[&[u8]]) -> Result<Reply> {
        let mut command = Vec::new();
        put_command(&mut command, words);
        self.stream.send(Data::copy_of(&command).into()).await.0?;
        let mut scanner = Scanner::new(MAX_REPLY_BYTES);
        loop {
            if scanner.next(&self.received)?.is_some()
                && let Some((reply, length)) = parse(&self.received, MAX_REPLY_BYTES)?
            {
                self.received.drain(..length);
                return match reply {
                    Reply::Error(text) => Err(error(&text)),
                    reply => Ok(reply),
                };
            }
            let (outcome, buffer) = self.stream.receive(Buffer::new(RECEIVED_BYTES)).await;
            if outcome? == 0 {
                return Err(Error::disconnected(format!(
                    "the server at {} has closed the connection",
                    self.address
                )));
            }
            self.received.extend_from_slice(buffer.filled());
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        Error::protocol(format!(
            "the server at {}: unexpected reply; expected {expected}; check that it is a siltstone key-value store",
            self.address
        ))
    }

    async fn ask_ok(&mut self, words: &[&[u8]]) -> Result<()> {
        match self.ask(words).await? {
            Reply::Simple(_) => Ok(()),
            _ => Err(self.unexpected("a text")),
        }
    }

    /// Returns the value of a key; `None` if the key doesn't exist.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), for all methods.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Stored>> {
        let scan = Scan { to: Some([key, &[0]].concat()), ..Scan::from(key.to_vec(), 1) };
        let pairs = self.scan(&scan, false).await?;
        Ok(pairs.last().map(|pair| Stored { value: pair.value.to_vec(), expires: pair.expires }))
    }

    /// Sets a key, which expires after `expires_in` if that is given.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn put(&mut self, key: &[u8], value: &[u8], expires_in: Option<Duration>) -> Result<()> {
        let Some(time) = expires_in else { return self.ask_ok(&[b"SET", key, value]).await };
        let time = time.as_millis().max(1).to_string();
        self.ask_ok(&[b"SET", key, value, b"PX", time.as_bytes()]).await
    }

    /// Deletes a key; returns whether it existed.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool> {
        match self.ask(&[b"DEL", key]).await? {
            Reply::Integer(count) => Ok(count > 0),
            _ => Err(self.unexpected("an integer")),
        }
    }

    /// Returns the next keys of a range, with their values unless `only_keys`; empty at the end of the range.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn scan(&mut self, scan: &Scan, only_keys: bool) -> Result<Pairs> {
        let most = scan.most.to_string();
        let mut words: Vec<&[u8]> = vec![b"KV.SCAN", b"FROM", &scan.from, b"LIMIT", most.as_bytes()];
        if let Some(to) = &scan.to {
            words.extend([b"TO", to.as_slice()]);
        }
        if scan.is_backward {
            words.push(b"REVERSE");
        }
        if only_keys {
            words.push(b"KEYS");
        }
        let Reply::Array(replies) = self.ask(&words).await? else { return Err(self.unexpected("an array")) };
        let mut pairs = Pairs::new();
        for fields in replies.chunks(if only_keys { 1 } else { 3 }) {
            let (key, value, expires) = match fields {
                [Reply::Bulk(Some(key))] if only_keys => (key, &[][..], None),
                [Reply::Bulk(Some(key)), Reply::Bulk(Some(value)), Reply::Integer(expires)] => {
                    (key, value.as_slice(), u64::try_from(*expires).ok())
                }
                _ => return Err(self.unexpected("keys, each with a value and an expiry time")),
            };
            pairs.push(Pair { key, value, expires });
        }
        Ok(pairs)
    }

    /// Takes a snapshot that [`scan`](Self::scan) reads for the rest of the connection.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn take_snapshot(&mut self) -> Result<()> {
        self.ask_ok(&[b"KV.SNAPSHOT"]).await
    }

    /// Merges all tables.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn compact(&mut self) -> Result<()> {
        self.ask_ok(&[b"KV.COMPACT"]).await
    }

    /// Status of the store.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn status(&mut self) -> Result<Status> {
        match self.ask(&[b"INFO", b"store"]).await? {
            Reply::Bulk(Some(text)) => Ok(parse_status(&String::from_utf8_lossy(&text))),
            _ => Err(self.unexpected("a text")),
        }
    }
}

/// Converts the text of an error reply to an error.
fn error(text: &str) -> Error {
    match text.split_once(' ') {
        Some(("READONLY", text)) => Error::read_only(text.to_owned()),
        Some(("NOAUTH" | "WRONGPASS" | "NOPERM", text)) => Error::permission_denied(text.to_owned()),
        Some(("OOM", text)) => Error::no_space(text.to_owned()),
        Some(("ERR", text)) => Error::io(text.to_owned()),
        _ => Error::io(text.to_owned()),
    }
}

/// Parses a section of `INFO`: the name of a nested object and a dot precede the names of its members.
fn parse_status(text: &str) -> Status {
    let mut status = Status::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let is_text = !value.starts_with(|letter: char| letter.is_ascii_digit() || "-[{tfn".contains(letter));
        let parsed = if is_text { None } else { serde_json::from_str::<Value>(value).ok() };
        let value = parsed.unwrap_or_else(|| Value::from(value));
        match name.split_once('.') {
            None => drop(status.insert(name.to_owned(), value)),
            Some((outer, inner)) => {
                let entry = status.entry(outer).or_insert_with(|| Value::Object(Status::new()));
                if let Some(object) = entry.as_object_mut() {
                    object.insert(inner.to_owned(), value);
                }
            }
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_read_back() {
        let text = "# Store\r\nshards:2\r\nlevels:[[{\"tables\":1}]]\r\ndelete_persistence.seconds:10.5\r\n\
                    delete_persistence.reason:a zone\r\nname:nobody\r\n";
        let expected = json!({
            "shards": 2, "levels": [[{"tables": 1}]], "delete_persistence": {"seconds": 10.5, "reason": "a zone"}, "name": "nobody",
        });
        assert_eq!(Value::Object(parse_status(text)), expected);
    }
}
