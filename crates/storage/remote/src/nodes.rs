//! Memory nodes: devices that are cut into *regions* of the size of a zone, each of which holds one copy of a
//! zone.
//!
//! A node whose connection is lost, or that doesn't answer a request within a limit, is *down*: it gets no
//! reads and writes until a connection succeeds again. Its contents may be lost then, which the checksums of
//! slots detect. An error in a node's answer fails only that request: the node is down only after
//! [`MAX_ERRORS`] failed reads in a row, and gets no new regions after [`MAX_WRITE_ERRORS`] failed writes
//! in a row. A refused write ends the placement on its node at once, so that a block whose pages move isn't
//! placed there again: otherwise it would be refused and moved without end.
//!
//! Placement takes the better of two nodes that are chosen at random (Mitzenmacher, "The Power of Two Choices
//! in Randomized Load Balancing", 2001): the one with the larger ratio of free share to latency.

use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Payload, Result};
use runtime::Random;
use runtime::histogram::Histogram;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Time without an answer after which a node is probed.
const IDLE: Duration = Duration::from_secs(1);
/// Number of reads in a row that a node answers with an error, after which it is down.
const MAX_ERRORS: u32 = 16;
/// Number of writes in a row that a node answers with an error, after which it is draining, like a node
/// without memory.
const MAX_WRITE_ERRORS: u32 = 4;
/// Time for which a node is draining after it had no memory for a write.
const FULL: Duration = Duration::from_secs(10);
/// Shortest time after which a read is also sent to another node.
const MIN_HEDGE: Duration = Duration::from_micros(200);
/// Number of measured reads from which the time of a hedged read is computed.
const ENOUGH_READS: u64 = 100;
/// Number of measured reads after which the measurement starts again.
const MANY_READS: u64 = 10_000;
/// Precision of the histogram of latencies, in bits.
const PRECISION: u32 = 5;

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node answers.
    Up,
    /// The node answers, and reclaims its memory or had none for a write: its regions are copied to other
    /// nodes, and it gets no new ones.
    Draining,
    /// The node hasn't answered since this time.
    Down(runtime::Instant),
}

impl State {
    /// State of a node by the time since which it is down, by whether it reclaims memory, and by the time
    /// since its last refused write.
    fn of(down: Option<runtime::Instant>, reclaims: bool, refused: Option<Duration>) -> Self {
        match down {
            Some(since) => State::Down(since),
            None if reclaims || refused.is_some_and(|since| since < FULL) => State::Draining,
            None => State::Up,
        }
    }
}

/// A memory node.
pub struct Node {
    /// Name in the stack.
    pub name: String,
    part: Arc<dyn DevicePart>,
    device: RefCell<Option<Rc<dyn Device>>>,
    /// Time since which the node hasn't answered; `None` if it answers.
    down_since: Cell<Option<runtime::Instant>>,
    /// Bytes that the node reclaims, from its status.
    reclaim: Cell<u64>,
    /// Number of connections.
    epoch: Cell<u64>,
    /// Whether contents from before this connection have been checked: known to be there, or to be lost.
    is_checked: Cell<bool>,
    /// Epoch of the node's memory, from its status; `None` if the status has none.
    memory_epoch: Cell<Option<u64>>,
    /// Time of the last answer.
    answered: Cell<runtime::Instant>,
    /// Time of the last write that found no memory, or followed [`MAX_WRITE_ERRORS`] failed ones.
    full_since: Cell<Option<runtime::Instant>>,
    /// Time limit of a request, and of connecting.
    limit: Duration,
    /// Bytes of a region.
    region_bytes: u64,
    regions: u32,
    free: RefCell<Vec<u32>>,
    latencies: RefCell<Histogram<PRECISION>>,
    /// Reads that returned no valid slot.
    pub corrupt: Cell<u64>,
    /// Number of times that the node went down.
    pub losses: Cell<u64>,
    /// Number of requests that the node answered with an error.
    pub errors: Cell<u64>,
    /// Failed reads, and failed writes, since the last successful one.
    read_errors: Cell<u32>,
    write_errors: Cell<u32>,
}

/// Whether an error is a node's answer to one request. Other errors mean that its connection or its contents
/// are lost.
fn is_answer(error: &Error) -> bool {
    const EPERM: i32 = 1;
    matches!(
        error,
        Error::Io(_)
            | Error::Corrupt(_)
            | Error::NoSpace(_)
            | Error::Invalid(_)
            | Error::ReadOnly(_)
            | Error::Unsupported(_)
            | Error::PermissionDenied(_)
            | Error::Busy(_)
            | Error::OutOfMemory(_)
            | Error::Overflow(_)
            | Error::Os(EPERM, _)
    )
}

