//! Copies that bypass the processor's caches.
//!
//! A plain store to an uncached line first reads the line from memory, and later writes it back. Non-temporal
//! stores fill whole lines and send them to memory without reading them (Intel 64 and IA-32 Architectures
//! Optimization Reference Manual, "Non-temporal Store Bus Traffic"): two thirds of the traffic for scattered
//! blocks of an uncached device. For sequential writes, plain copies are as fast, since the processor
//! prefetches the lines, and the written data can still be cached when it is read.
#![allow(unsafe_code)] // Such stores exist only as the processor's instructions, and they take addresses.

/// Length in bytes at and above which a copy is worth the fence.
const SHORTEST: usize = 1024;
const LINE: usize = 64;

/// Copies `length` bytes, which are then visible to other threads as after a plain copy.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(super) unsafe fn copy_past_caches(source: *const u8, target: *mut u8, length: usize) {
    let lines = if length < SHORTEST || !target.addr().is_multiple_of(LINE) { 0 } else { length / LINE };
    // SAFETY: this many whole lines are inside both, and the target is aligned to a line.
    unsafe { stream(source, target, lines) };
    let done = lines * LINE;
    // SAFETY: the remaining bytes are inside both, as the caller guarantees.
    unsafe { std::ptr::copy_nonoverlapping(source.add(done), target.add(done), length - done) };
}

/// # Safety
/// As for [`copy_past_caches`]; the target is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream(source: *const u8, target: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORDS: usize = LINE / size_of::<__m128i>();
    if lines == 0 {
        return;
    }
    let (source, target) = (source.cast::<__m128i>(), target.cast::<__m128i>());
    for line in 0..lines {
        // SAFETY: SSE2 is part of every x86-64; the line lies inside both, and all of its words are aligned
        // in the target.
        unsafe {
            let from = source.add(line * WORDS);
            let words: [__m128i; WORDS] = std::array::from_fn(|word| _mm_loadu_si128(from.add(word)));
            let to = target.add(line * WORDS);
            (0..WORDS).for_each(|word| _mm_stream_si128(to.add(word), words[word]));
        }
    }
    // SAFETY: as above. Only a fence orders such stores with others.
    unsafe { _mm_sfence() };
}

/// # Safety
/// As for [`copy_past_caches`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn stream(source: *const u8, target: *mut u8, lines: usize) {
    // SAFETY: the caller's guarantee.
    unsafe { std::ptr::copy_nonoverlapping(source, target, lines * LINE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_is_touched() {
        let source: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        for length in [0, 1, 63, 512, 1023, 1024, 1025, 1100, 4096, 4097, 12_345] {
            for shift in [0, 1, 16, 63, 64] {
                let mut target = vec![0xEE; length + 200];
                let begin = target.as_ptr().align_offset(LINE) + shift;
                // SAFETY: the range is inside both vectors.
                unsafe { copy_past_caches(source[7..].as_ptr(), target[begin..].as_mut_ptr(), length) };
                assert_eq!(
                    &target[begin..begin + length],
                    &source[7..7 + length],
                    "{length} bytes at {shift}"
                );
                let outside = target[..begin].iter().chain(&target[begin + length..]);
                assert!(outside.into_iter().all(|byte| *byte == 0xEE), "{length} bytes at {shift}");
            }
        }
    }
}
