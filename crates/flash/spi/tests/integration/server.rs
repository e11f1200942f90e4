//! Programmers over sockets and the pseudo-terminal, and operators' requests.

use crate::common::{Programmer, any_port, close, operation, run, served_chip};
use block::{Buffer, Data, Durability, Error};
use runtime::file::{File, OpenOptions};
use runtime::net::Address;
use spi::operator::TRACE_PIECE;
use spi::{HOLD_LIMIT, Server, Time};
use std::time::Duration;

#[test]
fn requests_of_one_send_are_answered_in_order() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let programmer = Programmer::connect(&served_chip).await;
        let mut bytes = vec![0x10, 0x01];
        bytes.extend(operation(&[0x9F], 3));
        bytes.extend(operation(&[0x06], 0));
        bytes.extend(operation(&[0x02, 0, 0, 0, 0xA5], 0));
        bytes.extend(operation(&[0x03, 0, 0, 0], 2));
        programmer.send(&bytes).await;
        let expected = [0x15, 6, 6, 1, 0, 6, 0xEF, 0x40, 0x18, 6, 6, 6, 0xA5, 0xFF];
        assert_eq!(programmer.receive(expected.len()).await, expected);
        drop(programmer);
        assert!(close(served_chip).await.is_empty());
    });
}

#[test]
fn a_request_may_come_byte_by_byte_and_be_as_long_as_allowed() {
    run(|| async {
        let served_chip = served_chip("MB85RS2MT", Time::Fast(0), "").await;
        let programmer = Programmer::connect(&served_chip).await;
        for byte in operation(&[0x9F], 2) {
            programmer.send(&[byte]).await;
        }
        assert_eq!(programmer.receive(3).await, [6, 4, 0x7F]);
        assert!(programmer.spi(&[0x06], 0).await.is_empty());
        let mut whole: Vec<u8> = vec![0x02, 0, 0, 0];
        whole.extend((0..(64 << 10) - 4).map(|n| (n % 251) as u8));
        programmer.spi(&whole, 0).await;
        let read = programmer.spi(&[0x03, 0, 0, 0], 1 << 18).await;
        assert!(read[..whole.len() - 4] == whole[4..]);
        close(served_chip).await;
    });
}

#[test]
fn modes_of_cs_and_duplex_and_the_drivers_are_each_programmers_own() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let (one, other) = (Programmer::connect(&served_chip).await, Programmer::connect(&served_chip).await);
        one.send(&[0x17, 1]).await;
        one.receive(1).await;
        assert_eq!(one.spi(&[0x9F], 4).await, [0xFF, 0xEF, 0x40, 0x18], "full duplex");
        assert_eq!(other.spi(&[0x9F], 3).await, [0xEF, 0x40, 0x18], "half duplex");
        one.send(&[0x17, 0, 0x18, 1]).await;
        one.receive(2).await;
        assert!(one.spi(&[0x9F], 0).await.is_empty());
        assert_eq!(one.spi(&[], 3).await, [0xEF, 0x40, 0x18], "CS# remains low");
        one.send(&[0x18, 0, 0x15, 0]).await;
        one.receive(2).await;
        assert_eq!(one.spi(&[0x9F], 2).await, [0xFF, 0xFF], "without drivers");
        assert_eq!(other.spi(&[0x9F], 1).await, [0xEF]);
        close(served_chip).await;
    });
}

#[test]
fn a_delay_passes_the_chips_time_at_once_without_real_time() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let programmer = Programmer::connect(&served_chip).await;
        let before = served_chip.board().borrow_mut().chip().now();
        let [a, b, c, d] = 50_000_000u32.to_le_bytes();
        programmer.send(&[0x0B, 0x0E, a, b, c, d, 0x0F]).await;
        assert_eq!(programmer.receive(3).await, [6, 6, 6]);
        assert_eq!(served_chip.board().borrow_mut().chip().now() - before, 50_000_000_000);
        close(served_chip).await;
    });
}

