//! Arbitrary bytes as a block of a sorted table, with a valid checksum: no panic, bounded memory, and walks
//! that end, in order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8], &[u8], u64)| {
    let (code, contents, key, sequence) = input;
    kv::fuzzing::table_block(code, contents, key, sequence);
});
