//! Any bytes as the reply of a redis server: no panic, and a reply takes only bytes that are there; fewer of them are no reply.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| resp::check_any_bytes(bytes));
