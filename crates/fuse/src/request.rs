//! Parsing of requests. Sans-io: bytes become an [`Operation`] that borrows names and values, or a
//! [`Malformed`].
//!
//! # Promises
//! - It doesn't panic for any bytes, and allocates nothing.
//! - Every name is one component of a path: not empty, without `/` and NUL, at most [`MAX_NAME`] bytes; in a
//!   LOOKUP it may be `.` or `..`.
//! - Bytes after the arguments of an operation are ignored: later minor versions of the protocol extend
//!   structures.

use crate::protocol::{
    AccessIn, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne, FsyncIn,
    GetattrIn, GetxattrIn, HEAD_BYTES, InHeader, InitIn, InterruptIn, LinkIn, LseekIn, MAX_NAME, MkdirIn,
    MknodIn, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, ShortSetxattrIn, WriteIn,
    opcode,
};
use zerocopy::FromBytes;

/// Operation of a request, with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The operations are those of the trait `FileSystem`.
pub enum Operation<'a> {
    Init(InitIn),
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttributes(GetattrIn),
    SetAttributes(SetattrIn),
    ReadLink,
    SymbolicLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        arguments: MknodIn,
        name: &'a [u8],
    },
    MakeDirectory {
        arguments: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Read(ReadIn),
    /// The data isn't part of the arguments.
    Write(WriteIn),
    Statistics,
    Release(ReleaseIn),
    Sync(FsyncIn),
    SetExtended {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    GetExtended {
        name: &'a [u8],
        size: u32,
    },
    ListExtended {
        size: u32,
    },
    RemoveExtended {
        name: &'a [u8],
    },
    Flush(FlushIn),
    OpenDirectory(OpenIn),
    ReadDirectory(ReadIn),
    ReadDirectoryPlus(ReadIn),
    ReleaseDirectory(ReleaseIn),
    SyncDirectory(FsyncIn),
    Access {
        mask: u32,
    },
    Create {
        arguments: CreateIn,
        name: &'a [u8],
    },
    TemporaryFile(CreateIn),
    Interrupt {
        unique: u64,
    },
    Destroy,
    Allocate(FallocateIn),
    Seek(LseekIn),
    CopyRange {
        arguments: CopyFileRangeIn,
        long_reply: bool,
    },
    SyncFileSystem,
    /// IOCTL.
    Control,
    /// NOTIFY_REPLY, which takes no reply.
    NotifyReply,
    /// An operation that this server doesn't support: locks, POLL, BMAP, STATX, and unknown ones.
    Other(u32),
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

/// Parses the arguments of a request: the bytes after its header, for a WRITE without the data.
/// `setxattr_ext` is whether [`SETXATTR_EXT`](crate::protocol::init_flag::SETXATTR_EXT) was negotiated.
///
/// # Errors
/// The violation of the protocol.
pub fn parse<'a>(
    header: &InHeader,
    arguments: &'a [u8],
    setxattr_ext: bool,
) -> Result<Operation<'a>, Malformed> {
    let extensions = match header.opcode {
        opcode::WRITE => 0,
        _ => usize::from(header.total_extlen) * 8,
    };
    let kept = arguments.len().checked_sub(extensions).ok_or(Malformed::Arguments(header.opcode))?;
    let mut arguments = Arguments { opcode: header.opcode, rest: &arguments[..kept] };
    let arguments = &mut arguments;
    Ok(match header.opcode {
        opcode::INIT => Operation::Init(arguments.take()?),
        opcode::LOOKUP => Operation::Lookup { name: arguments.component()? },
        opcode::FORGET => Operation::Forget { lookups: arguments.take::<ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => {
            let count = arguments.take::<BatchForgetIn>()?.count as usize;
            let bytes =
                count.checked_mul(size_of::<ForgetOne>()).ok_or(Malformed::Arguments(header.opcode))?;
            Operation::BatchForget(Forgets(arguments.bytes(bytes)?))
        }
        opcode::GETATTR => Operation::GetAttributes(arguments.take()?),
        opcode::SETATTR => Operation::SetAttributes(arguments.take()?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::SymbolicLink { name: arguments.name()?, target: arguments.text()? },
        opcode::MKNOD => Operation::MakeNode { arguments: arguments.take()?, name: arguments.name()? },
        opcode::MKDIR => Operation::MakeDirectory { arguments: arguments.take()?, name: arguments.name()? },
        opcode::UNLINK => Operation::Unlink { name: arguments.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: arguments.name()? },
        opcode::RENAME => {
            let to = arguments.take::<RenameIn>()?.newdir;
            Operation::Rename { name: arguments.name()?, to, new_name: arguments.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let Rename2In { newdir: to, flags, .. } = arguments.take()?;
            Operation::Rename { name: arguments.name()?, to, new_name: arguments.name()?, flags }
        }
        opcode::LINK => {
            let node = arguments.take::<LinkIn>()?.oldnodeid;
            Operation::Link { node, name: arguments.name()? }
        }
        opcode::OPEN => Operation::Open(arguments.take()?),
        opcode::READ => Operation::Read(arguments.take()?),
        opcode::WRITE => Operation::Write(arguments.take()?),
        opcode::STATFS => Operation::Statistics,
        opcode::RELEASE => Operation::Release(arguments.take()?),
        opcode::FSYNC => Operation::Sync(arguments.take()?),
        opcode::SETXATTR => {
            let (size, flags) = if setxattr_ext {
                let SetxattrIn { size, flags, .. } = arguments.take()?;
                (size, flags)
            } else {
                let ShortSetxattrIn { size, flags } = arguments.take()?;
                (size, flags)
            };
            let name = arguments.attribute()?;
            Operation::SetExtended { name, value: arguments.bytes(size as usize)?, flags }
        }
        opcode::GETXATTR => {
            let size = arguments.take::<GetxattrIn>()?.size;
            Operation::GetExtended { name: arguments.attribute()?, size }
        }
        opcode::LISTXATTR => Operation::ListExtended { size: arguments.take::<GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::RemoveExtended { name: arguments.attribute()? },
        opcode::FLUSH => Operation::Flush(arguments.take()?),
        opcode::OPENDIR => Operation::OpenDirectory(arguments.take()?),
        opcode::READDIR => Operation::ReadDirectory(arguments.take()?),
        opcode::READDIRPLUS => Operation::ReadDirectoryPlus(arguments.take()?),
        opcode::RELEASEDIR => Operation::ReleaseDirectory(arguments.take()?),
        opcode::FSYNCDIR => Operation::SyncDirectory(arguments.take()?),
        opcode::ACCESS => Operation::Access { mask: arguments.take::<AccessIn>()?.mask },
        opcode::CREATE => Operation::Create { arguments: arguments.take()?, name: arguments.name()? },
        opcode::TMPFILE => Operation::TemporaryFile(arguments.take()?),
        opcode::INTERRUPT => Operation::Interrupt { unique: arguments.take::<InterruptIn>()?.unique },
        opcode::DESTROY => Operation::Destroy,
        opcode::FALLOCATE => Operation::Allocate(arguments.take()?),
        opcode::LSEEK => Operation::Seek(arguments.take()?),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => Operation::CopyRange {
            arguments: arguments.take()?,
            long_reply: header.opcode == opcode::COPY_FILE_RANGE_64,
        },
        opcode::SYNCFS => Operation::SyncFileSystem,
        opcode::IOCTL => Operation::Control,
        opcode::NOTIFY_REPLY => Operation::NotifyReply,
        other => Operation::Other(other),
    })
}

/// Checks that a WRITE has as much data as it announces.
///
/// # Errors
/// [`Malformed::Data`].
#[inline]
pub fn check_data(header: &InHeader, write: &WriteIn) -> Result<(), Malformed> {
    let found = (header.len as usize).saturating_sub(HEAD_BYTES);
    match found == write.size as usize {
        true => Ok(()),
        false => Err(Malformed::Data(found, write.size)),
    }
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
        parse(&header, &arguments, true).map(|operation| format!("{operation:?}"))
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
        let expected = Operation::Rename { name: b"old", to: 7, new_name: b"new", flags: 0 };
        assert_eq!(parse(&header, &bytes, true), Ok(expected));
    }

    #[test]
    fn a_set_of_an_attribute_has_two_forms() {
        let short = [3_u32.as_bytes(), 1_u32.as_bytes(), b"user.a/b\0xyz"].concat();
        let long = [3_u32.as_bytes(), 1_u32.as_bytes(), &[0; 8], b"user.a/b\0xyz"].concat();
        let expected = Operation::SetExtended { name: b"user.a/b", value: b"xyz", flags: 1 };
        for (bytes, extended) in [(short, false), (long, true)] {
            let (header, bytes) = frame(opcode::SETXATTR, &bytes);
            assert_eq!(parse(&header, &bytes, extended), Ok(expected));
        }
    }

    #[test]
    fn a_batch_of_forgets_is_bounded_by_its_bytes() {
        let one = ForgetOne { nodeid: 5, nlookup: 2 };
        let bytes = [2_u32.as_bytes(), &[0; 4], one.as_bytes(), one.as_bytes()].concat();
        let (header, bytes) = frame(opcode::BATCH_FORGET, &bytes);
        let Ok(Operation::BatchForget(forgets)) = parse(&header, &bytes, true) else { panic!("it is one") };
        assert_eq!(forgets.iter().collect::<Vec<_>>(), [one, one]);
        let more = [u32::MAX.as_bytes(), &[0; 4], one.as_bytes()].concat();
        assert_eq!(parsed(opcode::BATCH_FORGET, &more), Err(Malformed::Arguments(opcode::BATCH_FORGET)));
    }

    #[test]
    fn extensions_are_no_arguments() {
        let (mut header, bytes) = frame(opcode::MKDIR, &[&[0; 8][..], b"dir\0", &[0xFF; 16]].concat());
        header.total_extlen = 2;
        let Ok(Operation::MakeDirectory { name, .. }) = parse(&header, &bytes, true) else {
            panic!("a mkdir")
        };
        assert_eq!(name, b"dir");
        header.total_extlen = 9;
        assert_eq!(parse(&header, &bytes, true), Err(Malformed::Arguments(opcode::MKDIR)));
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
            match parse(&head, &bytes, extended) {
                Ok(
                    Operation::Unlink { name }
                    | Operation::RemoveDirectory { name }
                    | Operation::SymbolicLink { name, .. }
                    | Operation::MakeNode { name, .. }
                    | Operation::MakeDirectory { name, .. }
                    | Operation::Link { name, .. }
                    | Operation::Create { name, .. },
                ) => {
                    prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                    prop_assert!(!name.contains(&0) && !name.contains(&b'/'));
                }
                Ok(Operation::Write(write)) => {
                    let _ = check_data(&head, &write);
                }
                Ok(Operation::BatchForget(forgets)) => prop_assert!(forgets.iter().count() * 16 <= bytes.len()),
                _ => {}
            }
        }
    }
}
