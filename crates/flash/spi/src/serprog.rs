//! The serial flasher protocol of flashrom ("serprog"), version 1, for a programmer with an SPI bus.
//!
//! Source: flashrom, `doc/supported_hw/supported_prog/serprog/serprog-protocol.rst`.
//!
//! A [`Session`] is fed bytes and returns the next step; it never waits, holds no data and does no I/O. For
//! any bytes it doesn't panic, consumes only existing bytes, and needs at most [`MAX_REQUEST`] of them at
//! a time. A request above the limits is refused after its bytes have been skipped, so that the next request
//! is found.

use std::time::Duration;

/// Answer to a request that was executed.
pub const ACK: u8 = 0x06;
/// Answer to a request that is unknown or refused.
pub const NAK: u8 = 0x15;

/// Largest number of bytes to send in one SPI operation: Q_WRNMAXLEN.
pub const MAX_SENT: usize = 64 << 10;
/// Largest number of bytes to read in one SPI operation: Q_RDNMAXLEN.
pub const MAX_READ: usize = 1 << 20;
/// Length of the longest request in bytes.
pub const MAX_REQUEST: usize = 7 + MAX_SENT;
/// Highest bus clock in hertz that a client can set.
pub const FASTEST_CLOCK: u32 = 200_000_000;
/// Longest total of the delays in one operation buffer.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// Bus type flag of SPI.
const SPI: u8 = 0x08;
/// Name of the programmer, padded to the 16 bytes of the protocol.
const NAME: &[u8; 16] = b"siltstone\0\0\0\0\0\0\0";

/// Opcodes.
pub mod opcode {
    /// No operation.
    pub const NOP: u8 = 0x00;
    /// Query the version of the interface.
    pub const Q_IFACE: u8 = 0x01;
    /// Query the map of supported commands.
    pub const Q_CMDMAP: u8 = 0x02;
    /// Query the programmer's name.
    pub const Q_PGMNAME: u8 = 0x03;
    /// Query the size of the serial buffer.
    pub const Q_SERBUF: u8 = 0x04;
    /// Query the supported bus types.
    pub const Q_BUSTYPE: u8 = 0x05;
    /// Query the size of the operation buffer.
    pub const Q_OPBUF: u8 = 0x07;
    /// Query the maximum length of a write.
    pub const Q_WRNMAXLEN: u8 = 0x08;
    /// Read a byte; for parallel buses.
    pub const R_BYTE: u8 = 0x09;
    /// Read bytes; for parallel buses.
    pub const R_NBYTES: u8 = 0x0A;
    /// Clear the operation buffer.
    pub const O_INIT: u8 = 0x0B;
    /// Add a write of a byte to the operation buffer; for parallel buses.
    pub const O_WRITEB: u8 = 0x0C;
    /// Add a write of bytes to the operation buffer; for parallel buses.
    pub const O_WRITEN: u8 = 0x0D;
    /// Add a delay to the operation buffer.
    pub const O_DELAY: u8 = 0x0E;
    /// Execute the operation buffer, and clear it.
    pub const O_EXEC: u8 = 0x0F;
    /// Answered by NAK and ACK, for synchronization.
    pub const SYNCNOP: u8 = 0x10;
    /// Query the maximum length of a read.
    pub const Q_RDNMAXLEN: u8 = 0x11;
    /// Set the bus type.
    pub const S_BUSTYPE: u8 = 0x12;
    /// Execute an SPI operation.
    pub const O_SPIOP: u8 = 0x13;
    /// Set the SPI clock.
    pub const S_SPI_FREQ: u8 = 0x14;
    /// Enable or disable the pin drivers.
    pub const S_PIN_STATE: u8 = 0x15;
    /// Choose the chip select.
    pub const S_SPI_CS: u8 = 0x16;
    /// Choose half or full duplex.
    pub const S_SPI_MODE: u8 = 0x17;
    /// Choose whether the programmer or the client drives CS#.
    pub const S_CS_MODE: u8 = 0x18;
}

use opcode::*;

