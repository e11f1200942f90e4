//! A world that is generated from a seed: time, pending events, and waiting operations.
//!
//! The world has files ([`files`]) with a volatile cache that a power cut loses in part, and sockets
//! ([`network`]). Its faults are drawn with the probabilities of [`SimulatedFaults`].

mod files;
mod network;

use crate::address::Address;
use crate::config::ShardIndex;
use crate::metadata::Metadata;
use crate::operation::{Descriptor, Operation};
use crate::random::Random;
use crate::slots::{Key, Slot, Slots};
use block::{Buffer, Result};
use files::Files;
use network::Network;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Faults of a simulated world, as probabilities per operation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedFaults {
    /// A read of a file fails with EIO.
    pub read_error: f64,
    /// A write to a file fails with EIO after any part of it was done; no later operation reports it.
    pub write_error: f64,
    /// Write-back fails at a sync or a durable write. It loses all writes to the file since the last sync and
    /// is reported once by each open file description (`files`). The sync of a directory fails with EIO.
    pub sync_error: f64,
    /// An operation takes a hundred times as long.
    pub slow: f64,
    /// A transfer is cut short, as the kernel may do with any transfer.
    pub short: f64,
}

/// Settings of [`simulate`](crate::simulate).
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Seed of all randomness.
    pub seed: u64,
    /// Number of shards.
    pub shards: usize,
    /// Range of the duration of an operation on a file, in nanoseconds.
    pub latency: Range<u64>,
    /// Fault probabilities.
    pub faults: SimulatedFaults,
    /// Most events: the run fails if `main` hasn't returned after them.
    pub most_events: u64,
    /// Most lines of the trace that are kept; its hash covers all events.
    pub trace_lines: usize,
    /// Initial files, with durable contents.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

impl Simulation {
    /// One shard, 10 to 100 µs per operation, no faults.
    pub fn new(seed: u64) -> Self {
        Simulation {
            seed,
            shards: 1,
            latency: 10_000..100_000,
            faults: SimulatedFaults::default(),
            most_events: 100_000_000,
            trace_lines: 1000,
            files: Vec::new(),
        }
    }

    /// Sets the number of shards.
    pub fn with_shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Sets the faults.
    pub fn with_faults(mut self, faults: SimulatedFaults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets the initial files.
    pub fn with_files(mut self, files: Vec<(PathBuf, Vec<u8>)>) -> Self {
        self.files = files;
        self
    }
}

/// Events of a simulation, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// Number of events.
    pub events: u64,
    /// Hash over all events.
    pub hash: u64,
    /// Descriptions of the first events.
    pub lines: Vec<String>,
}

impl Trace {
    fn note(&mut self, most_lines: usize, time: u64, what: std::fmt::Arguments<'_>) {
        let line = format!("{time} {what}");
        self.events += 1;
        // FNV-1a, 64 bits.
        let seed = if self.hash == 0 { 0xCBF2_9CE4_8422_2325 } else { self.hash };
        self.hash =
            line.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
        if self.lines.len() < most_lines {
            self.lines.push(line);
        }
    }
}

/// Result of carrying out an operation at its time.
enum Step {
    /// The operation has ended with this result.
    Done(i32),
    /// The operation waits for a change of this socket.
    WaitFor(u64),
}

struct Event {
    shard: ShardIndex,
    key: Key,
    /// Result that replaces carrying out the operation.
    forced: Option<i32>,
}

struct Inner {
    time: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), Event>,
    waiting: Vec<(u64, ShardIndex, Key)>,
    random: Random,
    latency: Range<u64>,
    faults: SimulatedFaults,
    trace: Trace,
    trace_lines: usize,
    files: Files,
    network: Network,
    next_handle: u64,
}

pub(crate) struct World(RefCell<Inner>);

/// Duration of an operation on a socket, in nanoseconds.
const NETWORK_LATENCY: Range<u64> = 1_000..20_000;

impl Inner {
    fn schedule(&mut self, latency: Range<u64>, event: Event) {
        let span = latency.end.saturating_sub(latency.start).max(1);
        let mut delay = latency.start + self.random.below(span);
        if self.random.chance(self.faults.slow) {
            delay *= 100;
        }
        self.sequence += 1;
        self.events.insert((self.time + delay, self.sequence), event);
    }

    /// Lets the operations that wait for this socket try again.
    fn wake_socket(&mut self, handle: u64) {
        let (woken, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.0 == handle);
        self.waiting = waiting;
        let woken: Vec<(u64, ShardIndex, Key)> = woken;
        for (_, shard, key) in woken {
            self.schedule(NETWORK_LATENCY, Event { shard, key, forced: None });
        }
    }

