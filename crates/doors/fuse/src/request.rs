//! Parsing of requests. Sans-io: bytes become a [`Message`] that borrows names and values, or a
//! [`Malformed`].
//!
//! # Promises
//! - It doesn't panic for any bytes, and allocates nothing.
//! - Every name is one component of a path: not empty, without `/` and NUL, at most [`MAX_NAME`] bytes; in a
//!   LOOKUP it may be `.` or `..`.
//! - Bytes after the arguments of an operation are ignored: later minor versions of the protocol extend
//!   structures.

use crate::operation::{CopyRange, Operation, ReadDirectory, SetAttributes, Write};
use crate::protocol::{
    AccessIn, BatchForgetIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn, GetattrIn,
    GetxattrIn, InHeader, InitIn, InterruptIn, LinkIn, LseekIn, MAX_NAME, MkdirIn, MknodIn, OpenIn, ReadIn,
    ReleaseIn, Rename2In, RenameIn, SetxattrIn, ShortSetxattrIn, WriteIn, flag, opcode,
};
use block::Buffer;
use zerocopy::FromBytes;

/// Parsed request: an operation on a node, or a message about the connection or another request.
#[derive(Debug)]
pub enum Message<'a> {
    /// First request of a connection.
    Init(InitIn),
    /// Operation that the file system executes and answers.
    Operation(Operation<'a>),
    /// FORGET: a number of lookups of the request's node, without a reply.
    Forget(u64),
    /// BATCH_FORGET, without a reply.
    BatchForget(Forgets<'a>),
    /// INTERRUPT of the request with this number, without a reply.
    Interrupt(u64),
    /// End of the connection.
    Destroy,
    /// NOTIFY_REPLY, without a reply.
    NotifyReply,
    /// Opcode that this server doesn't support: IOCTL, locks, POLL, BMAP, STATX, and unknown ones.
    Unsupported(u32),
}

/// Nodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// The nodes, each with the number of lookups to forget.
    pub fn iter(self) -> impl Iterator<Item = ForgetOne> + 'a {
        self.0.chunks_exact(size_of::<ForgetOne>()).filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok())
    }
}

/// Violation of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Number of received bytes, which differs from the length in the header or is less than a header.
    Length(usize, u32),
    /// Opcode whose arguments are shorter than its structure.
    Arguments(u32),
    /// Opcode with a name that isn't a component of a path.
    Name(u32),
    /// Lengths of a WRITE's data: found, and announced.
    Data(usize, u32),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Length(read, stated) => {
                write!(
                    formatter,
                    "FUSE request of {read} bytes: its header has length {stated}; expected the same"
                )
            }
            Malformed::Arguments(opcode) => write!(formatter, "FUSE request {opcode}: arguments too short"),
            Malformed::Name(opcode) => write!(
                formatter,
                "FUSE request {opcode}: invalid name; expected 1 to {MAX_NAME} bytes without '/' and NUL"
            ),
            Malformed::Data(found, stated) => {
                write!(formatter, "FUSE write with {found} bytes of data: expected {stated}")
            }
        }
    }
}

/// Reads the header of a request of `length` bytes that begins with `head`, and checks its length.
///
/// # Errors
/// [`Malformed::Length`].
#[inline]
pub fn header(head: &[u8], length: usize) -> Result<InHeader, Malformed> {
    let Ok((header, _)) = InHeader::read_from_prefix(head) else { return Err(Malformed::Length(length, 0)) };
    let extensions = usize::from(header.total_extlen) * 8;
    if header.len as usize != length || length < size_of::<InHeader>() + extensions {
        return Err(Malformed::Length(length, header.len));
    }
    Ok(header)
}

/// Bytes of a request after its header.
struct Arguments<'a> {
    opcode: u32,
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (taken, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed::Arguments(self.opcode))?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed::Arguments(self.opcode))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Bytes before the next NUL; also consumes the NUL.
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(Malformed::Arguments(self.opcode))?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    /// A component of a path; `.` and `..` are allowed.
    fn component(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.text()?;
        match (1..=MAX_NAME).contains(&name.len()) && !name.contains(&b'/') {
            true => Ok(name),
            false => Err(Malformed::Name(self.opcode)),
        }
    }

    /// Name of an entry to create, change or remove.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.component()?;
        match name {
            b"." | b".." => Err(Malformed::Name(self.opcode)),
            name => Ok(name),
        }
    }

    /// Name of an extended attribute, which may contain `/`.
    fn attribute(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.text()?;
        match (1..=MAX_NAME).contains(&name.len()) {
            true => Ok(name),
            false => Err(Malformed::Name(self.opcode)),
        }
    }
}