/// Commands in the map of Q_CMDMAP.
const SUPPORTED: &[u8] = &[
    NOP,
    Q_IFACE,
    Q_CMDMAP,
    Q_PGMNAME,
    Q_SERBUF,
    Q_BUSTYPE,
    Q_OPBUF,
    Q_WRNMAXLEN,
    O_INIT,
    O_DELAY,
    O_EXEC,
    SYNCNOP,
    Q_RDNMAXLEN,
    S_BUSTYPE,
    O_SPIOP,
    S_SPI_FREQ,
    S_PIN_STATE,
    S_SPI_CS,
    S_SPI_MODE,
    S_CS_MODE,
];

/// Control of CS#.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChipSelect {
    /// Low for each SPI operation.
    #[default]
    Automatic,
    /// Low until another mode is set.
    Selected,
    /// High until another mode is set.
    Deselected,
}

/// Action on the bus for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    /// Nothing.
    None,
    /// An SPI operation. Bytes that it reads follow the answer.
    Transfer {
        /// Bytes to send.
        sent: &'a [u8],
        /// Number of bytes to read, up to [`MAX_READ`].
        read: usize,
        /// Whether sending and reading happen at the same time.
        full_duplex: bool,
    },
    /// Wait for this time before the answer.
    Delay(Duration),
    /// Set the bus clock, in hertz.
    Clock(u32),
    /// Enable or disable the drivers of all pins.
    Drivers(bool),
    /// Change the control of CS#.
    Select(ChipSelect),
    /// A client synchronizes, for example after opening a serial port.
    Synchronize,
}

/// Bytes of an answer, without the bytes that an SPI operation reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    bytes: [u8; 33],
    length: u8,
}

impl Answer {
    /// Returns the answer to a request that is refused.
    pub fn nak() -> Answer {
        Answer::new(NAK, &[])
    }

    fn new(status: u8, rest: &[u8]) -> Answer {
        let mut bytes = [0; 33];
        bytes[0] = status;
        bytes[1..=rest.len()].copy_from_slice(rest);
        Answer { bytes, length: 1 + rest.len() as u8 }
    }

    fn ack(rest: &[u8]) -> Answer {
        Answer::new(ACK, rest)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({:02x?})", self.bytes())
    }
}

/// Next step of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// The request isn't complete: more bytes are needed.
    Wait,
    /// Skip this number of bytes of a refused request.
    Skip(usize),
    /// A complete request.
    Do {
        /// Number of bytes of the request.
        consumed: usize,
        /// Action before the answer.
        action: Action<'a>,
        /// Answer after the action.
        answer: Answer,
    },
}

/// One client's state.
#[derive(Debug, Clone, Default)]
pub struct Session {
    /// Bytes of a refused request that haven't arrived; NAK follows them.
    skipping: u32,
    /// Delays in the operation buffer.
    delay: Duration,
    full_duplex: bool,
}

