//! The servers of a handle: connections, the table of slots, redirections and retries.
//!
//! A command is sent again, to another server if need be, for [`RETRY_LIMIT`], as long as no server can have
//! carried it out. Reads go to masters, since a replica may have older bytes.

use crate::connection::{Answer, Command, Connection};
use crate::failure::Failure;
use crate::leaf::Shared;
use crate::slots::{MAX_SERVERS, SlotTable, hash_slot};
use block::{Buffer, Error, Result};
use resp::Reply;
use runtime::Instant;
use runtime::net::Address;
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Limit of the commands in flight, in units: a slow network can carry their data within the time limit of a
/// reply.
const MAX_UNITS: usize = 128;
/// Bytes of data that make a command count as one more unit.
const UNIT_BYTES: usize = 64 << 10;
/// Time from the beginning of a request after which it isn't retried.
const RETRY_LIMIT: Duration = Duration::from_millis(1900);
/// Time between two attempts, or two reads of the table.
const PAUSE: Duration = Duration::from_millis(50);
/// Limit of redirections of a request. A cluster needs two in the worst case, and some more while its table
/// spreads.
const MAX_REDIRECTIONS: u32 = 16;
/// Time limit of a connection and its login.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Time limit of reading the table from one server.
const TABLE_LIMIT: Duration = Duration::from_millis(500);
/// Time limit of opening a handle.
const OPEN_LIMIT: Duration = Duration::from_secs(2);

/// State of a handle for one server.
struct Server {
    address: Address,
    connection: RefCell<Option<Rc<Connection>>>,
    /// Held by the task that connects.
    connecting: Rc<Semaphore>,
    /// Last failure to connect.
    failure: RefCell<Option<(Instant, Error)>>,
    /// Run of the server when the handle was opened, or when it first asked the server for data.
    run_id: RefCell<Option<String>>,
}

/// A client on one shard.
pub(crate) struct Client {
    shared: Arc<Shared>,
    servers: RefCell<BTreeMap<Address, Rc<Server>>>,
    table: RefCell<SlotTable>,
    /// Number of reads of the table, and the time at which the last one began.
    table_reads: Cell<u64>,
    table_read_at: Cell<Instant>,
    reading_table: Rc<Semaphore>,
    /// Whether a cluster's table was read.
    is_cluster: Cell<bool>,
    permits: Rc<Semaphore>,
    /// Error of all requests once a server was found restarted.
    lost: RefCell<Option<Error>>,
}

impl Client {
    /// Reads the table, and connects to all masters.
    ///
    /// # Errors
    /// The error of the last server that was asked for the table, or of the first master that can't be
    /// reached.
    pub async fn open(shared: Arc<Shared>) -> Result<Rc<Client>> {
        let first = shared.config.addresses[0].clone();
        let client = Rc::new(Client {
            shared,
            servers: RefCell::default(),
            table: RefCell::new(SlotTable::of_one(first)),
            table_reads: Cell::new(0),
            table_read_at: Cell::default(),
            reading_table: Semaphore::new(1),
            is_cluster: Cell::new(false),
            permits: Semaphore::new(MAX_UNITS),
            lost: RefCell::default(),
        });
        let opening = async {
            client.read_table(&client.shared.known()).await?;
            let masters = client.table.borrow().masters().to_vec();
            let connected = runtime::join_all(masters.iter().map(|master| client.connection(master))).await;
            connected.into_iter().try_for_each(|connection| {
                connection.and_then(|(server, connection)| client.check_run(&server, &connection))
            })
        };
        let opened = runtime::timeout(OPEN_LIMIT, opening).await;
        opened.unwrap_or_else(|_| {
            Err(Error::timed_out(format!("the servers of the table weren't reached within {OPEN_LIMIT:?}")))
        })?;
        Ok(client)
    }

