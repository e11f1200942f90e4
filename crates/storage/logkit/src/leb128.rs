//! Unsigned numbers of one to ten bytes (LEB128): seven bits in each byte, the lowest first, the highest bit
//! set in all but the last byte.
//!
//! A number has one encoding, the shortest; a longer one is refused.

use block::{Error, Result};

/// Longest encoding, in bytes.
const MAX_BYTES: usize = 10;

/// Appends a number.
pub fn put(target: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        target.push(number as u8 | 0x80);
        number >>= 7;
    }
    target.push(number as u8);
}

/// Appends a byte string after its length.
pub fn put_string(target: &mut Vec<u8>, bytes: &[u8]) {
    put(target, bytes.len() as u64);
    target.extend_from_slice(bytes);
}

/// Number of bytes that [`put`] appends.
pub const fn length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Decodes the number at a position. Returns it and the position after it; `None` if there is none.
#[inline]
pub fn decode(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), at + 1));
    }
    match bytes.get(at + 1) {
        Some(&second @ 1..0x80) => Some((u64::from(first & 0x7F) | u64::from(second) << 7, at + 2)),
        _ => decode_long(bytes, at),
    }
}

fn decode_long(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    for (index, &byte) in bytes.get(at..)?.iter().take(MAX_BYTES).enumerate() {
        if index == MAX_BYTES - 1 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return (byte != 0).then_some((number, at + index + 1));
        }
    }
    None
}

/// Encoded numbers one after another, on the stack.
#[derive(Debug)]
pub struct Encoded<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Encoded<N> {
    fn default() -> Self {
        Encoded { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Encoded<N> {
    /// Appends a number. `N` must be 10 times the number of calls.
    #[inline]
    pub fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes[self.length] = number as u8 | 0x80;
            self.length += 1;
            number >>= 7;
        }
        self.bytes[self.length] = number as u8;
        self.length += 1;
    }

    /// Bytes of the numbers.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Reader of numbers from untrusted bytes.
#[derive(Debug, Clone)]
pub struct Numbers<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Numbers<'a> {
    /// Returns a reader of these bytes; `what` names them in errors.
    pub fn new(rest: &'a [u8], what: &'static str) -> Self {
        Numbers { rest, what }
    }

    /// Returns [`Error::Corrupt`] with the name of the bytes, followed by `how`.
    #[cold]
    pub fn strange(&self, how: &str) -> Error {
        Error::corrupt(format!("{} {how}", self.what))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or its encoding isn't valid.
    #[inline]
    pub fn take(&mut self) -> Result<u64> {
        let Some((number, end)) = decode(self.rest, 0) else {
            let how =
                "ends within a number, or has a number of more than 64 bits or in more bytes than it needs";
            return Err(self.strange(how));
        };
        self.rest = &self.rest[end..];
        Ok(number)
    }

    /// Takes a number of at most 32 bits.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or it is larger.
    #[inline]
    pub fn take_u32(&mut self) -> Result<u32> {
        let number = self.take()?;
        u32::try_from(number)
            .map_err(|_| self.strange(&format!("has the number {number}; expected at most 32 bits")))
    }

    /// Takes `count` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if fewer follow.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.too_short(count));
        };
        self.rest = rest;
        Ok(bytes)
    }

    #[cold]
    fn too_short(&self, count: usize) -> Error {
        self.strange(&format!("ends too early: {} bytes are left; expected {count}", self.rest.len()))
    }

    /// Takes a byte string after its length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is truncated.
    #[inline]
    pub fn string(&mut self) -> Result<&'a [u8]> {
        let length = self.take()?;
        self.bytes(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if none follows.
    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    /// Bytes that follow.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that no bytes follow.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are any.
    pub fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(self.strange(&format!("has {more} bytes after its end; expected none"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_put() {
        for shift in 0..64 {
            for number in [1 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let (mut encoded, mut bytes) = (Encoded::<10>::default(), Vec::new());
                encoded.push(number);
                put(&mut bytes, number);
                assert_eq!((encoded.bytes(), bytes.len()), (&bytes[..], length(number)));
                assert_eq!(decode(&bytes, 0), Some((number, bytes.len())));
                assert_eq!(decode(&bytes[..bytes.len() - 1], 0), None, "a number that is cut");
            }
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        assert_eq!(decode(&[], 0), None);
        assert_eq!(decode(&[0x80, 0], 0), None, "longer than needed");
        assert_eq!(decode(&[0xFF; 10], 0), None, "no end");
        let mut bytes = [0xFF; 10];
        bytes[9] = 1;
        assert_eq!(decode(&bytes, 0), Some((u64::MAX, 10)));
        bytes[9] = 2;
        assert_eq!(decode(&bytes, 0), None, "more than 64 bits");
    }

    #[test]
    fn a_reader_takes_numbers_and_strings_and_refuses_what_is_cut() {
        let mut bytes = vec![7];
        put(&mut bytes, 300);
        put_string(&mut bytes, b"key");
        let mut numbers = Numbers::new(&bytes, "a test");
        assert_eq!((numbers.byte(), numbers.take_u32(), numbers.string()), (Ok(7), Ok(300), Ok(&b"key"[..])));
        assert!(numbers.end().is_ok() && numbers.rest().is_empty() && numbers.take().is_err());
        assert!(Numbers::new(&[3, b'k', b'e'], "a test").string().is_err());
        assert!(Numbers::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F], "a test").take_u32().is_err());
        assert!(Numbers::new(b"ab", "a test").end().is_err());
    }
}
