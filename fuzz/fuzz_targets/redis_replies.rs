//! Arbitrary bytes as the reply of a redis server: no panic, no reply consumes more bytes than there are, and
//! a prefix of a reply is no reply.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| resp::check_any_bytes(bytes));
