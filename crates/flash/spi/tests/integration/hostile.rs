//! Programmers that break the protocol or don't read.

use crate::common::{Programmer, close, operation, run, served_chip};
use proptest::prelude::*;
use spi::serprog::{Action, MAX_READ, MAX_REQUEST, Session, Step};
use spi::{MAX_PROGRAMMERS, Time};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The division into pieces makes no difference.
    #[test]
    fn any_bytes_in_any_pieces(bytes in prop::collection::vec(prop_oneof![0u8..0x20, any::<u8>()], 0..600), piece in 1usize..64) {
        prop_assert_eq!(steps(&bytes, piece), steps(&bytes, bytes.len().max(1)));
    }
}

/// Returns the answers and the transfers.
fn steps(bytes: &[u8], piece: usize) -> (Vec<u8>, Vec<(Vec<u8>, usize)>) {
    let (mut session, mut answers, mut transfers) = (Session::default(), Vec::new(), Vec::new());
    let (mut begin, mut end) = (0, 0);
    loop {
        match session.next(&bytes[begin..end]) {
            Step::Wait if end == bytes.len() => return (answers, transfers),
            Step::Wait => {
                assert!(end - begin < MAX_REQUEST);
                end = (end + piece).min(bytes.len());
            }
            Step::Skip(count) => {
                assert!(count > 0);
                begin += count;
            }
            Step::Do { consumed, action, answer } => {
                assert!(consumed > 0 && begin + consumed <= end);
                begin += consumed;
                answers.extend(answer.bytes());
                if let Action::Transfer { sent, read, .. } = action {
                    assert!(read <= MAX_READ);
                    transfers.push((sent.to_vec(), read));
                }
            }
        }
    }
}

#[test]
fn a_programmer_that_reads_nothing_delays_nobody() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let stuck = Programmer::connect(&served_chip).await;
        let flood: Vec<u8> = (0..200).flat_map(|_| operation(&[0x03, 0, 0, 0], 1 << 20)).collect();
        stuck.send(&flood).await;
        let other = Programmer::connect(&served_chip).await;
        assert_eq!(other.spi(&[0x9F], 3).await, [0xEF, 0x40, 0x18]);
        close(served_chip).await;
    });
}

#[test]
fn further_programmers_are_refused_and_come_in_later() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let mut all = Vec::new();
        for _ in 0..MAX_PROGRAMMERS {
            let programmer = Programmer::connect(&served_chip).await;
            assert_eq!(programmer.spi(&[0x9F], 1).await, [0xEF]);
            all.push(programmer);
        }
        let refused = Programmer::connect(&served_chip).await;
        let (result, _) = refused.0.receive(block::Buffer::new(1)).await;
        assert!(!matches!(result, Ok(1)), "{result:?}");
        drop(all);
        while served_chip.server().programmers().0 > 0 {
            runtime::yield_now().await;
        }
        assert_eq!(Programmer::connect(&served_chip).await.spi(&[0x9F], 1).await, [0xEF]);
        close(served_chip).await;
    });
}
