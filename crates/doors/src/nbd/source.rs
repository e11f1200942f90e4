//! Exports that come into being when a client asks for them, beside those of a server's configuration.

use super::negotiation::ExportDescription;
use super::server::ExportConfig;
use block::Result;

/// Source of the exports that the configuration doesn't have. Called on any shard, in the middle of a handshake: it never waits for I/O.
pub trait ExportSource: std::fmt::Debug + Send + Sync {
    /// Exports that exist at present, for clients that list them.
    fn list(&self) -> Vec<ExportDescription>;

    /// Returns what a client that opened this name would get; changes nothing.
    ///
    /// # Errors
    /// [`block::Error::NotFound`] for a name without an export; any other error is told to the client as a refusal.
    fn describe(&self, name: &str) -> Result<ExportDescription>;

    /// Returns the export of a name, which exists from now on. A handle of its device is opened for each connection, and dropped at the
    /// connection's end.
    ///
    /// # Errors
    /// As [`describe`](Self::describe).
    fn open(&self, name: &str) -> Result<ExportConfig>;
}
