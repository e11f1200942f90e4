//! End of an attachment: the node is removed, and the server makes its changes durable.

use super::{Event, Holder, answer};
use crate::attach::handover::Connection;
use crate::attach::launch::{self, Process};
use crate::attach::node;
use crate::attach::requests::DETACHED_BUT;
use block::{Error, Result};
use rustix::process::Signal;
use std::time::Duration;

/// Time limit for a server to close its stack.
const STOP_LIMIT: Duration = Duration::from_secs(3600);

impl Holder {
    /// Reports a signal while the node is in use, and keeps it if this is a service, whose end systemd waits
    /// for: at the machine's shutdown the node is unmounted meanwhile.
    pub(super) fn signalled_in_use(&mut self, error: &Error) {
        if !self.is_ending {
            let then = if self.keeps_signals { "; it is detached once it is unused" } else { "" };
            tracing::error!("{error}{then}");
        }
        self.is_ending = self.keeps_signals;
        // Earlier signals are dropped: in the background a later detach needs a new one.
        self.events.forget_signals();
    }

    /// Removes the node and ends the server, whose end is returned.
    pub(super) async fn detach(&mut self) -> Result<Result<()>> {
        let Some(node) = self.record.as_ref().map(|record| record.node.clone()) else { return Ok(Ok(())) };
        let (driver, volume) = (self.plan.driver, self.plan.folder.volume());
        if !self.has_lost_node() {
            node::remove_unused(driver, &node, &volume).await?;
            self.is_removed = true;
            node::released(driver, &node, &volume).await?;
        } else {
            driver.node_driver().close_volume(&volume).await?;
            self.is_removed = true;
        }
        self.connection = None;
        Ok(self.stop_server().await)
    }

    /// Removes everything that exists of an attachment that failed.
    pub(super) async fn undo(&mut self) {
        let warn = |error: Error| tracing::warn!("{error}");
        let mut connection = self.connection.take().map(|(_, ready)| ready.connection);
        if let Some((aborted, aborting)) = self.aborting.take() {
            // The number of a removed node may be reused: nothing is aborted after the removal.
            aborting.await;
            connection = connection.or(Some(aborted));
        }
        let starting = self.starting.take();
        if let Some(process) = starting {
            process.signal(Signal::TERM);
            connection = connection.or(self.ended(&process).await.0);
        }
        if let Some(server) = self.events.take_started() {
            connection = connection.or(Some(server.ready.connection));
            self.server = self.server.take().or(Some((server.process, server.socket)));
        }
        let (driver, volume) = (self.plan.driver.node_driver(), self.plan.folder.volume());
        let removed = runtime::blocking(move || driver.remove_all(connection.as_ref(), &volume));
        removed.await.unwrap_or_else(warn);
        driver.close_volume(&self.plan.folder.volume()).await.unwrap_or_else(warn);
        self.stop_server().await.unwrap_or_else(warn);
    }

    /// Requests the server to end, and waits for it.
    ///
    /// # Errors
    /// A server that failed to make all changes durable.
    async fn stop_server(&mut self) -> Result<()> {
        let Some((process, _socket)) = self.server.take() else { return Ok(()) };
        process.signal(Signal::TERM);
        self.ended(&process).await.1
    }

    /// Waits for the end of a process. Other events are dropped, and operators get an error. Returns the
    /// connection of a server that became ready meanwhile, and the failure of the server.
    async fn ended(&self, process: &Process) -> (Option<Connection>, Result<()>) {
        let mut connection = None;
        let ended = async {
            loop {
                match self.events.next().await {
                    Event::Ended(number, status) if number == process.number => return status,
                    Event::Request(_, stream) => answer(&stream, "the node is being detached").await,
                    // Shortens the server's patience with its storage.
                    Event::Signal => process.signal(Signal::TERM),
                    // The server became ready before it received the signal.
                    Event::Started(Ok(server)) if server.process.number == process.number => {
                        connection = Some(server.ready.connection);
                    }
                    _ => {}
                }
            }
        };
        let failure = match runtime::timeout(STOP_LIMIT, ended).await {
            Ok(status) if status.success() => return (connection, Ok(())),
            Ok(status) => format!("its server ended with {status}: {}", launch::said_last(&self.plan)),
            Err(_) => format!(
                "its server (process {}) hasn't ended; wait for it, or end it with kill -9: then changes that aren't durable are lost",
                process.id
            ),
        };
        let name = self.plan.folder.name();
        (connection, Err(Error::io(format!("attachment \"{name}\": {DETACHED_BUT} {failure}"))))
    }
}
