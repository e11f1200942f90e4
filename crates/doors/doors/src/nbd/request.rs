//! Parsing of requests: a client's stream is divided into requests, and each is checked against its export.
//! Sans-io.
//!
//! For any bytes, [`Intake::next`] returns a step for the first of them without panicking; its only state is
//! a count. A request that is refused for its contents is answered with the error of the specification, its
//! payload is skipped and the session continues. Only a wrong magic number and a payload above
//! [`MAXIMUM_PAYLOAD`] end the session. The connection executes requests.

use super::protocol::{ErrorNumber, MAXIMUM_PAYLOAD, REQUEST_BYTES, Request, command, command_flag};
use crate::served::work::Operation;
use block::{Durability, Error, Result, ZeroMode};

/// Length at and above which a write is received into a buffer of its own, in bytes.
pub const LARGE_WRITE: u32 = 64 << 10;

/// Properties of a session that requests are checked against.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// Size of the export, in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether BLOCK_STATUS has a negotiated context.
    pub allocation_context: bool,
}

/// Command of a valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// An operation on the device; for a write, the payload follows.
    Device(Operation),
    /// Describe the extents, or only the first one.
    BlockStatus {
        /// Whether only the first extent is described.
        only_one: bool,
    },
}

/// Reason for refusing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Error number of the reply.
    pub number: ErrorNumber,
    /// Text for users.
    pub words: &'static str,
    /// Whether the session ends with the answer: the payload length of an unknown command isn't known.
    pub ends_session: bool,
}

/// Step for the bytes at the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Receive more.
    Wait,
    /// Discard this many bytes.
    Skip(usize),
    /// Execute the request; for a write, the `length` bytes after the header are its payload and have all
    /// arrived.
    Start(Request, Command),
    /// Execute this write once its payload is complete; the payload begins after the header and goes into a
    /// buffer of its own.
    StartLarge(Request, Durability),
    /// Consume the header and answer with an error; later steps skip the payload.
    Refuse(Request, Refusal),
    /// Finish the requests in flight and close.
    Disconnect,
}

impl Step {
    /// Number of bytes that this step consumes at once.
    pub fn consumed(&self) -> usize {
        match self {
            Step::Wait | Step::Disconnect => 0,
            Step::Skip(count) => *count,
            Step::Start(request, Command::Device(Operation::Write(_))) => {
                REQUEST_BYTES + request.length as usize
            }
            Step::Start(..) | Step::StartLarge(..) | Step::Refuse(..) => REQUEST_BYTES,
        }
    }
}

/// Divides a client's stream into requests.
#[derive(Debug, Default)]
pub struct Intake {
    /// Bytes of a refused request's payload that haven't arrived.
    skip: usize,
}

impl Intake {
    /// Returns the step for the bytes at the front. Changes no state: [`take`](Self::take) does, after the
    /// step.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the session has to end.
    #[inline]
    pub fn next(&self, bytes: &[u8], session: &Session) -> Result<Step> {
        if self.skip > 0 {
            let count = self.skip.min(bytes.len());
            return Ok(if count == 0 { Step::Wait } else { Step::Skip(count) });
        }
        let Some(request) = Request::parse(bytes)? else { return Ok(Step::Wait) };
        let writes = request.command == command::WRITE;
        if writes && request.length > MAXIMUM_PAYLOAD {
            return Err(Error::protocol(format!(
                "a write of {} bytes: expected at most {MAXIMUM_PAYLOAD}",
                request.length
            )));
        }
        if request.command == command::DISC {
            return Ok(Step::Disconnect);
        }
        match examine(&request, session) {
            Ok(Command::Device(Operation::Write(durability))) if request.length >= LARGE_WRITE => {
                Ok(Step::StartLarge(request, durability))
            }
            Ok(Command::Device(Operation::Write(_)))
                if bytes.len() < REQUEST_BYTES + request.length as usize =>
            {
                Ok(Step::Wait)
            }
            Ok(command) => Ok(Step::Start(request, command)),
            Err(refusal) => Ok(Step::Refuse(request, refusal)),
        }
    }

    /// Records that the bytes of this step were consumed.
    #[inline]
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Skip(count) => self.skip -= count,
            Step::Refuse(request, _) if request.command == command::WRITE => {
                self.skip = request.length as usize
            }
            _ => {}
        }
    }

    /// Whether a payload is being skipped.
    pub fn is_skipping(&self) -> bool {
        self.skip > 0
    }
}

