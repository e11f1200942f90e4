//! Arbitrary bytes as a LUKS2 header, and as its metadata: no panic, bounded memory, no key slot outside of
//! its area.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| crypt::luks::decode_anything(bytes));
