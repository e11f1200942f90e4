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
/// Bit of [`InHeader::unique`] that the kernel sets in interrupts.
pub const UNIQUE_INTERRUPT: u64 = 1;
/// Longest name of a directory entry, in bytes: PATH_MAX without the final NUL.
pub const MAX_NAME: usize = 4095;
/// `ioctl` of an open `/dev/fuse` that joins it to the connection of another one: `_IOR(229, 0, uint32_t)`.
pub const DEV_IOC_CLONE: u32 = 0x8004_E500;

/// Numbers of the operations.
#[allow(missing_docs)] // The names say it.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT: capabilities that the kernel offers and the server accepts. Bits 32 and higher are in
/// `flags2`.
pub mod init_flag {
    /// Several reads of a file in flight.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN with O_TRUNC truncates the file, without a SETATTR.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Lookups of `.` and `..`, for NFS.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes of more than 4 KiB.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The server applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Cached pages are invalidated when size or modification time change.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// READDIRPLUS.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// READDIRPLUS where the kernel expects to need the attributes, else READDIR.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Several parts of a direct read or write in flight.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Writes go to the page cache first.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// Lookups and READDIR of a directory in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// POSIX access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Reading an aborted device fails with ECONNABORTED instead of ENODEV.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// `max_pages` of INIT's reply is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached data is invalidated only when the server asks for it.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The server clears setuid and setgid bits on writes, truncation and changes of the owner.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has the long form of its structure.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is valid.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct I/O.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// The kernel resends unanswered requests on request.
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// Flags of the reply to OPEN.
pub mod open_flag {
    /// Bypass the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Keep cached data of earlier opens.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The file has no positions to seek to.
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// Cache the entries of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The file has no position.
    pub const STREAM: u32 = 1 << 4;
    /// No FLUSH on close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one file run in parallel.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of [`SetattrIn::valid`].
pub mod valid {
    /// `mode` is to be set.
    pub const MODE: u32 = 1 << 0;
    /// `uid` is to be set.
    pub const UID: u32 = 1 << 1;
    /// `gid` is to be set.
    pub const GID: u32 = 1 << 2;
    /// `size` is to be set.
    pub const SIZE: u32 = 1 << 3;
    /// `atime` is to be set.
    pub const ATIME: u32 = 1 << 4;
    /// `mtime` is to be set.
    pub const MTIME: u32 = 1 << 5;
    /// `fh` is valid.
    pub const FH: u32 = 1 << 6;
    /// `atime` is to be set to the current time.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// `mtime` is to be set to the current time.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// `ctime` is to be set.
    pub const CTIME: u32 = 1 << 10;
    /// Clear the setuid and setgid bits.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Other flags of requests.
pub mod flag {
    /// [`GetattrIn`](super::GetattrIn): `fh` is valid.
    pub const GETATTR_FH: u32 = 1 << 0;
    /// [`WriteIn`](super::WriteIn): written back from the page cache; `fh` is a guess.
    pub const WRITE_CACHE: u32 = 1 << 0;
    /// [`WriteIn`](super::WriteIn): clear the setuid and setgid bits.
    pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    /// [`FsyncIn`](super::FsyncIn): only data, and metadata that is needed to read it.
    pub const FSYNC_FDATASYNC: u32 = 1 << 0;
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
            (HEAD_BYTES, 80),
        ];
        for (found, expected) in sizes {
            assert_eq!(found, expected);
        }
    }
}
