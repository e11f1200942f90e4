//! Little-endian numbers in a row of bytes, and reading them back from bytes that may be anything.

use block::{Error, Result};

/// Puts numbers behind each other.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// As they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes numbers from the front; `what` names the whole in errors.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// From the first byte on.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Reader { rest: bytes, what }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(count) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.strange("ends too early")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// One byte.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); so for all of these.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Four bytes.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of things of `size` bytes each that are still to come.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there can't be as many.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        match count.checked_mul(size) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(self.strange("counts more than it holds")),
        }
    }

    /// The error for what can't be.
    pub fn strange(&self, what: &str) -> Error {
        Error::corrupt(format!("{} {what}", self.what))
    }
}
