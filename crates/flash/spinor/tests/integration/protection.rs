//! Block protection, register protection and individual locks.

use crate::common::{Drive, small_chip};
use spinor::{Chip, Pin, Refusal, chip};

/// The W25Q128JV's table "Status Register Memory Protection (CMP = 0)": SEC, TB, BP2 to BP0, first and last
/// address; `x` matches 0 and 1. An empty row protects nothing.
const TABLE: &[(&str, Option<(u32, u32)>)] = &[
    ("xx000", None),
    ("00001", Some((0xFC_0000, 0xFF_FFFF))),
    ("00010", Some((0xF8_0000, 0xFF_FFFF))),
    ("00011", Some((0xF0_0000, 0xFF_FFFF))),
    ("00100", Some((0xE0_0000, 0xFF_FFFF))),
    ("00101", Some((0xC0_0000, 0xFF_FFFF))),
    ("00110", Some((0x80_0000, 0xFF_FFFF))),
    ("01001", Some((0, 0x03_FFFF))),
    ("01010", Some((0, 0x07_FFFF))),
    ("01011", Some((0, 0x0F_FFFF))),
    ("01100", Some((0, 0x1F_FFFF))),
    ("01101", Some((0, 0x3F_FFFF))),
    ("01110", Some((0, 0x7F_FFFF))),
    ("xx111", Some((0, 0xFF_FFFF))),
    ("10001", Some((0xFF_F000, 0xFF_FFFF))),
    ("10010", Some((0xFF_E000, 0xFF_FFFF))),
    ("10011", Some((0xFF_C000, 0xFF_FFFF))),
    ("1010x", Some((0xFF_8000, 0xFF_FFFF))),
    ("11001", Some((0, 0x00_0FFF))),
    ("11010", Some((0, 0x00_1FFF))),
    ("11011", Some((0, 0x00_3FFF))),
    ("1110x", Some((0, 0x00_7FFF))),
];

fn row(bits: u8) -> Option<Option<(u32, u32)>> {
    let matches = |pattern: &str| {
        pattern.bytes().enumerate().all(|(n, c)| c == b'x' || c - b'0' == bits >> (4 - n) & 1)
    };
    TABLE.iter().find(|(pattern, _)| matches(pattern)).map(|(_, area)| *area)
}

#[test]
fn all_protection_bits_of_the_w25q128jv_protect_what_its_table_says() {
    let mut flash = Chip::erased(chip("W25Q128JV").unwrap().unwrap(), 1);
    flash.set_busy_time(spinor::BusyTime::Polls(0));
    let mut seen = 0;
    for cmp in [false, true] {
        for bits in 0..32u8 {
            // SEC = 1 with BP = 110 isn't in the datasheet's table.
            let Some(area) = row(bits) else { continue };
            seen += 1;
            // SEC TB BP2 BP1 BP0 are bits 6 to 2 of SR1; CMP is bit 6 and QE bit 1 of SR2.
            flash.send(&[0x50]);
            flash.send(&[0x01, bits << 2, u8::from(cmp) << 6 | 2]);
            assert_eq!(flash.ask(&[0x05], 1)[0] & 0x7C, bits << 2);
            for sector in [
                0, 0xFFF, 0x1000, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0x3_FFFF, 0x4_0000, 0x7_FFFF, 0x8_0000,
                0x7F_FFFF,
            ]
            .into_iter()
            .flat_map(|address| [address, 0xFF_FFFF - address])
            {
                let inside = area.is_some_and(|(from, to)| (from..=to).contains(&sector));
                flash.send(&[0x06]);
                flash.send(&Chip::at(0x02, sector, &[0xFF]));
                let refused = flash.last_refusal() == Some(Refusal::Protected);
                assert_eq!(refused, inside != cmp, "bits {bits:05b} CMP {cmp} address {sector:06X}h");
            }
            let everything =
                area.is_none() && cmp || area.is_some() && (!cmp || area != Some((0, 0xFF_FFFF)));
            flash.send(&[0x06]);
            flash.send(&[0xC7]);
            assert_eq!(
                flash.last_refusal() == Some(Refusal::Protected),
                everything,
                "chip erase, bits {bits:05b} CMP {cmp}"
            );
        }
    }
    assert_eq!(seen, 60);
}

#[test]
fn larger_erases_are_refused_when_they_touch_a_protected_sector() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x50]);
    flash.send(&[0x01, 0b1100100, 0x02]); // SEC TB BP0: the lowest 4 KiB.
    flash.finish(&Chip::at(0xD8, 0x8000, &[]));
    assert_eq!(flash.last_refusal(), Some(Refusal::Protected));
    flash.finish(&Chip::at(0x52, 0x8000, &[]));
    assert_eq!(flash.last_refusal(), None);
}

#[test]
fn the_pin_locks_the_registers_only_with_srp_and_without_qe() {
    for (srp, qe, low, locked) in [
        (false, false, true, false),
        (true, false, false, false),
        (true, false, true, true),
        (true, true, true, false),
    ] {
        let mut flash = small_chip("W25Q128JV");
        flash.finish(&[0x01, u8::from(srp) << 7, u8::from(qe) << 1]);
        flash.set_pin(Pin::WriteProtect, !low);
        flash.finish(&[0x01, u8::from(srp) << 7 | 0x04]);
        let written = flash.register("SR1").unwrap() & 0x04 != 0;
        assert_eq!(written, !locked, "SRP {srp} QE {qe} WP# low {low}");
    }
}