/// Parses a request: its header, and the bytes after it, of which `data` are those of a WRITE. `setxattr_ext`
/// is whether [`SETXATTR_EXT`](crate::protocol::init_flag::SETXATTR_EXT) was negotiated.
///
/// # Errors
/// The violation of the protocol.
pub fn parse<'a>(
    header: &InHeader,
    arguments: &'a [u8],
    data: Option<Buffer>,
    setxattr_ext: bool,
) -> Result<Message<'a>, Malformed> {
    let extensions = match header.opcode {
        opcode::WRITE => 0,
        _ => usize::from(header.total_extlen) * 8,
    };
    let kept = arguments.len().checked_sub(extensions).ok_or(Malformed::Arguments(header.opcode))?;
    let mut arguments = Arguments { opcode: header.opcode, rest: &arguments[..kept] };
    Ok(match header.opcode {
        opcode::INIT => Message::Init(arguments.take()?),
        opcode::FORGET => Message::Forget(arguments.take::<ForgetIn>()?.nlookup),
        opcode::BATCH_FORGET => {
            let count = arguments.take::<BatchForgetIn>()?.count as usize;
            let bytes =
                count.checked_mul(size_of::<ForgetOne>()).ok_or(Malformed::Arguments(header.opcode))?;
            Message::BatchForget(Forgets(arguments.bytes(bytes)?))
        }
        opcode::INTERRUPT => Message::Interrupt(arguments.take::<InterruptIn>()?.unique),
        opcode::DESTROY => Message::Destroy,
        opcode::NOTIFY_REPLY => Message::NotifyReply,
        opcode::WRITE => Message::Operation(write(arguments.take()?, data)?),
        opcode::SETXATTR => Message::Operation(set_extended(&mut arguments, setxattr_ext)?),
        unsupported => match on_name(&mut arguments)? {
            Some(operation) => Message::Operation(operation),
            None => on_node(&mut arguments)?.map_or(Message::Unsupported(unsupported), Message::Operation),
        },
    })
}

/// Operation on a name; `None` for another opcode.
fn on_name<'a>(arguments: &mut Arguments<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    Ok(Some(match arguments.opcode {
        opcode::LOOKUP => Operation::Lookup { name: arguments.component()? },
        opcode::SYMLINK => Operation::SymbolicLink { name: arguments.name()?, target: arguments.text()? },
        opcode::MKNOD => {
            let MknodIn { mode, rdev: device, umask, .. } = arguments.take()?;
            Operation::MakeNode { name: arguments.name()?, mode, umask, device }
        }
        opcode::MKDIR => {
            let MkdirIn { mode, umask } = arguments.take()?;
            Operation::MakeDirectory { name: arguments.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: arguments.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: arguments.name()? },
        opcode::RENAME => {
            let RenameIn { newdir: new_parent } = arguments.take()?;
            Operation::Rename { name: arguments.name()?, new_parent, new_name: arguments.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let Rename2In { newdir: new_parent, flags, .. } = arguments.take()?;
            Operation::Rename { name: arguments.name()?, new_parent, new_name: arguments.name()?, flags }
        }
        opcode::LINK => {
            let LinkIn { oldnodeid: linked } = arguments.take()?;
            Operation::Link { linked, name: arguments.name()? }
        }
        opcode::GETXATTR => {
            let GetxattrIn { size, .. } = arguments.take()?;
            Operation::GetExtended { name: arguments.attribute()?, size }
        }
        opcode::REMOVEXATTR => Operation::RemoveExtended { name: arguments.attribute()? },
        opcode::CREATE => {
            let CreateIn { flags, mode, umask, .. } = arguments.take()?;
            Operation::Create { name: arguments.name()?, mode, umask, flags: flags as i32 }
        }
        _ => return Ok(None),
    }))
}