    fn carry_out(&mut self, operation: &mut Operation) -> Step {
        let (random, faults) = (&mut self.random, &self.faults);
        match operation {
            Operation::Read { file, offset, buffer } => {
                Step::Done(self.files.read(handle_of(file), *offset, buffer, random, faults))
            }
            Operation::Write { file, offset, payload, skip, durable } => {
                let rest = payload.slice(*skip..payload.len()).to_data();
                let offset = *offset + *skip as u64;
                Step::Done(self.files.write(handle_of(file), offset, &rest, *durable, random, faults))
            }
            Operation::Sync { file, .. } => Step::Done(self.files.sync(handle_of(file), random, faults)),
            Operation::Allocate { file, mode, offset, length } => {
                Step::Done(self.files.allocate(handle_of(file), *mode, *offset, *length))
            }
            Operation::Truncate { file, length } => Step::Done(self.files.truncate(handle_of(file), *length)),
            Operation::Open { path, flags, .. } => {
                self.next_handle += 1;
                Step::Done(self.files.open(path, *flags, self.next_handle))
            }
            Operation::Rename { from, to } => Step::Done(self.files.rename(from, to)),
            Operation::Unlink { path } => Step::Done(self.files.unlink(path)),
            Operation::Accept { listener } => self.network.accept(handle_of(listener)),
            Operation::Connect { socket, address } => {
                self.next_handle += 1;
                let (socket, accepted) = (handle_of(socket), self.next_handle);
                let (step, listener) = self.network.connect(socket, accepted, address);
                listener.into_iter().for_each(|listener| self.wake_socket(listener));
                step
            }
            Operation::Receive { socket, buffer } => {
                let (step, peer) = self.network.receive(handle_of(socket), buffer, random, faults);
                peer.into_iter().for_each(|peer| self.wake_socket(peer));
                step
            }
            Operation::Send { socket, payload, skip } => {
                let rest = payload.slice(*skip..payload.len()).to_data();
                let (step, peer) = self.network.send(handle_of(socket), &rest, random, faults);
                peer.into_iter().for_each(|peer| self.wake_socket(peer));
                step
            }
            // Event descriptors and messages with descriptors are refused earlier.
            Operation::Readable { .. } => Step::Done(-libc::EOPNOTSUPP),
            Operation::Shutdown { socket, how } => {
                let socket = handle_of(socket);
                let peer = self.network.shutdown(socket, *how);
                self.wake_socket(socket);
                peer.into_iter().for_each(|peer| self.wake_socket(peer));
                Step::Done(0)
            }
            // The simulated world has no character devices.
            Operation::ReceiveMessage { .. } | Operation::Command { .. } | Operation::FuseEntry { .. } => {
                Step::Done(-libc::EOPNOTSUPP)
            }
        }
    }
}

fn handle_of(descriptor: &Descriptor) -> u64 {
    match descriptor {
        Descriptor::Simulated(handle) => *handle,
        Descriptor::Kernel { .. } => unreachable!("a file of the kernel's in a simulation"),
    }
}

/// Puts bytes where the kernel would: after the filled bytes of the buffer, without filling it yet.
pub(crate) fn put(buffer: &mut Buffer, bytes: &[u8]) {
    let shown = buffer.filled().len();
    buffer.append(bytes);
    buffer.truncate_filled(shown);
}

impl World {
    pub(crate) fn new(simulation: &Simulation) -> World {
        World(RefCell::new(Inner {
            time: 1,
            sequence: 0,
            events: BTreeMap::new(),
            waiting: Vec::new(),
            random: Random::new(simulation.seed),
            latency: simulation.latency.clone(),
            faults: simulation.faults,
            trace: Trace::default(),
            trace_lines: simulation.trace_lines,
            files: Files::new(&simulation.files),
            network: Network::default(),
            next_handle: 0,
        }))
    }

    pub(crate) fn start(&self, shard: ShardIndex, key: Key, slot: &mut Slot) -> Option<i32> {
        let mut inner = self.0.borrow_mut();
        let operation = slot.operation.as_ref().expect("an operation that starts is in its slot");
        let latency = if operation.waits_for_a_peer() { NETWORK_LATENCY } else { inner.latency.clone() };
        let (time, lines, name) = (inner.time, inner.trace_lines, operation.name());
        inner.trace.note(lines, time, format_args!("shard {shard} starts {name} {}", key.index));
        inner.schedule(latency, Event { shard, key, forced: None });
        None
    }

