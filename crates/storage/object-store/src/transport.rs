//! Connections to one server: a limited number, which are kept open between requests.
//!
//! # Promises
//! - The establishment of a connection and the first byte of a response have limits. The caller limits the
//!   whole, with the wait for a free connection.
//! - A request that is dropped closes its connection, and no other one.
//! - An idle client has no request and no timer. Connections that were idle for longer than
//!   [`IDLE_LIMIT`] are closed at the next request, since servers close them as well.
//! - A connection on which bytes have arrived without a request isn't used again: they would be taken for the
//!   next response.
//! - A request is sent again only if its connection was idle before and ends without a byte of the response.

use crate::connection::{Connection, Request, Response};
use crate::endpoint::Endpoint;
use block::{Error, Result};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tls::ClientConfig;

/// Time after which an idle connection isn't used any more.
pub const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// Connections to a server.
pub(crate) struct Transport {
    pub endpoint: Endpoint,
    tls: Option<ClientConfig>,
    connect_limit: Duration,
    permits: Rc<Semaphore>,
    /// Connections without a request, the one that was used last at the end.
    idle: RefCell<Vec<Connection>>,
    /// Number of connections that were opened.
    pub opened: Cell<u64>,
}

impl Transport {
    /// Returns a server without connections, of which there will be at most `connections`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an endpoint in https without certificates, or in http with them.
    pub fn new(
        endpoint: Endpoint,
        tls: Option<ClientConfig>,
        connections: usize,
        connect_limit: Duration,
    ) -> Result<Transport> {
        if endpoint.is_secure() != tls.is_some() {
            let (url, text) = (&endpoint.url, ["certificates without https", "https without certificates"]);
            let text = text[usize::from(endpoint.is_secure())];
            return Err(Error::invalid(format!("endpoint \"{url}\": {text}; expected both, or neither")));
        }
        let permits = Semaphore::new(connections.max(1));
        Ok(Transport {
            endpoint,
            tls,
            connect_limit,
            permits,
            idle: RefCell::default(),
            opened: Cell::new(0),
        })
    }

    /// Whether a request would begin at once.
    pub fn has_free_connection(&self) -> bool {
        self.permits.available() > 0
    }

    /// Sends a request and receives its response, whose first byte may take `limit` after the request was
    /// sent; `first_byte` gets the time to the head. The caller limits the whole.
    ///
    /// # Errors
    /// Errors of [`Connection`]. The server may have carried the request out.
    pub async fn send(
        &self,
        request: &Request<'_>,
        limit: Duration,
        first_byte: &Cell<Option<Duration>>,
    ) -> Result<Response> {
        let _permit = self.permits.acquire(1).await;
        if let Some(mut connection) = self.take_idle() {
            match connection.exchange(request, limit, first_byte).await {
                // The server may have closed it while it was idle: the request is sent on a new connection.
                Err(error) if !connection.is_answered && is_lost(&error) => {}
                outcome => return outcome.map(|outcome| self.keep(connection, outcome)),
            }
        }
        let mut addresses = self.endpoint.addresses(self.connect_limit).await?;
        // A random order spreads connections over the addresses of a name, and avoids that all of them try
        // one that is down first.
        let first = runtime::random_u64() % addresses.len().max(1) as u64;
        addresses.rotate_left(first as usize);
        let (host, tls) = (&self.endpoint.host, self.tls.as_ref());
        let mut connection = Connection::open(&addresses, host, tls, self.connect_limit).await?;
        self.opened.set(self.opened.get() + 1);
        let outcome = connection.exchange(request, limit, first_byte).await;
        outcome.map(|outcome| self.keep(connection, outcome))
    }

    fn keep(&self, mut connection: Connection, (response, continues): (Response, bool)) -> Response {
        if continues && connection.is_silent() {
            self.idle.borrow_mut().push(connection);
        }
        response
    }

    /// Takes the most recently used connection that has received nothing since its last response. Closes more
    /// recently used ones that have, and those that were idle for too long.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|connection| connection.used.is_some_and(|used| used.elapsed() < IDLE_LIMIT));
        std::iter::from_fn(|| idle.pop()).find_map(|mut idle| idle.is_silent().then_some(idle))
    }
}

/// Whether this is the error of a connection that has ended or couldn't be opened.
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Disconnected(_) | Error::Closed(_) | Error::Os(..))
}