/// Operation on a node alone; `None` for another opcode.
fn on_node<'a>(arguments: &mut Arguments<'a>) -> Result<Option<Operation<'a>>, Malformed> {
    Ok(Some(match arguments.opcode {
        opcode::GETATTR => {
            let GetattrIn { getattr_flags, fh, .. } = arguments.take()?;
            Operation::GetAttributes { handle: (getattr_flags & flag::GETATTR_FH != 0).then_some(fh) }
        }
        opcode::SETATTR => Operation::SetAttributes(SetAttributes::of(&arguments.take()?)),
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open { flags: arguments.take::<OpenIn>()?.flags as i32 },
        opcode::READ => Operation::Read(arguments.take::<ReadIn>()?.into()),
        opcode::STATFS => Operation::Statistics,
        opcode::RELEASE => {
            let ReleaseIn { fh: handle, flags, .. } = arguments.take()?;
            Operation::Release { handle, flags: flags as i32 }
        }
        opcode::FSYNC => {
            let FsyncIn { fh: handle, fsync_flags, .. } = arguments.take()?;
            Operation::Sync { handle, data_only: fsync_flags & flag::FSYNC_FDATASYNC != 0 }
        }
        opcode::LISTXATTR => Operation::ListExtended { size: arguments.take::<GetxattrIn>()?.size },
        opcode::FLUSH => Operation::Flush { handle: arguments.take::<FlushIn>()?.fh },
        opcode::OPENDIR => Operation::OpenDirectory { flags: arguments.take::<OpenIn>()?.flags as i32 },
        opcode::READDIR => Operation::ReadDirectory(ReadDirectory::of(arguments.take()?, false)),
        opcode::READDIRPLUS => Operation::ReadDirectory(ReadDirectory::of(arguments.take()?, true)),
        opcode::RELEASEDIR => Operation::ReleaseDirectory { handle: arguments.take::<ReleaseIn>()?.fh },
        opcode::FSYNCDIR => {
            let FsyncIn { fh: handle, fsync_flags, .. } = arguments.take()?;
            Operation::SyncDirectory { handle, data_only: fsync_flags & flag::FSYNC_FDATASYNC != 0 }
        }
        opcode::ACCESS => Operation::Access { mask: arguments.take::<AccessIn>()?.mask },
        opcode::TMPFILE => {
            let CreateIn { flags, mode, umask, .. } = arguments.take()?;
            Operation::TemporaryFile { mode, umask, flags: flags as i32 }
        }
        opcode::FALLOCATE => {
            let FallocateIn { fh: handle, offset, length, mode, .. } = arguments.take()?;
            Operation::Allocate { handle, offset, length, mode: mode as i32 }
        }
        opcode::LSEEK => {
            let LseekIn { fh: handle, offset, whence, .. } = arguments.take()?;
            Operation::Seek { handle, offset, whence: whence as i32 }
        }
        copy @ (opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64) => {
            Operation::CopyRange(CopyRange::of(&arguments.take()?, copy))
        }
        opcode::SYNCFS => Operation::SyncAll,
        _ => return Ok(None),
    }))
}

/// A WRITE, which must have as much data as it announces.
#[inline]
fn write(arguments: WriteIn, data: Option<Buffer>) -> Result<Operation<'static>, Malformed> {
    let data = data.ok_or(Malformed::Arguments(opcode::WRITE))?;
    match data.filled().len() == arguments.size as usize {
        true => Ok(Operation::Write(Write::of(&arguments, data))),
        false => Err(Malformed::Data(data.filled().len(), arguments.size)),
    }
}

