//! A vhost-user-blk client on the runtime: it replaces QEMU and the guest's driver.
//!
//! A [`FrontEnd`] is the connection. Its queues have memory of their own in one memfd, and one shard drives
//! each [`Queue`], with the configured number of requests in flight. It works with any vhost-user-blk server,
//! also for comparisons. [`FrontEnd::device`] makes it a device. Tests may write to the rings themselves.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use doors::vhost_user::config::feature;
use doors::vhost_user::protocol::{
    self, HEADER_BYTES, InflightDescription, RegionDescription, flag, message, number,
};
use doors::vhost_user::request::kind;
use runtime::PerShard;
use runtime::event::{EventSignal, EventWait, create_event};
use runtime::net::{Address, Stream};
use runtime::shared_memory::SharedMemory;
use runtime::sync::{Notify, StopSource};
use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Address of the memory's first byte in the guest: not 0, so that addresses have to be translated.
pub const GUEST: u64 = 1 << 32;
/// Address of the memory's first byte in the front-end.
pub const USER: u64 = 0x7000_0000_0000;
/// Bytes for the rings of a queue.
const RING_BYTES: usize = 64 << 10;
/// Bytes of a request's header, status, range and indirect table.
const SLOT_HEAD: usize = 4096;
const STATUS_AT: usize = 16;
const RANGE_AT: usize = 32;
const INDIRECT_AT: usize = 64;

/// Settings of a front-end.
#[derive(Clone)]
pub struct Settings {
    pub queues: usize,
    /// Requests in flight per queue; a queue has four descriptors for each.
    pub depth: usize,
    /// Largest request, in bytes.
    pub request_bytes: usize,
    /// Features that are accepted if they are offered.
    pub features: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { queues: 1, depth: 16, request_bytes: 64 << 10, features: u64::MAX }
    }
}

/// Memory and descriptors of all queues; shared by all shards.
pub struct Shared {
    pub memory: SharedMemory,
    pub memory_descriptor: OwnedFd,
    pub settings: Settings,
    pub features: u64,
    pub kicks: Vec<OwnedFd>,
    pub calls: Vec<OwnedFd>,
}

/// A connection to a server.
pub struct FrontEnd {
    pub stream: Stream,
    pub shared: Arc<Shared>,
    pub config: Vec<u8>,
    pub inflight: Option<(InflightDescription, OwnedFd)>,
}

/// Offsets of a queue's parts, in bytes from the start of memory.
#[derive(Clone, Copy)]
pub struct Layout {
    pub descriptors: usize,
    pub available: usize,
    pub used: usize,
    pub slots: usize,
    pub size: usize,
    slot_bytes: usize,
}

impl Settings {
    fn queue_bytes(&self) -> usize {
        RING_BYTES + self.depth * (SLOT_HEAD + self.request_bytes)
    }

    pub fn layout(&self, queue: usize) -> Layout {
        let base = queue * self.queue_bytes();
        Layout {
            descriptors: base,
            available: base + (32 << 10),
            used: base + (48 << 10),
            slots: base + RING_BYTES,
            size: (4 * self.depth).next_power_of_two(),
            slot_bytes: SLOT_HEAD + self.request_bytes,
        }
    }
}

impl Shared {
    pub fn load(&self, at: usize) -> u16 {
        self.memory.u16(at).load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, value: u16) {
        self.memory.u16(at).store(value, Ordering::Release);
    }

    /// Writes a descriptor of a table.
    pub fn describe(&self, table: usize, index: usize, address: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + index * 16, &bytes);
    }

    /// Makes a chain available, at this index of the ring, without a kick.
    pub fn offer(&self, layout: &Layout, index: u16, head: u16) {
        self.store(layout.available + 4 + 2 * (usize::from(index) % layout.size), head);
        self.store(layout.available + 2, index.wrapping_add(1));
    }

    pub fn kick(&self, queue: usize) {
        let kick = self.kicks[queue].try_clone().expect("a descriptor");
        EventSignal::new(kick).and_then(|kick| kick.signal()).expect("an eventfd");
    }
}

impl FrontEnd {
    /// Connects and starts the queues.
    pub async fn connect(address: &Address, settings: Settings) -> Result<FrontEnd> {
        let mut front_end = FrontEnd::negotiate(address, settings).await?;
        front_end.ask_for_inflight().await?;
        for queue in 0..front_end.shared.settings.queues {
            front_end.start_queue(queue, 0).await?;
        }
        Ok(front_end)
    }

