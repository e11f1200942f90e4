//! One rule of the `fault` layer: the operations that it matches, when it fires, and its effect.

use block::{Error, Result};
use std::ops::Range;
use std::time::Duration;

/// A kind of call; a bit of [`Operations`].
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
    /// A finish of a zone.
    Finish = 64,
    /// A reset of a zone.
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

/// Distance of a misdirected operation from its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Blocks of the device, or zones.
    Units(u64),
    /// Bytes, a multiple of the block size; only on a device.
    Bytes(u64),
}

/// Effect of a rule on an operation, besides delay and error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only the first bytes are written.
    Torn {
        /// Number of bytes; `None`: a random multiple of 512 below the length.
        at: Option<u64>,
    },
    /// Random bits of the data are flipped.
    Corrupt {
        /// Number of bits.
        bits: u64,
    },
    /// The operation is carried out at another block or zone.
    Misdirect {
        /// Distance, wrapping around the end of the device.
        by: Distance,
    },
    /// The operation isn't carried out; an append writes zeros.
    Drop,
    /// A flush isn't carried out; a write with FUA is carried out without FUA.
    Lie,
}

impl Action {
    /// Returns the operations to which the action applies.
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

/// POSIX name of an error, and its constructor.
pub(super) type NamedError = (&'static str, fn(&'static str) -> Error);

/// Errors that a rule can return.
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
    /// Text of the rule.
    pub text: String,
    /// Matches these operations.
    pub operations: Operations,
    /// Matches only operations that touch these bytes (devices).
    pub bytes: Option<Range<u64>>,
    /// Matches only operations on these zones (zones).
    pub zones: Option<Range<u64>>,
    /// Fires with this probability.
    pub probability: Option<f64>,
    /// Fires at every n-th matched operation.
    pub every: Option<u64>,
    /// Number of matched operations to ignore first.
    pub after: u64,
    /// Largest number of injected faults, per shard handle.
    pub times: Option<u64>,
    /// Shortest and longest delay.
    pub delay: Option<(Duration, Duration)>,
    /// Effect on the operation.
    pub action: Option<Action>,
    /// Index in `ERRORS` of the error that the call returns.
    pub error: Option<usize>,
}

impl Rule {
    /// Returns the rule's error, if it has one.
    pub fn error(&self) -> Option<Error> {
        let (_, make) = ERRORS.get(self.error?)?;
        let error = make("");
        Some(error.with_detail(format!("injected by fault rule \"{}\"", self.text)))
    }

    /// Checks the rule against the block size: the distance of a misdirection is a multiple of it.
    pub fn check_block_size(&self, block_size: u64) -> Result<()> {
        match self.action {
            Some(Action::Misdirect { by: Distance::Bytes(bytes) }) if bytes % block_size != 0 => {
                Err(Error::invalid(format!(
                    "fault rule \"{}\": by={bytes} bytes; expected a multiple of the block size, {block_size}",
                    self.text
                )))
            }
            _ => Ok(()),
        }
    }
}
