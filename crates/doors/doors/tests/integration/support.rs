//! Helpers of the tests: a server for devices, a client that sends raw messages, and a slow disk.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Data, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use doors::nbd::protocol::{
    GREETING_BYTES, OPTION_REPLY_HEADER_BYTES, Reader, Request, command, option, option_reply, put_option,
};
use doors::nbd::server::{ExportConfig, Server, ServerConfig};
use runtime::net::{self, Address};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tls::Stream;

pub fn ram(bytes: u64, block: u64) -> Arc<dyn DevicePart> {
    let block = BlockSize::new(block).expect("a block size");
    Arc::new(disks::ram::RamPart::new(bytes, block).expect("memory"))
}

pub fn export(name: &str, device: Arc<dyn DevicePart>) -> ExportConfig {
    ExportConfig { name: name.into(), description: format!("test {name}"), device, read_only: false }
}

/// A folder, and the address of a socket in it.
pub fn socket() -> (tempfile::TempDir, Address) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = Address::Unix(folder.path().join("nbd.sock"));
    (folder, address)
}

pub fn server(address: &Address, exports: Vec<ExportConfig>) -> Arc<Server> {
    let config = ServerConfig {
        address: address.clone(),
        access: Default::default(),
        exports,
        max_connections: 16,
        allow_remote: false,
        tls: None,
    };
    Arc::new(Server::new(config).expect("a valid configuration"))
}

/// A client with this time limit.
pub async fn limited_client(address: &Address, timeout: std::time::Duration) -> Result<NbdClient> {
    let config = ClientConfig {
        address: address.clone(),
        export: "disk".into(),
        connections: 1,
        block_size: Some(4096),
        timeout,
        tls: None,
    };
    NbdClient::connect(config).await
}

pub async fn client(address: &Address, export: &str, block_size: Option<u64>) -> NbdClient {
    let config = ClientConfig {
        address: address.clone(),
        export: export.into(),
        connections: 1,
        block_size,
        timeout: USUAL_TIMEOUT,
        tls: None,
    };
    NbdClient::connect(config).await.expect("the server answers")
}

/// Runs a test on `shards` shards.
pub fn run<Fut: Future<Output = ()> + 'static>(shards: usize, test: impl FnOnce() -> Fut + Send) {
    runtime::run(runtime::Config::default().with_shards(shards), test).expect("the runtime runs");
}

/// A client that sends raw messages.
pub struct Raw {
    pub stream: Stream,
    pub structured: bool,
}

/// Reply of a server: an error number, or data.
pub type RawReply = std::result::Result<Vec<u8>, u32>;

impl Raw {
    pub async fn connect(address: &Address) -> Raw {
        let stream = net::Stream::connect(address).await.expect("the server listens").into();
        Raw { stream, structured: false }
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.stream.send(Data::copy_of(bytes).into()).await.0.expect("sent");
    }

    pub async fn receive(&self, count: usize) -> Vec<u8> {
        let (result, buffer) = self.stream.receive_exact(Buffer::new(count)).await;
        result.expect("received");
        buffer.filled().to_vec()
    }

