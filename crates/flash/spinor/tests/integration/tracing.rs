//! The trace: decoded, bounded, as text, JSON lines and a waveform.

use crate::common::{Drive, small_chip};
use spinor::{Chip, Refusal, State, Waveform, chip};

#[test]
fn transactions_are_decoded_with_time_and_refusal() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(100);
    flash.finish(&Chip::at(0x02, 0x1000, &[0xAB, 0xCD]));
    flash.send(&Chip::at(0x02, 0x1000, &[0xFF]));
    for _ in 0..50 {
        flash.ask(&[0x05], 1);
    }
    flash.read_at(0x1000, 300);
    flash.send(&[0xF1]);
    let description = flash.description().clone();
    let mut text = String::new();
    flash.trace().write_text(&description, &mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[0].ends_with("06h Write Enable -> WriteEnabled"), "{text}");
    assert!(lines[1].contains("02h Page Program @001000h write 2 [ab cd] -> Programming"), "{text}");
    assert!(lines[2].contains("REFUSED: not write-enabled"), "{text}");
    assert!(lines[3].contains("05h Read Status Register-1 read 1 [00] (and 49 more)"), "{text}");
    assert!(lines[4].contains("read 300 [ab cd ff"), "{text}");
    assert!(lines[5].contains("F1h unknown REFUSED: unknown opcode"), "{text}");
    let mut json = String::new();
    flash.trace().write_json(&description, &mut json).unwrap();
    let first: serde_json::Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&first["name"], &first["address"], &first["data"]),
        (&"Page Program".into(), &0x1000.into(), &"ab cd".into())
    );
}

#[test]
fn memory_is_bounded() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(10);
    for n in 0..1000u32 {
        flash.read_at(n, 1);
    }
    assert_eq!((flash.trace().records().count(), flash.trace().dropped()), (10, 990));
    assert_eq!(flash.trace().numbers(), 990..1000);
    let addresses = |from| flash.trace().records_from(from).map(|record| record.address).collect::<Vec<_>>();
    assert_eq!(addresses(998), [Some(998), Some(999)]);
    assert_eq!((addresses(0).len(), addresses(1000).len(), addresses(u64::MAX).len()), (10, 0, 0));
}

#[test]
fn the_waveform_shows_the_bits_of_opcode_and_data() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(10);
    flash.ask(&[0x9F], 3);
    let mut vcd = String::new();
    flash.trace().write_vcd(flash.description(), 10, &mut vcd).unwrap();
    assert!(
        vcd.starts_with("$timescale 1 ns $end\n$scope module W25Q128JV $end\n$var wire 1 ! cs_n $end\n"),
        "{vcd}"
    );
    assert_eq!(vcd.matches("1\"").count(), 32, "clocks");
    // Levels at each rising edge: MOSI carries 9Fh, MISO EF 40 18.
    let (mut mosi, mut miso, mut io) = (0u32, 0u32, ['z'; 2]);
    let mut times = Vec::new();
    for line in vcd.lines() {
        match line {
            _ if line.starts_with('#') && line.len() > 1 && line[1..].parse::<u64>().is_ok() => {
                times.push(line[1..].parse::<u64>().unwrap());
            }
            "1\"" => {
                mosi = mosi << 1 | u32::from(io[0] == '1');
                miso = miso << 1 | u32::from(io[1] == '1');
            }
            _ if line.ends_with('#') => io[0] = line.chars().next().unwrap(),
            _ if line.ends_with('$') && line.len() == 2 => io[1] = line.chars().next().unwrap(),
            _ => {}
        }
    }
    assert_eq!((mosi >> 24, miso & 0xFF_FFFF), (0x9F, 0xEF_4018));
    assert!(times.is_sorted());
}

#[test]
fn the_waveform_has_changes_only_and_can_be_written_in_parts() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(100);
    flash.finish(&Chip::at(0x02, 0x1000, &[0xAB, 0x00, 0xFF, 0xCD]));
    flash.read_at(0x1000, 4);
    // Fast Read has dummy clocks; the unknown opcode has neither address nor data.
    flash.ask(&Chip::at(0x0B, 0x1000, &[0]), 4);
    flash.send(&[0xF1]);
    let mut whole = String::new();
    flash.trace().write_vcd(flash.description(), 10, &mut whole).unwrap();
    let (_, changes) = whole.split_once("$enddefinitions $end\n").unwrap();
    let mut levels = std::collections::BTreeMap::new();
    for line in changes.lines().filter(|line| line.len() == 2 && !line.starts_with("#")) {
        let (level, wire) = line.split_at(1);
        assert_ne!(
            levels.insert(wire.to_owned(), level.to_owned()).as_deref(),
            Some(level),
            "{line}: no change"
        );
    }
    assert_eq!(levels.values().map(String::as_str).collect::<String>(), "10zzzz", "CS#, CLK, IO0 to IO3");
    let mut parts = String::new();
    Waveform::new(10).write_header(flash.description(), &mut parts).unwrap();
    let mut end = 0;
    for record in flash.trace().records() {
        let mut waveform = Waveform::resume(10, end);
        waveform.write(record, flash.description(), &mut parts).unwrap();
        end = waveform.end();
    }
    assert!(parts == whole);
}

