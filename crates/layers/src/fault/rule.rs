//! One rule of the `fault` layer: what it matches, when it fires, what it then does.

use block::{Error, Result};
use std::ops::Range;
use std::time::Duration;

/// A kind of call, and a bit of [`Operations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// A read of either contract.
    Read = 1,
    /// A write, with FUA or without.
    Write = 2,
    /// A flush of either contract.
    Flush = 4,
    /// A discard.
    Discard = 8,
    /// Writing zeros without a payload.
    WriteZeroes = 16,
    /// An append to a zone.
    Append = 32,
    /// Ending a zone.
    Finish = 64,
    /// Emptying a zone.
    Reset = 128,
}

/// A set of [`Operation`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operations(pub(super) u16);

impl Operations {
    pub(super) const DEVICE: Operations = Operations(1 | 2 | 4 | 8 | 16);
    pub(super) const ZONES: Operations = Operations(1 | 4 | 32 | 64 | 128);

    /// Whether the operation is one of the set.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 & operation as u16 != 0
    }

    pub(super) fn and(self, other: Operations) -> Operations {
        Operations(self.0 & other.0)
    }

    pub(super) fn or(self, other: Operations) -> Operations {
        Operations(self.0 | other.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

pub(super) const OPERATION_WORDS: &[(&str, Operations)] = &[
    ("read", Operations(Operation::Read as u16)),
    ("write", Operations(Operation::Write as u16)),
    ("flush", Operations(Operation::Flush as u16)),
    ("discard", Operations(Operation::Discard as u16)),
    ("write_zeroes", Operations(Operation::WriteZeroes as u16)),
    ("append", Operations(Operation::Append as u16)),
    ("finish", Operations(Operation::Finish as u16)),
    ("reset", Operations(Operation::Reset as u16)),
    ("any", Operations(255)),
];

/// How far a misdirected operation lands from where it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// In blocks of the device, or whole zones.
    Units(u64),
    /// In bytes; only on a device, and there whole blocks.
    Bytes(u64),
}

/// What a rule does to an operation besides delaying it or making it fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only the first bytes are written: so many, or a random number of sectors.
    Torn {
        /// In bytes; none is a random multiple of 512 below the length.
        at: Option<u64>,
    },
    /// So many random bits are flipped on their way.
    Corrupt {
        /// How many.
        bits: u64,
    },
    /// The operation is done elsewhere.
    Misdirect {
        /// How far from its place, around the end of the device.
        by: Distance,
    },
    /// Nothing is done; an append leaves zeros.
    Drop,
    /// A flush isn't done; a write with FUA is done without it.
    Lie,
}

impl Action {
    /// The operations that this can be done to.
    pub(super) fn applies_to(self) -> Operations {
        use Operation::{Append, Discard, Finish, Flush, Read, Write, WriteZeroes};
        let of = |list: &[Operation]| Operations(list.iter().map(|operation| *operation as u16).sum());
        match self {
            Action::Torn { .. } => of(&[Write, Append]),
            Action::Corrupt { .. } => of(&[Read, Write, Append]),
            Action::Misdirect { .. } => of(&[Read, Write, Discard, WriteZeroes, Append]),
            Action::Drop => of(&[Write, Discard, WriteZeroes, Append, Finish]),
            Action::Lie => of(&[Flush, Write, WriteZeroes]),
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Action::Torn { .. } => "torn",
            Action::Corrupt { .. } => "corrupt",
            Action::Misdirect { .. } => "misdirect",
            Action::Drop => "drop",
            Action::Lie => "lie",
        }
    }
}

/// The POSIX name of an error, and how it is made from its text.
pub(super) type NamedError = (&'static str, fn(&'static str) -> Error);

/// The errors that a rule can give.
pub(super) const ERRORS: &[NamedError] = &[
    ("EIO", |text| Error::io(text)),
    ("EBADMSG", |text| Error::corrupt(text)),
    ("ENOSPC", |text| Error::no_space(text)),
    ("EINVAL", |text| Error::invalid(text)),
    ("EROFS", |text| Error::read_only(text)),
    ("EOPNOTSUPP", |text| Error::unsupported(text)),
    ("ENOENT", |text| Error::not_found(text)),
    ("EBUSY", |text| Error::busy(text)),
    ("EACCES", |text| Error::permission_denied(text)),
    ("ETIMEDOUT", |text| Error::timed_out(text)),
    ("ECANCELED", |text| Error::cancelled(text)),
    ("ECONNRESET", |text| Error::disconnected(text)),
    ("ENOMEM", |text| Error::out_of_memory(text)),
];

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// What it matches.
    pub operations: Operations,
    /// Matches only what touches these bytes (devices).
    pub bytes: Option<Range<u64>>,
    /// Matches only these zones (zones).
    pub zones: Option<Range<u64>>,
    /// Fires with this probability.
    pub probability: Option<f64>,
    /// Fires at every so manieth operation that it matches.
    pub every: Option<u64>,
    /// Ignores so many operations first.
    pub after: u64,
    /// Fires at most so often, per shard.
    pub times: Option<u64>,
    /// Waits at least and at most so long first.
    pub delay: Option<(Duration, Duration)>,
    /// What is done wrong.
    pub action: Option<Action>,
    /// How the call ends.
    pub error: Option<usize>,
}

impl Rule {
    /// The error that the rule gives, if any.
    pub fn error(&self) -> Option<Error> {
        let (_, make) = ERRORS.get(self.error?)?;
        let error = make("");
        Some(error.with_detail(format!("injected by fault rule \"{}\"", self.text)))
    }

    /// Checks what only the geometry can tell: that a misdirection is by whole blocks.
    pub fn check_block_size(&self, block_size: u64) -> Result<()> {
        match self.action {
            Some(Action::Misdirect { by: Distance::Bytes(bytes) }) if bytes % block_size != 0 => {
                Err(Error::invalid(format!(
                    "fault rule \"{}\": by={bytes} bytes is not a multiple of the block size, {block_size}",
                    self.text
                )))
            }
            _ => Ok(()),
        }
    }
}
