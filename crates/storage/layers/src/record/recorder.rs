//! The recorder that all `record` layers of one timeline share.
//!
//! One lock numbers the events and appends them to a buffer, so the order in the file is the order of the
//! events. A task on the shard that opened the file writes the buffer to it. Layers wait for
//! [`capacity`](Recorder::capacity) before they submit an operation, so the buffer is bounded by its limit
//! plus the operations in flight. If the file can't be written, all later calls fail: a timeline with a gap
//! can't be replayed.

use super::format::{Completion, DeviceEntry, FILE_HEADER, FileHeader, RecordHeader, RecordType, crc};
use super::timeline::Timeline;
use block::{Buffer, Durability, Error, Result, Status};
use runtime::file::{File, OpenOptions};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// Default limit of unwritten events in bytes, above which layers wait.
pub const DEFAULT_LIMIT: usize = 64 << 20;
/// Largest write to the file, in bytes.
const CHUNK: usize = 1 << 20;

/// Recorders of this process that write to a file, by its path.
static RECORDERS: Mutex<BTreeMap<PathBuf, Weak<Recorder>>> = Mutex::new(BTreeMap::new());

/// Orders events and writes them to a timeline.
pub struct Recorder {
    identity: [u8; 16],
    header: FileHeader,
    /// Path of the file; `None` keeps the timeline in memory.
    path: Option<PathBuf>,
    limit: usize,
    began: runtime::Instant,
    tail: Mutex<Tail>,
}

#[derive(Default)]
struct Tail {
    /// Encoded events that the writer hasn't taken; all events of a timeline in memory.
    bytes: Vec<u8>,
    /// Bytes that the writer has taken and not yet written.
    writing: usize,
    written: u64,
    sequence: u64,
    devices: u16,
    /// Number of layers that have joined and not left.
    users: usize,
    /// Number of waits for capacity.
    waits: u64,
    state: State,
    error: Option<Error>,
    writer: Option<Waker>,
    waiting: Vec<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Recording,
    Ending,
    Ended,
}