#[test]
fn a_chip_without_power_shows_what_the_host_sent() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(10);
    flash.ask(&[0x05], 1);
    flash.power_off();
    flash.ask(&[0x9F], 3);
    let record = flash.trace().last().unwrap();
    assert_eq!((record.opcode, record.refusal), (0x9F, Some(Refusal::NoPower)));
    // A transaction that began without power has no effect when the power returns.
    flash.select();
    flash.power_on();
    flash.advance(10_000_000);
    flash.write(&[0x06], 1);
    flash.deselect();
    assert_eq!((flash.last_refusal(), flash.state()), (Some(Refusal::NoPower), State::Standby));
}

#[test]
fn words_of_auto_increment_have_their_address_and_count_overwrites() {
    let mut flash = Chip::erased(chip("SST25VF032B").unwrap().unwrap(), 1);
    flash.set_trace(10);
    flash.memory_mut()[0x103] = 0x0F;
    flash.send(&[0x50]);
    flash.send(&[0x01, 0]);
    flash.send(&[0x06]);
    flash.send(&Chip::at(0xAD, 0x100, &[1, 2]));
    flash.advance(10_000);
    flash.send(&[0xAD, 3, 0x14]);
    let record = flash.trace().last().unwrap();
    assert_eq!((record.address, record.overwrites), (Some(0x102), 1));
    assert_eq!(flash.counters().overwrites, 1);
    let mut vcd = String::new();
    Waveform::new(10).write(record, flash.description(), &mut vcd).unwrap();
    assert_eq!(vcd.matches("1\"").count(), 24, "opcode and data are on the bus, an address is not");
}

/// Returns the number of rising clock edges in the waveform of the last transaction.
fn edges(flash: &Chip) -> usize {
    let mut vcd = String::new();
    let record = flash.trace().last().unwrap();
    Waveform::new(10).write(record, flash.description(), &mut vcd).unwrap();
    vcd.matches("1\"").count()
}

#[test]
fn the_waveform_has_as_many_clocks_as_the_bus_had() {
    let mut flash = Chip::erased(chip("MX25L25645G").unwrap().unwrap(), 1);
    flash.set_trace(10);
    flash.send(&[0xB7]);
    flash.ask(&[0x03, 0, 0, 0, 0x10], 1);
    assert_eq!(edges(&flash), 48, "a low address in the 4-byte mode");
    let mut flash = small_chip("W25Q128FV");
    flash.set_trace(10);
    flash.send(&[0xAB]);
    assert_eq!(edges(&flash), 8, "release from power-down without an ID");
    flash.advance(100_000);
    flash.finish(&[0x31, 0x02]);
    let quad = |flash: &mut Chip, opcode: &[u8], lines: u8| {
        flash.select();
        flash.write(opcode, lines);
        flash.write(&[0, 0, 0, 0x20, 0, 0], 4);
        flash.read(&mut [0], 4);
        flash.deselect();
    };
    quad(&mut flash, &[0xEB], 1);
    assert_eq!(edges(&flash), 8 + 14);
    quad(&mut flash, &[], 1);
    assert_eq!(edges(&flash), 14, "continuous read has no opcode");
    flash.send(&[0xFF; 4]);
    flash.send(&[0x38]);
    assert!(flash.is_qpi());
    assert_eq!(edges(&flash), 8, "QPI is entered on one line");
    let record = flash.trace().last().unwrap();
    assert_eq!((record.qpi, record.name(flash.description())), (false, "Enter QPI"));
    flash.select();
    flash.write(&[0x0B, 0, 0, 0, 0, 0], 4);
    flash.deselect();
    assert_eq!(edges(&flash), 12, "two dummy clocks in QPI, two of data");
    flash.select();
    flash.write(&[0xFF], 4);
    flash.deselect();
    assert_eq!((edges(&flash), flash.trace().last().unwrap().qpi), (2, true));
}

#[test]
fn a_record_has_the_time_of_its_end_where_clocks_pass_time() {
    let mut flash = small_chip("W25Q128JV");
    flash.set_trace(10);
    flash.set_clock(Some(1_000_000), true);
    let begun = flash.now();
    flash.ask(&[0x9F], 3);
    let record = flash.trace().last().unwrap();
    assert_eq!((record.time, flash.now()), (begun + 32_000, begun + 32_000));
}
