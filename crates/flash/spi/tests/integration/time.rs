//! Busy times in real time, compared with the table.
#![allow(clippy::disallowed_methods)]

use crate::common::{Programmer, close, run, served_chip};
use spi::Time;

/// The chip ends an operation not before the table's time and, as far as polling can show, not much after it.
#[test]
fn busy_lasts_as_long_as_the_table_says() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Real, "").await;
        let programmer = Programmer::connect(&served_chip).await;
        for (command, expected) in
            [(&[0x02, 0, 0, 0, 1, 2, 3][..], None), (&[0x20, 0, 0, 0], Some(45_000_000u64))]
        {
            programmer.spi(&[0x06], 0).await;
            let before = served_chip.board().borrow_mut().chip().now();
            programmer.spi(command, 0).await;
            let (after, ends) = {
                let mut board = served_chip.board().borrow_mut();
                let chip = board.chip();
                (chip.now(), chip.now() + chip.busy_for().unwrap_or(0))
            };
            if let Some(expected) = expected {
                assert!((before + expected..=after + expected).contains(&ends), "{before} {after} {ends}");
            }
            let mut last_busy = after;
            loop {
                let asked = served_chip.board().borrow_mut().chip().now();
                let busy = programmer.spi(&[0x05], 1).await[0] & 1 == 1;
                let answered = served_chip.board().borrow_mut().chip().now();
                if !busy {
                    assert!(answered >= ends, "never ready before its time");
                    break;
                }
                assert!(asked <= ends, "never busy after its time");
                last_busy = asked;
            }
            assert!(last_busy <= ends);
        }
        close(served_chip).await;
    });
}