#[test]
fn a_pseudo_terminal_is_a_serial_port() {
    run(|| async {
        let served_chip = served_chip("W25Q64JV", Time::Fast(0), "").await;
        let path = served_chip.server().pty().unwrap().clone();
        let mut options = OpenOptions::read_write();
        options.create = false;
        for _ in 0..2 {
            let port = File::open(&path, options).await.unwrap();
            let write = async |bytes: &[u8]| {
                port.write_at(0, Data::copy_of(bytes).into(), Durability::Visible).await.unwrap();
            };
            let read = async |count: usize| {
                let mut buffer = Buffer::new(count);
                while buffer.missing() > 0 {
                    let (result, filled) = port.read_at(0, buffer).await;
                    assert!(result.unwrap() > 0);
                    buffer = filled;
                }
                buffer.filled().to_vec()
            };
            write(&operation(&[0x9F], 3)).await;
            assert_eq!(read(4).await, [6, 0xEF, 0x40, 0x17]);
            // A client that disconnects leaves an incomplete request, which is dropped.
            write(&operation(&[0x03, 0, 0, 0], 9)[..5]).await;
            runtime::sleep(Duration::from_millis(1100)).await;
            write(&[0x10]).await;
            assert_eq!(read(2).await, [0x15, 6]);
        }
        close(served_chip).await;
    });
}

#[test]
fn the_power_fails_in_the_middle_of_a_program() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Real, "[[rule]]\nnever = \"power-loss\"").await;
        let programmer = Programmer::connect(&served_chip).await;
        // On a loaded machine, an erase may end before the power is cut.
        loop {
            served_chip.board().borrow_mut().chip().memory_mut()[..4096].fill(0);
            programmer.spi(&[0x06], 0).await;
            programmer.spi(&[0x20, 0, 0, 0], 0).await;
            runtime::sleep(Duration::from_millis(20)).await;
            let mut board = served_chip.board().borrow_mut();
            if board.chip().busy_for().is_some_and(|time| time > 10_000_000) {
                break;
            }
        }
        assert_eq!(served_chip.answer("power off").await.unwrap()["state"], "PowerDown");
        assert_eq!(programmer.spi(&[0x9F], 3).await, [0xFF; 3]);
        assert_eq!(served_chip.answer("power on").await.unwrap()["state"], "PowerUp");
        runtime::sleep(Duration::from_millis(10)).await;
        let read = programmer.spi(&[0x03, 0, 0, 0], 4096).await;
        let ones: u32 = read.iter().map(|byte| byte.count_ones()).sum();
        assert!((1..32768).contains(&ones), "half-done: {ones}");
        assert_eq!(close(served_chip).await.len(), 1, "the rule saw the loss of power");
    });
}

#[test]
fn operators_drive_pins_and_look_at_the_chip() {
    run(|| async {
        let served_chip = served_chip("W25Q128FV", Time::Fast(0), "").await;
        let programmer = Programmer::connect(&served_chip).await;
        for bytes in [&[0x06][..], &[0x01, 0x84]] {
            programmer.spi(bytes, 0).await;
        }
        served_chip.answer("pin wp low").await.unwrap();
        for bytes in [&[0x06][..], &[0x01, 0x00]] {
            programmer.spi(bytes, 0).await;
        }
        assert_eq!(programmer.spi(&[0x05], 1).await[0] & 0x84, 0x84, "SRP and WP# protect the register");
        let status = served_chip.status().await;
        assert_eq!(status["registers"]["SR1"]["set"], "WEL BP0 SRP0");
        assert_eq!(status["refused"]["protected"], 1);
        served_chip.answer("pin wp high").await.unwrap();
        programmer.spi(&[0x01, 0x00], 0).await;
        assert_eq!(programmer.spi(&[0x05], 1).await, [0]);
        let text = served_chip.answer("trace text").await.unwrap()["text"].as_str().unwrap().to_owned();
        assert!(text.contains("01h Write Status Register-1 write 1 [84]"), "{text}");
        assert!(text.contains("REFUSED: protected"), "{text}");
        let vcd = served_chip.answer("trace vcd").await.unwrap()["text"].as_str().unwrap().to_owned();
        assert!(vcd.starts_with("$timescale"));
        let json = served_chip.answer("trace json").await.unwrap()["text"].as_str().unwrap().to_owned();
        json.lines().for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).unwrap()));
        assert_eq!(served_chip.answer("dump 0x10 2").await.unwrap()["hex"], "ffff");
        assert_eq!(served_chip.answer("wear").await.unwrap()["sector"], 4096);
        for text in [
            "",
            "power maybe",
            "pin cs low",
            "pin wp up",
            "dump 0 99999999",
            "dump x 1",
            "trace svg",
            "trace text 0",
            "trace text x 0",
            "age -1 2 3",
        ] {
            assert!(matches!(served_chip.answer(text).await, Err(Error::Invalid(_))), "{text}");
        }
        close(served_chip).await;
    });
}