impl Session {
    /// Returns the step for the first of `bytes`. After [`Step::Wait`] it is called again with the same bytes
    /// and more.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Step<'a> {
        if self.skipping > 0 {
            return self.skip(bytes);
        }
        let Some((&opcode, rest)) = bytes.split_first() else { return Step::Wait };
        if rest.len() < parameters(opcode) {
            return Step::Wait;
        }
        if opcode == O_SPIOP {
            return self.spi_operation(bytes);
        }
        let mut action = Action::None;
        let answer = match opcode {
            Q_IFACE => Answer::ack(&1u16.to_le_bytes()),
            Q_CMDMAP => Answer::ack(&command_map()),
            Q_PGMNAME => Answer::ack(NAME),
            // TCP, unix sockets and pseudo-terminals have flow control.
            Q_SERBUF | Q_OPBUF => Answer::ack(&u16::MAX.to_le_bytes()),
            Q_BUSTYPE => Answer::ack(&[SPI]),
            Q_WRNMAXLEN => Answer::ack(&(MAX_SENT as u32).to_le_bytes()[..3]),
            Q_RDNMAXLEN => Answer::ack(&(MAX_READ as u32).to_le_bytes()[..3]),
            SYNCNOP => {
                action = Action::Synchronize;
                Answer::new(NAK, &[ACK])
            }
            NOP => Answer::ack(&[]),
            O_INIT => {
                self.delay = Duration::ZERO;
                Answer::ack(&[])
            }
            O_DELAY => {
                let sum = self.delay + Duration::from_micros(u64::from(word(rest)));
                if sum <= MAX_DELAY {
                    self.delay = sum;
                    Answer::ack(&[])
                } else {
                    Answer::nak()
                }
            }
            O_EXEC => {
                action = match std::mem::take(&mut self.delay) {
                    Duration::ZERO => Action::None,
                    delay => Action::Delay(delay),
                };
                Answer::ack(&[])
            }
            O_WRITEN => {
                // The request's data follows, though there is no bus for it.
                self.skipping = triple(rest);
                return if self.skipping > 0 { Step::Skip(7) } else { refused(7) };
            }
            S_BUSTYPE if rest[0] & SPI != 0 => Answer::ack(&[]),
            S_SPI_FREQ if word(rest) > 0 => {
                let hertz = word(rest).min(FASTEST_CLOCK);
                action = Action::Clock(hertz);
                Answer::ack(&hertz.to_le_bytes())
            }
            S_PIN_STATE => {
                action = Action::Drivers(rest[0] != 0);
                Answer::ack(&[])
            }
            S_SPI_CS if rest[0] == 0 => Answer::ack(&[]),
            S_SPI_MODE if rest[0] <= 1 => {
                self.full_duplex = rest[0] == 1;
                Answer::ack(&[])
            }
            S_CS_MODE if rest[0] <= 2 => {
                let modes = [ChipSelect::Automatic, ChipSelect::Selected, ChipSelect::Deselected];
                action = Action::Select(modes[usize::from(rest[0])]);
                Answer::ack(&[])
            }
            _ => Answer::nak(),
        };
        Step::Do { consumed: 1 + parameters(opcode), action, answer }
    }

    /// Returns whether bytes of a refused request haven't arrived.
    pub fn is_skipping(&self) -> bool {
        self.skipping > 0
    }

    fn spi_operation<'a>(&mut self, bytes: &'a [u8]) -> Step<'a> {
        let (send, read) = (triple(&bytes[1..]), triple(&bytes[4..]));
        if send as usize > MAX_SENT || read as usize > MAX_READ {
            self.skipping = send;
            return if send > 0 { Step::Skip(7) } else { refused(7) };
        }
        let consumed = 7 + send as usize;
        match bytes.get(7..consumed) {
            Some(sent) => Step::Do {
                consumed,
                action: Action::Transfer { sent, read: read as usize, full_duplex: self.full_duplex },
                answer: Answer::ack(&[]),
            },
            None => Step::Wait,
        }
    }

    fn skip(&mut self, bytes: &[u8]) -> Step<'static> {
        let count = bytes.len().min(self.skipping as usize);
        self.skipping -= count as u32;
        match (count, self.skipping) {
            (0, _) => Step::Wait,
            (_, 0) => refused(count),
            _ => Step::Skip(count),
        }
    }
}

fn refused(consumed: usize) -> Step<'static> {
    Step::Do { consumed, action: Action::None, answer: Answer::nak() }
}

/// Returns the number of parameter bytes of a command, without its data.
fn parameters(opcode: u8) -> usize {
    match opcode {
        S_BUSTYPE | S_PIN_STATE | S_SPI_CS | S_SPI_MODE | S_CS_MODE => 1,
        R_BYTE => 3,
        O_WRITEB | O_DELAY | S_SPI_FREQ => 4,
        R_NBYTES | O_WRITEN | O_SPIOP => 6,
        _ => 0,
    }
}

fn command_map() -> [u8; 32] {
    let mut map = [0; 32];
    for opcode in SUPPORTED {
        map[usize::from(opcode / 8)] |= 1 << (opcode % 8);
    }
    map
}

/// Decodes 24 bits; `bytes` has at least three bytes.
fn triple(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
}

