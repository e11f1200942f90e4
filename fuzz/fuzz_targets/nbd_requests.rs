//! Arbitrary bytes as the requests of an NBD client: no panic, and no step consumes more bytes than there
//! are.
#![no_main]

use doors::nbd::request::{Command, Intake, Session, Step};
use doors::served::work::Operation;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (flags, step_bytes, bytes) = (input.0, usize::from(input.1).max(1), input.2);
    let session = Session {
        size: 1 << 20,
        read_only: flags & 1 != 0,
        structured: flags & 2 != 0,
        allocation_context: flags & 4 != 0,
    };
    let mut intake = Intake::default();
    let (mut begin, mut end) = (0, 0);
    loop {
        let Ok(step) = intake.next(&bytes[begin..end], &session) else { return };
        intake.take(&step);
        assert!(begin + step.consumed() <= end);
        begin += step.consumed();
        match step {
            Step::Wait if end == bytes.len() => return,
            Step::Wait => end = (end + step_bytes).min(bytes.len()),
            Step::Disconnect => return,
            Step::StartLarge(request, _) => {
                assert!(request.length <= 32 << 20);
                begin = (begin + request.length as usize).min(bytes.len());
                end = end.max(begin);
            }
            Step::Start(request, Command::Device(Operation::Write(_) | Operation::Read)) => {
                assert!(request.offset + u64::from(request.length) <= session.size);
            }
            Step::Start(..) | Step::Refuse(..) | Step::Skip(_) => assert!(step.consumed() > 0),
        }
    }
});