impl Node {
    /// Creates a node with regions of this size, `most` at most. It is down until it is opened.
    pub fn new(
        name: String,
        part: Arc<dyn DevicePart>,
        region_bytes: u64,
        most: u32,
        limit: Duration,
    ) -> Self {
        let regions = (part.geometry().bytes() / region_bytes).min(most.into()) as u32;
        Node {
            name,
            part,
            device: RefCell::default(),
            down_since: Cell::new(Some(runtime::now())),
            reclaim: Cell::new(0),
            epoch: Cell::new(0),
            is_checked: Cell::new(false),
            memory_epoch: Cell::new(None),
            answered: Cell::new(runtime::now()),
            full_since: Cell::new(None),
            limit,
            region_bytes,
            regions,
            free: RefCell::new((0..regions).rev().collect()),
            latencies: RefCell::new(Histogram::new()),
            corrupt: Cell::new(0),
            losses: Cell::new(0),
            errors: Cell::new(0),
            read_errors: Cell::new(0),
            write_errors: Cell::new(0),
        }
    }

    /// Connects to the node. Its contents count as unchecked afterwards.
    ///
    /// # Errors
    /// Errors of the device, and of a first read.
    pub async fn open(&self) -> Result<()> {
        let opened = runtime::timeout(self.limit, self.part.open()).await;
        let named = |error: Error| error.in_context(format!("node {}", self.name));
        let device = opened.map_err(|_| self.too_late("connecting"))?.map_err(named)?;
        match self.first_block(&device).await {
            Ok(()) => self.read_errors.set(0),
            // An unreadable block doesn't make the whole node unusable, unless no read succeeded before.
            Err(error) if is_answer(&error) && self.read_errors.get() < MAX_ERRORS => {}
            Err(error) => {
                return Err(error.with_detail(format!("node {}: {}", self.name, self.unnamed(&error))));
            }
        }
        self.device.replace(Some(device));
        self.epoch.set(self.epoch.get() + 1);
        self.is_checked.set(false);
        self.answered.set(runtime::now());
        self.down_since.set(None);
        Ok(())
    }

    /// Number of connections: data that was written before the last one may be lost.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Whether contents from before this connection have been checked: known to be there, or to be lost.
    pub fn is_checked(&self) -> bool {
        self.is_checked.get()
    }

    /// Sets whether the contents have been checked.
    pub fn set_checked(&self, is_checked: bool) {
        self.is_checked.set(is_checked);
    }

    /// Reads from a node without recent answers, so that its loss is noticed.
    pub async fn probe(&self) {
        if self.answered.get().elapsed() < IDLE {
            return;
        }
        let Ok(device) = self.device() else { return };
        let outcome = self.first_block(&device).await;
        match outcome {
            Ok(()) => self.answered.set(runtime::now()),
            Err(error) => self.failed(&device, &error, &self.read_errors, MAX_ERRORS),
        }
    }

    /// Reads the first block.
    async fn first_block(&self, device: &Rc<dyn Device>) -> Result<()> {
        let bytes = self.part.geometry().block_size.bytes() as usize;
        let read = runtime::timeout(self.limit, device.read(BlockIndex(0), Buffer::new(bytes))).await;
        read.map_or_else(|_| Err(self.too_late("a read")), |(outcome, _)| outcome)
    }

    /// Number of regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Number of free regions.
    pub fn free_regions(&self) -> u32 {
        self.free.borrow().len() as u32
    }

    /// State of the node.
    pub fn state(&self) -> State {
        State::of(
            self.down_since.get(),
            self.reclaim.get() > 0,
            self.full_since.get().map(|since| since.elapsed()),
        )
    }

    /// Whether the node answers.
    pub fn is_up(&self) -> bool {
        self.down_since.get().is_none()
    }

    /// Whether the node has been down for at least this time.
    pub fn is_down_for(&self, time: Duration) -> bool {
        self.down_since.get().is_some_and(|since| since.elapsed() >= time)
    }

    /// Time since which the node is down; `None` if it is up.
    pub fn down_since(&self) -> Option<runtime::Instant> {
        self.down_since.get()
    }

