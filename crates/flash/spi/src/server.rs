//! Connections of programmers: serprog over TCP, unix sockets and a pseudo-terminal.
//!
//! # Promises
//! - All complete requests of one receive are answered by one send, unless the answers are longer than
//!   [`ANSWERS`].
//! - A connection uses at most [`REQUESTS`] bytes for requests, and for answers [`ANSWERS`] bytes, or those
//!   that one SPI operation reads. In steady state it allocates nothing.
//! - There are at most [`MAX_PROGRAMMERS`] connections; a further one is closed at once.
//! - SPI operations of several programmers are executed one after the other, each as a whole. While a
//!   programmer holds CS# low (S_CS_MODE), operations of others are answered with NAK. It loses CS# when it
//!   disconnects or disables its drivers, and after [`HOLD_LIMIT`](crate::HOLD_LIMIT) without an operation to
//!   the next operation of another one; its own operations are then answered with NAK.
//! - The pseudo-terminal has no connections: a SYNCNOP, which begins a new client's synchronization, resets
//!   the state of the previous client: CS#, disabled drivers, duplex, delays. A request that is incomplete
//!   for [`INCOMPLETE_LIMIT`] is dropped. After an error the pseudo-terminal is served again.
//! - [`Server::stop`] closes all connections, in any state of their programmers.

use crate::board::{Board, BusTaken, Programmer};
use crate::pty::Pty;
use crate::serprog::{Action, Answer, ChipSelect, MAX_READ, MAX_REQUEST, Session, Step};
use block::{Buffer, Data, Error, Payload, Result};
use runtime::TaskGroup;
use runtime::file::File;
use runtime::net::{Access, Address, Listener, Stream};
use runtime::sync::{StopSource, StopToken};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Largest number of connected programmers.
pub const MAX_PROGRAMMERS: usize = 64;
/// Buffer for requests in bytes.
pub const REQUESTS: usize = 128 << 10;
/// Buffer for answers in bytes.
pub const ANSWERS: usize = 64 << 10;
/// Time after which an incomplete request on a pseudo-terminal is dropped.
pub const INCOMPLETE_LIMIT: Duration = Duration::from_secs(1);
/// Time after an error of a pseudo-terminal until it is served again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of one receive from a pseudo-terminal, which buffers no more.
const TERMINAL_PIECE: usize = 4096;
/// Time after which a connection with many requests lets other tasks run.
const MAX_TURN: Duration = Duration::from_millis(1);

const _: () = assert!(MAX_REQUEST <= REQUESTS, "a request fits into its buffer");

/// A server of one chip.
pub struct Server {
    shared: Rc<Shared>,
    stop: StopSource,
    addresses: Vec<Address>,
    pty: Option<PathBuf>,
    /// Tasks of listeners and connections.
    tasks: TaskGroup,
    failures: Rc<RefCell<Vec<Error>>>,
}

struct Shared {
    board: Rc<RefCell<Board>>,
    stop: StopToken,
    programmers: Cell<usize>,
    /// Connections since the start.
    connected: Cell<u64>,
}

impl Server {
    /// Listens at these addresses, and with `pty` also serves a pseudo-terminal.
    ///
    /// # Errors
    /// [`Error::Busy`] or the kernel's error for an address in use; errors of creating a pseudo-terminal.
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
            failures: Rc::default(),
        };
        // A server that can't listen on all addresses closes those that it has opened, including files of
        // sockets.
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
            let listening = Listener::replace_stale(address, Access::default()).await;
            let listener = listening.map_err(|error| error.in_context("serprog"))?;
            self.addresses.push(listener.local_address().clone());
            let accepting = accept(self.shared.clone(), listener, self.tasks.clone(), self.failures.clone());
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

    /// Returns the server's addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the path of the pseudo-terminal.
    pub fn pty(&self) -> Option<&PathBuf> {
        self.pty.as_ref()
    }

    /// Returns the number of connected programmers, and their total since the start.
    pub fn programmers(&self) -> (usize, u64) {
        (self.shared.programmers.get(), self.shared.connected.get())
    }

    /// Closes all connections and listeners. Returns the errors of removing the files of unix sockets.
    #[must_use]
    pub async fn stop(self) -> Vec<Error> {
        self.stop.stop();
        self.tasks.ended().await;
        self.failures.take()
    }
}

async fn accept(shared: Rc<Shared>, listener: Listener, tasks: TaskGroup, failures: Rc<RefCell<Vec<Error>>>) {
    while let Some(stream) = listener.accept_until(&shared.stop).await {
        if shared.programmers.get() >= MAX_PROGRAMMERS {
            tracing::warn!("a programmer was refused: the limit of {MAX_PROGRAMMERS} is reached");
            continue;
        }
        shared.programmers.set(shared.programmers.get() + 1);
        let number = shared.connected.get() + 1;
        shared.connected.set(number);
        let shared = shared.clone();
        tasks
            .spawn(async move {
                Connection::new(shared.clone(), Programmer(number), Line::Socket(stream)).serve().await;
                shared.programmers.set(shared.programmers.get() - 1);
            })
            .detach();
    }
    if let Err(error) = listener.close().await {
        failures.borrow_mut().push(error);
    }
}