/// Checks a request against its export, by the sections of the specification on commands, flags and errors.
#[inline]
pub fn examine(request: &Request, session: &Session) -> Result<Command, Refusal> {
    let refused = |number, words| Err(Refusal { number, words, ends_session: false });
    // FUA is offered, so it is valid with every command.
    let flags = request.flags & !command_flag::FUA;
    let durability = match request.flags & command_flag::FUA {
        0 => Durability::Visible,
        _ => Durability::Durable,
    };
    let device = Command::Device;
    let (command, allowed_flags) = match request.command {
        command::READ if session.structured => (device(Operation::Read), command_flag::DF),
        command::READ => (device(Operation::Read), 0),
        command::WRITE => (device(Operation::Write(durability)), 0),
        command::FLUSH => (device(Operation::Flush), 0),
        command::TRIM => (device(Operation::Trim(durability)), 0),
        command::WRITE_ZEROES => {
            let mode = match flags & command_flag::NO_HOLE {
                0 => ZeroMode::MayDeallocate,
                _ => ZeroMode::KeepAllocated,
            };
            (device(Operation::WriteZeroes(mode, durability)), command_flag::NO_HOLE)
        }
        command::BLOCK_STATUS => {
            let only_one = flags & command_flag::REQ_ONE != 0;
            (Command::BlockStatus { only_one }, command_flag::REQ_ONE)
        }
        command::CACHE => return refused(ErrorNumber::Invalid, "the command is not offered"),
        _ => {
            let words = "the command is unknown";
            return Err(Refusal { number: ErrorNumber::Invalid, words, ends_session: true });
        }
    };
    if flags & !allowed_flags != 0 {
        return refused(ErrorNumber::Invalid, "a flag is unknown, or not for this command");
    }
    let changes = matches!(command, Command::Device(operation) if operation.changes());
    if changes && session.read_only {
        return refused(ErrorNumber::NotPermitted, "the export is read-only");
    }
    let end = request.offset.checked_add(u64::from(request.length));
    if end.is_none_or(|end| end > session.size) {
        return match command {
            Command::Device(Operation::Write(_) | Operation::WriteZeroes(..)) => {
                refused(ErrorNumber::NoSpace, "the request ends after the end of the export")
            }
            _ => refused(ErrorNumber::Invalid, "the request ends after the end of the export"),
        };
    }
    match command {
        Command::Device(Operation::Read) if request.length > MAXIMUM_PAYLOAD => {
            let structured = session.structured;
            let number = if structured { ErrorNumber::Overflow } else { ErrorNumber::Invalid };
            refused(number, "the read is larger than the largest payload")
        }
        Command::Device(Operation::Flush) if request.offset != 0 || request.length != 0 => {
            refused(ErrorNumber::Invalid, "a flush has neither offset nor length")
        }
        Command::BlockStatus { .. } if !session.allocation_context => {
            refused(ErrorNumber::Invalid, "no metadata context was selected for this export")
        }
        Command::BlockStatus { .. } if request.length == 0 => {
            refused(ErrorNumber::Invalid, "a block status needs a length")
        }
        _ => Ok(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SESSION: Session =
        Session { size: 1 << 20, read_only: false, structured: true, allocation_context: true };
    const SIMPLE: Session =
        Session { size: 1 << 40, read_only: true, structured: false, allocation_context: false };

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 7, offset, length }
    }

    #[test]
    fn requests_are_judged_as_the_document_says() {
        use ErrorNumber::{Invalid, NoSpace, NotPermitted, Overflow};
        let durable = Durability::Durable;
        let cases: &[(Session, Request, Result<Command, ErrorNumber>)] = &[
            (SESSION, request(0, 0, 0, 1 << 20), Ok(Command::Device(Operation::Read))),
            (SESSION, request(0, 0, 1, 1 << 20), Err(Invalid)),
            (SESSION, request(0, 0, u64::MAX, 1), Err(Invalid)),
            (SESSION, request(0, 4, 0, 512), Ok(Command::Device(Operation::Read))),
            (SIMPLE, request(0, 4, 0, 512), Err(Invalid)),
            (SIMPLE, request(0, 0, 0, MAXIMUM_PAYLOAD + 1), Err(Invalid)),
            (Session { size: 1 << 40, ..SESSION }, request(0, 0, 0, MAXIMUM_PAYLOAD + 1), Err(Overflow)),
            (SESSION, request(0, 1, 0, 1), Ok(Command::Device(Operation::Read))),
            (SESSION, request(1, 1, 0, 1), Ok(Command::Device(Operation::Write(durable)))),
            (SESSION, request(1, 0, 1 << 20, 1), Err(NoSpace)),
            (SESSION, request(1, 1 << 5, 0, 1), Err(Invalid)),
            (SIMPLE, request(1, 0, 0, 1), Err(NotPermitted)),
            (SIMPLE, request(4, 0, 0, 1), Err(NotPermitted)),
            (SIMPLE, request(6, 0, 0, 1), Err(NotPermitted)),
            (SESSION, request(3, 0, 0, 0), Ok(Command::Device(Operation::Flush))),
            (SESSION, request(3, 0, 0, 1), Err(Invalid)),
            (SESSION, request(4, 1, 0, 1), Ok(Command::Device(Operation::Trim(durable)))),
            (SESSION, request(4, 2, 0, 1), Err(Invalid)),
            (SESSION, request(4, 0, 1 << 20, 1), Err(Invalid)),
            (SESSION, request(5, 0, 0, 1), Err(Invalid)),
            (
                SESSION,
                request(6, 3, 0, 1),
                Ok(Command::Device(Operation::WriteZeroes(ZeroMode::KeepAllocated, durable))),
            ),
            (SESSION, request(6, 16, 0, 1), Err(Invalid)),
            (SESSION, request(6, 0, 0, u32::MAX), Err(NoSpace)),
            (SESSION, request(7, 8, 0, 1), Ok(Command::BlockStatus { only_one: true })),
            (SESSION, request(7, 0, 1 << 20, 1), Err(Invalid)),
            (SESSION, request(7, 0, 0, 0), Err(Invalid)),
            (SIMPLE, request(7, 0, 0, 1), Err(Invalid)),
            (SESSION, request(8, 0, 0, 0), Err(Invalid)),
        ];
        for (session, request, expected) in cases {
            let judged = examine(request, session).map_err(|refusal| refusal.number);
            assert_eq!(judged, *expected, "{request:?} in {session:?}");
        }
    }

    #[test]
    fn a_refused_write_is_skipped_and_the_next_request_found() {
        let mut bytes = request(1, 0, 1 << 20, 600).encode().to_vec();
        bytes.extend_from_slice(&[0x25; 600]);
        bytes.extend_from_slice(&request(3, 0, 0, 0).encode());
        let mut intake = Intake::default();
        let mut steps = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let window = &bytes[at..(at + 400).min(bytes.len())];
            let step = intake.next(window, &SESSION).expect("valid");
            intake.take(&step);
            at += step.consumed();
            steps.push(step);
        }
        assert!(matches!(steps[0], Step::Refuse(_, Refusal { number: ErrorNumber::NoSpace, .. })));
        assert_eq!(steps[1..3], [Step::Skip(400), Step::Skip(200)]);
        assert!(matches!(steps[3], Step::Start(_, Command::Device(Operation::Flush))));
    }

    #[test]
    fn payloads_are_waited_for_and_absurd_ones_end_the_session() {
        let intake = Intake::default();
        let mut bytes = request(1, 0, 0, 4).encode().to_vec();
        for byte in 0..4 {
            assert_eq!(intake.next(&bytes, &SESSION), Ok(Step::Wait));
            bytes.push(byte);
        }
        let step = intake.next(&bytes, &SESSION).expect("valid");
        assert!(matches!(step, Step::Start(_, Command::Device(Operation::Write(_)))));
        assert_eq!(step.consumed(), 32);
        let large = request(1, 0, 0, LARGE_WRITE).encode();
        assert!(matches!(intake.next(&large, &SESSION), Ok(Step::StartLarge(..))));
        assert!(intake.next(&request(1, 0, 0, u32::MAX).encode(), &SESSION).is_err());
        assert_eq!(intake.next(&request(2, 0, 0, 0).encode(), &SESSION), Ok(Step::Disconnect));
    }

    fn some_request() -> impl Strategy<Value = Vec<u8>> {
        let fields = (0_u16..10, 0_u16..40, 0_u64..1 << 21, 0_u32..200_000);
        fields.prop_map(|(command, flags, offset, length)| {
            request(command, flags, offset, length).encode().to_vec()
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_always_move_on(
            pieces in prop::collection::vec(
                prop_oneof![prop::collection::vec(any::<u8>(), 0..100), some_request()],
                0..20,
            ),
            structured in any::<bool>(),
            read_only in any::<bool>(),
        ) {
            let bytes = pieces.concat();
            let session = Session { structured, read_only, allocation_context: structured, ..SESSION };
            let mut intake = Intake::default();
            let mut at = 0;
            while let Ok(step) = intake.next(&bytes[at..], &session) {
                intake.take(&step);
                prop_assert!(at + step.consumed() <= bytes.len());
                if step.consumed() == 0 {
                    break;
                }
                at += step.consumed();
            }
        }
    }
}