    /// Updates the state from the node's status: the node is draining if `reclaim_bytes` is greater than 0.
    /// If the status has another `epoch`, the node has other memory, and its contents are unchecked.
    pub async fn ask(&self) {
        let status = runtime::timeout(self.limit, self.part.status()).await.unwrap_or_default();
        let epoch = status.get("epoch").and_then(serde_json::Value::as_u64).filter(|epoch| *epoch > 0);
        if let Some(epoch) = epoch
            && self.memory_epoch.replace(Some(epoch)).is_some_and(|known| known != epoch)
        {
            self.is_checked.set(false);
        }
        let reclaim = status.get("reclaim_bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if self.state() == State::Up && reclaim > 0 {
            tracing::info!("node {} is draining: it reclaims {reclaim} bytes", self.name);
        }
        self.reclaim.set(reclaim);
    }

    /// Notes a refused write: the node is draining from now on.
    fn note_full(&self) {
        if self.state() == State::Up {
            tracing::info!("node {} is draining: it had no memory for a write, or writes failed", self.name);
        }
        self.full_since.set(Some(runtime::now()));
    }

    /// Takes a free region; `None` if there is none.
    pub fn reserve_region(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Sets the free regions, for zones of an earlier process.
    pub fn set_free(&self, FreeRegions(free): FreeRegions) {
        let numbered = (0..).zip(free).filter(|(_, is_free)| *is_free);
        let mut numbers: Vec<u32> = numbered.map(|(region, _)| region).collect();
        // The first region is taken first.
        numbers.reverse();
        self.free.replace(numbers);
    }

    /// Frees a region, and discards its contents: the node may use the memory otherwise.
    pub async fn free_region(&self, region: u32) {
        if let Ok(device) = self.device() {
            let (start, end) = (self.block_of(region, 0), self.block_of(region, self.region_bytes));
            // If the discard fails, the node only keeps the memory.
            let discard = device.discard(BlockRange { start, count: end - start });
            if runtime::timeout(self.limit, discard).await.is_err() {
                self.failed(&device, &self.too_late("a discard"), &self.write_errors, u32::MAX);
            }
        }
        self.free.borrow_mut().push(region);
    }

    /// Text of an error without the node's name, for a line that names the node.
    fn unnamed<'a>(&self, error: &'a Error) -> &'a str {
        let text = error.detail();
        text.strip_prefix("node ")
            .and_then(|text| text.strip_prefix(&*self.name))
            .and_then(|text| text.strip_prefix(": "))
            .unwrap_or(text)
    }

    fn too_late(&self, doing: &str) -> Error {
        Error::timed_out(format!("node {}: {doing} took longer than {:?}", self.name, self.limit))
    }

    /// Notes a failed call. An error in the node's answer is counted in `in_a_row`; the node is down after
    /// `most` of them.
    fn failed(&self, device: &Rc<dyn Device>, error: &Error, in_a_row: &Cell<u32>, most: u32) {
        // A late failure of an earlier connection doesn't concern this one.
        let is_current = self.device.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, device));
        if !is_current || !self.is_up() {
            return;
        }
        if is_answer(error) {
            self.errors.set(self.errors.get() + 1);
            in_a_row.set(in_a_row.get().saturating_add(1));
            if in_a_row.get() < most {
                // Repeated errors are counted, and logged at powers of two.
                let errors = self.errors.get();
                if errors.is_power_of_two() {
                    tracing::warn!("node {}: {}; errors so far: {errors}", self.name, self.unnamed(error));
                }
                return;
            }
        }
        tracing::warn!("node {} is down: {}", self.name, self.unnamed(error));
        self.down_since.set(Some(runtime::now()));
        self.losses.set(self.losses.get() + 1);
        self.device.replace(None);
    }

    fn device(&self) -> Result<Rc<dyn Device>> {
        let device = self.device.borrow().clone();
        device.ok_or_else(|| Error::disconnected(format!("node {} is down", self.name)))
    }

    fn block_of(&self, region: u32, offset: u64) -> BlockIndex {
        BlockIndex(
            (u64::from(region) * self.region_bytes + offset) >> self.part.geometry().block_size.shift(),
        )
    }

    /// Reads bytes of a region.
    ///
    /// # Errors
    /// [`Error::Disconnected`] while the node is down; errors of the device; [`Error::TimedOut`].
    pub async fn read(&self, region: u32, offset: u64, bytes: usize) -> Result<Buffer> {
        let device = self.device()?;
        let begin = runtime::now();
        let read = device.read(self.block_of(region, offset), Buffer::new(bytes));
        let outcome = match runtime::timeout(self.limit, read).await {
            Ok((Ok(()), buffer)) => Ok(buffer),
            Ok((Err(error), _)) => Err(error),
            Err(_) => Err(self.too_late("a read")),
        };
        match &outcome {
            Ok(_) => {
                self.read_errors.set(0);
                self.answered.set(runtime::now());
                self.note_latency(begin.elapsed());
            }
            Err(error) => self.failed(&device, error, &self.read_errors, MAX_ERRORS),
        }
        outcome
    }

    /// Writes bytes to a region.
    ///
    /// # Errors
    /// As [`read`](Self::read). A node without memory drains and isn't down, and so does one that answers
    /// writes with errors.
    pub async fn write(&self, region: u32, offset: u64, payload: Payload) -> Result<()> {
        let device = self.device()?;
        let write = device.write(self.block_of(region, offset), payload, Durability::Visible);
        let outcome = match runtime::timeout(self.limit, write).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.too_late("a write")),
        };
        match &outcome {
            Err(Error::NoSpace(_)) => self.note_full(),
            Err(error) => {
                self.failed(&device, error, &self.write_errors, u32::MAX);
                if self.write_errors.get() >= MAX_WRITE_ERRORS {
                    self.note_full();
                }
            }
            Ok(()) => {
                self.write_errors.set(0);
                self.answered.set(runtime::now());
            }
        }
        outcome
    }

    fn note_latency(&self, time: Duration) {
        let mut latencies = self.latencies.borrow_mut();
        if latencies.count() >= MANY_READS {
            *latencies = Histogram::new();
        }
        latencies.record(time.as_nanos() as u64);
    }

    /// Latency in nanoseconds within which this share of reads ends; 0 before the first read.
    pub fn latency(&self, share: f64) -> u64 {
        let latencies = self.latencies.borrow();
        if latencies.count() == 0 { 0 } else { latencies.quantile(share) }
    }

    /// Time after which a read is also sent to another node: that of 99 % of the reads.
    pub fn hedge_after(&self) -> Duration {
        let latencies = self.latencies.borrow();
        match latencies.count() >= ENOUGH_READS {
            true => Duration::from_nanos(latencies.quantile(0.99)).max(MIN_HEDGE),
            false => Duration::from_millis(2),
        }
    }

    /// Weight of the node for placing a region: its free share divided by its median latency.
    fn weight(&self) -> f64 {
        let free = f64::from(self.free_regions()) / f64::from(self.regions.max(1));
        free / (self.latency(0.5).max(1000) as f64)
    }
}

