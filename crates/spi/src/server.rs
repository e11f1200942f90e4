//! Programmers' connections: serprog over TCP, unix sockets and a pseudo-terminal.
//!
//! # Promises
//! - All complete requests of one receive are answered by one send, unless the answers are longer than [`ANSWERS`].
//! - A connection uses at most [`REQUESTS`] bytes for requests, and for answers [`ANSWERS`], or as many as one SPI operation reads.
//!   In steady state it allocates nothing.
//! - There are at most [`MOST_PROGRAMMERS`] connections; a further one is closed at once.
//! - SPI operations of several programmers are carried out one after the other, each as a whole. A programmer that holds CS# low
//!   (S_CS_MODE) loses it to the next operation of another one, and when it disconnects.
//! - On the pseudo-terminal, which has no connections, a request that stays incomplete for [`INCOMPLETE_LIMIT`] is forgotten, and
//!   NOPs begin a new client's synchronization.
//! - [`Server::stop`] closes all connections, whatever their programmers do.

use crate::board::Board;
use crate::pty::Pty;
use crate::serprog::{Action, ChipSelect, LONGEST_REQUEST, MOST_READ, Session, Step};
use block::{Buffer, Data, Error, Payload, Result};
use runtime::file::File;
use runtime::net::{Access, Address, Listener, Stream};
use runtime::sync::{StopSource, StopToken};
use runtime::{Instant, TaskGroup};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Largest number of connected programmers.
pub const MOST_PROGRAMMERS: usize = 64;
/// Buffer for requests in bytes.
pub const REQUESTS: usize = 128 << 10;
/// Buffer for answers in bytes.
pub const ANSWERS: usize = 64 << 10;
/// Time after which an incomplete request on a pseudo-terminal is forgotten.
pub const INCOMPLETE_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of one receive from a pseudo-terminal, which holds no more.
const TERMINAL_PIECE: usize = 4096;
/// Time for which a connection polls for the next request before it lets the shard sleep, if the last one came as soon: to wake a
/// sleeping processor takes longer than the rest of a round trip.
const POLL_LIMIT: Duration = Duration::from_micros(25);
/// Time after which polling must have been interrupted: other work needs the processors. A task that slept is woken sooner then
/// than one that polled.
const INTERRUPTED: Duration = Duration::from_micros(200);
/// Requests that are waited for without polling after an interruption.
const MOST_UNPOLLED: u32 = 1000;
/// Time after which a connection with many requests lets other tasks run.
const LONGEST_TURN: Duration = Duration::from_millis(1);

const _: () = assert!(LONGEST_REQUEST <= REQUESTS, "a request fits into its buffer");

/// A server of one chip.
pub struct Server {
    shared: Rc<Shared>,
    stop: StopSource,
    addresses: Vec<Address>,
    pty: Option<PathBuf>,
    /// Tasks of listeners and connections.
    tasks: TaskGroup,
    failure: Rc<RefCell<Option<Error>>>,
}

struct Shared {
    board: Rc<RefCell<Board>>,
    stop: StopToken,
    programmers: Cell<usize>,
    /// Connections since the start.
    connected: Cell<u64>,
}

impl Server {
    /// Listens at these addresses, and with `pty` serves a pseudo-terminal.
    ///
    /// # Errors
    /// [`Error::Busy`] or the kernel's error for an address in use; those of creating a pseudo-terminal.
    pub async fn start(board: Rc<RefCell<Board>>, addresses: &[Address], pty: bool) -> Result<Server> {
        let stop = StopSource::new();
        let shared =
            Rc::new(Shared { board, stop: stop.token(), programmers: Cell::new(0), connected: Cell::new(0) });
        let mut server = Server {
            shared,
            stop,
            addresses: Vec::new(),
            pty: None,
            tasks: TaskGroup::default(),
            failure: Rc::default(),
        };
        // A server that can't listen everywhere closes what it has opened, files of sockets included.
        match server.open(addresses, pty).await {
            Ok(()) => Ok(server),
            Err(error) => {
                let _ = server.stop().await;
                Err(error)
            }
        }
    }

