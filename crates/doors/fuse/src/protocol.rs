//! Frames of the FUSE kernel protocol, version 7.45 (`include/uapi/linux/fuse.h` of Linux 6.18): numbers, and
//! structures in the byte order of the machine. Fields have the names of that header where these are words.
//!
//! A request is an [`InHeader`], the structure of its opcode, and names or data. A reply is an [`OutHeader`]
//! and the structure of the opcode, or the header alone with an error.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Highest minor version that this server supports.
pub const MINOR: u32 = 45;
/// Lowest minor version that this server accepts: that of Linux 5.17, the first with [`InitIn::flags2`].
pub const MIN_MINOR: u32 = 36;
/// Number of the root node.
pub const ROOT: u64 = 1;
/// Bit of [`InHeader::unique`] that marks a resent request, after [`notify::RESEND`].
pub const UNIQUE_RESENT: u64 = 1 << 63;
/// Longest name of a directory entry, in bytes: PATH_MAX without the final NUL.
pub const MAX_NAME: usize = 4095;
/// `ioctl` of an open `/dev/fuse` that joins it to the connection of another one: `_IOR(229, 0, uint32_t)`.
pub const DEV_IOC_CLONE: u32 = 0x8004_E500;

/// Numbers of operations, several on a line.
macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => { $(pub const $name: u32 = $number;)* };
}