    /// Sends a command to the master of a key. Data of the reply goes to the buffer.
    ///
    /// Returns the buffer, unless the shard ends.
    pub async fn call(
        &self,
        key: &[u8],
        command: &Command,
        mut buffer: Option<Buffer>,
    ) -> (Result<Reply>, Option<Buffer>) {
        // The deadline includes the wait for a permit: otherwise requests queued for a server that doesn't
        // answer would add that wait.
        let deadline = runtime::now() + RETRY_LIMIT;
        let data = buffer.as_ref().map_or(command.len(), Buffer::len);
        let _permit = self.permits.acquire(1 + data / UNIT_BYTES).await;
        let slot = hash_slot(key);
        let mut redirection: Option<(Address, bool)> = None;
        let mut redirections = 0;
        loop {
            if let Some(error) = &*self.lost.borrow() {
                return (Err(error.clone()), buffer);
            }
            let reads_before = self.table_reads.get();
            let usual = || (self.table.borrow().master(slot).clone(), false);
            let (address, asking) = redirection.take().unwrap_or_else(usual);
            let answer = self.attempt(&address, command, asking, buffer).await;
            buffer = answer.buffer;
            // The server may still carry it out: a second copy could overwrite later writes.
            let is_repeatable = !(answer.was_sent && command.changes);
            match Failure::of(answer.result, is_repeatable, &address) {
                Ok(reply) => return (Ok(reply), buffer),
                Err(Failure::Final(error)) => return (Err(error), buffer),
                Err(Failure::Later(error)) if runtime::now() + PAUSE >= deadline => {
                    return (Err(error), buffer);
                }
                Err(Failure::Later(_)) => {
                    self.shared.counters.retries.fetch_add(1, Relaxed);
                    runtime::sleep(PAUSE).await;
                    self.refresh(reads_before, None, deadline).await;
                }
                Err(Failure::Moved(_) | Failure::Ask(_))
                    if redirections == MAX_REDIRECTIONS || runtime::now() >= deadline =>
                {
                    let error = format!(
                        "redis server {address}: slot {slot} was redirected {redirections} times; the servers don't agree"
                    );
                    return (Err(Error::protocol(error)), buffer);
                }
                Err(Failure::Moved(target)) => {
                    self.shared.counters.moved.fetch_add(1, Relaxed);
                    redirections += 1;
                    self.refresh(reads_before, Some(&target), deadline).await;
                    redirection = Some((target, false));
                }
                Err(Failure::Ask(target)) => {
                    self.shared.counters.asked.fetch_add(1, Relaxed);
                    redirections += 1;
                    redirection = Some((target, true));
                }
            }
        }
    }

    async fn attempt(
        &self,
        address: &Address,
        command: &Command,
        asking: bool,
        buffer: Option<Buffer>,
    ) -> Answer {
        let failed = |error, buffer| Answer { result: Err(error), buffer, was_sent: false };
        match self.connection(address).await {
            Ok((server, connection)) => match self.check_run(&server, &connection) {
                Ok(()) => connection.call(command, asking, buffer).await,
                Err(error) => failed(error, buffer),
            },
            Err(error) => failed(error, buffer),
        }
    }

    /// Checks that a server hasn't restarted since it held data of this handle.
    fn check_run(&self, server: &Server, connection: &Connection) -> Result<()> {
        let run_id = &mut *server.run_id.borrow_mut();
        let known = run_id.get_or_insert_with(|| connection.run_id.clone());
        if *known == connection.run_id {
            return Ok(());
        }
        let error = Error::disconnected(format!(
            "redis server {} was restarted: what it had may be lost; open the device again",
            server.address
        ));
        tracing::warn!("{error}");
        self.lost.replace(Some(error.clone()));
        Err(error)
    }

    fn server(&self, address: &Address) -> Result<Rc<Server>> {
        let mut servers = self.servers.borrow_mut();
        if let Some(server) = servers.get(address) {
            return Ok(server.clone());
        }
        if servers.len() >= 2 * MAX_SERVERS {
            return Err(Error::protocol(format!("the servers name more than {} others", 2 * MAX_SERVERS)));
        }
        let server = Rc::new(Server {
            address: address.clone(),
            connection: RefCell::default(),
            connecting: Semaphore::new(1),
            failure: RefCell::default(),
            run_id: RefCell::default(),
        });
        servers.insert(address.clone(), server.clone());
        Ok(server)
    }

    fn is_connected(&self, address: &Address) -> bool {
        let servers = self.servers.borrow();
        servers.get(address).is_some_and(|server| {
            server.connection.borrow().as_ref().is_some_and(|connection| connection.is_alive())
        })
    }

