//! Arbitrary bytes as an NBD handshake: no panic, bounded answers, and an end in every case.
#![no_main]

use doors::nbd::negotiation::{ExportDescription, Negotiation, Progress};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = (usize::from(input.0).max(1), input.1);
    let exports = ["disk", "rom"].map(|name| ExportDescription {
        name: name.into(),
        description: "fuzzed".into(),
        size: 1 << 30,
        read_only: name == "rom",
        several_connections: true,
        preferred_block: 4096,
    });
    let mut negotiation = Negotiation::new(&exports);
    let (mut begin, mut end) = (0, 0);
    let mut answer = Vec::new();
    loop {
        answer.clear();
        match negotiation.advance(&bytes[begin..end], &mut answer) {
            Ok((0, Progress::Wait)) if end == bytes.len() => return,
            Ok((0, Progress::Wait)) => end = (end + step).min(bytes.len()),
            Ok((taken, Progress::Continue)) => {
                assert!(taken > 0 && begin + taken <= end);
                begin += taken;
            }
            Ok((taken, _)) => {
                assert!(begin + taken <= end);
                return;
            }
            Err(_) => return,
        }
        assert!(answer.len() < 1024, "an answer of {} bytes", answer.len());
    }
});