    async fn open(&mut self, addresses: &[Address], pty: bool) -> Result<()> {
        for address in addresses {
            let listener = Listener::replace_stale(address, Access::default()).await.map_err(|error| {
                error.in_context(format!("serprog at {address}; choose another address if it is in use"))
            })?;
            self.addresses.push(listener.local_address().clone());
            let accepting = accept(self.shared.clone(), listener, self.tasks.clone(), self.failure.clone());
            self.tasks.spawn(accepting).detach();
        }
        if pty {
            let Pty { controller, terminal, path } = Pty::create()?;
            let line = Line::Terminal(File::from_descriptor(controller, &path.display().to_string()));
            self.pty = Some(path);
            let shared = self.shared.clone();
            self.tasks
                .spawn(async move {
                    let _terminal = terminal;
                    serve_terminal(shared, line).await;
                })
                .detach();
        }
        Ok(())
    }

    /// Returns the addresses that it listens at, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the path of the pseudo-terminal.
    pub fn pty(&self) -> Option<&PathBuf> {
        self.pty.as_ref()
    }

    /// Returns the number of connected programmers, and of all since the start.
    pub fn programmers(&self) -> (usize, u64) {
        (self.shared.programmers.get(), self.shared.connected.get())
    }

    /// Closes all connections and listeners.
    ///
    /// # Errors
    /// Those of removing the file of a unix socket.
    pub async fn stop(self) -> Result<()> {
        self.stop.stop();
        self.tasks.ended().await;
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}

async fn accept(
    shared: Rc<Shared>,
    listener: Listener,
    tasks: TaskGroup,
    failure: Rc<RefCell<Option<Error>>>,
) {
    while let Some(stream) = listener.accept_until(&shared.stop).await {
        if shared.programmers.get() >= MOST_PROGRAMMERS {
            tracing::warn!("a programmer was refused: the limit of {MOST_PROGRAMMERS} is reached");
            continue;
        }
        shared.programmers.set(shared.programmers.get() + 1);
        shared.connected.set(shared.connected.get() + 1);
        let shared = shared.clone();
        tasks
            .spawn(async move {
                Connection::new(shared.clone(), Line::Socket(stream)).serve().await;
                shared.programmers.set(shared.programmers.get() - 1);
            })
            .detach();
    }
    if let Err(error) = listener.close().await {
        failure.replace(Some(error));
    }
}

/// Serves the clients of a pseudo-terminal, one after the other.
async fn serve_terminal(shared: Rc<Shared>, line: Line) {
    Connection::new(shared, line).serve().await;
}

/// What carries the bytes.
enum Line {
    Socket(Stream),
    Terminal(File),
}

impl Line {
    async fn receive(&self, buffer: Buffer) -> (Result<usize>, Buffer) {
        match self {
            Line::Socket(stream) => stream.receive(buffer).await,
            Line::Terminal(file) => file.read_at(0, buffer).await,
        }
    }

    async fn send(&self, data: Data) -> Result<()> {
        match self {
            Line::Socket(stream) => stream.send(Payload::from(data)).await.0,
            Line::Terminal(file) => file.write_at(0, Payload::from(data), block::Durability::Visible).await,
        }
    }
}

/// Outcome of polling for requests.
enum Polled {
    /// So many bytes.
    Received(usize),
    /// None in time; the answers, or the rest of them, that are still to be sent.
    Nothing(Option<Buffer>),
}

/// The connection is over: the programmer has left, or the server stops.
struct Over;

struct Connection {
    shared: Rc<Shared>,
    line: Line,
    session: Session,
    drivers: bool,
    select: ChipSelect,
    answers: Option<Buffer>,
    /// Whether the last request came within [`POLL_LIMIT`] of the answers before it.
    is_quick: bool,
    /// Requests that are still waited for without polling.
    unpolled: u32,
}

impl Connection {
    fn new(shared: Rc<Shared>, line: Line) -> Connection {
        let select = ChipSelect::Automatic;
        Connection {
            shared,
            line,
            session: Session::default(),
            drivers: true,
            select,
            answers: None,
            is_quick: false,
            unpolled: 0,
        }
    }

    async fn serve(mut self) {
        // Why it ended is the programmer's own doing, or the server's end.
        let _ = self.converse().await;
        if self.select == ChipSelect::Selected {
            self.shared.board.borrow_mut().deselect();
        }
    }

