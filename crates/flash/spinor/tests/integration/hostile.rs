//! Arbitrary bytes, lines, pins, times and faults: the chip never panics, and erased state only comes from
//! erases.

use crate::common::small;
use proptest::prelude::*;
use spinor::{Aging, BusyTime, CHIPS, Chip, Cut, Faults, Pin};

#[derive(Debug, Clone)]
enum Event {
    Transaction(Vec<(u8, u8)>, bool),
    Opcode(u8, Vec<u8>),
    Clocks(Vec<u8>),
    Read(u16, u8),
    Advance(u64),
    Pin(bool, bool),
    Supply(u32),
    Busy(u32),
    Faults(f64, u64, u8),
    Age(f64),
}

fn events() -> impl Strategy<Value = Event> {
    let opcode = prop_oneof![
        4 => prop::sample::select(vec![0x06, 0x02, 0x20, 0xD8, 0x75, 0x7A, 0x01, 0x05, 0x66, 0x99, 0x38, 0xEB, 0xB7, 0xAD, 0x50, 0x42, 0xB1]),
        1 => any::<u8>(),
    ];
    prop_oneof![
        3 => (prop::collection::vec((any::<u8>(), 0u8..6), 0..12), any::<bool>()).prop_map(|(b, d)| Event::Transaction(b, d)),
        8 => (opcode, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(o, b)| Event::Opcode(o, b)),
        2 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Event::Clocks),
        2 => (0u16..5000, 0u8..6).prop_map(|(n, lines)| Event::Read(n, lines)),
        3 => prop_oneof![0u64..100_000, any::<u64>()].prop_map(Event::Advance),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(p, l)| Event::Pin(p, l)),
        1 => (0u32..4000).prop_map(Event::Supply),
        1 => (0u32..5).prop_map(Event::Busy),
        1 => (-1.0f64..2.0, 0u64..40, 0u8..5).prop_map(|(f, n, kind)| Event::Faults(f, n, kind)),
        1 => (-10.0f64..1e3).prop_map(Event::Age),
    ]
}

fn apply(chip: &mut Chip, event: &Event) {
    match event {
        Event::Transaction(bytes, end) => {
            chip.select();
            for (byte, lines) in bytes {
                chip.transfer(*byte, *lines);
            }
            if *end {
                chip.deselect();
            }
        }
        Event::Opcode(opcode, bytes) => {
            let mut all = vec![*opcode];
            all.extend(bytes);
            chip.transact(&all, &mut [0; 3]);
            chip.transact(&all, &mut []);
        }
        Event::Clocks(pins) => pins.iter().for_each(|pins| {
            chip.clock(*pins);
        }),
        Event::Read(count, lines) => chip.read(&mut vec![0; usize::from(*count)], *lines),
        Event::Advance(time) => chip.advance(*time),
        Event::Pin(which, level) => {
            chip.set_pin(if *which { Pin::WriteProtect } else { Pin::HoldReset }, *level);
        }
        Event::Supply(millivolts) => chip.set_supply(*millivolts),
        Event::Busy(polls) => chip.set_busy_time(BusyTime::Polls(*polls)),
        Event::Faults(fraction, n, kind) => chip.set_faults(match kind {
            0 => Faults {
                cuts: vec![Cut::Operation { after: *n % 3, fraction: *fraction }],
                ..Faults::default()
            },
            1 => Faults { cuts: vec![Cut::BusByte(*n)], ..Faults::default() },
            2 => Faults { flip_in: *fraction, flip_out: *fraction, ..Faults::default() },
            3 => Faults { stuck_busy: Some(*n % 3), wear: true, read_disturb: *n, ..Faults::default() },
            _ => Faults::default(),
        }),
        Event::Age(years) => {
            chip.age(Aging { years: *years, celsius: *years, rate: 1e-7 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_on_the_bus_makes_a_chip_panic(which in 0..CHIPS.len(), events in prop::collection::vec(events(), 0..60)) {
        let description = small(CHIPS[which].0);
        let mut chip = Chip::erased(description.clone(), 1);
        chip.set_trace(8);
        chip.set_clock(Some(100_000_000), true);
        for event in &events {
            apply(&mut chip, event);
        }
        let mut out = String::new();
        chip.trace().write_text(&description, &mut out).unwrap();
        chip.trace().write_json(&description, &mut out).unwrap();
        chip.trace().write_vcd(&description, 10, &mut out).unwrap();
        prop_assert!(chip.trace().records().count() <= 8);
    }
}
