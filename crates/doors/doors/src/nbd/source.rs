//! Exports that are created when a client asks for them, in addition to those of a server's configuration.

use super::negotiation::ExportDescription;
use super::server::ExportConfig;
use block::Result;

/// Source of exports that the configuration doesn't have. Called on any shard, in the middle of a handshake:
/// it never waits for I/O.
pub trait ExportSource: std::fmt::Debug + Send + Sync {
    /// Exports that currently exist, for clients that list them.
    fn list(&self) -> Vec<ExportDescription>;

    /// Describes the export that [`open`](Self::open) of this name would return, without creating it.
    ///
    /// # Errors
    /// [`block::Error::NotFound`] for a name without an export; the client gets any other error as a refusal.
    fn describe(&self, name: &str) -> Result<ExportDescription>;

    /// Returns the export of a name, and creates it if necessary. A handle of its device is opened for each
    /// connection, and dropped at the connection's end.
    ///
    /// # Errors
    /// As [`describe`](Self::describe).
    fn open(&self, name: &str) -> Result<ExportConfig>;
}