    /// Connects and passes the memory; starts no queue.
    pub async fn negotiate(address: &Address, settings: Settings) -> Result<FrontEnd> {
        let length = (settings.queue_bytes() * settings.queues).next_multiple_of(4096) as u64;
        let (memory, memory_descriptor) = SharedMemory::create("guest", length)?;
        let events = || (0..settings.queues).map(|_| create_event()).collect::<Result<Vec<_>>>();
        let (kicks, calls) = (events()?, events()?);
        let shared = Shared { memory, memory_descriptor, features: 0, kicks, calls, settings };
        FrontEnd::resume(address, shared).await
    }

    /// Connects with the memory of an earlier connection.
    pub async fn resume(address: &Address, mut shared: Shared) -> Result<FrontEnd> {
        let stream = Stream::connect(address).await?;
        let number_of = |reply: Vec<u8>| u64::from_le_bytes(reply[..8].try_into().expect("eight bytes"));
        let offered = number_of(call(&stream, number::GET_FEATURES, &[], &[]).await?);
        shared.features = offered & (shared.settings.features | feature::PROTOCOL_FEATURES);
        let protocol = number_of(call(&stream, number::GET_PROTOCOL_FEATURES, &[], &[]).await?);
        let wanted = protocol::feature::MQ
            | protocol::feature::REPLY_ACK
            | protocol::feature::BACKEND_REQ
            | protocol::feature::CONFIG
            | protocol::feature::INFLIGHT_SHMFD;
        set(&stream, number::SET_PROTOCOL_FEATURES, &(protocol & wanted).to_le_bytes(), &[]).await?;
        set(&stream, number::SET_OWNER, &[], &[]).await?;
        set(&stream, number::SET_FEATURES, &shared.features.to_le_bytes(), &[]).await?;
        let config = config(&stream).await?;
        let front_end = FrontEnd { stream, shared: Arc::new(shared), config, inflight: None };
        let length = front_end.shared.memory.len() as u64;
        let region = RegionDescription { guest_address: GUEST, length, user_address: USER, offset: 0 };
        front_end.set_memory(&[region], &[front_end.shared.memory_descriptor.as_fd()]).await?;
        Ok(front_end)
    }

    pub async fn set_memory(
        &self,
        regions: &[RegionDescription],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let mut payload = (regions.len() as u64).to_le_bytes().to_vec();
        for region in regions {
            for field in [region.guest_address, region.length, region.user_address, region.offset] {
                payload.extend(field.to_le_bytes());
            }
        }
        set(&self.stream, number::SET_MEM_TABLE, &payload, descriptors).await
    }

    /// Asks the server for memory for the requests in flight, and passes it back for use.
    pub async fn ask_for_inflight(&mut self) -> Result<()> {
        let settings = &self.shared.settings;
        let (queues, queue_size) = (settings.queues as u16, settings.layout(0).size as u16);
        let asked = InflightDescription { length: 0, offset: 0, queues, queue_size };
        let bytes = message(number::GET_INFLIGHT_FD, flag::VERSION, &asked.to_bytes());
        self.stream.send_with_descriptors(&bytes, &[])?;
        let (reply, mut descriptors) = receive(&self.stream, number::GET_INFLIGHT_FD).await?;
        let length = u64::from_le_bytes(reply[..8].try_into().expect("eight bytes"));
        let descriptor = descriptors.pop().ok_or_else(|| Error::protocol("no descriptor"))?;
        self.set_inflight(InflightDescription { length, ..asked }, descriptor).await
    }

    pub async fn set_inflight(
        &mut self,
        description: InflightDescription,
        descriptor: OwnedFd,
    ) -> Result<()> {
        let bytes = description.to_bytes();
        set(&self.stream, number::SET_INFLIGHT_FD, &bytes, &[descriptor.as_fd()]).await?;
        self.inflight = Some((description, descriptor));
        Ok(())
    }

