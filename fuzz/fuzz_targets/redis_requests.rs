//! Arbitrary bytes as the requests of a redis client: no panic, no step consumes more bytes than there are,
//! and every command is a request or is refused with one line.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| redis_door::fuzzing::redis_requests(usize::from(input.0), input.1));