/// A SETXATTR, whose structure has a long and a short form.
fn set_extended<'a>(arguments: &mut Arguments<'a>, is_long: bool) -> Result<Operation<'a>, Malformed> {
    let ShortSetxattrIn { size, flags } = match is_long {
        true => {
            let SetxattrIn { size, flags, .. } = arguments.take()?;
            ShortSetxattrIn { size, flags }
        }
        false => arguments.take()?,
    };
    let name = arguments.attribute()?;
    Ok(Operation::SetExtended { name, value: arguments.bytes(size as usize)?, flags: flags as i32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn frame(opcode: u32, arguments: &[u8]) -> (InHeader, Vec<u8>) {
        let len = (size_of::<InHeader>() + arguments.len()) as u32;
        (InHeader { len, opcode, unique: 2, nodeid: 1, ..InHeader::default() }, arguments.to_vec())
    }

    fn parsed(opcode: u32, arguments: &[u8]) -> Result<String, Malformed> {
        let (header, arguments) = frame(opcode, arguments);
        parse(&header, &arguments, None, true).map(|message| format!("{message:?}"))
    }

    #[test]
    fn names_are_components() {
        for name in [&b"..\0"[..], b".\0", b"\0", b"a/b\0"] {
            assert_eq!(parsed(opcode::UNLINK, name), Err(Malformed::Name(opcode::UNLINK)), "{name:?}");
        }
        assert_eq!(parsed(opcode::UNLINK, b"abc"), Err(Malformed::Arguments(opcode::UNLINK)), "no NUL");
        assert!(parsed(opcode::LOOKUP, b"..\0").is_ok());
        assert!(parsed(opcode::LOOKUP, b"../x\0").is_err());
        let long = [vec![b'x'; MAX_NAME + 1], vec![0]].concat();
        assert_eq!(parsed(opcode::LOOKUP, &long), Err(Malformed::Name(opcode::LOOKUP)));
    }

    #[test]
    fn two_names_follow_a_rename() {
        let bytes = [7_u64.as_bytes(), b"old\0new\0"].concat();
        let (header, bytes) = frame(opcode::RENAME, &bytes);
        let Ok(Message::Operation(Operation::Rename { name, new_parent, new_name, flags })) =
            parse(&header, &bytes, None, true)
        else {
            panic!("a rename")
        };
        assert_eq!((name, new_parent, new_name, flags), (&b"old"[..], 7, &b"new"[..], 0));
    }

    #[test]
    fn a_set_of_an_attribute_has_two_forms() {
        let short = [3_u32.as_bytes(), 1_u32.as_bytes(), b"user.a/b\0xyz"].concat();
        let long = [3_u32.as_bytes(), 1_u32.as_bytes(), &[0; 8], b"user.a/b\0xyz"].concat();
        for (bytes, extended) in [(short, false), (long, true)] {
            let (header, bytes) = frame(opcode::SETXATTR, &bytes);
            let Ok(Message::Operation(Operation::SetExtended { name, value, flags })) =
                parse(&header, &bytes, None, extended)
            else {
                panic!("a setxattr")
            };
            assert_eq!((name, value, flags), (&b"user.a/b"[..], &b"xyz"[..], 1));
        }
    }

    #[test]
    fn a_batch_of_forgets_is_bounded_by_its_bytes() {
        let one = ForgetOne { nodeid: 5, nlookup: 2 };
        let bytes = [2_u32.as_bytes(), &[0; 4], one.as_bytes(), one.as_bytes()].concat();
        let (header, bytes) = frame(opcode::BATCH_FORGET, &bytes);
        let Ok(Message::BatchForget(forgets)) = parse(&header, &bytes, None, true) else {
            panic!("it is one")
        };
        assert_eq!(forgets.iter().collect::<Vec<_>>(), [one, one]);
        let more = [u32::MAX.as_bytes(), &[0; 4], one.as_bytes()].concat();
        assert_eq!(parsed(opcode::BATCH_FORGET, &more), Err(Malformed::Arguments(opcode::BATCH_FORGET)));
    }

    #[test]
    fn extensions_are_no_arguments() {
        let (mut header, bytes) = frame(opcode::MKDIR, &[&[0; 8][..], b"dir\0", &[0xFF; 16]].concat());
        header.total_extlen = 2;
        let Ok(Message::Operation(Operation::MakeDirectory { name, .. })) =
            parse(&header, &bytes, None, true)
        else {
            panic!("a mkdir")
        };
        assert_eq!(name, b"dir");
        header.total_extlen = 9;
        let refused = parse(&header, &bytes, None, true).err();
        assert_eq!(refused, Some(Malformed::Arguments(opcode::MKDIR)));
    }

    #[test]
    fn lengths_have_to_agree() {
        let (mut head, _) = frame(opcode::STATFS, &[]);
        assert!(header(head.as_bytes(), 40).is_ok());
        assert!(header(head.as_bytes(), 41).is_err());
        assert!(header(&head.as_bytes()[..39], 39).is_err());
        head.total_extlen = 1;
        assert!(header(head.as_bytes(), 40).is_err());
    }

    proptest! {
        /// For any bytes there is no panic, and returned names are components.
        #[test]
        fn any_bytes_are_parsed_or_refused(
            opcode in prop_oneof![0_u32..60, any::<u32>()],
            bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(b'a'), Just(b'/'), any::<u8>()], 0..200),
            extensions in prop_oneof![Just(0_u16), any::<u16>()],
            extended: bool,
        ) {
            let (mut head, bytes) = frame(opcode, &bytes);
            head.total_extlen = extensions;
            let _ = header(head.as_bytes(), head.len as usize);
            let data = bytes.get(size_of::<WriteIn>()..).map(Buffer::copy_of);
            match parse(&head, &bytes, data, extended) {
                Ok(Message::Operation(
                    Operation::Unlink { name }
                    | Operation::RemoveDirectory { name }
                    | Operation::SymbolicLink { name, .. }
                    | Operation::MakeNode { name, .. }
                    | Operation::MakeDirectory { name, .. }
                    | Operation::Link { name, .. }
                    | Operation::Create { name, .. },
                )) => {
                    prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                    prop_assert!(!name.contains(&0) && !name.contains(&b'/'));
                }
                Ok(Message::BatchForget(forgets)) => prop_assert!(forgets.iter().count() * 16 <= bytes.len()),
                _ => {}
            }
        }
    }
}