    pub async fn start_queue(&self, queue: usize, base: u16) -> Result<()> {
        let layout = self.shared.settings.layout(queue);
        let index = queue as u32;
        let pair = |value: u32| [index.to_le_bytes(), value.to_le_bytes()].concat();
        set(&self.stream, number::SET_VRING_NUM, &pair(layout.size as u32), &[]).await?;
        set(&self.stream, number::SET_VRING_BASE, &pair(u32::from(base)), &[]).await?;
        let parts = [layout.descriptors, layout.used, layout.available];
        let addresses = parts.iter().flat_map(|part| (USER + *part as u64).to_le_bytes());
        let payload: Vec<u8> = pair(0).into_iter().chain(addresses).chain([0; 8]).collect();
        set(&self.stream, number::SET_VRING_ADDR, &payload, &[]).await?;
        let with_descriptor = u64::from(index).to_le_bytes();
        set(&self.stream, number::SET_VRING_CALL, &with_descriptor, &[self.shared.calls[queue].as_fd()])
            .await?;
        set(&self.stream, number::SET_VRING_KICK, &with_descriptor, &[self.shared.kicks[queue].as_fd()])
            .await?;
        set(&self.stream, number::SET_VRING_ENABLE, &pair(1), &[]).await
    }

    /// Stops a queue and returns its next index of the available ring.
    pub async fn stop_queue(&self, queue: usize) -> Result<u16> {
        let payload = [(queue as u32).to_le_bytes(), [0; 4]].concat();
        let reply = call(&self.stream, number::GET_VRING_BASE, &payload, &[]).await?;
        Ok(u16::from_le_bytes([reply[4], reply[5]]))
    }

    /// Reads the configuration space again.
    pub async fn read_config(&mut self) -> Result<()> {
        self.config = config(&self.stream).await?;
        Ok(())
    }

    /// Passes one end of a socket for the server's own messages; returns the other.
    pub async fn open_channel(&self) -> Result<std::os::unix::net::UnixStream> {
        let pair = std::os::unix::net::UnixStream::pair();
        let (ours, theirs) = pair.map_err(|error| Error::from_io(&error, "making a pair of sockets"))?;
        set(&self.stream, number::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]).await?;
        Ok(ours)
    }

    pub fn config_u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.config[at..at + 4].try_into().expect("four bytes"))
    }

    /// Waits until the server closes the connection.
    pub async fn is_closed(&self) -> bool {
        matches!(self.stream.receive(Buffer::new(64)).await.0, Ok(0) | Err(_))
    }

    /// The queues as a device: shard N uses queue N modulo their number, so there are at least as many queues
    /// as shards.
    pub async fn device(&self) -> Result<Arc<dyn DevicePart>> {
        let capacity = u64::from(self.config_u32(0)) | u64::from(self.config_u32(4)) << 32;
        let block_size = BlockSize::new(u64::from(self.config_u32(20)))?;
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(capacity * 512 / block_size.bytes()),
            atomic_write: 512,
            volatile_cache: true,
            read_only: self.shared.features & feature::RO != 0,
        };
        let queues = PerShard::new();
        let shared = self.shared.clone();
        queues
            .open(move || {
                let shared = shared.clone();
                async move { Queue::new(shared.clone(), runtime::current_shard().0 % shared.settings.queues) }
            })
            .await?;
        Ok(Arc::new(DiskPart { geometry, queues }))
    }
}

async fn config(stream: &Stream) -> Result<Vec<u8>> {
    let asked: Vec<u8> = [0, 60_u32, 0].iter().flat_map(|word| word.to_le_bytes()).chain([0; 60]).collect();
    Ok(call(stream, number::GET_CONFIG, &asked, &[]).await?[12..].to_vec())
}

/// Sends a message and returns the payload of its reply.
pub async fn call(
    stream: &Stream,
    number: u32,
    payload: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<Vec<u8>> {
    stream.send_with_descriptors(&message(number, flag::VERSION, payload), descriptors)?;
    receive(stream, number).await.map(|received| received.0)
}

/// Sends a message that has no reply of its own, and requests one.
pub async fn set(stream: &Stream, number: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let flags = flag::VERSION | flag::NEED_REPLY;
    stream.send_with_descriptors(&message(number, flags, payload), descriptors)?;
    if number == number::SET_PROTOCOL_FEATURES || number == number::SET_OWNER {
        // Servers differ about a reply to these two, which precede the feature; a message with a reply of its
        // own follows.
        stream.send_with_descriptors(&message(number::GET_QUEUE_NUM, flag::VERSION, &[]), &[])?;
        loop {
            let (got, ..) = receive_any(stream).await?;
            if got == number::GET_QUEUE_NUM {
                return Ok(());
            }
        }
    }
    let (reply, _) = receive(stream, number).await?;
    match reply.first() {
        Some(0) => Ok(()),
        code => Err(Error::protocol(format!("message {number}: answered with {code:?}"))),
    }
}

async fn receive(stream: &Stream, number: u32) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (got, payload, descriptors) = receive_any(stream).await?;
    match got == number {
        true => Ok((payload, descriptors)),
        false => Err(Error::protocol(format!("reply to {got}: expected one to {number}"))),
    }
}

