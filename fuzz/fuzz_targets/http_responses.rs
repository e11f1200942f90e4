//! Arbitrary bytes as the response of an object store: no panic, bounded memory, and the same result whether
//! the bytes arrive at once or in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| object_store::check_any_bytes(input.1, usize::from(input.0)));