    /// Waits for the end of the stream, ignoring all data before it. Returns whether the server closed it.
    pub async fn is_closed(&self) -> bool {
        loop {
            match self.stream.receive(Buffer::new(4096)).await.0 {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }

    pub async fn greet(&self) {
        assert_eq!(&self.receive(GREETING_BYTES).await[..8], b"NBDMAGIC");
        self.send(&3_u32.to_be_bytes()).await;
    }

    /// Sends an option and returns the types and data of its replies.
    pub async fn option(&self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut message = Vec::new();
        put_option(&mut message, number, data);
        self.send(&message).await;
        let mut replies = Vec::new();
        loop {
            let head = self.receive(OPTION_REPLY_HEADER_BYTES).await;
            let mut reader = Reader(&head[12..]);
            let (kind, length) = (reader.u32().expect("type"), reader.u32().expect("length"));
            replies.push((kind, self.receive(length as usize).await));
            if kind == option_reply::ACK || kind & option_reply::ERROR_BIT != 0 {
                return replies;
            }
        }
    }

    /// Completes a handshake.
    pub async fn open(address: &Address, export: &str, structured: bool) -> Raw {
        let mut raw = Raw::connect(address).await;
        raw.greet().await;
        raw.choose(export, structured).await;
        raw
    }

    /// Makes the TLS handshake after STARTTLS.
    pub async fn start_tls(&mut self, config: &tls::ClientConfig) -> Result<()> {
        assert_eq!(self.option(option::STARTTLS, &[]).await[0].0, option_reply::ACK);
        let Stream::Plain(socket) = self.stream.clone() else { panic!("in TLS already") };
        self.stream = Stream::connect(socket, Some(config), tls::HANDSHAKE_LIMIT).await?;
        Ok(())
    }

    /// Completes a handshake after the greeting.
    pub async fn choose(&mut self, export: &str, structured: bool) {
        let raw = self;
        let name = |name: &str| [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
        if structured {
            raw.structured = true;
            assert_eq!(raw.option(option::STRUCTURED_REPLY, &[]).await[0].0, option_reply::ACK);
            let query = [name(export), 1_u32.to_be_bytes().to_vec(), name("base:allocation")].concat();
            assert_eq!(raw.option(option::SET_META_CONTEXT, &query).await.len(), 2);
        }
        let go = [name(export), vec![0, 0]].concat();
        let replies = raw.option(option::GO, &go).await;
        assert_eq!(replies.last().map(|reply| reply.0), Some(option_reply::ACK), "export {export:?}");
    }

    pub async fn request(&self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) {
        let request = Request { flags, command, cookie: 0xABCD, offset, length };
        self.send(&[&request.encode(), payload].concat()).await;
    }

    /// Receives the reply to the only request in flight.
    pub async fn reply(&self, command: u16, length: u32) -> RawReply {
        if !self.structured {
            let head = self.receive(16).await;
            assert_eq!(
                (&head[..4], &head[8..]),
                (&[0x67, 0x44, 0x66, 0x98][..], &0xABCD_u64.to_be_bytes()[..])
            );
            return match Reader(&head[4..]).u32().expect("error") {
                0 if command == command::READ => Ok(self.receive(length as usize).await),
                0 => Ok(Vec::new()),
                error => Err(error),
            };
        }
        let head = self.receive(20).await;
        let mut reader = Reader(&head);
        assert_eq!(reader.u32(), Some(0x668e_33ef));
        assert_eq!(reader.u16(), Some(1), "done");
        let kind = reader.u16().expect("type");
        assert_eq!(reader.u64(), Some(0xABCD));
        let payload = self.receive(reader.u32().expect("length") as usize).await;
        match kind {
            0 => Ok(Vec::new()),
            1 => Ok(payload[8..].to_vec()),
            5 => Ok(payload[4..].to_vec()),
            0x8001 => Err(Reader(&payload).u32().expect("error")),
            other => panic!("chunk type {other}"),
        }
    }

    pub async fn call(&self, command: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> RawReply {
        self.request(command, flags, offset, length, payload).await;
        self.reply(command, length).await
    }
}

/// Controls and counters of a [`SlowDisk`].
#[derive(Default)]
pub struct Controls {
    /// Reads and writes of these blocks fail.
    pub broken: Mutex<BTreeSet<u64>>,
    /// Requests wait until this is false.
    pub paused: AtomicBool,
    /// Time that each request takes, one after the other, and the end of the last one.
    pub turns: Mutex<Option<(std::time::Duration, runtime::Instant)>>,
    pub begun: AtomicU64,
    pub ended: AtomicU64,
    pub flushes: AtomicU64,
    pub durable_writes: AtomicU64,
    /// Handles that are open.
    pub handles: AtomicU64,
}

/// Counts a handle while it exists.
struct Counted(Arc<Controls>);

impl Counted {
    fn new(controls: Arc<Controls>) -> Counted {
        controls.handles.fetch_add(1, Ordering::SeqCst);
        Counted(controls)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.handles.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A disk that takes several turns for each request, so that requests interleave in many ways.
pub struct SlowDisk {
    geometry: DeviceGeometry,
    bytes: Arc<Mutex<Vec<u8>>>,
    pub controls: Arc<Controls>,
    /// Set for handles only.
    _counted: Option<Counted>,
}

impl SlowDisk {
    pub fn new(blocks: u64, block: u64) -> Arc<SlowDisk> {
        let geometry = DeviceGeometry {
            block_size: BlockSize::new(block).expect("a block size"),
            blocks: BlockCount(blocks),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        let bytes = Arc::new(Mutex::new(vec![0; (blocks * block) as usize]));
        Arc::new(SlowDisk { geometry, bytes, controls: Arc::default(), _counted: None })
    }
}

impl Part for SlowDisk {
    fn kind(&self) -> &'static str {
        "slow"
    }
}

impl DevicePart for SlowDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let copy = SlowDisk {
            geometry: self.geometry.clone(),
            bytes: self.bytes.clone(),
            controls: self.controls.clone(),
            _counted: Some(Counted::new(self.controls.clone())),
        };
        Call::ready(Ok(Rc::new(copy) as Rc<dyn Device>))
    }
}

impl SlowDisk {
    async fn wait(&self, range: BlockRange) -> Result<()> {
        self.controls.begun.fetch_add(1, Ordering::SeqCst);
        for _ in 0..1 + runtime::random_u64() % 4 {
            runtime::yield_now().await;
        }
        while self.controls.paused.load(Ordering::SeqCst) {
            runtime::sleep(std::time::Duration::from_micros(100)).await;
        }
        let turn = self.controls.turns.lock().expect("not poisoned").as_mut().map(|(time, end)| {
            *end = runtime::now().max(*end) + *time;
            *end
        });
        if let Some(end) = turn {
            runtime::sleep_until(end).await;
        }
        self.controls.ended.fetch_add(1, Ordering::SeqCst);
        let broken = self.controls.broken.lock().expect("not poisoned");
        match broken.iter().any(|block| range.contains(BlockIndex(*block))) {
            true => Err(Error::io(format!("{range} of a broken disk"))),
            false => Ok(()),
        }
    }

    fn place(&self, range: BlockRange) -> std::ops::Range<usize> {
        let size = self.geometry.block_size;
        size.offset_of(range.start).0 as usize..size.offset_of(range.end()).0 as usize
    }
}

impl Device for SlowDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let range = match self.geometry.range(at, buffer.len()) {
                Ok(range) => range,
                Err(error) => return (Err(error), buffer),
            };
            let outcome = self.wait(range).await;
            if outcome.is_ok() {
                buffer.append(&self.bytes.lock().expect("not poisoned")[self.place(range)]);
            }
            (outcome, buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            let range = self.geometry.writable_range(at, payload.len())?;
            self.wait(range).await?;
            if durability == Durability::Durable {
                self.controls.durable_writes.fetch_add(1, Ordering::SeqCst);
            }
            payload.copy_to(&mut self.bytes.lock().expect("not poisoned")[self.place(range)])
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.wait(BlockRange::new(0, 0)).await?;
            self.controls.flushes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(&self, range: BlockRange, _: ZeroMode, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.geometry.check(range)?;
            self.wait(range).await?;
            if durability == Durability::Durable {
                self.controls.durable_writes.fetch_add(1, Ordering::SeqCst);
            }
            self.bytes.lock().expect("not poisoned")[self.place(range)].fill(0);
            Ok(())
        })
    }
}