async fn receive_any(stream: &Stream) -> Result<(u32, Vec<u8>, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    let head = receive_exact(stream, HEADER_BYTES, &mut descriptors).await?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(4) & 7, flag::VERSION | flag::REPLY);
    let payload = receive_exact(stream, word(8) as usize, &mut descriptors).await?;
    Ok((word(0), payload, descriptors))
}

async fn receive_exact(stream: &Stream, count: usize, descriptors: &mut Vec<OwnedFd>) -> Result<Vec<u8>> {
    let mut buffer = Buffer::new(count);
    while buffer.missing() > 0 {
        let missing = buffer.missing();
        if stream.receive_with_descriptors(&mut buffer, missing, descriptors).await? == 0 {
            return Err(Error::disconnected("the server closed the connection"));
        }
    }
    Ok(buffer.filled().to_vec())
}

/// Data of a request.
pub enum Transfer<'b> {
    None,
    /// Data to the device.
    Out(&'b [u8]),
    /// Data from the device, into the unfilled part of the buffer.
    In(&'b mut Buffer),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    InFlight,
    /// In flight; its caller was dropped.
    Abandoned,
    Done,
}

/// Frees the slot of a request, or leaves that to the request's end.
struct Waiting<'q>(&'q QueueState, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(queue, slot) = *self;
        let state = queue.states.borrow()[slot];
        match state {
            SlotState::Done => queue.free_slot(slot),
            _ => queue.states.borrow_mut()[slot] = SlotState::Abandoned,
        }
    }
}

struct QueueState {
    shared: Arc<Shared>,
    layout: Layout,
    event_index: bool,
    free: RefCell<Vec<usize>>,
    states: RefCell<Vec<SlotState>>,
    next_available: Cell<u16>,
    next_used: Cell<u16>,
    ended: Notify,
    kick: EventSignal,
}

/// Driver of a queue, on one shard.
pub struct Queue {
    state: Rc<QueueState>,
    stop: StopSource,
}

impl Queue {
    pub fn new(shared: Arc<Shared>, queue: usize) -> Result<Queue> {
        let copy =
            |descriptor: &OwnedFd| descriptor.try_clone().map_err(|error| Error::from_io(&error, "copying"));
        let call = EventWait::new(copy(&shared.calls[queue])?)?;
        let state = Rc::new(QueueState {
            layout: shared.settings.layout(queue),
            event_index: shared.features & feature::EVENT_IDX != 0,
            free: RefCell::new((0..shared.settings.depth).collect()),
            states: RefCell::new(vec![SlotState::Free; shared.settings.depth]),
            next_available: Cell::new(shared.load(shared.settings.layout(queue).available + 2)),
            next_used: Cell::new(shared.load(shared.settings.layout(queue).used + 2)),
            ended: Notify::new(),
            kick: EventSignal::new(copy(&shared.kicks[queue])?)?,
            shared,
        });
        let (reaper, stop) = (state.clone(), StopSource::new());
        let token = stop.token();
        runtime::spawn(async move {
            let mut stopped = std::pin::pin!(token.stopped());
            loop {
                reaper.reap();
                let mut waiting = std::pin::pin!(call.wait());
                let woken = std::future::poll_fn(|context| match stopped.as_mut().poll(context) {
                    std::task::Poll::Ready(()) => std::task::Poll::Ready(false),
                    std::task::Poll::Pending => waiting.as_mut().poll(context).map(|result| result.is_ok()),
                });
                if !woken.await {
                    return;
                }
            }
        })
        .detach();
        Ok(Queue { state, stop })
    }