/// Regions of a node, each with whether it is free.
#[derive(Debug)]
pub struct FreeRegions(Vec<bool>);

impl FreeRegions {
    /// All regions of a node.
    pub fn all(node: &Node) -> Self {
        FreeRegions(vec![true; node.regions as usize])
    }

    /// Takes a region. Returns false if there is no such region, or it was already taken.
    pub fn take(&mut self, region: u32) -> bool {
        self.0.get_mut(region as usize).is_some_and(std::mem::take)
    }
}

/// Chooses a node for a region, other than `others`. `zones` is the number of zones that have no regions yet.
/// Nodes with a free region for each of these are preferred, or regions would be left that no zone can use.
pub fn choose(nodes: &[Node], others: &[u8], zones: u32, random: &mut Random) -> Option<u8> {
    let fits = |number: &u8| {
        let node = &nodes[usize::from(*number)];
        node.state() == State::Up && node.free_regions() > 0 && !others.contains(number)
    };
    let mut fitting: smallvec::SmallVec<[u8; 16]> = (0..nodes.len() as u8).filter(fits).collect();
    let is_needed = |number: &u8| nodes[usize::from(*number)].free_regions() >= zones;
    if fitting.iter().any(is_needed) {
        fitting.retain(|number| is_needed(number));
    }
    if fitting.is_empty() {
        return None;
    }
    let mut any = || fitting[(random.next_u64() % fitting.len() as u64) as usize];
    let (one, other) = (any(), any());
    let weight = |number: u8| nodes[usize::from(number)].weight();
    Some(if weight(other) > weight(one) { other } else { one })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_drains_from_a_refused_write_on_and_for_a_limited_time() {
        let ago = |time| Some(Duration::from_millis(time));
        assert_eq!(State::of(None, false, None), State::Up);
        assert_eq!(State::of(None, false, ago(0)), State::Draining);
        assert_eq!(State::of(None, false, ago(9_999)), State::Draining);
        assert_eq!(State::of(None, false, ago(10_000)), State::Up);
        assert_eq!(State::of(None, true, ago(10_000)), State::Draining);
        let since = runtime::now();
        assert_eq!(State::of(Some(since), true, ago(0)), State::Down(since));
    }
}
