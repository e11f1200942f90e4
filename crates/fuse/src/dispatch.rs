//! Translates a request to an operation of the file system, and its result to a reply. It waits only for the
//! file system, so that requests can be tested without a kernel.

use crate::file_system::{Context, CopyRange, FileSystem, Read, Release, SetAttributes, Write};
use crate::negotiation::{MAX_WRITE, Negotiated};
use crate::protocol::{
    CopyFileRangeOut, GetxattrOut, HEAD_BYTES, InHeader, LseekOut, ReleaseIn, WriteOut, flag, init_flag,
    opcode,
};
use crate::reply::{self, DirectoryEntries, DirectoryEntriesPlus};
use crate::request::{self, Malformed, Operation};
use block::{Buffer, Data, Error, Payload, Result};
use zerocopy::IntoBytes;

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

    /// Bytes after the header; for a WRITE without the data.
    fn arguments(&self) -> &[u8] {
        match &self.long {
            Some(long) => long.filled(),
            None => &self.head.filled()[size_of::<InHeader>()..],
        }
    }
}

/// End of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Reply to send.
    Reply(Payload),
    /// The request takes no reply.
    NoReply,
}

/// Executes a request.
///
/// # Errors
/// The violation of the protocol, which ends the session.
pub async fn answer(
    file_system: &dyn FileSystem,
    negotiated: &Negotiated,
    mut request: Request,
) -> Result<Outcome, Malformed> {
    let (header, data) = (request.header, request.data.take());
    let extended = negotiated.has(init_flag::SETXATTR_EXT);
    let operation = request::parse(&header, request.arguments(), extended)?;
    if let Operation::Write(write) = &operation {
        request::check_data(&header, write)?;
    }
    let result = match operation {
        Operation::Forget { lookups } => {
            file_system.forget(header.nodeid, lookups);
            return Ok(Outcome::NoReply);
        }
        Operation::BatchForget(forgets) => {
            forgets.iter().for_each(|one| file_system.forget(one.nodeid, one.nlookup));
            return Ok(Outcome::NoReply);
        }
        Operation::Interrupt { unique } => {
            file_system.interrupt(unique);
            return Ok(Outcome::NoReply);
        }
        Operation::NotifyReply => return Ok(Outcome::NoReply),
        operation => carry_out(file_system, &header, operation, data).await,
    };
    Ok(Outcome::Reply(result.unwrap_or_else(|error| {
        tracing::trace!("request {} of node {}: {error}", header.opcode, header.nodeid);
        reply::error(header.unique, error.errno())
    })))
}

/// Bytes for the entries of a directory that the kernel requests, at most [`MAX_WRITE`].
fn directory_bytes(size: u32) -> usize {
    (size as usize).min(MAX_WRITE)
}

fn release(arguments: &ReleaseIn) -> Release {
    Release { handle: arguments.fh, flags: arguments.flags as i32 }
}

/// Reply with the value or the names of extended attributes: its length if `size` is 0.
fn extended(unique: u64, size: u32, value: Data) -> Result<Payload> {
    match size {
        0 => Ok(reply::with(unique, &GetxattrOut { size: value.len() as u32, padding: 0 })),
        size if (size as usize) < value.len() => Err(Error::Os(libc::ERANGE, "value too long".into())),
        _ => Ok(reply::data(unique, &value.into())),
    }
}