    pub(crate) fn cancel(&self, shard: ShardIndex, key: Key) {
        let mut inner = self.0.borrow_mut();
        let position = inner.waiting.iter().position(|entry| (entry.1, entry.2) == (shard, key));
        if let Some(position) = position {
            inner.waiting.remove(position);
            inner.schedule(NETWORK_LATENCY, Event { shard, key, forced: Some(-libc::ECANCELED) });
        }
    }

    /// Carries out the next operation that is due, and returns its result. Operations that have to wait are
    /// set aside.
    pub(crate) fn pop_due<'a>(
        &self,
        slots_of: impl Fn(ShardIndex) -> &'a RefCell<Slots>,
    ) -> Option<(ShardIndex, Key, i32)> {
        loop {
            let mut inner = self.0.borrow_mut();
            let entry = inner.events.first_entry()?;
            if entry.key().0 > inner.time {
                return None;
            }
            let ((_, _), event) = inner.events.pop_first()?;
            let Event { shard, key, forced } = event;
            let mut slots = slots_of(shard).borrow_mut();
            let operation = slots.slot(key.index).operation.as_mut();
            let operation = operation.expect("an operation stays in its slot until its end");
            let name = operation.name();
            let step = forced.map_or_else(|| inner.carry_out(operation), Step::Done);
            match step {
                Step::WaitFor(handle) => inner.waiting.push((handle, shard, key)),
                Step::Done(result) => {
                    let (time, lines) = (inner.time, inner.trace_lines);
                    let what = format_args!("shard {shard} ends {name} {} with {result}", key.index);
                    inner.trace.note(lines, time, what);
                    return Some((shard, key, result));
                }
            }
        }
    }

    pub(crate) fn note(&self, what: std::fmt::Arguments<'_>) {
        let mut inner = self.0.borrow_mut();
        let (time, lines) = (inner.time, inner.trace_lines);
        inner.trace.note(lines, time, what);
    }

    pub(crate) fn time(&self) -> u64 {
        self.0.borrow().time
    }

    pub(crate) fn set_time(&self, time: u64) {
        let mut inner = self.0.borrow_mut();
        inner.time = inner.time.max(time);
    }

    pub(crate) fn next_event(&self) -> Option<u64> {
        self.0.borrow().events.keys().next().map(|key| key.0)
    }

    pub(crate) fn trace(&self) -> Trace {
        self.0.borrow().trace.clone()
    }

    pub(crate) fn trace_length(&self) -> u64 {
        self.0.borrow().trace.events
    }

    pub(crate) fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.0.borrow().files.contents()
    }

    pub(crate) fn power_cut(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let inner = &mut *self.0.borrow_mut();
        inner.files.after_power_cut(&mut inner.random)
    }

    /// Reads a file at once, without an event.
    pub(crate) fn read_file(&self, handle: u64, offset: u64, bytes: &mut [u8]) -> i32 {
        let inner = &mut *self.0.borrow_mut();
        let mut buffer = Buffer::new(bytes.len());
        let read = inner.files.read(handle, offset, &mut buffer, &mut inner.random, &inner.faults);
        let filled = buffer.filled();
        bytes[..filled.len()].copy_from_slice(filled);
        read
    }

    /// Writes to a file at once, without an event: programs see it, and a power cut may lose it.
    pub(crate) fn write_file(&self, handle: u64, offset: u64, bytes: &[u8]) -> i32 {
        let inner = &mut *self.0.borrow_mut();
        inner.files.write(handle, offset, bytes, false, &mut inner.random, &inner.faults)
    }

    pub(crate) fn file_length(&self, handle: u64) -> Result<u64> {
        self.0.borrow().files.length(handle)
    }

    pub(crate) fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.0.borrow().files.metadata(path)
    }

    pub(crate) fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.0.borrow().files.list(path)
    }

    pub(crate) fn listen(&self, address: &Address) -> Result<u64> {
        let inner = &mut *self.0.borrow_mut();
        inner.next_handle += 1;
        inner.network.listen(inner.next_handle, address)
    }

    pub(crate) fn new_socket(&self) -> u64 {
        let inner = &mut *self.0.borrow_mut();
        inner.next_handle += 1;
        inner.network.new_socket(inner.next_handle);
        inner.next_handle
    }

    pub(crate) fn share(&self, handle: u64) -> u64 {
        let inner = &mut *self.0.borrow_mut();
        if !inner.files.share(handle) {
            inner.network.share(handle);
        }
        handle
    }

    pub(crate) fn close(&self, handle: u64) {
        // If the world is carrying out an operation, the dropped descriptor remains open.
        let Ok(mut inner) = self.0.try_borrow_mut() else { return };
        inner.files.close(handle);
        let peer = inner.network.close(handle);
        peer.into_iter().for_each(|peer| inner.wake_socket(peer));
    }
}
