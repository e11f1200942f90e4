//! A door for one client that is connected already: `siltstone serve -s`, which another program has started
//! with the connection as its standard input.
//!
//! The client is served on shard 0. The door has ended once the client has disconnected, in whatever way, and
//! its requests in flight have ended.

use super::server::{ExportConfig, Server, ServerConfig};
use block::{Call, DevicePart, Error, Part, Result, Status};
use runtime::net::{Access, Address};
use runtime::sync::StopToken;
use stack::Door;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Door that serves a device to one client.
pub struct SingleNbdDoor {
    server: Server,
    /// Taken by the start.
    connection: Mutex<Option<OwnedFd>>,
    /// Raised when the client has disconnected.
    ended: OnceLock<StopToken>,
}

impl SingleNbdDoor {
    /// Creates the door of a device for the client at the other end of `connection`, a stream socket that
    /// blocks. `name` is that of the export.
    ///
    /// # Errors
    /// Errors of [`Server::new`].
    pub fn new(name: String, device: Arc<dyn DevicePart>, connection: OwnedFd) -> Result<SingleNbdDoor> {
        let server = Server::new(ServerConfig {
            // For messages: nothing listens.
            address: Address::Unix(PathBuf::from("/dev/stdin")),
            access: Access::default(),
            exports: vec![ExportConfig { name, description: String::new(), device, read_only: false }],
            max_connections: 1,
            allow_remote: false,
            tls: None,
        })?;
        Ok(SingleNbdDoor { server, connection: Mutex::new(Some(connection)), ended: OnceLock::new() })
    }
}

impl Part for SingleNbdDoor {
    fn kind(&self) -> &'static str {
        super::door::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.server.status())
    }
}

impl Door for SingleNbdDoor {
    fn start(&self) -> Call<'_, Result<()>> {
        // Nothing panics while the lock is held.
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        Call::new(async move {
            let connection =
                connection.ok_or_else(|| Error::closed("the only client of this door has been served"))?;
            let ended = self.server.start_with(connection).await?;
            let _first = self.ended.set(ended);
            Ok(())
        })
    }

    fn stop(&self) -> Call<'_, Result<()>> {
        Call::new(self.server.stop())
    }

    /// Returns none, as no other client can connect.
    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            match self.ended.get() {
                Some(ended) => ended.stopped().await,
                None => std::future::pending().await,
            }
            Ok(())
        })
    }
}