impl Recorder {
    fn new(path: Option<PathBuf>, limit: usize) -> Arc<Self> {
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&runtime::random_u64().to_le_bytes());
        identity[8..].copy_from_slice(&runtime::random_u64().to_le_bytes());
        let began = u64::try_from(runtime::wall_clock().as_nanos()).unwrap_or(u64::MAX);
        let header = FileHeader { identity, began };
        let tail = Tail { bytes: header.encode().to_vec(), ..Tail::default() };
        Arc::new(Recorder { identity, header, path, limit, began: runtime::now(), tail: Mutex::new(tail) })
    }

    /// Creates a recorder in memory, for tests: [`timeline`](Self::timeline) returns the events so far. Its
    /// memory isn't bounded.
    pub fn in_memory() -> Arc<Self> {
        Recorder::new(None, usize::MAX)
    }

    /// Returns this process's recorder of this file; the first call creates it, on its shard.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if the file exists and `overwrite` is false, or if it isn't a timeline.
    pub async fn open(path: &Path, overwrite: bool, limit: usize) -> Result<Arc<Self>> {
        let path = canonical(path)?;
        let (recorder, first) = {
            let mut recorders = RECORDERS.lock().unwrap_or_else(PoisonError::into_inner);
            recorders.retain(|_, recorder| recorder.strong_count() > 0);
            let known = recorders.get(&path).and_then(Weak::upgrade);
            match known.filter(|recorder| recorder.lock().state == State::Recording) {
                Some(recorder) => (recorder, false),
                None => {
                    let recorder = Recorder::new(Some(path.clone()), limit);
                    recorders.insert(path.clone(), Arc::downgrade(&recorder));
                    (recorder, true)
                }
            }
        };
        if first {
            match create(&path, overwrite).await {
                Ok(file) => runtime::spawn(write_all(recorder.clone(), file)).detach(),
                Err(error) => {
                    recorder.fail(&error);
                    return Err(error);
                }
            }
        }
        Ok(recorder)
    }

    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a device to the timeline. Returns its number.
    pub fn join(&self, entry: &DeviceEntry) -> Result<u16> {
        let mut body = Vec::new();
        entry.encode(&mut body);
        let mut tail = self.lock();
        let number = tail.devices;
        if number == u16::MAX {
            return Err(Error::overflow("timeline: too many devices; expected at most 65535"));
        }
        self.push(&mut tail, RecordType::Device, number, &body)?;
        tail.devices += 1;
        tail.users += 1;
        Ok(number)
    }

    /// Records an event. Returns its number.
    pub(super) fn record(&self, kind: RecordType, device: u16, body: &[u8]) -> Result<u64> {
        let body_crc = crc(body);
        let mut tail = self.lock();
        self.push_checked(&mut tail, kind, device, body, body_crc)
    }

    /// Records the completion of an operation. Returns its result.
    pub(super) fn complete<T>(
        &self,
        device: u16,
        submitted: u64,
        result: Result<T>,
        value: impl Fn(&T) -> u64,
    ) -> Result<T> {
        let (errno, value) = match &result {
            Ok(given) => (0, value(given)),
            Err(error) => (error.errno().unsigned_abs(), 0),
        };
        let mut body = Vec::with_capacity(24);
        Completion { submitted, errno, value }.encode(&mut body);
        self.record(RecordType::Complete, device, &body)?;
        result
    }

    fn push(&self, tail: &mut Tail, kind: RecordType, device: u16, body: &[u8]) -> Result<u64> {
        self.push_checked(tail, kind, device, body, crc(body))
    }

    fn push_checked(
        &self,
        tail: &mut Tail,
        kind: RecordType,
        device: u16,
        body: &[u8],
        body_crc: u32,
    ) -> Result<u64> {
        if let Some(error) = &tail.error {
            return Err(error.clone());
        }
        if tail.state != State::Recording {
            return Err(Error::closed("timeline: it is closed; nothing more can be recorded"));
        }
        let sequence = tail.sequence;
        let time = runtime::now().nanoseconds().saturating_sub(self.began.nanoseconds());
        let header = RecordHeader { kind, device, body: body.len() as u32, sequence, time, body_crc };
        tail.bytes.extend_from_slice(&header.encode(&self.identity));
        tail.bytes.extend_from_slice(body);
        tail.sequence += 1;
        if let Some(writer) = tail.writer.take() {
            writer.wake();
        }
        Ok(sequence)
    }

    /// Whether the buffer is below its limit.
    pub(super) fn has_capacity(&self) -> bool {
        let tail = self.lock();
        tail.error.is_some() || tail.bytes.len() + tail.writing < self.limit
    }

    /// Waits until the buffer is below its limit.
    pub(super) async fn capacity(&self) {
        let mut counted = false;
        poll_fn(|context| {
            let mut tail = self.lock();
            if tail.error.is_some() || tail.bytes.len() + tail.writing < self.limit {
                return Poll::Ready(());
            }
            tail.waits += u64::from(!std::mem::replace(&mut counted, true));
            wait(&mut tail.waiting, context)
        })
        .await;
    }

    /// Ends a layer's membership. With the last one the timeline ends: it is written and synced when this
    /// returns.
    pub(super) async fn leave(&self) -> Result<()> {
        {
            let mut tail = self.lock();
            tail.users = tail.users.saturating_sub(1);
            if tail.users > 0 || tail.state != State::Recording {
                return tail.error.clone().map_or(Ok(()), Err);
            }
            self.end(&mut tail)?;
        }
        poll_fn(|context| {
            let mut tail = self.lock();
            if let Some(error) = &tail.error {
                return Poll::Ready(Err(error.clone()));
            }
            if tail.state == State::Ended {
                return Poll::Ready(Ok(()));
            }
            wait(&mut tail.waiting, context)
        })
        .await
    }

    /// Notes that a layer was dropped without [`leave`](Self::leave): the timeline gets no end record, and
    /// the writer stops.
    pub(super) fn abandon(&self) {
        let mut tail = self.lock();
        tail.users = tail.users.saturating_sub(1);
        if tail.users == 0 && tail.state == State::Recording {
            tail.state = if self.path.is_none() { State::Ended } else { State::Ending };
            if let Some(writer) = tail.writer.take() {
                writer.wake();
            }
        }
    }

    fn end(&self, tail: &mut Tail) -> Result<()> {
        self.push(tail, RecordType::End, 0, &[])?;
        tail.state = if self.path.is_none() { State::Ended } else { State::Ending };
        Ok(())
    }

    fn fail(&self, error: &Error) {
        let mut tail = self.lock();
        tail.error = Some(error.in_context("timeline: writing it failed; all further calls fail"));
        (tail.bytes, tail.writing) = (Vec::new(), 0);
        tail.waiting.drain(..).for_each(Waker::wake);
    }

    /// Number of events so far, which is the number of the next one.
    pub fn events(&self) -> u64 {
        self.lock().sequence
    }

    /// Returns the events so far of a recorder [`in_memory`](Self::in_memory).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a recorder that writes to a file.
    pub fn timeline(&self) -> Result<Timeline> {
        if let Some(path) = &self.path {
            let text = format!("timeline: it is not in memory; read the file {}", path.display());
            return Err(Error::unsupported(text));
        }
        Timeline::parse(self.lock().bytes.clone())
    }

    pub(super) fn status(&self) -> Status {
        let tail = self.lock();
        let mut status = Status::new();
        let path = self.path.as_ref().map(|path| path.display().to_string());
        status.insert("path".into(), path.into());
        status.insert("events".into(), tail.sequence.into());
        status.insert("written_bytes".into(), tail.written.into());
        status.insert("buffered_bytes".into(), (tail.bytes.len() + tail.writing).into());
        status.insert("waits_for_room".into(), tail.waits.into());
        status.insert("error".into(), tail.error.as_ref().map(ToString::to_string).into());
        status
    }

    /// Returns the next bytes to write; `None` after the end.
    async fn next(&self, mut done: Vec<u8>) -> Option<Vec<u8>> {
        done.clear();
        poll_fn(move |context| {
            let mut tail = self.lock();
            tail.written += tail.writing as u64;
            tail.writing = 0;
            tail.waiting.drain(..).for_each(Waker::wake);
            if !tail.bytes.is_empty() {
                tail.writing = tail.bytes.len();
                return Poll::Ready(Some(std::mem::replace(&mut tail.bytes, std::mem::take(&mut done))));
            }
            if tail.state != State::Recording {
                return Poll::Ready(None);
            }
            tail.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

fn wait<T>(waiting: &mut Vec<Waker>, context: &Context<'_>) -> Poll<T> {
    if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
        waiting.push(context.waker().clone());
    }
    Poll::Pending
}

/// Returns the canonical path of a file that may not exist yet, by which layers share a recorder.
fn canonical(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(format!("timeline {}: expected the path of a file", path.display())));
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // A missing folder is reported when the file is opened.
    Ok(folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join(name))
}

/// Creates the file, or truncates an existing timeline if `overwrite` allows it and no other process has it
/// locked. The lock is held as long as the file is open.
async fn create(path: &Path, overwrite: bool) -> Result<File> {
    let new = OpenOptions { create_new: true, ..OpenOptions::read_write() };
    let there = match File::open(path, new).await {
        Err(error @ Error::AlreadyExists(_)) => error,
        other => {
            let file = other?;
            lock(&file).await?;
            return Ok(file);
        }
    };
    let shown = path.display();
    if !overwrite {
        return Err(there.with_detail(format!(
            "timeline {shown}: the file exists; move it away, or set overwrite=true to overwrite it"
        )));
    }
    let file = File::open(path, OpenOptions::read_write()).await?;
    lock(&file).await?;
    if file.length()? > 0 {
        let (result, start) = file.read_at(0, Buffer::new(FILE_HEADER)).await;
        result?;
        FileHeader::decode(start.filled()).map_err(|error| {
            there.with_detail(format!(
                "{shown} is not overwritten, because it isn't a timeline: {}",
                error.detail()
            ))
        })?;
        file.set_len(0).await?;
    }
    Ok(file)
}

async fn lock(file: &File) -> Result<()> {
    file.lock_patiently(true).await.map_err(|error| error.in_context("timeline"))
}

/// Writes the recorder's buffer to the file until the timeline ends.
async fn write_all(recorder: Arc<Recorder>, file: File) {
    let (mut offset, mut chunk) = (0, Vec::new());
    let result: Result<()> = async {
        while let Some(bytes) = recorder.next(std::mem::take(&mut chunk)).await {
            for piece in bytes.chunks(CHUNK) {
                file.write_at(offset, Buffer::copy_of(piece).into(), Durability::Visible).await?;
                offset += piece.len() as u64;
            }
            chunk = bytes;
        }
        file.sync_all().await
    }
    .await;
    if let Err(error) = result {
        recorder.fail(&error);
    }
    let mut tail = recorder.lock();
    tail.state = State::Ended;
    tail.waiting.drain(..).for_each(Waker::wake);
}

impl Recorder {
    /// Returns the timeline's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }
}
