//! Counts of the calls of each client of a door. A client is a program of this machine, by its name, or
//! another machine, by its address: each process or connection would be a time series of its own, and they
//! come and go.
//!
//! # Promises
//! - At most [`MAX_CLIENTS`] are counted, those with the latest calls: memory is bounded. A client counts
//!   once for each shard that serves it.
//! - A call costs comparisons of its requester with at most [`MAX_RECENT`] others, and a few stores. The
//!   first call of a requester takes a lock; if it is a process without a name, it also reads a file of
//!   procfs.
//! - Names have no control characters.

use super::ObservedCalls;
use crate::stats::counters::{CallCounts, CallsMade, KindCounters};
use runtime::Requester;
use std::cell::RefCell;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit of the clients that are counted, over all doors and shards.
pub const MAX_CLIENTS: usize = 256;
/// Requesters whose client a handle remembers.
const MAX_RECENT: usize = 64;

/// Calls of one client of a door to a part.
#[derive(Debug)]
pub struct ClientCalls {
    /// The door and the part.
    pub calls: Arc<ObservedCalls>,
    /// Name of a program, or address of a machine.
    pub client: String,
    /// Counts of each kind of call that the client has made.
    pub counts: CallsMade,
}

/// Counters of one client, written by the shard of one handle.
#[derive(Debug)]
pub(super) struct ClientCounters {
    calls: Arc<ObservedCalls>,
    client: String,
    kinds: Box<[KindCounters]>,
    /// End of the latest call in nanoseconds.
    latest: AtomicU64,
    /// Whether [`Clients`] still lists it.
    is_listed: AtomicBool,
}

impl ClientCounters {
    /// Counts a call that has `ended` now: its time in nanoseconds, its bytes, and whether it succeeded.
    #[inline]
    pub(super) fn count(&self, kind: usize, ended: u64, (took, bytes, succeeded): (u64, u64, bool)) {
        self.kinds[kind].count(took, bytes, succeeded);
        self.latest.store(ended, Ordering::Relaxed);
    }

    /// Adds the counts to those of the same client by other handles.
    fn add_to(&self, counts: &mut CallsMade) {
        for (name, counters) in self.calls.names().iter().zip(&self.kinds) {
            if !counters.is_empty() {
                let position = counts.iter().position(|(other, _)| other == name);
                let position = position.unwrap_or_else(|| {
                    counts.push((name, CallCounts::default()));
                    counts.len() - 1
                });
                counts[position].1.add(counters);
            }
        }
    }
}

/// Counters of all clients.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<Vec<Arc<ClientCounters>>>);

impl Clients {
    fn listed(&self) -> MutexGuard<'_, Vec<Arc<ClientCounters>>> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the counters of a client, in place of those without a call for the longest time if need be.
    fn add(&self, counters: Arc<ClientCounters>) {
        let mut listed = self.listed();
        if listed.len() >= MAX_CLIENTS {
            let latest =
                |(_, counters): &(usize, &Arc<ClientCounters>)| counters.latest.load(Ordering::Relaxed);
            if let Some((oldest, _)) = listed.iter().enumerate().min_by_key(latest) {
                listed.swap_remove(oldest).is_listed.store(false, Ordering::Relaxed);
            }
        }
        listed.push(counters);
    }

    /// Returns the counts of the clients that have made a call within this time, and forgets others.
    pub(super) fn counts(&self, now: u64, within: Duration) -> Vec<ClientCalls> {
        let mut listed = self.listed();
        let since = now.saturating_sub(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        listed.retain(|counters| {
            let is_recent = counters.latest.load(Ordering::Relaxed) >= since;
            counters.is_listed.store(is_recent, Ordering::Relaxed);
            is_recent
        });
        let mut all: Vec<ClientCalls> = Vec::new();
        for counters in &*listed {
            let ClientCounters { calls, client, .. } = &**counters;
            // A part that was built again has other counters.
            let is_same = |other: &ClientCalls| {
                (&other.calls.part, &other.calls.door, &other.client) == (&calls.part, &calls.door, client)
            };
            let position = all.iter().position(is_same).unwrap_or_else(|| {
                all.push(ClientCalls {
                    calls: calls.clone(),
                    client: client.clone(),
                    counts: CallsMade::new(),
                });
                all.len() - 1
            });
            counters.add_to(&mut all[position].counts);
        }
        all.retain(|client| !client.counts.is_empty());
        all
    }
}

/// Clients of one handle, on its shard.
#[derive(Debug, Default)]
pub(super) struct HandleClients(RefCell<Vec<(Requester, Arc<ClientCounters>)>>);

impl HandleClients {
    /// Counts a call of a requester, as [`ClientCounters::count`] does.
    #[inline]
    pub(super) fn count(
        &self,
        requester: Requester,
        (calls, clients): (&Arc<ObservedCalls>, &Clients),
        kind: usize,
        (ended, outcome): (u64, (u64, u64, bool)),
    ) {
        let recent = self.0.borrow();
        let is_known = |(other, counters): &&(Requester, Arc<ClientCounters>)| {
            *other == requester && counters.is_listed.load(Ordering::Relaxed)
        };
        if let Some((_, counters)) = recent.iter().find(is_known) {
            return counters.count(kind, ended, outcome);
        }
        drop(recent);
        self.enter(requester, calls, clients).count(kind, ended, outcome);
    }

    #[cold]
    fn enter(
        &self,
        requester: Requester,
        calls: &Arc<ObservedCalls>,
        clients: &Clients,
    ) -> Arc<ClientCounters> {
        let client = name_of(requester);
        let mut recent = self.0.borrow_mut();
        recent.retain(|(other, counters)| *other != requester && counters.is_listed.load(Ordering::Relaxed));
        if recent.len() >= MAX_RECENT {
            let latest = |(_, (_, counters)): &(usize, &(Requester, Arc<ClientCounters>))| {
                counters.latest.load(Ordering::Relaxed)
            };
            if let Some((oldest, _)) = recent.iter().enumerate().min_by_key(latest) {
                recent.swap_remove(oldest);
            }
        }
        let same = recent.iter().find(|(_, counters)| counters.client == client);
        let counters = same.map(|(_, counters)| counters.clone()).unwrap_or_else(|| {
            let kinds = calls.names().iter().map(|_| KindCounters::default()).collect();
            let (latest, is_listed) = (AtomicU64::new(u64::MAX), AtomicBool::new(true));
            let counters =
                Arc::new(ClientCounters { calls: calls.clone(), client, kinds, latest, is_listed });
            clients.add(counters.clone());
            counters
        });
        recent.push((requester, counters.clone()));
        counters
    }
}

/// Name of the client of a requester.
fn name_of(requester: Requester) -> String {
    let name = match requester.named() {
        Requester::Nobody => String::new(),
        Requester::Process(_, name) => name.to_string(),
        Requester::Peer(octets, _) => Ipv6Addr::from(octets).to_canonical().to_string(),
    };
    // A process that has ended has no name.
    if name.is_empty() { "unknown".to_owned() } else { name.replace(char::is_control, "\u{fffd}") }
}
