//! Arbitrary bytes as the objects of a bucket: manifests, zone tables, keys and pieces. No panic, and bounded
//! memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| objects::check_any_bytes(bytes));
