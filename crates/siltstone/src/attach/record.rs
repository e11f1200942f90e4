//! The record of an attachment: what its holder knows of it, in a file for `list` and `detach`.

use super::driver::Driver;
use super::folder::{Folder, link_of};
use super::node;
use block::{Error, Result};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// State of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A server answers.
    Attached,
    /// The server was lost; requests wait for another one.
    Recovering,
    /// No server could be started in time; requests fail.
    Failed,
}

impl State {
    const ALL: [(State, &str); 3] =
        [(State::Attached, "attached"), (State::Recovering, "recovering"), (State::Failed, "failed")];

    /// The state as a word.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state == self).map_or("", |(_, word)| word)
    }
}

/// What is known of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The stack, as on the command line; the absolute path of a file.
    pub stack: String,
    /// Driver of the node.
    pub driver: Driver,
    /// Block device node.
    pub node: PathBuf,
    /// The kernel's sequence number of the node, which no other device ever gets ([`node::sequence_number`]); `None` before Linux 5.15.
    pub diskseq: Option<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// State.
    pub state: State,
    /// Number of servers that were lost.
    pub lost_servers: u64,
    /// Process of the holder.
    pub holder: u32,
    /// Process of the server.
    pub server: u32,
}

impl Record {
    /// Writes the record to its folder, in place of the one before.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn write(&self, folder: &Folder) -> Result<()> {
        let path = folder.record();
        runtime::file::replace(&path, None, |file| writeln!(file, "{:#}", self.to_json()))
    }

    /// Reads the record of a folder; `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for another file; those of the kernel.
    pub fn read(folder: &Folder) -> Result<Option<Record>> {
        let path = folder.record();
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| Error::from_io(&error, &format!("reading {}", path.display())))?,
        };
        let value: Option<Value> = serde_json::from_str(&text).ok();
        let record = value.as_ref().and_then(Record::from_json);
        let wrong =
            || Error::corrupt(format!("{}: not the record of an attachment; remove it", path.display()));
        record.map(Some).ok_or_else(wrong)
    }

    /// Whether the node is still the attachment's: its path may be another device's by now.
    pub fn has_node(&self) -> bool {
        self.diskseq.is_none() || node::sequence_number(&self.node) == self.diskseq
    }

    /// Removes the links of attachments that lost both their holder and their node: the node's path may be another device's by now.
    /// Every verb and every holder calls it, so that nobody follows such a link for long: it never waits and creates nothing. Left as
    /// they are: attachments that are being attached or detached, whose lock is taken; those of other users, which can't be read; those
    /// whose holder is stopped, which may go on.
    pub fn remove_lost_links() {
        for folder in Folder::all().unwrap_or_default() {
            let is_lost = || {
                let record = Record::read(&folder).ok().flatten();
                record.is_some_and(|record| !record.has_node()) && !folder.is_alive()
            };
            if folder.has_link() && is_lost() && folder.lock_existing().is_ok_and(|_lock| is_lost()) {
                folder.remove_link();
            }
        }
    }

    /// The record as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "stack": self.stack,
            "node": self.node,
            "diskseq": self.diskseq,
            "link": link_of(&self.name),
            "bytes": self.bytes,
            "via": self.driver.word(),
            "state": self.state.word(),
            "lost_servers": self.lost_servers,
            "holder": self.holder,
            "server": self.server,
        })
    }

    fn from_json(value: &Value) -> Option<Record> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let process = |key: &str| value[key].as_u64().and_then(|process| u32::try_from(process).ok());
        let word = value["state"].as_str()?;
        Some(Record {
            name: text("name")?,
            stack: text("stack")?,
            driver: Driver::from_str(value["via"].as_str()?, false).ok()?,
            node: text("node")?.into(),
            diskseq: value["diskseq"].as_u64(),
            bytes: value["bytes"].as_u64()?,
            state: State::ALL.iter().find(|(_, known)| *known == word)?.0,
            lost_servers: value["lost_servers"].as_u64()?,
            holder: process("holder")?,
            server: process("server")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = Record {
            name: "vol".into(),
            stack: "/a/vol.toml".into(),
            driver: Driver::Ublk,
            node: "/dev/ublkb3".into(),
            diskseq: Some(17),
            bytes: 1 << 40,
            state: State::Recovering,
            lost_servers: 2,
            holder: 7,
            server: 8,
        };
        assert_eq!(Record::from_json(&record.to_json()), Some(record));
        assert_eq!(Record::from_json(&json!({ "name": "vol" })), None);
    }
}