async fn carry_out(
    fs: &dyn FileSystem,
    header: &InHeader,
    operation: Operation<'_>,
    data: Option<Buffer>,
) -> Result<Payload> {
    let (unique, node) = (header.unique, header.nodeid);
    let context = Context { unique, uid: header.uid, gid: header.gid, pid: header.pid };
    let done = |()| reply::done(unique);
    Ok(match operation {
        Operation::Lookup { name } => {
            let entry = fs.lookup(context, node, name).await?;
            reply::with(unique, &entry.frame())
        }
        Operation::GetAttributes(arguments) => {
            let handle = (arguments.getattr_flags & flag::GETATTR_FH != 0).then_some(arguments.fh);
            let (attributes, time) = fs.attributes(context, node, handle).await?;
            reply::with(unique, &attributes.cached_for(time))
        }
        Operation::SetAttributes(arguments) => {
            let (attributes, time) = fs.set_attributes(context, node, SetAttributes::of(&arguments)).await?;
            reply::with(unique, &attributes.cached_for(time))
        }
        Operation::ReadLink => reply::data(unique, &fs.read_link(context, node).await?.into()),
        Operation::SymbolicLink { name, target } => {
            reply::with(unique, &fs.symbolic_link(context, node, name, target).await?.frame())
        }
        Operation::MakeNode { arguments, name } => {
            let (mode, umask) = (arguments.mode, arguments.umask);
            let entry = fs.make_node(context, node, name, mode, umask, arguments.rdev).await?;
            reply::with(unique, &entry.frame())
        }
        Operation::MakeDirectory { arguments, name } => {
            let entry = fs.make_directory(context, node, name, arguments.mode, arguments.umask).await?;
            reply::with(unique, &entry.frame())
        }
        Operation::Unlink { name } => done(fs.unlink(context, node, name).await?),
        Operation::RemoveDirectory { name } => done(fs.remove_directory(context, node, name).await?),
        Operation::Rename { name, to, new_name, flags } => {
            done(fs.rename(context, node, name, to, new_name, flags).await?)
        }
        Operation::Link { node: linked, name } => {
            reply::with(unique, &fs.link(context, linked, node, name).await?.frame())
        }
        Operation::Open(arguments) => {
            reply::with(unique, &fs.open(context, node, arguments.flags as i32).await?.frame())
        }
        Operation::Read(arguments) => {
            // A shortened read would look like the end of the file.
            if arguments.size as usize > MAX_WRITE {
                return Err(Error::invalid("a read of more bytes than were negotiated"));
            }
            let read = Read {
                handle: arguments.fh,
                offset: arguments.offset,
                size: arguments.size,
                flags: arguments.flags as i32,
            };
            let bytes = fs.read(context, node, read).await?;
            if bytes.len() > read.size as usize {
                return Err(Error::io("the file system returned more bytes than were asked for"));
            }
            reply::data(unique, &bytes)
        }
        Operation::Write(arguments) => {
            let write = Write {
                handle: arguments.fh,
                offset: arguments.offset,
                flags: arguments.flags as i32,
                write_flags: arguments.write_flags,
            };
            let data = data.unwrap_or_else(|| Buffer::new(0));
            let size = fs.write(context, node, write, data).await?;
            reply::with(unique, &WriteOut { size, padding: 0 })
        }
        Operation::Statistics => reply::with(unique, &fs.statistics(context, node).await?.frame()),
        Operation::Release(arguments) => done(fs.release(context, node, release(&arguments)).await?),
        Operation::Sync(arguments) => {
            let data_only = arguments.fsync_flags & flag::FSYNC_FDATASYNC != 0;
            done(fs.sync(context, node, arguments.fh, data_only).await?)
        }
        Operation::SetExtended { name, value, flags } => {
            done(fs.set_extended(context, node, name, value, flags as i32).await?)
        }
        Operation::GetExtended { name, size } => {
            extended(unique, size, fs.extended(context, node, name).await?)?
        }
        Operation::ListExtended { size } => extended(unique, size, fs.list_extended(context, node).await?)?,
        Operation::RemoveExtended { name } => done(fs.remove_extended(context, node, name).await?),
        Operation::Flush(arguments) => done(fs.flush(context, node, arguments.fh).await?),
        Operation::OpenDirectory(arguments) => {
            reply::with(unique, &fs.open_directory(context, node, arguments.flags as i32).await?.frame())
        }
        Operation::ReadDirectory(arguments) => {
            let entries = DirectoryEntries::new(directory_bytes(arguments.size));
            let call = fs.read_directory(context, node, arguments.fh, arguments.offset, entries);
            reply::data(unique, &call.await?.into_data().into())
        }
        Operation::ReadDirectoryPlus(arguments) => {
            let entries = DirectoryEntriesPlus::new(directory_bytes(arguments.size));
            let call = fs.read_directory_plus(context, node, arguments.fh, arguments.offset, entries);
            reply::data(unique, &call.await?.into_data().into())
        }
        Operation::ReleaseDirectory(arguments) => {
            done(fs.release_directory(context, node, release(&arguments)).await?)
        }
        Operation::SyncDirectory(arguments) => {
            let data_only = arguments.fsync_flags & flag::FSYNC_FDATASYNC != 0;
            done(fs.sync_directory(context, node, arguments.fh, data_only).await?)
        }
        Operation::Access { mask } => done(fs.access(context, node, mask).await?),
        Operation::Create { arguments: it, name } => {
            let call = fs.create(context, node, name, it.mode, it.umask, it.flags as i32);
            let (entry, opened) = call.await?;
            entry_and_opened(unique, &entry, &opened)
        }
        Operation::TemporaryFile(it) => {
            let call = fs.temporary_file(context, node, it.mode, it.umask, it.flags as i32);
            let (entry, opened) = call.await?;
            entry_and_opened(unique, &entry, &opened)
        }
        Operation::Allocate(it) => {
            done(fs.allocate(context, node, it.fh, it.offset, it.length, it.mode as i32).await?)
        }
        Operation::Seek(it) => {
            let offset = fs.seek(context, node, it.fh, it.offset, it.whence as i32).await?;
            reply::with(unique, &LseekOut { offset })
        }
        Operation::CopyRange { arguments: it, long_reply } => {
            let length = if long_reply { it.len } else { it.len.min(u64::from(u32::MAX) & !4095) };
            let copy = CopyRange {
                from_handle: it.fh_in,
                from_offset: it.off_in,
                to_node: it.nodeid_out,
                to_handle: it.fh_out,
                to_offset: it.off_out,
                length,
                flags: it.flags,
            };
            let bytes_copied = fs.copy_range(context, node, copy).await?.min(length);
            match long_reply {
                true => reply::with(unique, &CopyFileRangeOut { bytes_copied }),
                false => reply::with(unique, &WriteOut { size: bytes_copied as u32, padding: 0 }),
            }
        }
        Operation::SyncFileSystem => done(fs.sync_all(context, node).await?),
        Operation::Destroy => {
            fs.destroy();
            reply::done(unique)
        }
        Operation::Control => return Err(Error::Os(libc::ENOTTY, "no ioctl".into())),
        // A second INIT is refused like an unknown operation. Operations without a reply were executed
        // before.
        Operation::Init(_)
        | Operation::Forget { .. }
        | Operation::BatchForget(_)
        | Operation::Interrupt { .. }
        | Operation::NotifyReply
        | Operation::Other(_) => return Err(Error::Os(libc::ENOSYS, "unknown operation".into())),
    })
}

fn entry_and_opened(unique: u64, entry: &crate::Entry, opened: &crate::Opened) -> Payload {
    let (entry, opened) = (entry.frame(), opened.frame());
    let mut body = [0; size_of::<crate::protocol::EntryOut>() + size_of::<crate::protocol::OpenOut>()];
    let (first, second) = body.split_at_mut(size_of::<crate::protocol::EntryOut>());
    first.copy_from_slice(entry.as_bytes());
    second.copy_from_slice(opened.as_bytes());
    reply::with(unique, &body)
}

/// Most bytes of a request: a WRITE of the largest size.
pub const REQUEST_BYTES: usize = HEAD_BYTES + MAX_WRITE;