#[test]
fn srl_locks_the_registers_until_the_next_power_cycle() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&[0x31, 0x03]);
    flash.finish(&[0x01, 0x04]);
    assert_eq!(flash.register("SR1"), Some(0x02), "refused, with WEL still set");
    flash.send(&[0x66]);
    flash.send(&[0x99]);
    flash.wait();
    flash.finish(&[0x01, 0x04]);
    assert_eq!(flash.register("SR1").unwrap() & 0x04, 0, "a reset does not unlock");
    flash.power_off();
    flash.power_on();
    flash.advance(10_000_000);
    flash.finish(&[0x01, 0x04]);
    assert_eq!((flash.register("SR1"), flash.register("SR2")), (Some(0x04), Some(0x02)));
}

#[test]
fn srl_with_srp_locks_the_w25q128fv_for_ever() {
    let mut flash = small_chip("W25Q128FV");
    flash.finish(&[0x01, 0x80, 0x01]);
    flash.power_off();
    flash.power_on();
    flash.advance(10_000_000);
    flash.finish(&[0x01, 0x04, 0x00]);
    assert_eq!((flash.register("SR1").unwrap() & 0x84, flash.register("SR2")), (0x80, Some(0x01)));
}

#[test]
fn volatile_register_writes_are_lost_with_the_power() {
    let mut flash = small_chip("W25Q128JV");
    flash.send(&[0x50]);
    flash.send(&[0x01, 0x1C]);
    assert_eq!((flash.register("SR1"), flash.busy_for()), (Some(0x1C), None), "at once");
    flash.power_off();
    flash.power_on();
    flash.advance(10_000_000);
    assert_eq!(flash.register("SR1"), Some(0x00));
    flash.finish(&[0x01, 0x1C]);
    flash.power_off();
    flash.power_on();
    assert_eq!(flash.register("SR1"), Some(0x1C));
}

#[test]
fn individual_locks_replace_the_protection_bits_with_wps() {
    let mut flash = small_chip("W25Q128JV");
    flash.finish(&Chip::at(0x02, 0x1000, &[1]));
    assert_eq!(flash.read_at(0x1000, 1), [1], "without WPS the locks do not count");
    flash.finish(&[0x11, 0x64]);
    for (address, unit) in [(0, 0x1000), (0x1000, 0x1000), (0x1_0000, 0x1_0000), (0x3_F000, 0x1000)] {
        assert_eq!(flash.ask(&Chip::at(0x3D, address, &[]), 1), [1], "locked at power-up");
        flash.finish(&Chip::at(0x39, address, &[]));
        flash.finish(&Chip::at(0x02, address + unit - 1, &[0x55]));
        assert_eq!(flash.read_at(address + unit - 1, 1), [0x55], "{address:05X}h");
        flash.finish(&Chip::at(0x36, address, &[]));
        flash.finish(&Chip::at(0x02, address + unit - 1, &[0]));
        assert_eq!(flash.last_refusal(), Some(Refusal::Protected));
    }
    flash.finish(&[0xC7]);
    assert_eq!(flash.last_refusal(), Some(Refusal::Protected));
    flash.finish(&[0x98]);
    flash.finish(&[0xC7]);
    assert_eq!(flash.read_at(0x1000, 1), [0xFF]);
}

#[test]
fn a_lock_down_of_the_mt25q_keeps_a_lock_until_the_power_goes() {
    let mut flash = small_chip("MT25QL128ABA");
    flash.finish(&Chip::at(0xE5, 0x1_0000, &[0x03]));
    flash.finish(&Chip::at(0xE5, 0x1_0000, &[0x00]));
    assert_eq!(flash.ask(&Chip::at(0xE8, 0x1_0000, &[]), 1), [3]);
    flash.finish(&Chip::at(0x20, 0x1_0000, &[]));
    // Flag status register: erase failure and protection, WEL stays set.
    assert_eq!(flash.ask(&[0x70], 1), [0xA2]);
    assert_eq!(flash.ask(&[0x05], 1), [0x02]);
    flash.send(&[0x50]);
    assert_eq!(flash.ask(&[0x70], 1), [0x80]);
    flash.power_off();
    flash.power_on();
    flash.advance(1_000_000);
    assert_eq!(flash.ask(&Chip::at(0xE8, 0x1_0000, &[]), 1), [0]);
}

#[test]
fn macronix_protects_from_the_bottom_with_its_one_time_bit_and_clears_wel() {
    let mut flash = Chip::erased(chip("MX25L25645G").unwrap().unwrap(), 1);
    flash.finish(&[0x01, 0x04, 0x0F]);
    assert_eq!(flash.protected_area(), 0..0x1_0000);
    flash.finish(&[0x01, 0x04, 0x07]);
    assert_eq!(flash.register("CR").unwrap() & 0x08, 0x08, "TB is one-time programmable");
    flash.finish(&Chip::at(0x20, 0, &[]));
    assert_eq!((flash.register("SR"), flash.register("SCUR")), (Some(0x04), Some(0x40)));
    for (value, end) in [(1, 1 << 16), (5, 1 << 20), (9, 1 << 24), (10, 1 << 25), (15, 1 << 25)] {
        flash.finish(&[0x01, value << 2]);
        assert_eq!(flash.protected_area(), 0..end, "BP {value}");
    }
}
