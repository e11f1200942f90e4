//! Encoding of little-endian numbers and structures one after another, and decoding of arbitrary bytes.

use block::{Error, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Appends numbers and structures.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Appends a structure.
    pub fn put(&mut self, value: &(impl IntoBytes + Immutable + ?Sized)) {
        self.0.extend_from_slice(value.as_bytes());
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.put(&U32::new(value));
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.put(&U64::new(value));
    }
}

/// Takes numbers and structures from the front of bytes. Methods that take bytes return [`Error::Corrupt`]
/// where fewer follow.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reader of these bytes; `what` is their name in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Reader { rest: bytes, what }
    }

    /// Takes `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let split = self.rest.split_at_checked(count);
        let (bytes, rest) = split.ok_or_else(|| self.too_short(count))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes a structure.
    pub fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(&mut self) -> Result<&'a T> {
        let (value, rest) = T::ref_from_prefix(self.rest).map_err(|_| self.too_short(size_of::<T>()))?;
        self.rest = rest;
        Ok(value)
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8> {
        self.take().copied()
    }

    /// Takes four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        self.take::<U32>().map(|number| number.get())
    }

    /// Takes eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        self.take::<U64>().map(|number| number.get())
    }

    /// Takes `N` numbers of eight bytes.
    pub fn u64s<const N: usize>(&mut self) -> Result<[u64; N]> {
        self.take::<[U64; N]>().map(|numbers| numbers.map(U64::get))
    }

    /// Takes the number of entries of `size` bytes each that follow.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if fewer bytes follow than these entries have.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        match count.checked_mul(size) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(self.strange("names more entries than follow")),
        }
    }

    /// Number of bytes that follow.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns [`Error::Corrupt`] if any bytes follow.
    pub fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.strange(&format!("has {more} bytes too many"))),
        }
    }

    fn too_short(&self, count: usize) -> Error {
        self.strange(&format!("ends too early: after {} of {count} bytes", self.rest.len()))
    }

    /// Returns [`Error::Corrupt`] with the name of the bytes, followed by `what`.
    pub fn strange(&self, what: &str) -> Error {
        Error::corrupt(format!("{} {what}", self.what))
    }
}