    /// Sends a request; `range` is that of a discard or a write of zeroes. Returns its status.
    pub async fn request(
        &self,
        kind: u32,
        sector: u64,
        range: Option<(u32, u32)>,
        transfer: Transfer<'_>,
    ) -> u8 {
        let state = &*self.state;
        let slot = loop {
            let free = state.free.borrow_mut().pop();
            match free {
                Some(slot) => break slot,
                None => state.ended.notified().await,
            }
        };
        state.submit(slot, kind, sector, range, &transfer);
        let _waiting = Waiting(state, slot);
        while state.states.borrow()[slot] != SlotState::Done {
            state.ended.notified().await;
        }
        let (memory, at) = (&state.shared.memory, state.slot(slot));
        let status = memory.u8(at + STATUS_AT).load(Ordering::Acquire);
        if let (Transfer::In(buffer), 0) = (transfer, status) {
            memory.append_to(at + SLOT_HEAD, buffer.missing(), buffer);
        }
        status
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

impl QueueState {
    fn free_slot(&self, slot: usize) {
        self.states.borrow_mut()[slot] = SlotState::Free;
        self.free.borrow_mut().push(slot);
        self.ended.notify_all();
    }

    fn slot(&self, slot: usize) -> usize {
        self.layout.slots + slot * self.layout.slot_bytes
    }

    fn submit(
        &self,
        slot: usize,
        kind: u32,
        sector: u64,
        range: Option<(u32, u32)>,
        transfer: &Transfer<'_>,
    ) {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        const INDIRECT: u16 = 4;
        let (shared, at) = (&*self.shared, self.slot(slot));
        let guest = |at: usize| GUEST + at as u64;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        let header_sector = if range.is_some() { 0 } else { sector };
        header[8..].copy_from_slice(&header_sector.to_le_bytes());
        shared.memory.write(at, &header);
        shared.memory.write(at + STATUS_AT, &[0xFF]);
        let data = match transfer {
            Transfer::None => (0, 0),
            Transfer::Out(bytes) => {
                shared.memory.write(at + SLOT_HEAD, bytes);
                (bytes.len() as u32, 0)
            }
            Transfer::In(buffer) => (buffer.missing() as u32, WRITE),
        };
        let (mut parts, mut count) = ([(0, 0, 0); 4], 0);
        let mut add = |part| {
            parts[count] = part;
            count += 1;
        };
        add((guest(at), 16, 0));
        if let Some((sectors, flags)) = range {
            let low = u128::from(sector) | u128::from(sectors) << 64 | u128::from(flags) << 96;
            shared.memory.write(at + RANGE_AT, &low.to_le_bytes());
            add((guest(at + RANGE_AT), 16, 0));
        }
        if data.0 > 1024 {
            // Data in two buffers.
            add((guest(at + SLOT_HEAD), 1000, data.1));
            add((guest(at + SLOT_HEAD) + 1000, data.0 - 1000, data.1));
        } else if data.0 > 0 {
            add((guest(at + SLOT_HEAD), data.0, data.1));
        }
        add((guest(at + STATUS_AT), 1, WRITE));
        // Odd slots use an indirect table.
        let indirect = slot % 2 == 1 && self.shared.features & feature::INDIRECT_DESC != 0;
        let first = slot * 4;
        let (table, begin) = if indirect { (at + INDIRECT_AT, 0) } else { (self.layout.descriptors, first) };
        for (number, (address, length, flags)) in parts[..count].iter().copied().enumerate() {
            let more = if number + 1 < count { NEXT } else { 0 };
            shared.describe(
                table,
                begin + number,
                address,
                length,
                flags | more,
                (begin + number + 1) as u16,
            );
        }
        if indirect {
            let length = (count * 16) as u32;
            shared.describe(self.layout.descriptors, first, guest(table), length, INDIRECT, 0);
        }
        self.states.borrow_mut()[slot] = SlotState::InFlight;
        let index = self.next_available.get();
        shared.offer(&self.layout, index, first as u16);
        self.next_available.set(index.wrapping_add(1));
        fence(Ordering::SeqCst);
        let wants_kick = match self.event_index {
            true => shared.load(self.layout.used + 4 + 8 * self.layout.size) == index,
            false => shared.load(self.layout.used) & 1 == 0,
        };
        if wants_kick {
            self.kick.signal().expect("an eventfd");
        }
    }

    /// Takes completed requests from the used ring.
    fn reap(&self) {
        let shared = &*self.shared;
        loop {
            while shared.load(self.layout.used + 2) != self.next_used.get() {
                let slot = usize::from(self.next_used.get()) % self.layout.size;
                let mut head = [0; 4];
                shared.memory.read(self.layout.used + 4 + 8 * slot, &mut head);
                let request = u32::from_le_bytes(head) as usize / 4;
                let state = self.states.borrow()[request];
                match state {
                    SlotState::InFlight => self.states.borrow_mut()[request] = SlotState::Done,
                    SlotState::Abandoned => self.free_slot(request),
                    SlotState::Free | SlotState::Done => panic!("request {request} was completed twice"),
                }
                self.next_used.set(self.next_used.get().wrapping_add(1));
            }
            self.ended.notify_all();
            if self.event_index {
                shared.store(self.layout.available + 4 + 2 * self.layout.size, self.next_used.get());
            }
            fence(Ordering::SeqCst);
            if shared.load(self.layout.used + 2) == self.next_used.get() {
                return;
            }
        }
    }
}

struct DiskPart {
    geometry: DeviceGeometry,
    queues: PerShard<Queue>,
}

impl Part for DiskPart {
    fn kind(&self) -> &'static str {
        "vhost-user-front-end"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async {
            self.queues.close(async |_| ()).await;
            Ok(())
        })
    }
}