    async fn converse(&mut self) -> Result<(), Over> {
        let mut requests = Buffer::new(REQUESTS);
        loop {
            let (count, filled) = match self.line {
                Line::Socket(_) => self.send_and_receive(requests).await?,
                Line::Terminal(_) => {
                    self.flush().await?;
                    self.receive_from_terminal(requests).await?
                }
            };
            if count == 0 {
                return Err(Over);
            }
            requests = self.answer(filled).await?;
        }
    }

    /// Sends the answers and receives the next requests. They are carried out only after the answers have been sent.
    async fn send_and_receive(&mut self, mut requests: Buffer) -> Result<(usize, Buffer), Over> {
        let Some(answers) = self.answers.take() else { return self.receive(requests).await };
        let begun = runtime::now();
        let received = match self.is_quick {
            true => self.poll_for_requests(answers, &mut requests, begun).await?,
            false => Polled::Nothing(Some(answers)),
        };
        let result = match received {
            Polled::Received(count) => Ok((count, requests)),
            Polled::Nothing(None) => self.receive(requests).await,
            Polled::Nothing(Some(answers)) => self.send_with_receive(answers.freeze(), requests).await,
        };
        self.unpolled = self.unpolled.saturating_sub(1);
        self.is_quick = begun.elapsed() < POLL_LIMIT && self.unpolled == 0;
        result
    }

    /// Sends, and polls for requests, without the ring.
    async fn poll_for_requests(
        &mut self,
        answers: Buffer,
        requests: &mut Buffer,
        begun: Instant,
    ) -> Result<Polled, Over> {
        let Line::Socket(stream) = &self.line else { return Ok(Polled::Nothing(Some(answers))) };
        let length = answers.filled().len();
        let sent = stream.try_send(answers.filled()).map_err(|_| Over)?;
        if sent < length {
            let mut rest = Buffer::new(length - sent);
            rest.append(&answers.filled()[sent..]);
            return Ok(Polled::Nothing(Some(rest)));
        }
        while begun.elapsed() < POLL_LIMIT && !self.shared.stop.is_stopped() {
            match stream.try_receive(requests) {
                Ok(Some(count)) => return Ok(Polled::Received(count)),
                Ok(None) => runtime::yield_now().await,
                Err(_) => return Err(Over),
            }
        }
        if begun.elapsed() > INTERRUPTED {
            self.unpolled = MOST_UNPOLLED;
        }
        Ok(Polled::Nothing(None))
    }

    /// Sends and receives, both submitted to the kernel at once: it saves a system call per round trip.
    async fn send_with_receive(&self, answers: Data, requests: Buffer) -> Result<(usize, Buffer), Over> {
        let both = async {
            let (mut sending, mut receiving) =
                (pin!(self.line.send(answers)), pin!(self.line.receive(requests)));
            let (mut sent, mut received) = (None, None);
            poll_fn(|context| {
                if sent.is_none()
                    && let Poll::Ready(result) = sending.as_mut().poll(context)
                {
                    sent = Some(result);
                }
                if received.is_none()
                    && let Poll::Ready(result) = receiving.as_mut().poll(context)
                {
                    received = Some(result);
                }
                match (&sent, received.is_some()) {
                    (Some(Err(_)), _) => Poll::Ready(None),
                    (Some(Ok(())), true) => Poll::Ready(received.take()),
                    _ => Poll::Pending,
                }
            })
            .await
        };
        match self.shared.stop.unless_stopped(both).await {
            Some(Some((Ok(count), buffer))) => Ok((count, buffer)),
            _ => Err(Over),
        }
    }

    /// Receives into a buffer of its own: a read of a file can't be cancelled, and the bytes that it returns must not be lost when
    /// the incomplete request before them is forgotten.
    async fn receive_from_terminal(&mut self, mut requests: Buffer) -> Result<(usize, Buffer), Over> {
        let is_incomplete = !requests.filled().is_empty() || self.session.is_skipping();
        let piece = Buffer::new(requests.missing().min(TERMINAL_PIECE));
        let (is_late, (count, piece)) = {
            let mut receiving = pin!(self.receive(piece));
            match is_incomplete {
                true => match runtime::timeout(INCOMPLETE_LIMIT, receiving.as_mut()).await {
                    Ok(received) => (false, received?),
                    Err(_) => (true, receiving.await?),
                },
                false => (false, receiving.await?),
            }
        };
        if is_late {
            self.session = Session::default();
            requests.clear();
        }
        requests.append(piece.filled());
        Ok((count, requests))
    }

