//! TLS 1.3 on the runtime's sockets, with certificates on both sides.
//!
//! # Promises
//! - [`Stream`] is a connection in plain text or in TLS with the same calls. In plain text it does what the
//!   socket does, without a further allocation or copy.
//! - TLS 1.3 only: there is no older version to fall back to, no renegotiation, no resumption and no early
//!   data. Key updates of the peer are obeyed, and own keys are renewed before the cipher's limit.
//! - A connection has at most [`MAX_CONNECTION_BYTES`] beyond the buffers of its caller, during the handshake
//!   and afterwards.
//! - A handshake ends within its time limit. Its failure, and any invalid record later, is an error of this
//!   connection only; the peer gets an alert if it receives.
//! - Certificates are checked against the authorities of the folder and the clock of
//!   [`runtime::wall_clock`], never against those of the system.
//!
//! Modules: `folder` reads certificates, [`keys`] declares the keys of parts,
//! `session` is one connection in TLS, `stream` is either form.

mod folder;
pub mod keys;
mod session;
mod stream;
#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

pub use folder::{ClientConfig, Folder, ServerConfig};
pub use session::{CLOSE_LIMIT, HANDSHAKE_LIMIT, MAX_CONNECTION_BYTES, Session};
pub use stream::Stream;