/// Serves the clients of a pseudo-terminal, one after the other, until the server stops.
async fn serve_terminal(shared: Rc<Shared>, line: Line) {
    let stop = shared.stop.clone();
    let mut connection = Connection::new(shared, TERMINAL, line);
    loop {
        let ended = connection.converse().await;
        connection.reset();
        if let Err(Ended::Failed(error)) = ended {
            tracing::warn!("the pseudo-terminal failed, and is served again: {error}");
        }
        if stop.unless_stopped(runtime::sleep(RETRY_INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// The programmer at the pseudo-terminal; connections are counted from 1.
const TERMINAL: Programmer = Programmer(0);

/// Transport of the bytes.
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

/// Reason for the end of a connection.
enum Ended {
    /// The programmer has disconnected, or the server stops.
    Closed,
    /// The transport failed.
    Failed(Error),
}

struct Connection {
    shared: Rc<Shared>,
    programmer: Programmer,
    line: Line,
    session: Session,
    drivers: bool,
    select: ChipSelect,
    answers: Option<Buffer>,
}

impl Connection {
    fn new(shared: Rc<Shared>, programmer: Programmer, line: Line) -> Connection {
        let select = ChipSelect::Automatic;
        Connection {
            shared,
            programmer,
            line,
            session: Session::default(),
            drivers: true,
            select,
            answers: None,
        }
    }

    async fn serve(mut self) {
        // The programmer or the server's stop has ended it: there is nothing to report.
        let _ = self.converse().await;
        self.reset();
    }

    /// Resets the programmer's state: an open transaction, modes, unsent answers.
    fn reset(&mut self) {
        self.shared.board.borrow_mut().release(self.programmer);
        self.session = Session::default();
        (self.drivers, self.select, self.answers) = (true, ChipSelect::Automatic, None);
    }

    async fn converse(&mut self) -> Result<(), Ended> {
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
                return Err(Ended::Closed);
            }
            requests = self.answer(filled).await?;
        }
    }

    /// Sends the answers and receives the next requests, which are executed only after the answers have been
    /// sent.
    async fn send_and_receive(&mut self, requests: Buffer) -> Result<(usize, Buffer), Ended> {
        if let Some(answers) = self.answers.take() {
            self.send_now(answers).await?;
        }
        self.receive(requests).await
    }

    /// Sends without the ring as many bytes as the kernel takes at once, which is nearly always all, then the
    /// rest. Submitted with the receive, the send's completion would wake the shard once more in each round
    /// trip.
    async fn send_now(&mut self, answers: Buffer) -> Result<(), Ended> {
        let Line::Socket(stream) = &self.line else { return Ok(()) };
        let sent = stream.try_send(answers.filled()).map_err(Ended::Failed)?;
        let rest = &answers.filled()[sent..];
        if rest.is_empty() {
            return Ok(());
        }
        let mut unsent = Buffer::new(rest.len());
        unsent.append(rest);
        self.answers = Some(unsent);
        self.flush().await
    }

    /// Receives into a buffer of its own: a read of a file can't be cancelled, and its bytes must not be lost
    /// when the incomplete request before them is dropped.
    async fn receive_from_terminal(&mut self, mut requests: Buffer) -> Result<(usize, Buffer), Ended> {
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

    async fn receive(&self, buffer: Buffer) -> Result<(usize, Buffer), Ended> {
        match self.shared.stop.unless_stopped(self.line.receive(buffer)).await {
            Some((Ok(count), buffer)) => Ok((count, buffer)),
            Some((Err(error), _)) => Err(Ended::Failed(error)),
            None => Err(Ended::Closed),
        }
    }

    /// Executes all complete requests. Returns a buffer with the remaining bytes.
    async fn answer(&mut self, mut requests: Buffer) -> Result<Buffer, Ended> {
        let mut begin = 0;
        let mut turn = runtime::now();
        loop {
            // An operation on the whole chip takes milliseconds, during which others need this shard.
            if turn.elapsed() > MAX_TURN {
                runtime::yield_now().await;
                if self.shared.stop.is_stopped() {
                    return Err(Ended::Closed);
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
                    self.reserve_answers(answer.bytes().len() + read).await?;
                    self.carry_out(action, answer);
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

    /// Executes a request, and appends its answer; NAK if another programmer owns the bus.
    fn carry_out(&mut self, action: Action<'_>, answer: Answer) {
        let Some(mut answers) = self.answers.take() else { return };
        let done = match action {
            Action::None | Action::Delay(_) => Ok(()),
            Action::Clock(hertz) => {
                self.shared.board.borrow_mut().set_clock(hertz);
                Ok(())
            }
            Action::Drivers(enabled) => self.set_pins(enabled, self.select),
            Action::Select(select) => self.set_pins(self.drivers, select),
            Action::Synchronize => {
                if let Line::Terminal(_) = self.line {
                    self.reset();
                }
                Ok(())
            }
            Action::Transfer { sent, read, full_duplex } => {
                let begin = answers.filled().len();
                answers.append(answer.bytes());
                let at = answers.filled().len();
                answers.append_zeroes(read);
                let transferred = self.transfer(sent, &mut answers.filled_mut()[at..], full_duplex);
                if transferred.is_err() {
                    answers.truncate_filled(begin);
                    answers.append(Answer::nak().bytes());
                }
                self.answers = Some(answers);
                return;
            }
        };
        let answer = if done.is_ok() { answer } else { Answer::nak() };
        answers.append(answer.bytes());
        self.answers = Some(answers);
    }

    /// Changes the drivers and the control of CS#, if the bus is free for it.
    fn set_pins(&mut self, drivers: bool, select: ChipSelect) -> Result<(), BusTaken> {
        let mut board = self.shared.board.borrow_mut();
        match drivers && select == ChipSelect::Selected {
            true => board.hold(self.programmer)?,
            // Without a driver, CS# is pulled up.
            false => board.release(self.programmer),
        }
        (self.drivers, self.select) = (drivers, select);
        Ok(())
    }

    /// Executes one SPI operation.
    fn transfer(&self, sent: &[u8], read: &mut [u8], full_duplex: bool) -> Result<(), BusTaken> {
        let mut board = self.shared.board.borrow_mut();
        match self.select {
            ChipSelect::Automatic if self.drivers => board.transact(self.programmer, sent, read, full_duplex),
            ChipSelect::Selected if self.drivers => {
                board.continue_transaction(self.programmer, sent, read, full_duplex)
            }
            _ => {
                // The line has no driver: it is pulled up.
                read.fill(0xFF);
                Ok(())
            }
        }
    }

    /// Waits for the delay of the operation buffer. Earlier answers are sent first.
    async fn wait(&mut self, delay: Duration) -> Result<(), Ended> {
        let delay = self.shared.board.borrow_mut().delay(delay);
        if delay.is_zero() {
            return Ok(());
        }
        self.flush().await?;
        self.shared.stop.unless_stopped(runtime::sleep(delay)).await.ok_or(Ended::Closed)
    }

    /// Ensures that the buffer of answers has space for `bytes` more.
    async fn reserve_answers(&mut self, bytes: usize) -> Result<(), Ended> {
        if self.answers.as_ref().is_some_and(|answers| answers.missing() < bytes) {
            self.flush().await?;
        }
        if self.answers.is_none() {
            self.answers = Some(Buffer::new(bytes.max(ANSWERS)));
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let Some(answers) = self.answers.take() else { return Ok(()) };
        match self.shared.stop.unless_stopped(self.line.send(answers.freeze())).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Ended::Failed(error)),
            None => Err(Ended::Closed),
        }
    }
}

const _: () = assert!(MAX_READ + 1 < 1 << 31, "an answer fits into a buffer");

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::board::Time;
    use crate::rules::Rules;
    use block::Durability;
    use runtime::file::OpenOptions;

    /// If the other end isn't kept open, reads fail after each client.
    #[test]
    fn a_pseudo_terminal_is_served_after_errors() {
        let served = runtime::run(runtime::Config::default(), || async {
            let chip = spinor::Chip::erased(spinor::chip("W25Q64JV").unwrap().unwrap(), 1);
            let board = Rc::new(RefCell::new(Board::new(chip, Time::Fast(0), Rules::default(), 0)));
            let stop = StopSource::new();
            let (programmers, connected) = (Cell::new(0), Cell::new(0));
            let shared = Rc::new(Shared { board, stop: stop.token(), programmers, connected });
            let Pty { controller, terminal, path } = Pty::create().unwrap();
            drop(terminal);
            let tasks = TaskGroup::default();
            let line = Line::Terminal(File::from_descriptor(controller, "pty"));
            tasks.spawn(serve_terminal(shared, line)).detach();
            for _ in 0..3 {
                let port = File::open(&path, OpenOptions::read_write()).await.unwrap();
                port.write_at(0, Data::copy_of(&[0x10]).into(), Durability::Visible).await.unwrap();
                let (result, answer) = port.read_exact_at(0, Buffer::new(2)).await;
                result.unwrap();
                assert_eq!(answer.filled(), [0x15, 6]);
                drop(port);
                // Long enough for the error to occur.
                runtime::sleep(RETRY_INTERVAL / 2).await;
            }
            stop.stop();
            tasks.ended().await;
        });
        served.unwrap();
    }
}
