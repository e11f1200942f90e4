//! Unsigned numbers of 1 to 10 bytes: LEB128, seven bits to a byte, the low ones first.

/// Longest encoding, in bytes.
pub(super) const MOST_BYTES: usize = 10;

/// Takes a number from `bytes` at `at`. Returns it and the position after it; `None` if no number is there in its shortest form.
#[inline]
pub(super) fn decode(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
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
    let mut value = 0;
    for (index, &byte) in bytes.get(at..)?.iter().take(MOST_BYTES).enumerate() {
        if index == MOST_BYTES - 1 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return (byte != 0).then_some((value, at + index + 1));
        }
    }
    None
}

/// Numbers one after another, on the stack.
pub(super) struct Numbers<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Numbers<N> {
    /// No numbers; `N` is 10 for each that follows.
    pub(super) fn new() -> Self {
        Numbers { bytes: [0; N], length: 0 }
    }

    /// Appends a number.
    #[inline]
    pub(super) fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes[self.length] = value as u8 | 0x80;
            self.length += 1;
            value >>= 7;
        }
        self.bytes[self.length] = value as u8;
        self.length += 1;
    }

    /// Bytes of the numbers.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut numbers = Numbers::<10>::new();
                numbers.push(value);
                let bytes = numbers.bytes();
                assert_eq!(decode(bytes, 0), Some((value, bytes.len())));
                assert_eq!(decode(&bytes[..bytes.len() - 1], 0), None, "a number that is cut");
            }
        }
    }

    #[test]
    fn other_forms_are_refused() {
        assert_eq!(decode(&[0x80, 0], 0), None, "longer than needed");
        assert_eq!(decode(&[0xFF; 10], 0), None, "no end");
        let mut bytes = [0xFF; 10];
        bytes[9] = 1;
        assert_eq!(decode(&bytes, 0), Some((u64::MAX, 10)));
        bytes[9] = 2;
        assert_eq!(decode(&bytes, 0), None, "more than 64 bits");
    }
}