#[test]
fn rules_are_violated_by_what_they_forbid_and_nothing_else() {
    const RULES: &str = r#"
[[rule]]
never = "program-unerased"
[[rule]]
name = "boot"
never = "write"
to = 0xFFFF
[[rule]]
most_erases = 2
[[rule]]
never_opcode = [0xC7]
[[rule]]
never = "not-write-enabled"
"#;
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), RULES).await;
        let programmer = Programmer::connect(&served_chip).await;
        let violations = || served_chip.board().borrow().rules().violations();
        let write = async |bytes: &[u8]| {
            programmer.spi(&[0x06], 0).await;
            programmer.spi(bytes, 0).await;
            violations()
        };
        assert_eq!(write(&[0x02, 1, 0, 0, 0x0F]).await, 0);
        assert_eq!(write(&[0x02, 1, 0, 0, 0x0E]).await, 0, "bits may be cleared further");
        assert_eq!(write(&[0x02, 1, 0, 0, 0x1E]).await, 1, "an unerased byte");
        assert_eq!(write(&[0x20, 1, 0, 0]).await, 1);
        assert_eq!(write(&[0x20, 1, 0, 0]).await, 1);
        assert_eq!(write(&[0x20, 1, 0, 0]).await, 2, "the third erase");
        assert_eq!(write(&[0x20, 1, 0x10, 0]).await, 2, "of another sector");
        assert_eq!(write(&[0x02, 0, 0xFF, 0xFF, 0x00]).await, 3, "in the protected range");
        programmer.spi(&[0x02, 1, 0, 0, 0x00], 0).await;
        assert_eq!(violations(), 4, "without write enable");
        let reported = close(served_chip).await;
        assert_eq!(reported.len(), 4);
        assert!(
            reported[2].starts_with("rule \"boot\" violated: ") && reported[2].contains("@00FFFFh"),
            "{reported:?}"
        );
    });
}

#[test]
fn rules_know_the_addresses_of_auto_increment() {
    const RULES: &str = "[[rule]]\nnever = \"write\"\nto = 0xFFFF\n[[rule]]\nnever = \"program-unerased\"";
    run(|| async {
        let served_chip = served_chip("SST25VF032B", Time::Fast(0), RULES).await;
        let programmer = Programmer::connect(&served_chip).await;
        for bytes in [&[0x50][..], &[0x01, 0], &[0x06], &[0xAD, 1, 0, 0, 0, 0], &[0xAD, 0, 0], &[0x04]] {
            programmer.spi(bytes, 0).await;
        }
        let violations = || served_chip.board().borrow().rules().violations();
        assert_eq!(violations(), 0, "words outside the range");
        for bytes in [&[0x06][..], &[0xAD, 0, 0xFF, 0xFE, 0, 0], &[0xAD, 0xFF, 0xFF], &[0x04]] {
            programmer.spi(bytes, 0).await;
        }
        assert_eq!(violations(), 2, "a word inside it, and one on programmed cells");
        close(served_chip).await;
    });
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let taken = served_chip.server().addresses()[0].clone();
        let folder = tempfile::tempdir().unwrap();
        let socket: Address = format!("unix:{}/s.sock", folder.path().display()).parse().unwrap();
        let failed = Server::start(served_chip.board().clone(), &[socket, taken.clone()], false).await;
        let error = failed.err().unwrap().to_string();
        assert!(error.contains(&taken.to_string()) && error.contains("in use"), "{error}");
        assert!(!folder.path().join("s.sock").exists(), "what was opened before is closed");
        assert!(Server::start(served_chip.board().clone(), &[any_port()], false).await.is_ok());
        close(served_chip).await;
    });
}