/// Flags, by the numbers of their bits.
macro_rules! flags {
    ($type:ty; $($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        $($(#[$doc])* pub const $name: $type = 1 << $bit;)*
    };
}

/// Numbers of the operations.
#[allow(missing_docs)] // The names say it.
pub mod opcode {
    opcodes! {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24,
        FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31,
        SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38,
        IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44,
        RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49,
        SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
}

/// Flags of INIT: capabilities that the kernel offers and the server accepts. Bits 32 and higher are in
/// `flags2`.
pub mod init_flag {
    flags! { u64;
        /// Several reads of a file in flight.
        ASYNC_READ = 0,
        /// OPEN with O_TRUNC truncates the file, without a SETATTR.
        ATOMIC_O_TRUNC = 3,
        /// Lookups of `.` and `..`, for NFS.
        EXPORT_SUPPORT = 4,
        /// Writes of more than 4 KiB.
        BIG_WRITES = 5,
        /// The server applies the umask.
        DONT_MASK = 6,
        /// Cached pages are invalidated when size or modification time change.
        AUTO_INVAL_DATA = 12,
        /// READDIRPLUS.
        DO_READDIRPLUS = 13,
        /// READDIRPLUS where the kernel expects to need the attributes, else READDIR.
        READDIRPLUS_AUTO = 14,
        /// Several parts of a direct read or write in flight.
        ASYNC_DIO = 15,
        /// Writes go to the page cache first.
        WRITEBACK_CACHE = 16,
        /// Lookups and READDIR of a directory in parallel.
        PARALLEL_DIROPS = 18,
        /// POSIX access control lists.
        POSIX_ACL = 20,
        /// Reading an aborted device fails with ECONNABORTED instead of ENODEV.
        ABORT_ERROR = 21,
        /// `max_pages` of INIT's reply is valid.
        MAX_PAGES = 22,
        /// Targets of symbolic links are cached.
        CACHE_SYMLINKS = 23,
        /// Cached data is invalidated only when the server asks for it.
        EXPLICIT_INVAL_DATA = 25,
        /// The server clears setuid and setgid bits on writes, truncation and changes of the owner.
        HANDLE_KILLPRIV_V2 = 28,
        /// SETXATTR has the long form of its structure.
        SETXATTR_EXT = 29,
        /// `flags2` is valid.
        INIT_EXT = 30,
        /// Shared mappings of files opened for direct I/O.
        DIRECT_IO_ALLOW_MMAP = 36,
        /// The kernel resends unanswered requests on request.
        HAS_RESEND = 39,
        /// Requests and replies are passed in the entries of rings.
        OVER_IO_URING = 41,
    }
}

/// Flags of the reply to OPEN.
pub mod open_flag {
    flags! { u32;
        /// Bypass the page cache.
        DIRECT_IO = 0,
        /// Keep cached data of earlier opens.
        KEEP_CACHE = 1,
        /// The file has no positions to seek to.
        NONSEEKABLE = 2,
        /// Cache the entries of this directory.
        CACHE_DIR = 3,
        /// The file has no position.
        STREAM = 4,
        /// No FLUSH on close.
        NOFLUSH = 5,
        /// Direct writes to one file run in parallel.
        PARALLEL_DIRECT_WRITES = 6,
    }
}

/// Bits of [`SetattrIn::valid`].
pub mod valid {
    flags! { u32;
        /// `mode` is to be set.
        MODE = 0,
        /// `uid` is to be set.
        UID = 1,
        /// `gid` is to be set.
        GID = 2,
        /// `size` is to be set.
        SIZE = 3,
        /// `atime` is to be set.
        ATIME = 4,
        /// `mtime` is to be set.
        MTIME = 5,
        /// `fh` is valid.
        FH = 6,
        /// `atime` is to be set to the current time.
        ATIME_NOW = 7,
        /// `mtime` is to be set to the current time.
        MTIME_NOW = 8,
        /// `ctime` is to be set.
        CTIME = 10,
        /// Clear the setuid and setgid bits.
        KILL_SUIDGID = 11,
    }
}

/// Other flags of requests.
pub mod flag {
    flags! { u32;
        /// [`GetattrIn`](super::GetattrIn): `fh` is valid.
        GETATTR_FH = 0,
        /// [`WriteIn`](super::WriteIn): written back from the page cache; `fh` is a guess.
        WRITE_CACHE = 0,
        /// [`WriteIn`](super::WriteIn): clear the setuid and setgid bits.
        WRITE_KILL_SUIDGID = 2,
        /// [`FsyncIn`](super::FsyncIn): only data, and metadata that is needed to read it.
        FSYNC_FDATASYNC = 0,
    }
}

/// Codes of notifications: messages of the server with `unique` 0 and the code in place of the error.
pub mod notify {
    /// Write cached data of a node back, and drop it.
    pub const INVAL_INODE: i32 = 2;
    /// Resend all unanswered requests.
    pub const RESEND: i32 = 7;
}

macro_rules! frames {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[allow(missing_docs)] // The kernel's header says what the fields are.
            pub struct $name {
                $(pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    $name::new_zeroed()
                }
            }
        )*
    };
}

frames! {
    /// Beginning of every request. `total_extlen` is the length of the extensions at its end, in units of 8
    /// bytes.
    InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// Beginning of every reply and notification.
    OutHeader {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// Body of [`notify::INVAL_INODE`]: `len` bytes at `off`, or all bytes at and after it if `len` is 0 or
    /// less.
    NotifyInvalInodeOut {
        ino: u64,
        off: i64,
        len: i64,
    }
    /// Attributes of a node.
    Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// Reply to LOOKUP, SYMLINK, MKNOD, MKDIR, LINK; part of the reply to CREATE and READDIRPLUS.
    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    /// End of the headers in an entry of a ring: number that the reply is committed with, and length of the
    /// payload (struct fuse_uring_ent_in_out).
    RingEntryInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// FORGET.
    ForgetIn { nlookup: u64, }
    /// BATCH_FORGET; [`ForgetOne`]s follow.
    BatchForgetIn { count: u32, dummy: u32, }
    /// One node of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64, }
    /// GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    /// Reply to GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    /// SETATTR.
    SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// MKNOD; the name follows.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR; the name follows.
    MkdirIn { mode: u32, umask: u32, }
    /// RENAME; both names follow.
    RenameIn { newdir: u64, }
    /// RENAME2; both names follow.
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    /// LINK; the name follows.
    LinkIn { oldnodeid: u64, }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32, }
    /// CREATE and TMPFILE; the name follows.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Reply to OPEN and OPENDIR.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    /// RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR, READDIRPLUS.
    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// WRITE; the data follows.
    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32, }
    /// Reply to STATFS.
    StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR with [`init_flag::SETXATTR_EXT`]; name and value follow.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// SETXATTR without [`init_flag::SETXATTR_EXT`]; name and value follow.
    ShortSetxattrIn { size: u32, flags: u32, }
    /// GETXATTR, followed by the name, and LISTXATTR.
    GetxattrIn { size: u32, padding: u32, }
    /// Reply to GETXATTR and LISTXATTR with a size of 0.
    GetxattrOut { size: u32, padding: u32, }
    /// ACCESS.
    AccessIn { mask: u32, padding: u32, }
    /// INIT.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    /// Reply to INIT.
    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn { unique: u64, }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// Reply to LSEEK.
    LseekOut { offset: u64, }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut { bytes_copied: u64, }
    /// Entry of READDIR, followed by the name and zeros up to a multiple of 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
}

/// Length of a request before the data of a WRITE. It is read separately, so that the data is aligned.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in the kernel's header (FUSE_COMPAT_* and the layouts of 64-bit machines).
    #[test]
    fn frames_have_the_sizes_of_the_kernel() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<StatfsOut>(), 80),
            (size_of::<ReleaseIn>(), 24),
            (size_of::<FallocateIn>(), 32),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Dirent>(), 24),
            (size_of::<RingEntryInOut>(), 32),
            (HEAD_BYTES, 80),
        ];
        for (found, expected) in sizes {
            assert_eq!(found, expected);
        }
    }
}
