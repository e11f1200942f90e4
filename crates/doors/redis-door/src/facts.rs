//! State shared by all connections of a server, and state of one connection.

use crate::scan_cursors::ScanCursors;
use crate::transaction::Transaction;
use crate::users::{Rights, Users};
use resp::Protocol;
use runtime::net::acceptor::Clients;
use runtime::{Instant, WarningLimit};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Version of redis that the commands correspond to, for clients that ask.
pub const REDIS_VERSION: &str = "7.0.15";
/// Maximum bytes of arriving commands in all connections of a server, beyond 64 KiB for each.
pub const BUFFER_BYTES: usize = 512 << 20;

/// Minimum time between two warnings of clients that were cut off.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two warnings of failed logins.
const LOGIN_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// State shared by the connections of a server, on all shards.
#[derive(Debug)]
pub struct Facts {
    cursors: Mutex<ScanCursors>,
    /// Addresses of the server, for operators.
    pub addresses: Vec<String>,
    /// Port of the first TCP address; 0 without one.
    pub port: u16,
    /// Connected clients.
    pub clients: Arc<Clients>,
    /// Users and passwords.
    pub users: Users,
    started: Instant,
    accepted: AtomicU64,
    cut_off: AtomicU64,
    failed_logins: AtomicU64,
    /// Warnings of clients that were cut off; strangers can cause any number of them.
    warnings: WarningLimit,
    /// Warnings of failed logins.
    login_warnings: WarningLimit,
    commands: AtomicU64,
    buffered: AtomicUsize,
}

impl Facts {
    /// Returns the state of a server that starts now.
    pub fn new(addresses: Vec<String>, port: u16, clients: Arc<Clients>, users: Users) -> Self {
        Facts {
            cursors: Mutex::new(ScanCursors::new(runtime::random_u64())),
            addresses,
            port,
            clients,
            users,
            started: runtime::now(),
            accepted: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
            failed_logins: AtomicU64::new(0),
            warnings: WarningLimit::new(WARNING_INTERVAL),
            login_warnings: WarningLimit::new(LOGIN_WARNING_INTERVAL),
            commands: AtomicU64::new(0),
            buffered: AtomicUsize::new(0),
        }
    }

    /// Cursors of `SCAN`.
    pub fn cursors(&self) -> MutexGuard<'_, ScanCursors> {
        // A panic under the lock leaves valid positions.
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection and returns its number, beginning with 1.
    pub fn next_connection(&self) -> u64 {
        self.accepted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Number of connections since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Counts a connection that the server cut off, and warns of it.
    pub fn count_cut_off(&self, reason: impl Display) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
        self.warnings.warn(format_args!("redis door: {reason}"));
    }

    /// Number of connections that the server cut off.
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Counts a login with a wrong name or password, and warns of it. The name isn't logged: it may be a
    /// password.
    pub fn count_failed_login(&self) {
        self.failed_logins.fetch_add(1, Ordering::Relaxed);
        self.login_warnings.warn("redis door: a client gave a wrong name or password");
    }

    /// Number of logins with a wrong name or password.
    pub fn failed_logins(&self) -> u64 {
        self.failed_logins.load(Ordering::Relaxed)
    }

    /// Counts a command.
    pub fn count_command(&self) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of commands since the start.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// Whole seconds since the start.
    pub fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Takes bytes for an arriving command; returns false if they exceed the limit.
    pub fn take_buffer(&self, bytes: usize) -> bool {
        let taken = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= BUFFER_BYTES);
        self.buffered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Returns taken bytes.
    pub fn give_buffer(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Number of bytes that are taken.
    pub fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }
}

/// State of a connection that commands read and change.
#[derive(Debug)]
pub struct Session {
    /// Number of the connection.
    pub id: u64,
    /// Name that the client gave the connection.
    pub name: Vec<u8>,
    /// Name and version of the client's library.
    pub library: [Vec<u8>; 2],
    /// Version of the protocol.
    pub protocol: Protocol,
    /// State of `MULTI`.
    pub transaction: Transaction,
    /// Commands that the connection may call.
    pub rights: Rights,
    began: Instant,
}

impl Session {
    /// Returns the state of a new connection.
    pub fn new(id: u64, rights: Rights) -> Self {
        let began = runtime::now();
        let (name, library, protocol) = (Vec::new(), Default::default(), Protocol::Resp2);
        Session { id, name, library, protocol, transaction: Transaction::default(), rights, began }
    }

    /// Whole seconds since the start of the connection.
    pub fn age(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Resets the state as `RESET` does.
    pub fn reset(&mut self, rights: Rights) {
        self.rights = rights;
        self.name.clear();
        self.protocol = Protocol::Resp2;
        self.transaction = Transaction::default();
    }
}