    async fn receive(&self, buffer: Buffer) -> Result<(usize, Buffer), Over> {
        match self.shared.stop.unless_stopped(self.line.receive(buffer)).await {
            Some((Ok(count), buffer)) => Ok((count, buffer)),
            Some((Err(_), _)) | None => Err(Over),
        }
    }

    /// Carries out all complete requests. Returns a buffer with the bytes that are left.
    async fn answer(&mut self, mut requests: Buffer) -> Result<Buffer, Over> {
        let mut begin = 0;
        let mut turn = runtime::now();
        loop {
            // An operation on the whole chip takes milliseconds, and others use this shard.
            if turn.elapsed() > LONGEST_TURN {
                runtime::yield_now().await;
                if self.shared.stop.is_stopped() {
                    return Err(Over);
                }
                turn = runtime::now();
            }
            let step = self.session.next(&requests.filled()[begin..]);
            match step {
                Step::Wait => break,
                Step::Skip(count) => begin += count,
                Step::Do { consumed, action, answer } => {
                    let read = match action {
                        Action::Transfer { read, .. } => read,
                        _ => 0,
                    };
                    if let Action::Delay(delay) = action {
                        self.wait(delay).await?;
                    }
                    self.make_room(answer.bytes().len() + read).await?;
                    let Some(answers) = &mut self.answers else { return Err(Over) };
                    answers.append(answer.bytes());
                    match action {
                        Action::None | Action::Delay(_) => {}
                        Action::Transfer { sent, read, full_duplex } => {
                            let at = answers.filled().len();
                            answers.append_zeroes(read);
                            let read = &mut answers.filled_mut()[at..];
                            transfer(&self.shared.board, self.drivers, self.select, sent, read, full_duplex);
                        }
                        Action::Clock(hertz) => self.shared.board.borrow_mut().set_clock(hertz),
                        Action::Drivers(enabled) => self.drivers = enabled,
                        Action::Select(select) => self.set_select(select),
                    }
                    begin += consumed;
                }
            }
        }
        if begin == requests.filled().len() {
            requests.clear();
            return Ok(requests);
        }
        if begin == 0 && requests.missing() > 0 {
            return Ok(requests);
        }
        let mut rest = Buffer::new(REQUESTS);
        rest.append(&requests.filled()[begin..]);
        Ok(rest)
    }

    fn set_select(&mut self, select: ChipSelect) {
        let mut board = self.shared.board.borrow_mut();
        match select {
            ChipSelect::Selected if self.drivers => board.select(),
            _ if self.select == ChipSelect::Selected => board.deselect(),
            _ => {}
        }
        self.select = select;
    }

    /// Waits as the operation buffer says. The answers before it are sent first.
    async fn wait(&mut self, delay: Duration) -> Result<(), Over> {
        let delay = self.shared.board.borrow_mut().delay(delay);
        if delay.is_zero() {
            return Ok(());
        }
        self.flush().await?;
        self.shared.stop.unless_stopped(runtime::sleep(delay)).await.ok_or(Over)
    }

    /// Makes sure that so many bytes fit into the buffer of answers.
    async fn make_room(&mut self, bytes: usize) -> Result<(), Over> {
        if self.answers.as_ref().is_some_and(|answers| answers.missing() < bytes) {
            self.flush().await?;
        }
        if self.answers.is_none() {
            self.answers = Some(Buffer::new(bytes.max(ANSWERS)));
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Over> {
        let Some(answers) = self.answers.take() else { return Ok(()) };
        match self.shared.stop.unless_stopped(self.line.send(answers.freeze())).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Over),
        }
    }
}

const _: () = assert!(MOST_READ + 1 < 1 << 31, "an answer fits into a buffer");

/// Carries out one SPI operation.
fn transfer(
    board: &RefCell<Board>,
    drivers: bool,
    select: ChipSelect,
    sent: &[u8],
    read: &mut [u8],
    full_duplex: bool,
) {
    if !drivers || select == ChipSelect::Deselected {
        // Nobody drives the line: it is pulled up.
        return read.fill(0xFF);
    }
    let mut board = board.borrow_mut();
    if select == ChipSelect::Automatic {
        board.select();
    }
    board.exchange(sent, read, full_duplex);
    if select == ChipSelect::Automatic {
        board.deselect();
    }
}