impl DevicePart for DiskPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let queue = self.queues.here().ok_or_else(|| Error::cancelled("closed"));
        Call::ready(
            queue.map(|queue| Rc::new(Disk { geometry: self.geometry.clone(), queue }) as Rc<dyn Device>),
        )
    }
}

#[derive(Clone)]
struct Disk {
    geometry: DeviceGeometry,
    queue: Rc<Queue>,
}

fn result_of(status: u8) -> Result<()> {
    match status {
        0 => Ok(()),
        2 => Err(Error::unsupported("status 2 of the device")),
        other => Err(Error::io(format!("status {other} of the device"))),
    }
}

impl Disk {
    fn sector(&self, block: BlockIndex) -> u64 {
        self.geometry.block_size.offset_of(block).0 / 512
    }

    async fn flush_if(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Visible => Ok(()),
            Durability::Durable => result_of(self.queue.request(kind::FLUSH, 0, None, Transfer::None).await),
        }
    }
}

impl Device for Disk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let whole = buffer.len();
            buffer.clear();
            if let Err(error) = self.geometry.range(at, whole) {
                return (Err(error), buffer);
            }
            let most = self.queue.state.shared.settings.request_bytes;
            while buffer.missing() > 0 {
                let done = buffer.filled().len();
                let mut piece = Buffer::new(most.min(buffer.missing()));
                let sector = self.sector(at) + done as u64 / 512;
                let status = self.queue.request(kind::IN, sector, None, Transfer::In(&mut piece)).await;
                if let Err(error) = result_of(status) {
                    buffer.clear();
                    return (Err(error), buffer);
                }
                buffer.append(piece.filled());
            }
            (Ok(()), buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let disk = self.clone();
        // Carried, because it consists of several requests: dropping the call must not stop it halfway.
        runtime::carry(async move {
            disk.geometry.writable_range(at, payload.len())?;
            let most = disk.queue.state.shared.settings.request_bytes;
            for (number, piece) in payload.to_data().chunks(most).enumerate() {
                let sector = disk.sector(at) + (number * most / 512) as u64;
                result_of(disk.queue.request(kind::OUT, sector, None, Transfer::Out(piece)).await)?;
            }
            disk.flush_if(durability).await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(self.flush_if(Durability::Durable))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        // A discard of parts of the server's blocks may leave them unchanged.
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let disk = self.clone();
        runtime::carry(async move {
            disk.geometry.check_writable()?;
            disk.geometry.check(range)?;
            let flags = u32::from(mode == ZeroMode::MayDeallocate);
            let sectors = (disk.geometry.block_size.bytes_of(range.count) / 512) as u32;
            let (sector, range) = (disk.sector(range.start), Some((sectors, flags)));
            result_of(disk.queue.request(kind::WRITE_ZEROES, sector, range, Transfer::None).await)?;
            disk.flush_if(durability).await
        })
    }
}