#[test]
fn a_trace_of_any_size_is_fetched_in_pieces() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let programmer = Programmer::connect(&served_chip).await;
        for n in 0..3000u32 {
            let [_, a, b, c] = n.to_be_bytes();
            programmer.spi(&[0x03, a, b, c], 16).await;
        }
        for form in ["text", "json", "vcd"] {
            let whole = {
                let mut board = served_chip.board().borrow_mut();
                let (chip, mut text) = (board.chip(), String::new());
                match form {
                    "text" => chip.trace().write_text(chip.description(), &mut text).unwrap(),
                    "json" => chip.trace().write_json(chip.description(), &mut text).unwrap(),
                    _ => chip.trace().write_vcd(chip.description(), 50, &mut text).unwrap(),
                }
                text
            };
            let (mut text, mut next, mut end, mut pieces) = (String::new(), 0, 0, 0);
            while next < 3000 {
                let answer = served_chip.answer(&format!("trace {form} {next} {end}")).await.unwrap();
                let piece = answer["text"].as_str().unwrap();
                assert!(piece.len() < TRACE_PIECE + (64 << 10), "{form}: {}", piece.len());
                text.push_str(piece);
                assert_eq!((&answer["first"], &answer["newest"]), (&next.into(), &3000.into()));
                (next, end) = (answer["next"].as_u64().unwrap(), answer["end"].as_u64().unwrap());
                pieces += 1;
            }
            assert!(text == whole, "{form}");
            assert_eq!(pieces > 4, form == "vcd", "{form}: {pieces} pieces of {}", whole.len());
        }
        let rest = served_chip.answer("trace text 3000 0").await.unwrap();
        assert_eq!((&rest["text"], &rest["next"]), (&"".into(), &3000.into()));
        close(served_chip).await;
    });
}

/// Sends requests without parameters of their own, and returns their answers.
async fn ask(programmer: &Programmer, request: &[u8], count: usize) -> Vec<u8> {
    programmer.send(request).await;
    programmer.receive(count).await
}

#[test]
fn a_transaction_that_one_programmer_holds_open_is_no_other_ones() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let (one, other) = (Programmer::connect(&served_chip).await, Programmer::connect(&served_chip).await);
        one.spi(&[0x06], 0).await;
        assert_eq!(ask(&one, &[0x18, 1], 1).await, [6]);
        one.spi(&[0x02, 0, 0, 0, 1], 0).await;
        // The operation is refused: it is no transaction of its own and no part of the open one.
        assert_eq!(ask(&other, &operation(&[0x9F], 3), 1).await, [0x15]);
        assert_eq!(ask(&other, &[0x18, 1], 1).await, [0x15], "CS# is taken");
        assert_eq!(ask(&other, &operation(&[0x77], 0), 1).await, [0x15]);
        assert_eq!(ask(&other, &[0x00], 1).await, [6], "what needs no bus is answered");
        one.spi(&[2, 3], 0).await;
        assert_eq!(ask(&one, &[0x18, 0], 1).await, [6]);
        assert_eq!(other.spi(&[0x9F], 3).await, [0xEF, 0x40, 0x18]);
        assert_eq!(other.spi(&[0x03, 0, 0, 0], 4).await, [1, 2, 3, 0xFF]);
        // Without drivers CS# is high, and a disconnect releases it.
        assert_eq!(ask(&one, &[0x18, 1, 0x15, 0], 2).await, [6, 6]);
        assert_eq!(other.spi(&[0x9F], 1).await, [0xEF]);
        assert_eq!(ask(&one, &[0x15, 1], 1).await, [6]);
        assert_eq!(ask(&other, &operation(&[0x9F], 1), 1).await, [0x15], "drivers lower CS# again");
        drop(one);
        while served_chip.server().programmers().0 > 1 {
            runtime::yield_now().await;
        }
        assert_eq!(other.spi(&[0x9F], 1).await, [0xEF]);
        close(served_chip).await;
    });
}

#[test]
fn a_programmer_that_forgets_cs_low_loses_it() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let (one, other) = (Programmer::connect(&served_chip).await, Programmer::connect(&served_chip).await);
        assert_eq!(ask(&one, &[0x18, 1], 1).await, [6]);
        one.spi(&[0x03, 0, 0], 0).await;
        runtime::sleep(HOLD_LIMIT).await;
        assert_eq!(other.spi(&[0x9F], 1).await, [0xEF]);
        assert_eq!(ask(&one, &operation(&[0], 1), 1).await, [0x15], "its transaction was ended");
        assert_eq!(ask(&one, &[0x18, 1], 1).await, [6]);
        assert_eq!(one.spi(&[0x9F], 1).await, [0xEF]);
        close(served_chip).await;
    });
}