/// Decodes 32 bits; `bytes` has at least four bytes.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the bytes in pieces and returns all answers and the transfers.
    fn converse(bytes: &[u8], piece: usize) -> (Vec<u8>, Vec<(Vec<u8>, usize)>) {
        let (mut session, mut answers, mut transfers) = (Session::default(), Vec::new(), Vec::new());
        let (mut begin, mut end) = (0, 0);
        loop {
            match session.next(&bytes[begin..end]) {
                Step::Wait if end == bytes.len() => return (answers, transfers),
                Step::Wait => end = (end + piece).min(bytes.len()),
                Step::Skip(count) => begin += count,
                Step::Do { consumed, action, answer } => {
                    if let Action::Transfer { sent, read, .. } = action {
                        transfers.push((sent.to_vec(), read));
                    }
                    begin += consumed;
                    answers.extend(answer.bytes());
                }
            }
        }
    }

    #[test]
    fn queries_are_answered_as_the_protocol_says() {
        assert_eq!(converse(&[NOP, SYNCNOP, Q_IFACE], 9).0, [ACK, NAK, ACK, ACK, 1, 0]);
        assert_eq!(converse(&[Q_PGMNAME], 9).0, [&[ACK], NAME.as_slice()].concat());
        assert_eq!(converse(&[Q_BUSTYPE, Q_WRNMAXLEN, Q_RDNMAXLEN], 9).0, [6, 8, 6, 0, 0, 1, 6, 0, 0, 16]);
        assert_eq!(converse(&[S_BUSTYPE, 8, S_BUSTYPE, 1], 9).0, [ACK, NAK]);
        assert_eq!(converse(&[S_SPI_CS, 0, S_SPI_CS, 1, 0xEE, S_CS_MODE, 3], 9).0, [ACK, NAK, NAK, NAK]);
        assert_eq!(
            converse(&[S_SPI_FREQ, 0, 0, 0, 0, S_SPI_FREQ, 0xFF, 0xFF, 0xFF, 0xFF], 9).0,
            [&[NAK, ACK], FASTEST_CLOCK.to_le_bytes().as_slice()].concat()
        );
        let map = converse(&[Q_CMDMAP], 9).0;
        assert_eq!((map.len(), map[0]), (33, ACK));
        for opcode in 0..=255u8 {
            let named = map[1 + usize::from(opcode / 8)] >> (opcode % 8) & 1 == 1;
            assert_eq!(named, SUPPORTED.contains(&opcode), "{opcode:02x}");
        }
    }

    #[test]
    fn requests_may_come_in_any_pieces() {
        let bytes = [
            &[NOP, O_SPIOP, 2, 0, 0, 3, 0, 0, 0x9F, 0x00, O_DELAY, 10, 0, 0, 0, O_EXEC][..],
            &[R_NBYTES, 1, 2, 3, 4, 5, 6, O_WRITEN, 2, 0, 0, 9, 9, 9, NOP, NOP, O_WRITEB, 1, 2, 3, 4, NOP],
        ]
        .concat();
        for piece in 1..=bytes.len() {
            let (answers, transfers) = converse(&bytes, piece);
            assert_eq!(answers, [ACK, ACK, ACK, ACK, NAK, NAK, NAK, ACK], "pieces of {piece}");
            assert_eq!(transfers, [(vec![0x9F, 0], 3)]);
        }
    }

    #[test]
    fn what_is_too_long_is_skipped_and_refused() {
        let mut bytes = vec![O_SPIOP, 1, 0, 1, 0, 0, 0];
        bytes.resize(7 + MAX_SENT + 1, NOP);
        bytes.push(SYNCNOP);
        assert_eq!(converse(&bytes, 4096).0, [NAK, NAK, ACK]);
        assert_eq!(converse(&[O_SPIOP, 0, 0, 0, 1, 0, 16, SYNCNOP], 3).0, [NAK, NAK, ACK]);
        let delay = |micros: u32| [&[O_DELAY], micros.to_le_bytes().as_slice()].concat();
        assert_eq!(
            converse(&[delay(60_000_000), delay(1), vec![O_INIT], delay(1)].concat(), 99).0,
            [ACK, NAK, ACK, ACK]
        );
    }
}