    /// Returns a server with a connection, and connects if there is none.
    async fn connection(&self, address: &Address) -> Result<(Rc<Server>, Rc<Connection>)> {
        let server = self.server(address)?;
        let alive = || server.connection.borrow().clone().filter(|connection| connection.is_alive());
        if let Some(connection) = alive() {
            return Ok((server, connection));
        }
        let _alone = server.connecting.acquire(1).await;
        if let Some(connection) = alive() {
            return Ok((server, connection));
        }
        if let Some((at, error)) = &*server.failure.borrow()
            && at.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let connecting = Connection::connect(address, self.shared.config.credentials.as_ref());
        let connected = runtime::timeout(CONNECT_LIMIT, connecting).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(Error::timed_out(format!("redis server {address}: not connected within {CONNECT_LIMIT:?}")))
        });
        match connected {
            Ok(connection) => {
                self.shared.counters.connections.fetch_add(1, Relaxed);
                server.failure.replace(None);
                server.connection.replace(Some(connection.clone()));
                Ok((server, connection))
            }
            Err(error) => {
                server.failure.replace(Some((runtime::now(), error.clone())));
                Err(error)
            }
        }
    }

    /// Reads the table again, unless it was read since `reads_before` or a moment ago. A failure leaves the
    /// table as it is.
    async fn refresh(&self, reads_before: u64, preferred: Option<&Address>, deadline: Instant) {
        let reading = async {
            let _alone = self.reading_table.acquire(1).await;
            if self.table_reads.get() != reads_before || self.table_read_at.get().elapsed() < PAUSE {
                return;
            }
            let mut servers: Vec<Address> = preferred.cloned().into_iter().collect();
            let mut others = self.shared.known();
            // Connected servers first: another one may be on a machine that is down, which takes time to
            // detect.
            others.sort_by_key(|address| !self.is_connected(address));
            servers.append(&mut others);
            if let Err(error) = self.read_table(&servers).await {
                tracing::debug!("the table of slots stays as it is: {error}");
            }
        };
        // If the time is over, only this wait ends.
        let _is_read = runtime::timeout(deadline - runtime::now(), reading).await;
    }

    /// Reads the table from the first of these servers whose table is complete.
    async fn read_table(&self, servers: &[Address]) -> Result<()> {
        let mut outcome = Err(Error::disconnected("no server is known"));
        for (number, address) in servers.iter().enumerate() {
            if servers[..number].contains(address) {
                continue;
            }
            self.table_read_at.set(runtime::now());
            let read = runtime::timeout(TABLE_LIMIT, self.table_of(address)).await;
            let read = read.unwrap_or_else(|_| {
                Err(Error::timed_out(format!("redis server {address}: no table within {TABLE_LIMIT:?}")))
            });
            match read {
                Ok(table) => {
                    self.shared.set_known(&table);
                    self.servers.borrow_mut().retain(|address, server| {
                        // Servers whose run is known are kept as long as the handle exists.
                        table.masters().contains(address) || server.run_id.borrow().is_some()
                    });
                    self.table.replace(table);
                    self.table_reads.set(self.table_reads.get() + 1);
                    return Ok(());
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    async fn table_of(&self, address: &Address) -> Result<SlotTable> {
        let (_, connection) = self.connection(address).await?;
        match connection.request(&[b"CLUSTER", b"SLOTS"]).await {
            Ok(reply) => {
                let table = SlotTable::parse(&reply, address)?;
                self.is_cluster.set(true);
                Ok(table)
            }
            // The server isn't a cluster, or doesn't know the command.
            Err(Error::Io(detail))
                if detail.contains("cluster support disabled") || detail.contains("unknown command") =>
            {
                match &self.shared.config.addresses[..] {
                    _ if self.is_cluster.get() => Err(Error::protocol(format!(
                        "redis server {address}: it is no cluster; expected one of the cluster that this device was opened on"
                    ))),
                    [_] => Ok(SlotTable::of_one(address.clone())),
                    several => Err(Error::invalid(format!(
                        "redis server {address}: it is no cluster; expected one address, not {}",
                        several.len()
                    ))),
                }
            }
            Err(error) => Err(error),
        }
    }
}