/// A client of a pseudo-terminal.
struct Port(File);

impl Port {
    async fn open(path: &std::path::Path) -> Port {
        Port(File::open(path, OpenOptions::read_write()).await.unwrap())
    }

    async fn ask(&self, request: &[u8], count: usize) -> Vec<u8> {
        self.0.write_at(0, Data::copy_of(request).into(), Durability::Visible).await.unwrap();
        let mut buffer = Buffer::new(count);
        while buffer.missing() > 0 {
            let (result, filled) = self.0.read_at(0, buffer).await;
            assert!(result.unwrap() > 0);
            buffer = filled;
        }
        buffer.filled().to_vec()
    }
}

#[test]
fn a_new_client_of_the_pseudo_terminal_inherits_nothing() {
    run(|| async {
        let served_chip = served_chip("W25Q64JV", Time::Fast(0), "").await;
        let path = served_chip.server().pty().unwrap().clone();
        let first = Port::open(&path).await;
        // A delay of 50 s in the operation buffer, full duplex, CS# low in the middle of a read, and the
        // drivers off.
        let [a, b, c, d] = 50_000_000u32.to_le_bytes();
        assert_eq!(first.ask(&[0x0B, 0x0E, a, b, c, d, 0x17, 1, 0x18, 1], 4).await, [6; 4]);
        assert_eq!(first.ask(&operation(&[0x03, 0], 0), 1).await, [6]);
        let socket = Programmer::connect(&served_chip).await;
        assert_eq!(ask(&socket, &operation(&[0x9F], 1), 1).await, [0x15], "CS# is low");
        drop(first);
        let second = Port::open(&path).await;
        assert_eq!(second.ask(&[0x10], 2).await, [0x15, 6]);
        assert_eq!(socket.spi(&[0x9F], 1).await, [0xEF], "CS# is high");
        assert_eq!(second.ask(&operation(&[0x9F], 3), 4).await, [6, 0xEF, 0x40, 0x17], "half duplex");
        let before = served_chip.board().borrow_mut().chip().now();
        assert_eq!(second.ask(&[0x0F], 1).await, [6]);
        assert_eq!(served_chip.board().borrow_mut().chip().now(), before, "no delay is left");
        assert_eq!(second.ask(&[0x15, 0], 1).await, [6]);
        assert_eq!(second.ask(&operation(&[0x9F], 1), 2).await, [6, 0xFF]);
        assert_eq!(second.ask(&[0x10], 2).await, [0x15, 6]);
        assert_eq!(second.ask(&operation(&[0x9F], 1), 2).await, [6, 0xEF], "the drivers are on");
        // On a socket, a synchronization resets nothing.
        assert_eq!(ask(&socket, &[0x17, 1, 0x10], 3).await, [6, 0x15, 6]);
        assert_eq!(socket.spi(&[0x9F], 2).await, [0xFF, 0xEF], "full duplex still");
        close(served_chip).await;
    });
}

#[test]
fn an_operation_that_cannot_be_done_is_an_error() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Fast(0), "").await;
        let error = served_chip.answer("sync").await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("--image FILE"), "{error}");
        close(served_chip).await;
    });
}

#[test]
fn a_clean_stop_ends_a_suspended_erase() {
    run(|| async {
        let served_chip = served_chip("W25Q128JV", Time::Real, "").await;
        let board = served_chip.board().clone();
        board.borrow_mut().chip().memory_mut()[..8192].fill(0);
        let programmer = Programmer::connect(&served_chip).await;
        programmer.spi(&[0x06], 0).await;
        programmer.spi(&[0x20, 0, 0, 0], 0).await;
        programmer.spi(&[0x75], 0).await;
        while board.borrow_mut().chip().state() != spinor::State::EraseSuspended {
            runtime::yield_now().await;
        }
        close(served_chip).await;
        let mut board = board.borrow_mut();
        let chip = board.chip();
        assert!(chip.memory()[..4096].iter().all(|cell| *cell == 0xFF) && chip.memory()[4096] == 0);
        assert!(chip.non_volatile().marginal.is_empty());
    });
}
