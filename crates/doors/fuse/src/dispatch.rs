//! Translates a request to an operation of the file system, and its result to a reply. It waits only for the
//! file system, so that requests can be tested without a kernel.

use crate::file_system::{Context, FileSystem};
use crate::negotiation::{MAX_WRITE, Negotiated};
use crate::operation::Operation;
use crate::protocol::{HEAD_BYTES, InHeader, init_flag, opcode};
use crate::reply;
use crate::request::{self, Malformed, Message};
use block::{Buffer, Error, Payload, Result};

/// A received request: a header, followed by a WRITE and its data or by the arguments of another operation.
#[derive(Debug)]
pub struct Request {
    /// Header of the request.
    pub header: InHeader,
    /// First bytes of the request: all of it except the data of a WRITE, unless there are `long` arguments.
    head: Buffer,
    /// Bytes after the header, where they don't fit `head`.
    long: Option<Buffer>,
    /// Data of a WRITE.
    data: Option<Buffer>,
}

/// Length at and above which the data of a WRITE remains in the buffer that it was read to. Shorter data is
/// copied, so that it doesn't hold [`MAX_WRITE`] bytes of memory.
pub const KEPT_BYTES: usize = 128 << 10;

impl Request {
    /// Returns the request of `length` bytes whose first [`HEAD_BYTES`] are in `head` and whose others are in
    /// `body`.
    ///
    /// # Errors
    /// The violation of the protocol.
    #[inline]
    pub fn of(head: Buffer, body: Buffer, length: usize) -> Result<Request, Malformed> {
        let header = request::header(head.filled(), length)?;
        let (mut long, mut data) = (None, None);
        if header.opcode == opcode::WRITE {
            let kept = body.filled().len() >= KEPT_BYTES;
            data = Some(if kept { body } else { Buffer::copy_of(body.filled()) });
        } else if !body.filled().is_empty() {
            let first = &head.filled()[size_of::<InHeader>()..];
            let mut arguments = Buffer::new(first.len() + body.filled().len());
            arguments.append(first);
            arguments.append(body.filled());
            long = Some(arguments);
        }
        Ok(Request { header, head, long, data })
    }

    /// Returns the request whose header, operation's structure, and names or data are apart. The parts are
    /// copied.
    ///
    /// # Errors
    /// The violation of the protocol.
    #[inline]
    pub fn of_parts(header: &[u8], structure: &[u8], rest: &[u8]) -> Result<Request, Malformed> {
        let header_bytes = header;
        let header = request::header(header_bytes, header_bytes.len() + structure.len() + rest.len())?;
        let (mut long, mut data) = (None, None);
        let mut head = Buffer::new(HEAD_BYTES);
        head.append(header_bytes);
        if header.opcode == opcode::WRITE {
            head.append(&structure[..structure.len().min(head.missing())]);
            data = Some(Buffer::copy_of(rest));
        } else {
            let length = structure.len() + rest.len();
            let arguments = match length <= head.missing() {
                true => &mut head,
                false => long.insert(Buffer::new(length)),
            };
            arguments.append(structure);
            arguments.append(rest);
        }
        Ok(Request { header, head, long, data })
    }

    /// Bytes after the header; for a WRITE without the data.
    fn arguments(&self) -> &[u8] {
        match &self.long {
            Some(long) => long.filled(),
            None => &self.head.filled()[size_of::<InHeader>()..],
        }
    }
}

/// Executes a request. Returns the reply to send, if the request takes one.
///
/// # Errors
/// The violation of the protocol, which ends the session.
pub async fn answer(
    file_system: &dyn FileSystem,
    negotiated: &Negotiated,
    mut request: Request,
) -> Result<Option<Payload>, Malformed> {
    let (header, data) = (request.header, request.data.take());
    let extended = negotiated.has(init_flag::SETXATTR_EXT);
    let result = match request::parse(&header, request.arguments(), data, extended)? {
        Message::Operation(operation) => serve(file_system, &header, operation).await,
        Message::Destroy => {
            file_system.destroy();
            Ok(reply::done(header.unique))
        }
        Message::Unsupported(opcode::IOCTL) => Err(Error::Os(libc::ENOTTY, "no ioctl".into())),
        // A second INIT is refused like an unknown operation.
        Message::Init(_) | Message::Unsupported(_) => {
            Err(Error::Os(libc::ENOSYS, "unknown operation".into()))
        }
        unanswered => {
            notify(file_system, header.nodeid, unanswered);
            return Ok(None);
        }
    };
    Ok(Some(result.unwrap_or_else(|error| {
        tracing::trace!("request {} of node {}: {error}", header.opcode, header.nodeid);
        reply::error(header.unique, error.errno())
    })))
}

/// Passes a message without a reply on.
fn notify(file_system: &dyn FileSystem, node: u64, message: Message<'_>) {
    match message {
        Message::Forget(lookups) => file_system.forget(node, lookups),
        Message::BatchForget(forgets) => {
            forgets.iter().for_each(|one| file_system.forget(one.nodeid, one.nlookup));
        }
        Message::Interrupt(unique) => file_system.interrupt(unique),
        // NOTIFY_REPLY, whose notification this server doesn't send.
        _ => {}
    }
}

async fn serve(file_system: &dyn FileSystem, header: &InHeader, operation: Operation<'_>) -> Result<Payload> {
    // A shortened read would look like the end of the file.
    if matches!(&operation, Operation::Read(read) if read.size as usize > MAX_WRITE) {
        return Err(Error::invalid("a read of more bytes than were negotiated"));
    }
    let limit = operation.limit();
    file_system.serve(Context::of(header), operation).await?.frame(header, limit)
}

/// Most bytes of a request: a WRITE of the largest size.
pub const REQUEST_BYTES: usize = HEAD_BYTES + MAX_WRITE;
